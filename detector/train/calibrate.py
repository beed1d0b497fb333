"""Noise of several intensities on one node at a time of a live pool, recorded and labelled, as ICE's authors made it by
hand.

The noise is a command of the user's (`ssh {node} stress-ng ...`). Everything is limited: each noise by its time, and
the whole by users' response times and errors on any node of the pool. However it ends, the noise is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slackwater.core.bus.bus import Bus
from slackwater.core.config import BusSettings
from slackwater.core.messages import Cycle, Sample
from slackwater.detector.recordings.recording import Label, write

IN_A_ROW = 2
"""Samples of a node in a row beyond a limit, after which everything is stopped."""
QUIET_S = 3.0
"""A node without Samples for this long ends the calibration: the noise's effect would not be seen."""
HEAR_S = 10.0
STOP_S = 5.0
LOOK_EVERY_S = 0.05


class CalibrationError(Exception):
    """A calibration cannot begin or must not go on. The text says why."""


@dataclass(frozen=True)
class StopLimits:
    """Everything is stopped when any node of the pool is beyond one of these."""

    rt_p95_ms: float
    errors_per_s: float
    load: float
    """CPU utilisation up to which a node may be chosen, since it must be drained or lightly loaded."""


@dataclass(frozen=True)
class NoiseSchedule:
    """The plan of a calibration. A round has every intensity once on every node, and gives a recording."""

    nodes: Sequence[str]
    kind: str
    intensities: Sequence[float]
    rounds: int
    noise_s: float
    calm_s: float
    noise_command: str
    stop_command: str = ""

    @property
    def seconds(self) -> float:
        """Length of the whole calibration."""
        return self.rounds * (len(self.nodes) * len(self.intensities) * (self.noise_s + self.calm_s) + self.calm_s)


def argv_of(template: str, node: str, intensity: float, seconds: float) -> list[str]:
    """The command's words with {node}, {intensity} (0.5), {percent} (50) and {seconds} filled in; no shell reads them.

    Raises CalibrationError for a template that cannot be filled in, or is empty.
    """
    values = {
        "node": node,
        "intensity": f"{intensity:g}",
        "percent": f"{round(100 * intensity)}",
        "seconds": f"{round(seconds)}",
    }
    try:
        words = [word.format(**values) for word in shlex.split(template)]
    except (KeyError, IndexError, ValueError) as error:
        known = ", ".join(sorted(f"{{{name}}}" for name in values))
        raise CalibrationError(f"command `{template}`: {error!r}; what can be filled in: {known}") from None
    if not words:
        raise CalibrationError("the command is empty")
    return words


def beyond(sample: Sample, limits: StopLimits) -> str:
    """The limit that a Sample is beyond, in words; empty when none."""
    traffic = sample.traffic
    if traffic is None:
        return ""
    if traffic.rt_p95_ms is not None and traffic.rt_p95_ms > limits.rt_p95_ms:
        return f"p95 response time {traffic.rt_p95_ms:.0f} ms > {limits.rt_p95_ms:g} ms"
    if traffic.errors_per_s is not None and traffic.errors_per_s > limits.errors_per_s:
        return f"{traffic.errors_per_s:.1f} errors/s > {limits.errors_per_s:g}"
    return ""


@dataclass
class CalibrationMonitor:
    """The last Samples of the pool's nodes, and whether they are too bad to go on."""

    limits: StopLimits
    clock: Callable[[], float] = time.monotonic
    heard: list[Sample] = field(default_factory=list)
    trouble: str = ""
    acting: bool = False
    """Whether the pool's engine moves weights. It would undo the noise's effects."""
    _last: dict[str, tuple[float, Sample]] = field(default_factory=dict)
    _row: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, sample: Sample) -> None:
        """Keeps a Sample, and compares it with the limits."""
        self.heard.append(sample)
        self._last[sample.node] = self.clock(), sample
        excess = beyond(sample, self.limits)
        self._row[sample.node] = self._row[sample.node] + 1 if excess else 0
        if self._row[sample.node] >= IN_A_ROW and not self.trouble:
            self.trouble = f"{sample.node}: {excess}"

    def cycle(self, cycle: Cycle) -> None:
        """Notes whether the pool's engine acts."""
        self.acting = cycle.mode == "act" and not cycle.paused

    def check(self, nodes: Sequence[str]) -> None:
        """Raises CalibrationError when the calibration must not go on."""
        for node in nodes:
            if node in self._last and self.clock() - self._last[node][0] > QUIET_S:
                self.trouble = self.trouble or f"{node}: no Sample for {QUIET_S:g} s"
        if self.trouble:
            raise CalibrationError(f"stopped: {self.trouble}")

    def has_heard(self, nodes: Sequence[str]) -> bool:
        """Whether a Sample of each of these nodes has come."""
        return all(node in self._last for node in nodes)

    def fit(self, node: str) -> str:
        """Why a node cannot be calibrated now, in words; empty when it can."""
        if node not in self._last:
            return f"no Sample of {node} came within {HEAR_S:g} s; heard: {', '.join(sorted(self._last)) or 'nobody'}"
        cpu = self._last[node][1].cpu
        if cpu is None or cpu.utilisation is None:
            return f"{node} does not say how busy it is"
        if cpu.utilisation > self.limits.load:
            return f"{node} is busy ({cpu.utilisation:.0%} of its CPU > {self.limits.load:.0%}): drain it first"
        return ""


async def stopped(process: asyncio.subprocess.Process) -> None:
    """Ends a command and its children."""
    if process.returncode is None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
                return
            except TimeoutError:
                continue


async def make_noise(
    schedule: NoiseSchedule, node: str, intensity: float, monitor: CalibrationMonitor, labels: list[Label]
) -> None:
    """Makes one noise for its time, and adds its label to `labels`. However it ends, the command is stopped.

    Raises CalibrationError when it must end earlier.
    """
    argv = argv_of(schedule.noise_command, node, intensity, schedule.noise_s)
    begin_unix_s = time.time()
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        raise CalibrationError(f"{shlex.join(argv)}: cannot be started: {error.strerror or error}") from None
    try:
        end_s = time.monotonic() + schedule.noise_s
        while time.monotonic() < end_s and process.returncode is None:
            monitor.check([node])
            await asyncio.sleep(LOOK_EVERY_S)
        if process.returncode not in (None, 0):
            raise CalibrationError(f"{shlex.join(argv)}: ended with status {process.returncode}")
    finally:
        await stopped(process)
        if schedule.stop_command:
            stop = await asyncio.create_subprocess_exec(
                *argv_of(schedule.stop_command, node, intensity, schedule.noise_s), start_new_session=True
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), STOP_S)
            await stopped(stop)
        labels.append(Label(node, schedule.kind, intensity, begin_unix_s, time.time()))


async def calm(schedule: NoiseSchedule, monitor: CalibrationMonitor) -> None:
    """Waits for the calm between noises. It is monitored too."""
    end_s = time.monotonic() + schedule.calm_s
    while time.monotonic() < end_s:
        monitor.check(schedule.nodes)
        await asyncio.sleep(LOOK_EVERY_S)


async def calibrate(
    where: BusSettings,
    pool: str,
    schedule: NoiseSchedule,
    limits: StopLimits,
    folder: Path,
    show: Callable[[str], None],
) -> list[Path]:
    """Makes the recordings of a schedule, one a round, in a folder. Raises CalibrationError, BusError, RecordingError.

    When it must stop, the round's recording so far is written before the error is raised.
    """
    for command in (schedule.noise_command, *([schedule.stop_command] if schedule.stop_command else [])):
        argv_of(command, "node", 1.0, schedule.noise_s)
    monitor = CalibrationMonitor(limits)
    bus = await Bus.connect(where, "slackwater-calibrate")
    made: list[Path] = []
    labels: list[Label] = []
    try:
        await bus.subscribe("sample", monitor.take, pool=pool)
        await bus.subscribe("cycle", monitor.cycle, pool=pool)
        await _ready(schedule, pool, monitor)
        for number in range(1, schedule.rounds + 1):
            monitor.heard.clear()
            labels = []
            try:
                await calm(schedule, monitor)
                for node in schedule.nodes:
                    for intensity in sorted(schedule.intensities):
                        show(f"round {number} of {schedule.rounds}: {schedule.kind} {intensity:g} on {node}")
                        await make_noise(schedule, node, intensity, monitor, labels)
                        await calm(schedule, monitor)
            finally:
                if monitor.heard:
                    out = folder / f"round{number}.parquet"
                    write(out, monitor.heard, labels, f"calibration of pool {pool}: {schedule.kind}, round {number}")
                    made.append(out)
    finally:
        await bus.close()
    return made


async def _ready(schedule: NoiseSchedule, pool: str, monitor: CalibrationMonitor) -> None:
    """Waits until all nodes are heard of. Raises CalibrationError when a node is not fit, or the engine would act."""
    end_s = time.monotonic() + HEAR_S
    while time.monotonic() < end_s and not monitor.has_heard(schedule.nodes):
        await asyncio.sleep(LOOK_EVERY_S)
    for node in schedule.nodes:
        if why := monitor.fit(node):
            raise CalibrationError(why)
    if monitor.acting:
        raise CalibrationError(f"pool {pool} moves weights: run `slackwater pause` first, and `resume` afterwards")
