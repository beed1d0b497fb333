"""Labelled recordings for the detector: the monitors' Samples while the lab makes noise by a seeded timetable.

The weights stay (or move by the plan), no controller is in the way: only monitors, a bus, and this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slackwater.detector.recordings.recording import Label, write
from slackwater_lab.cluster import machine
from slackwater_lab.cluster.bus_listener import BusListener
from slackwater_lab.cluster.controller import start_bus, start_monitors
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.spawn import wait_until
from slackwater_lab.disturb import swing
from slackwater_lab.disturb.disturb import DISTURBERS, DisturbableCluster
from slackwater_lab.disturb.timetable import Disturbance, Timetable
from slackwater_lab.disturb.turn import Turn
from slackwater_lab.experiment.run import Neighbours
from slackwater_lab.experiment.steady import capacity_rps

READY_S = 15.0


class _Disturbances:
    """Begins and ends disturbances when it is time, and keeps when it really was."""

    def __init__(self, lab: Lab, planned: Sequence[Disturbance], site: DisturbableCluster | None) -> None:
        self._lab, self._site = lab, site
        self._left = sorted(planned, key=lambda turn: turn.begin_s)
        self._begin_s = time.monotonic()
        self._now: Turn | None = None
        self.labels: list[Label] = []

    def tend(self) -> None:
        """Call it often."""
        if self._now is not None and self._now.check():
            self.end()
        if self._now is None and self._left and time.monotonic() - self._begin_s >= self._left[0].begin_s:
            one = self._left.pop(0)
            host = None if one.host is None else self._lab.hosts[one.host]
            self._now = Turn(self._site, one, host, self._begin_s + one.end_s).__enter__()

    def end(self) -> None:
        """Ends the one that is on, if any."""
        if self._now is None:
            return
        turn, self._now = self._now, None
        turn.__exit__()
        turn.check()
        self.labels.append(turn.label("*" if turn.one.host is None else self._lab.hosts[turn.one.host].name))


def record(lab: Lab, script: Timetable, out: Path, note: str, progress: Callable[[str], None]) -> None:
    """Plays a plan and writes the recording. Raises LabError when a monitor says nothing."""
    site = DisturbableCluster(lab) if any(one.kind in DISTURBERS for one in script.disturbances) else None
    capacity = capacity_rps(lab)
    progress(f"capacity {capacity:.0f} requests/s in calm")
    bus = start_bus(lab)
    with BusListener() as listener:
        monitors = start_monitors(lab) if site is None else site.start_monitors()
        if site is not None:
            site.cpu_s = lab.settings.quota_cores * len(lab.hosts) / capacity
        names = {host.name for host in lab.hosts}
        wait_until(lambda: listener.nodes() >= names, "Samples of all hosts", READY_S, watch=[bus, *monitors])
        begin_unix_s, begin_s = time.time(), time.monotonic()
        neighbours = Neighbours(lab, script.noises)
        neighbours.start(begin_s, lambda _: None)
        disturbances = _Disturbances(lab, script.disturbances, site)
        total_s = sum(level.seconds for level in script.levels)
        shown = -1

        def each(now: swing.Swing) -> None:
            nonlocal shown
            neighbours.tend()
            disturbances.tend()
            listener.check()
            if (done := int(time.monotonic() - begin_s) // 10) > shown:
                shown = done
                progress(
                    f"{done * 10} of {total_s:.0f} s: load {now.share:.0%} of capacity, {len(listener.heard)} Samples"
                )

        requests, errors = swing.run(lab, capacity, script.levels, each)
        neighbours.stop()
        disturbances.end()
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
    labels = [*neighbours.labels, *disturbances.labels]
    write(out, samples, labels, about, received_unix_s)
    progress(f"{out}: {len(samples)} Samples, {len(labels)} labels; {requests} requests, {errors} errors")
