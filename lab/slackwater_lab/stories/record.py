"""Labelled recordings for the detector: the monitors' Samples while the lab makes noise by a seeded timetable.

The weights stay (or move by the plan), no controller is in the way: only monitors, a bus, and this.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

from slackwater.detector.recordings.recording import write
from slackwater_lab.cluster import machine
from slackwater_lab.cluster.controller import monitored, start_bus
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.disturb import swing
from slackwater_lab.disturb.disturb import DISTURBERS, DisturbableCluster
from slackwater_lab.disturb.timetable import Timetable
from slackwater_lab.disturb.turn import Turns
from slackwater_lab.experiment.neighbours import Neighbours
from slackwater_lab.experiment.steady import capacity_rps


def record(lab: Lab, script: Timetable, out: Path, note: str, progress: Callable[[str], None]) -> None:
    """Plays a plan and writes the recording. Raises LabError when a monitor says nothing."""
    site = (
        DisturbableCluster(lab) if any(disturbance.kind in DISTURBERS for disturbance in script.disturbances) else None
    )
    capacity = capacity_rps(lab)
    progress(f"capacity {capacity:.0f} requests/s in calm")
    start_bus(lab)
    if site is not None:
        site.cpu_s = lab.settings.quota_cores * len(lab.hosts) / capacity
    with monitored(lab, start=None if site is None else site.start_monitors) as listener:
        begin_unix_s, begin_s = time.time(), time.monotonic()
        neighbours = Neighbours(lab, script.noises)
        neighbours.start(begin_s, lambda _: None)
        disturbances, left = Turns(lab, site), deque(sorted(script.disturbances, key=attrgetter("begin_s")))
        total_s = sum(level.seconds for level in script.levels)
        shown = -1

        def each(now: swing.Swing) -> None:
            nonlocal shown
            neighbours.tend()
            while left and time.monotonic() - begin_s >= left[0].begin_s:
                disturbance = left.popleft()
                disturbances.begin(disturbance, begin_s + disturbance.end_s)
            disturbances.check()
            listener.check()
            if (done := int(time.monotonic() - begin_s) // 10) > shown:
                shown = done
                progress(
                    f"{done * 10} of {total_s:.0f} s: load {now.share:.0%} of capacity, {len(listener.heard)} Samples"
                )

        requests, errors = swing.run(lab, capacity, script.levels, each)
        neighbours.stop()
        disturbances.finish()
    facts = machine.describe(lab)
    machine_words = (
        f"{facts['cpu']}, {facts['cores']} cores, kernel {facts['kernel']}, cgroup v{facts['cgroup_version']}"
    )
    about = (
        f"lab: {facts['hosts']} hosts of {facts['quota_cores']:g} core, {facts['app']}, {facts['balance']}; {note}; "
        f"capacity {capacity:.0f} requests/s; {machine_words}"
    )
    taken = [
        (sample, received_s)
        for sample, received_s in zip(listener.heard, listener.received_unix_s, strict=False)
        if received_s >= begin_unix_s
    ]
    samples, received_unix_s = [sample for sample, _ in taken], [received_s for _, received_s in taken]
    labels = [*neighbours.labels, *disturbances.labels]
    write(out, samples, labels, about, received_unix_s)
    progress(f"{out}: {len(samples)} Samples, {len(labels)} labels; {requests} requests, {errors} errors")
