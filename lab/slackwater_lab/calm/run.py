"""Minutes of calm in the lab: nobody is loud, the load swings, and what is no neighbour happens to nodes and pools."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from slackwater.core.messages import Verdict
from slackwater.detector.recordings.recording import write
from slackwater_lab.calm import data
from slackwater_lab.calm.count import States, Tally
from slackwater_lab.calm.data import Minute, Series
from slackwater_lab.calm.machine_load import SLICE_S, SliceLoad
from slackwater_lab.calm.plan import MINUTE_S, CalmPlan
from slackwater_lab.cluster import machine
from slackwater_lab.cluster.bus_listener import BusListener
from slackwater_lab.cluster.commit import commit, decision_commit
from slackwater_lab.cluster.controller import Controller
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.machine_load import MachineLoad
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.compare.measured import MACHINE, PROGRAMS
from slackwater_lab.disturb import swing
from slackwater_lab.disturb.disturb import DISTURBERS, DisturbableCluster
from slackwater_lab.disturb.turn import Turns
from slackwater_lab.experiment.steady import capacity_rps

WARM_UP_S = 30.0
"""Load before the first minute, in which each node gets a calm baseline."""
LOOK_S = 1.0
STOOD_STILL_S = 30.0
"""A look that is this late shows no overload: the machine was stopped."""
Progress = Callable[[str], None]


def series_of(settings: LabSettings, plan: CalmPlan) -> Series:
    """The series to which minutes that are measured now belong."""
    return Series(
        decision_commit=decision_commit(),
        seed=plan.seed,
        kinds=plan.kinds,
        per_hour=plan.per_hour,
        load=plan.load,
        hosts=settings.hosts,
        pools=settings.pools,
        quota_cores=settings.quota_cores,
        period_s=settings.period_s,
        app=settings.app,
        balance=settings.balance,
        view=plan.view,
        kind=settings.kind,
    )


class _Verdicts(BusListener):
    """Hears the Verdicts, and keeps what began."""

    def __init__(self) -> None:
        super().__init__("verdict")
        self.states = States()

    def _take(self, message: Verdict) -> None:
        self.states.hear(time.monotonic(), message)


class Calm:
    """The fleet in calm, minute by minute."""

    def __init__(
        self,
        lab: Lab,
        plan: CalmPlan,
        progress: Progress,
        keep: Callable[[Minute], None],
        recordings: Path | None = None,
    ) -> None:
        """`keep` gets each minute when it is over. `recordings`: a folder for a recording of each pool."""
        self._lab, self._plan, self._progress, self._keep = lab, plan, progress, keep
        self._series = series_of(lab.settings, plan)
        self._recordings = recordings

    def run(self, minutes: Sequence[int]) -> None:
        """Measures these minutes of the plan. Raises LabError."""
        lab, plan = self._lab, self._plan
        site = DisturbableCluster(lab) if set(plan.kinds) & set(DISTURBERS) else None
        hosts_rps = capacity_rps(lab)
        quotas = lab.settings.quota_cores * len(lab.hosts)
        self._capacity_rps = hosts_rps * min(1.0, plan.load * (os.cpu_count() or 1) / quotas)
        if site is not None:
            site.cpu_s = quotas / hosts_rps
        monitors = plan.view == "monitors"
        started = "the monitors and the controller" if monitors else "the controller alone"
        self._progress(f"full load is {self._capacity_rps:.0f} requests/s; starting {started}")
        facts = machine.describe(lab)
        self._machine = {key: facts[key] for key in (*MACHINE, *PROGRAMS, "php_children")}
        controller = Controller(lab, "observe", monitors=monitors)
        controller.start(site.start_monitors if site is not None else None)
        self._swings = self._start_load(minutes)
        with (
            _Verdicts() as self._verdicts,
            BusListener() if self._recordings else nullcontext() as samples,
            MachineLoad(lab) as self._load,
        ):
            self._disturbances = Turns(lab, site)
            begin_s = time.monotonic() + WARM_UP_S
            self._progress(f"warming up for {WARM_UP_S:g} s")
            self._until(begin_s)
            self._load.since_last()
            tally = Tally()
            try:
                for place, minute in enumerate(minutes):
                    self._minute(minute, begin_s + place * MINUTE_S, tally)
                    tally = tally.next_minute()
            finally:
                self._disturbances.finish()
                if self._recordings is not None and samples is not None:
                    self._record(self._recordings, samples)
        for swing_load in self._swings:
            swing_load.finish()
        controller.stop()

    def _record(self, folder: Path, heard: BusListener) -> None:
        """Writes a recording of each pool with the Samples heard until now. Raises RecordingError, OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        begun = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(heard.received_unix_s[0] if heard.heard else None))
        settings = self._lab.settings
        about = f"lab: calm, {settings.hosts} hosts of {settings.quota_cores:g} core, seed {self._plan.seed}"
        received = list(zip(heard.heard, heard.received_unix_s, strict=False))
        for pool in self._lab.balancer.urls:
            of_pool = [(sample, at_unix_s) for sample, at_unix_s in received if sample.pool == pool]
            nodes = {sample.node for sample, _ in of_pool}
            labels = [label for label in self._disturbances.labels if label.node in nodes]
            file = folder / f"{pool}-{begun}.parquet"
            write(file, [sample for sample, _ in of_pool], labels, about, [at_unix_s for _, at_unix_s in of_pool])
        self._progress(f"{folder}: a recording of each pool, {len(received)} Samples")

    def _start_load(self, minutes: Sequence[int]) -> list[swing.Swing]:
        hosts = self._lab.hosts
        swings = []
        for pool, url in self._lab.balancer.urls.items():
            share = sum(host.pool == pool for host in hosts) / len(hosts)
            warm_up = swing.Level((swing.LOW + swing.HIGH) / 2, WARM_UP_S)
            levels = [warm_up, *(level for minute in minutes for level in self._plan.levels(minute, pool, hosts))]
            swings.append(swing.Swing(self._lab, self._capacity_rps * share, levels, url))
        return swings

    def _answered(self) -> tuple[int, int]:
        """Requests and errors of the levels that are over: of the last seconds they are counted in the next minute."""
        return sum(swing_load.requests for swing_load in self._swings), sum(
            swing_load.errors for swing_load in self._swings
        )

    def _until(self, mono_s: float) -> None:
        """Tends the load until then."""
        while (left_s := mono_s - time.monotonic()) > 0:
            for swing_load in self._swings:
                swing_load.tend()
            time.sleep(min(0.05, left_s))

    def _minute(self, minute: int, begin_s: float, tally: Tally) -> None:
        """One minute, tended until its end."""
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        states, disturbances = self._verdicts.states, self._disturbances
        names = [host.name for host in self._lab.hosts]
        planned = self._plan.disturbances(minute, self._lab.hosts)
        left = list(planned)
        requests_before, errors_before = self._answered()
        slice_s, at_s, late_s = begin_s, begin_s, 0.0
        while at_s < begin_s + MINUTE_S:
            next_s = at_s + LOOK_S
            while left and begin_s + left[0].begin_s <= next_s:
                self._until(begin_s + left[0].begin_s)
                disturbance = left.pop(0)
                disturbances.begin(disturbance, begin_s + disturbance.end_s)
            self._until(next_s)
            late_s = max(late_s, time.monotonic() - next_s)
            if late_s > STOOD_STILL_S:
                raise LabError(f"the lab stood still for {late_s:.0f} s: what was measured in this minute is left out")
            self._lab.check()
            self._verdicts.check()
            disturbances.check()
            beside = {name: kind for name in names if (kind := disturbances.beside(name, next_s)) is not None}
            tally.look(LOOK_S, names, states.judged(time.monotonic()), beside)
            at_s = next_s
            if at_s - slice_s >= SLICE_S - LOOK_S / 2:
                load = self._load.since_last()
                tally.end_slice(slice_s, at_s, SliceLoad(load.busy_share, load.wait_ms, late_s))
                slice_s, late_s = at_s, 0.0
        requests, errors = self._answered()
        one_minute = Minute(
            begun=begun,
            machine=self._machine,
            commit=commit(),
            minute=minute,
            capacity_rps=round(self._capacity_rps, 1),
            requests=requests - requests_before,
            errors=errors - errors_before,
            disturbances=dict(Counter(disturbance.kind for disturbance in planned)),
            node_s=tally.node_s(),
            overloaded_node_s=tally.overloaded_node_s(),
            unjudged_node_s=tally.unjudged_node_s,
            busy_shares=[round(part.load.busy_share, 3) for part in tally.slices],
            waits_ms=[round(part.load.wait_ms, 3) for part in tally.slices],
            began=tally.began(states.changes, begin_s, disturbances.beside, states.was_slow),
            **data.described(self._series),
        )
        disturbances.forget(begin_s)
        self._keep(one_minute)
