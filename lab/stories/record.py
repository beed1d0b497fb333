"""Labelled recordings for the detector: what the monitors say while the lab makes noise by a seeded plan.

The weights stay (or move by the plan), no controller is in the way: only monitors, a bus, and this.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from detector.recordings.recording import Label, write
from lab.cluster import machine
from lab.cluster.balancer import BASE_WEIGHT
from lab.cluster.controller import BUS_LISTEN, POOL, start_bus, start_monitors
from lab.cluster.lab import Lab
from lab.cluster.noise import Noise
from lab.cluster.paths import LabError
from lab.cluster.spawn import wait_until
from lab.disturb import swing
from lab.disturb.disturb import DOERS, Site
from lab.disturb.timetable import Disturbance, Loud, Plan
from lab.stories.scenario import capacity_rps
from slackwater.bus.bus import Bus

READY_S = 15.0
MARGIN_S = 5.0
AFTER_S = 3.0
"""So much longer than the disturbance lasts its label: caches warm up, queues drain."""


class Listener:
    """Collects the pool's messages of a kind from the bus, in a thread of its own."""

    def __init__(self, url: str, kind: str = "sample") -> None:
        self.heard: list[Any] = []
        self.received_unix_s: list[float] = []
        """When each was heard, by this machine's clock."""
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
        await bus.subscribe(self._kind, self._take, pool=POOL)
        await self._end.wait()
        await bus.close()

    def _take(self, message: Any) -> None:
        self.received_unix_s.append(time.time())
        self.heard.append(message)

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
    """Starts and ends what a plan names when it is time, and writes down when it really was."""

    def __init__(self, lab: Lab, script: Plan, site: Site | None) -> None:
        self._lab = lab
        self._site = site
        self._left: list[Loud | Disturbance] = sorted(
            [*script.noises, *script.disturbances], key=lambda turn: turn.begin_s
        )
        self._begin_s = time.monotonic()
        self._now: tuple[Loud, Noise] | None = None
        self._disturbed: tuple[Disturbance, float, contextlib.ExitStack] | None = None
        self.labels: list[Label] = []

    def tend(self) -> None:
        at = time.monotonic() - self._begin_s
        if self._now is not None:
            self._now[1].check()
            if at >= self._now[0].end_s:
                self._end_noise()
        if self._disturbed is not None and at >= self._disturbed[0].end_s:
            self._end_disturbance()
        if self._left and at >= self._left[0].begin_s:
            turn = self._left.pop(0)
            if isinstance(turn, Loud):
                self._begin_noise(turn)
            else:
                self._begin_disturbance(turn)

    def _begin_noise(self, loud: Loud) -> None:
        host = self._lab.hosts[loud.host]
        on = self._lab.noise(host, loud.kind, loud.intensity, loud.end_s - loud.begin_s + MARGIN_S)
        self._now = (loud, on)
        if loud.weight != BASE_WEIGHT:
            self._lab.balancer.set_weight(host.name, loud.weight)

    def _end_noise(self) -> None:
        if self._now is None:
            return
        loud, noise = self._now
        noise.stop()
        if loud.weight != BASE_WEIGHT:
            self._lab.balancer.set_weight(noise.host, BASE_WEIGHT)
        end_unix_s = noise.on_unix_s if noise.off_unix_s is None else noise.off_unix_s
        self.labels.append(Label(noise.host, noise.kind, noise.intensity, noise.on_unix_s, end_unix_s))
        self._now = None

    def _begin_disturbance(self, one: Disturbance) -> None:
        on_unix_s = time.time()
        stack = contextlib.ExitStack()
        if self._site is not None and one.kind in DOERS:
            host = None if one.host is None else self._lab.hosts[one.host]
            stack.enter_context(DOERS[one.kind](self._site, host, one.size))
        self._disturbed = (one, on_unix_s, stack)

    def _end_disturbance(self) -> None:
        if self._disturbed is None:
            return
        one, on_unix_s, stack = self._disturbed
        self._disturbed = None
        stack.close()
        node = "*" if one.host is None else self._lab.hosts[one.host].name
        after_s = 0.0 if one.kind == "overload" else AFTER_S
        self.labels.append(Label(node, one.kind, one.size, on_unix_s, time.time() + after_s))

    def end(self) -> None:
        self._end_noise()
        self._end_disturbance()


def record(lab: Lab, script: Plan, out: Path, note: str, say: Callable[[str], None]) -> None:
    """Plays a plan and writes the recording. Raises LabError when a monitor says nothing."""
    site = Site(lab) if any(one.kind in DOERS for one in script.disturbances) else None
    capacity = capacity_rps(lab)
    say(f"capacity {capacity:.0f} requests/s in calm")
    bus = start_bus(lab)
    with Listener(f"nats://{BUS_LISTEN}") as listener:
        monitors = start_monitors(lab) if site is None else site.start_monitors()
        if site is not None:
            site.cpu_s = lab.settings.quota_cores * len(lab.hosts) / capacity
        names = {host.name for host in lab.hosts}
        wait_until(lambda: listener.nodes() >= names, "Samples of all hosts", READY_S, watch=[bus, *monitors])
        begin_unix_s, begin_s = time.time(), time.monotonic()
        stage = _Stage(lab, script, site)
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
    facts = machine.describe(lab)
    machine_words = (
        f"{facts['cpu']}, {facts['cores']} cores, kernel {facts['kernel']}, cgroup v{facts['cgroup_version']}"
    )
    about = (
        f"lab: {facts['hosts']} hosts of {facts['quota_cores']:g} core, {facts['app']}, {facts['balance']}; {note}; "
        f"capacity {capacity:.0f} requests/s; {machine_words}"
    )
    taken = [(one, at) for one, at in zip(listener.heard, listener.received_unix_s, strict=False) if at >= begin_unix_s]
    samples, received_unix_s = [one for one, _ in taken], [at for _, at in taken]
    write(out, samples, stage.labels, about, received_unix_s)
    say(f"{out}: {len(samples)} Samples, {len(stage.labels)} labels; {requests} requests, {errors} errors")
