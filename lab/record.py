"""Labelled recordings for the detector: what the monitors say while the lab makes noise by a seeded plan.

The weights stay (or move by the plan), no controller is in the way: only monitors, a bus, and this.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from detector.recording import Label, write
from lab import machine, swing
from lab.balancer import BASE_WEIGHT
from lab.controller import BUS_LISTEN, POOL, start_bus, start_monitors
from lab.lab import Lab
from lab.noise import Noise
from lab.paths import LabError
from lab.scenario import capacity_rps
from lab.spawn import wait_until
from slackwater.bus import Bus

READY_S = 15.0
FIRST_CALM_S = 12.0
DRAIN_WEIGHTS = (100, 50, 10, 0)
OVERLOAD = (1.15, 1.5)
MARGIN_S = 5.0


@dataclass(frozen=True)
class Loud:
    """A noise of the plan, in seconds from the start of the recording; `weight` is set for the host meanwhile."""

    host: int
    kind: str
    intensity: float
    begin_s: float
    end_s: float
    weight: int = BASE_WEIGHT


@dataclass(frozen=True)
class Plan:
    """What happens in a recording."""

    levels: list[swing.Level]
    noises: list[Loud]
    overloads: list[tuple[float, float]]


def plan(
    seed: int,
    seconds: float,
    *,
    hosts: int,
    kinds: Sequence[str],
    intensities: Sequence[float],
    share: float | None,
    drain: bool,
    overload: bool,
) -> Plan:
    """A plan from a seed: noises of 4 to 10 s in one host at a time, 5 to 12 s of calm between them.

    `share` is the load as a share of capacity; None: it swings. With `overload` every third noise makes way for a
    load that no pool could carry. With `drain` a host's weight is moved during its noise, as a controller would.
    """
    dice = random.Random(seed)
    noises: list[Loud] = []
    overloads: list[tuple[float, float]] = []
    at = FIRST_CALM_S + dice.uniform(0.0, 4.0)
    turn = 0
    while kinds and at + 4.0 < seconds:
        end = min(at + dice.uniform(4.0, 10.0), seconds - 0.5)
        turn += 1
        if overload and turn % 3 == 0:
            overloads.append((round(at, 2), round(end, 2)))
        else:
            weight = dice.choice(DRAIN_WEIGHTS) if drain else BASE_WEIGHT
            host, kind = dice.randrange(hosts), dice.choice(list(kinds))
            noises.append(Loud(host, kind, dice.choice(list(intensities)), round(at, 2), round(end, 2), weight))
        at = end + dice.uniform(5.0, 12.0)
    base = swing.levels(dice, seconds) if share is None else [swing.Level(share, seconds)]
    return Plan(_with_overloads(base, overloads, dice), noises, overloads)


def _with_overloads(
    base: Sequence[swing.Level], overloads: Sequence[tuple[float, float]], dice: random.Random
) -> list[swing.Level]:
    """The levels with stretches of overload laid over them."""
    found: list[swing.Level] = []
    begin_s = 0.0
    for level in base:
        end_s = begin_s + level.seconds
        at = begin_s
        for first, last in overloads:
            if last <= at or first >= end_s:
                continue
            if first > at:
                found.append(swing.Level(level.share, first - at))
                at = first
            if at == first:
                found.append(swing.Level(round(dice.uniform(*OVERLOAD), 3), last - first))
            at = last
        if at < end_s:
            found.append(swing.Level(level.share, end_s - at))
        begin_s = end_s
    return found


class Listener:
    """Collects the pool's messages of a kind from the bus, in a thread of its own."""

    def __init__(self, url: str, kind: str = "sample") -> None:
        self.heard: list[Any] = []
        self._url = url
        self._kind = kind
        self._error: Exception | None = None
        self._end: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._listen())
        except Exception as error:
            self._error = error

    async def _listen(self) -> None:
        self._end = asyncio.Event()
        bus = await Bus.connect(self._url, "lab-record")
        await bus.subscribe(self._kind, self.heard.append, pool=POOL)
        await self._end.wait()
        await bus.close()

    def check(self) -> None:
        if self._error:
            raise LabError(f"the bus cannot be listened to: {self._error}")

    def nodes(self) -> set[str]:
        """Who was heard."""
        self.check()
        return {message.node for message in list(self.heard)}

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(5.0)


class _Stage:
    """Starts and ends the noises of a plan when it is time, and writes down when it really was."""

    def __init__(self, lab: Lab, noises: Sequence[Loud]) -> None:
        self._lab = lab
        self._left = list(noises)
        self._begin_s = time.monotonic()
        self._now: tuple[Loud, Noise] | None = None
        self.labels: list[Label] = []

    def tend(self) -> None:
        at = time.monotonic() - self._begin_s
        if self._now is not None:
            self._now[1].check()
            if at >= self._now[0].end_s:
                self.end()
        if self._now is None and self._left and at >= self._left[0].begin_s:
            loud = self._left.pop(0)
            host = self._lab.hosts[loud.host]
            on = self._lab.noise(host, loud.kind, loud.intensity, loud.end_s - loud.begin_s + MARGIN_S)
            self._now = (loud, on)
            if loud.weight != BASE_WEIGHT:
                self._lab.balancer.set_weight(host.name, loud.weight)

    def end(self) -> None:
        if self._now is None:
            return
        loud, noise = self._now
        noise.stop()
        if loud.weight != BASE_WEIGHT:
            self._lab.balancer.set_weight(noise.host, BASE_WEIGHT)
        end_unix_s = noise.on_unix_s if noise.off_unix_s is None else noise.off_unix_s
        self.labels.append(Label(noise.host, noise.kind, noise.intensity, noise.on_unix_s, end_unix_s))
        self._now = None


def record(lab: Lab, script: Plan, out: Path, note: str, say: Callable[[str], None]) -> None:
    """Plays a plan and writes the recording. Raises LabError when a monitor says nothing."""
    capacity = capacity_rps(lab)
    say(f"capacity {capacity:.0f} requests/s in calm")
    bus = start_bus(lab)
    with Listener(f"nats://{BUS_LISTEN}") as listener:
        monitors = start_monitors(lab)
        names = {host.name for host in lab.hosts}
        wait_until(lambda: listener.nodes() >= names, "Samples of all hosts", READY_S, watch=[bus, *monitors])
        begin_unix_s, begin_s = time.time(), time.monotonic()
        stage = _Stage(lab, script.noises)
        total_s = sum(level.seconds for level in script.levels)
        shown = -1

        def each(now: swing.Swing) -> None:
            nonlocal shown
            stage.tend()
            listener.check()
            if (done := int(time.monotonic() - begin_s) // 10) > shown:
                shown = done
                say(f"{done * 10} of {total_s:.0f} s: load {now.share:.0%} of capacity, {len(listener.heard)} Samples")

        requests, errors = swing.run(lab, capacity, script.levels, each)
        stage.end()
    labels = stage.labels + [
        Label("*", "overload", OVERLOAD[0], begin_unix_s + begin, begin_unix_s + end) for begin, end in script.overloads
    ]
    facts = machine.describe(lab)
    machine_words = (
        f"{facts['cpu']}, {facts['cores']} cores, kernel {facts['kernel']}, cgroup v{facts['cgroup_version']}"
    )
    about = (
        f"lab: {facts['hosts']} hosts of {facts['quota_cores']:g} core, {facts['app']}, {facts['balance']}; {note}; "
        f"capacity {capacity:.0f} requests/s; {machine_words}"
    )
    write(out, [one for one in listener.heard if one.time_unix_s >= begin_unix_s], labels, about)
    say(f"{out}: {len(listener.heard)} Samples, {len(labels)} labels; {requests} requests, {errors} errors")
