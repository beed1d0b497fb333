"""Runs in the lab: calm, a scenario's neighbours, and the way back to the usual weights; everything recorded."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from slackwater.core.messages import Sample, Verdict
from slackwater.detector.recordings.recording import Label
from slackwater.detector.recordings.recording import write as write_samples
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.commit import commit
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand, joined
from slackwater_lab.cluster.machine_load import MachineLoad
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.experiment import cost, recording
from slackwater_lab.experiment.balancer_watch import BalancerWatch
from slackwater_lab.experiment.cpu_share import CpuShare
from slackwater_lab.experiment.neighbour_share import Aim, aim
from slackwater_lab.experiment.neighbours import Neighbours
from slackwater_lab.experiment.policies import POLICIES
from slackwater_lab.experiment.policy_runners import PolicyRunner
from slackwater_lab.experiment.recording import Marks, Recorded, Run
from slackwater_lab.experiment.scenarios import Neighbour, Scenario
from slackwater_lab.experiment.steady import set_weights, stay, wait_for

SETTLE_S = 1.0
"""Load that is not counted: connections are opened."""
CALM_S = 2.0
"""Calm that is counted, before the first neighbour."""
TAIL_S = 0.1
"""Load after the last neighbour that is recorded too."""
BACK_WITHIN_S = 8.0
"""The longest wait for the usual weights after the last neighbour that is recorded."""
STAYS_S = 0.5
"""Weights that are the usual ones for this long stay so."""
LATER_S = 12.0
"""The longest wait before the next run for the usual weights, and for Verdicts of calm."""
LONGEST_S = 180.0
"""Load meanwhile a policy starts: it is ended when the policy is ready."""
BEFORE_S = 5.0
"""Time before a run of which its recording has Samples and Verdicts."""
MARGIN_S = 3.0
POLL_S = 0.02


@dataclass
class RunResult:
    """The result of a run: its recording, and the monitors' Samples with labels."""

    recorded: Recorded
    samples: Sequence[Sample]
    labels: Sequence[Label]

    def save(self, folder: Path) -> None:
        """Writes it into a comparison's folder. Raises OSError."""
        run = self.recorded.run
        if self.samples:
            about = f"comparison, {run.scenario}, {run.policy}, round {run.round}"
            write_samples(recording.path_of(folder, run.number, "samples"), self.samples, self.labels, about)
        recording.write(folder, self.recorded)


def one_run(lab: Lab, run: Run, scenario: Scenario, demand: Demand, capacity_rps: float = 0.0) -> RunResult:
    """Runs a scenario under a policy that begins and ends with it. Raises LabError."""
    with Session(lab, run.policy, scenario) as session:
        return session.play(run, scenario, demand, capacity_rps)


class Session:
    """A policy that is on while it is entered, and plays one scenario after the other on hosts of the same quotas.

    Afterwards the weights are the baseline again.
    """

    def __init__(self, lab: Lab, policy: str, scenario: Scenario) -> None:
        """`scenario` is the first one to play."""
        self._lab, self._policy, self._scenario = lab, POLICIES[policy], scenario
        self._learnt: set[Demand] = set()
        """Loads under which it is ready; none before its programs began."""
        self._runner: PolicyRunner | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.__exit__)
            self._set_up()
            _set_quotas(self._lab, self._scenario.quotas)
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            self._runner.end()
        _set_quotas(self._lab, ())
        set_weights(self._lab, {host.name: BASE_WEIGHT for host in self._lab.hosts})

    def _set_up(self) -> PolicyRunner:
        runner = self._runner = self._policy.runner(self._lab, self._scenario)
        balancer = self._lab.balancer
        names = [host.name for host in self._lab.hosts]
        words = {name: f"{self._scenario.checks} {runner.lines.get(name, '')}".strip() for name in names}
        lines = {name: line for name, line in words.items() if line}
        if (balancer.balance, balancer.lines) != (self._policy.balance, lines):
            balancer.set_balance(self._policy.balance, lines)
            balancer.reload()
        return runner

    def play(self, run: Run, scenario: Scenario, demand: Demand, capacity_rps: float = 0.0) -> RunResult:
        """Runs a scenario. `capacity_rps` is what surges are shares of. Raises LabError."""
        self._scenario = scenario
        aims = aims_of(self._lab, scenario)
        shares = {neighbour: aimed.weight for neighbour, aimed in aims.items()}
        neighbours = Neighbours(self._lab, scenario.neighbours, weights=shares)
        try:
            runner = self._ready(demand)
            neighbours.fill()
            return _measured(self._lab, run, scenario, runner, demand, capacity_rps, aims, neighbours)
        finally:
            neighbours.stop()

    def _ready(self, demand: Demand) -> PolicyRunner:
        """The policy with its programs on. One that learns what calm looks like has done so under this load, and knows
        nothing of an episode any more: where it does not forget one, its programs start anew."""
        runner = self._runner
        assert runner is not None
        runner.scenario = self._scenario
        if not runner.learns:
            if not self._learnt:
                runner.begin()
            self._learnt.add(demand)
            return runner
        if demand in self._learnt and runner.is_calm():
            return runner
        load = self._lab.load(demand, LONGEST_S, runner.url)
        try:
            if self._learnt and not wait_for(self._lab, runner.is_calm, LATER_S, load):
                runner.end()
                self._learnt.clear()
                runner = self._set_up()
            if not self._learnt:
                runner.begin()
            if demand not in self._learnt:
                stay(self._lab, time.monotonic() + runner.learn_s(demand), load)
                self._learnt.add(demand)
            if not wait_for(self._lab, runner.is_calm, LATER_S, load):
                raise LabError(f"not calm after {LATER_S:g} s under load: {self._policy.source}")
        finally:
            load.stop()
        return runner


def _measured(
    lab: Lab,
    run: Run,
    scenario: Scenario,
    runner: PolicyRunner,
    demand: Demand,
    capacity_rps: float,
    aims: Mapping[Neighbour, Aim],
    neighbours: Neighbours,
) -> RunResult:
    lasts_s = SETTLE_S + CALM_S + scenario.seconds + TAIL_S
    with contextlib.ExitStack() as stack:
        before, before_s = cost.look(lab), time.monotonic()
        retries = lab.balancer.retries()
        watch = stack.enter_context(BalancerWatch(lab.balancer.snapshot))
        machine_load = stack.enter_context(MachineLoad(lab))
        loads = [lab.load(demand, lasts_s, runner.url)]
        begin_s = loads[0].begin_mono_s
        begin_unix_s = time.time() - (time.monotonic() - begin_s)
        on_s = begin_s + SETTLE_S + CALM_S
        used = CpuShare(lab.cgroups.cpu_s, lab.hosts)

        def changed(lost: dict[int, float]) -> None:
            used.turn(bool(lost))
            runner.noisy(lost)

        neighbours.start(on_s, changed)
        stack.callback(neighbours.stop)
        surges = sorted(scenario.surges, key=lambda surge: surge.begin_s, reverse=True)
        while time.monotonic() < begin_s + lasts_s:
            neighbours.tend()
            runner.check()
            lab.check()
            loads[0].check()
            while surges and time.monotonic() >= on_s + surges[-1].begin_s:
                more = surges.pop()
                rate = Demand(rate_rps=round(more.share * capacity_rps, 1))
                loads.append(lab.load(rate, more.end_s - more.begin_s, runner.url))
            time.sleep(POLL_S)
        neighbours.stop()
        carried = machine_load.since_last()
        costs = cost.between(before, cost.look(lab), time.monotonic() - before_s)
        _until_back(lab, runner, demand, watch)
        end_s = time.monotonic()
        parts = [load.finish() for load in loads]
        requests = joined(parts)
    past = sorted(neighbours.past, key=lambda noise: noise.on_mono_s)
    on_s = past[0].on_mono_s if past else on_s
    off_s = max((noise.off_mono_s or noise.on_mono_s for noise in past), default=on_s + scenario.seconds)
    weights = [
        (look.mono_s - begin_s, server, weight, look.requests[server])
        for look in watch.history
        for server, weight in look.weight.items()
    ]
    recorded = Recorded(
        run=run,
        marks=Marks(SETTLE_S, on_s - begin_s, off_s - begin_s, end_s - begin_s),
        lost=requests.lost_count,
        due_s=requests.due_mono_s - begin_s,
        seconds=requests.seconds,
        status=requests.status,
        weights=weights,
        verdicts=judged(runner.verdicts, begin_unix_s),
        facts={
            "commit": commit(),
            "rate_rps": demand.rate_rps,
            "clients": demand.clients,
            "begin_unix_s": begin_unix_s,
            "lost": requests.lost,
            "neighbours": [
                {
                    "host": noise.host,
                    "kind": noise.kind,
                    "on_s": noise.on_mono_s - begin_s,
                    "off_s": (noise.off_mono_s or noise.on_mono_s) - begin_s,
                }
                for noise in past
            ],
            "taken": [aimed.as_fact() for aimed in dict.fromkeys(aims.values())],
            "cpu": used.used,
            "cost": costs,
            "machine_load": {
                "busy_share": round(carried.busy_share - carried.low_share, 3),
                "wait_ms": round(carried.wait_ms, 3),
                "late_ms": round(parts[0].generator_late_ms(demand.connections), 3),
            },
            "retries": lab.balancer.retries() - retries,
            "turned": [
                {
                    "at_s": change.time_unix_s - begin_unix_s,
                    "node": change.target,
                    "what": change.what,
                    "after": change.after,
                }
                for change in runner.knob_changes
                if change.time_unix_s >= begin_unix_s
            ],
        },
    )
    samples = [sample for sample in runner.samples if sample.time_unix_s >= begin_unix_s - BEFORE_S]
    return RunResult(recorded, samples, neighbours.labels)


def _until_back(lab: Lab, runner: PolicyRunner, demand: Demand, watch: BalancerWatch) -> None:
    """Waits under load until all weights stay the usual ones, `BACK_WITHIN_S` at most."""
    load = lab.load(demand, BACK_WITHIN_S + MARGIN_S, runner.url)
    try:
        end_s = time.monotonic() + BACK_WITHIN_S
        moved_s, usual = time.monotonic(), watch.history[0].weight
        while (now_s := time.monotonic()) < end_s and now_s - moved_s < STAYS_S:
            runner.check()
            lab.check()
            load.check()
            if watch.history[-1].weight != usual:
                moved_s = now_s
            time.sleep(POLL_S)
    finally:
        load.stop()


def judged(verdicts: Sequence[Verdict] | None, begin_unix_s: float) -> list[tuple[float, str, str]] | None:
    """Verdicts as they are recorded: (seconds from the run's begin, server, state) in order of time, from `BEFORE_S`
    before it on."""
    if verdicts is None:
        return None
    times = ((verdict.time_unix_s - begin_unix_s, verdict.node, str(verdict.state)) for verdict in verdicts)
    return sorted(row for row in times if row[0] >= -BEFORE_S)


def aims_of(lab: Lab, scenario: Scenario) -> dict[Neighbour, Aim]:
    """The weight of each neighbour that is to take a stated share. Raises LabError where one does not."""
    aims = {}
    for neighbour in scenario.neighbours:
        if neighbour.lost is not None:
            quota = scenario.quotas[neighbour.host] if scenario.quotas else lab.settings.quota_cores
            aims[neighbour] = aim(lab, lab.hosts[neighbour.host], neighbour.kind, neighbour.lost, quota)
    return aims


def _set_quotas(lab: Lab, quotas: Sequence[float]) -> None:
    """Gives each host its quota; empty: the lab's own."""
    for number, host in enumerate(lab.hosts):
        lab.set_quota(host, quotas[number] if quotas else lab.settings.quota_cores)
