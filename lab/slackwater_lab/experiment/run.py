"""One run in the lab: calm, the scenario's neighbours, and the way back to the usual weights; everything recorded."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from slackwater.core.messages import Sample, Verdict
from slackwater.detector.recordings.recording import Label
from slackwater.detector.recordings.recording import write as write_samples
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.commit import commit
from slackwater_lab.cluster.hosts import NEIGHBOUR_WEIGHT
from slackwater_lab.cluster.lab import Lab, PreparedNoise
from slackwater_lab.cluster.load import Demand, joined
from slackwater_lab.cluster.noise import Noise
from slackwater_lab.experiment import cost, recording
from slackwater_lab.experiment.balancer_watch import BalancerWatch
from slackwater_lab.experiment.cpu_share import CpuShare
from slackwater_lab.experiment.neighbour_share import Aim, aim
from slackwater_lab.experiment.policies import POLICIES
from slackwater_lab.experiment.policy_runners import PolicyRunner
from slackwater_lab.experiment.recording import Marks, Recorded, Run
from slackwater_lab.experiment.scenarios import Neighbour, Scenario
from slackwater_lab.experiment.steady import set_weights, stay

MARGIN_S = 3.0
SETTLE_S = 1.0
"""Load that is not counted: connections are opened."""
CALM_S = 2.0
"""Calm that is counted, before the first neighbour."""
TAIL_S = 0.1
"""Load after the last neighbour that is recorded too."""
BACK_WITHIN_S = 8.0
"""The longest wait for the usual weights after the last neighbour."""
STAYS_S = 0.5
"""Weights that are the usual ones for this long stay so."""
LONGEST_S = 180.0
"""Load meanwhile a policy starts: it is ended when the policy is ready."""
PREPARED_S = 15.0
"""A neighbour fills its buffers this long before it begins: with a cache of 480 MiB that takes seconds."""
POLL_S = 0.02


class _Common(NamedTuple):
    """The common settings of neighbours that come together."""

    begin_s: float
    kind: str
    intensity: float
    seconds: float
    weight: int


class Neighbours:
    """Begins and ends neighbours when it is time by `clock`.

    The first fill their buffers from now on, long before they begin.
    """

    def __init__(
        self,
        lab: Lab,
        neighbours: Iterable[Neighbour],
        clock: Callable[[], float] = time.monotonic,
        weights: Mapping[Neighbour, int] | None = None,
    ) -> None:
        """`weights`: of the neighbours' cgroups against the server's 100; of one that is not in it, 100 too."""
        self._lab, self._clock = lab, clock
        self._weights = weights or {}
        self._at_s = math.inf
        alike = itertools.groupby(sorted(neighbours, key=lambda neighbour: neighbour.begin_s), self._common)
        self._left = [(common, list(together)) for common, together in alike][::-1]
        self._waiting: deque[tuple[list[Neighbour], PreparedNoise]] = deque()
        self._now: list[tuple[Neighbour, Noise]] = []
        self.past: list[Noise] = []
        if self._left:
            self._prepare(self._left[-1][0].begin_s)

    def fill(self) -> None:
        """Waits until the first have filled their buffers, so that they begin in time. Raises LabError."""
        for _, prepared in self._waiting:
            prepared.fill()

    def start(self, at_mono_s: float, changed: Callable[[dict[int, float]], None]) -> None:
        """Their times count from then on. `changed` gets the share that is lost now, by host."""
        self._at_s, self._changed = at_mono_s, changed

    def _common(self, neighbour: Neighbour) -> _Common:
        weight = self._weights.get(neighbour, NEIGHBOUR_WEIGHT)
        return _Common(
            neighbour.begin_s,
            neighbour.kind,
            neighbour.intensity,
            neighbour.end_s - neighbour.begin_s + MARGIN_S,
            weight,
        )

    def tend(self) -> None:
        """Call it often after `start`. Raises LabError when a neighbour ended by itself."""
        now_s = self._clock() - self._at_s
        before = self._lost()
        for pair in [pair for pair in self._now if now_s >= pair[0].end_s]:
            self._stop(pair)
        for _, noise in self._now:
            noise.check()
        self._prepare(now_s)
        while self._waiting and now_s >= self._waiting[0][0][0].begin_s:
            together, prepared = self._waiting.popleft()
            self._now += zip(together, prepared.begin(), strict=True)
            self._set_weights(together)
        after = self._lost()
        if after != before:
            self._changed(after)

    def _prepare(self, now_s: float) -> None:
        """Prepares the neighbours that begin soon, but no two beside the same host."""
        while (
            self._left and now_s >= self._left[-1][0].begin_s - PREPARED_S and not self._waits_beside(self._left[-1][1])
        ):
            common, together = self._left.pop()
            hosts = [self._lab.hosts[neighbour.host] for neighbour in together]
            prepared = self._lab.prepare_noise(hosts, common.kind, common.intensity, common.seconds, common.weight)
            self._waiting.append((together, prepared))

    def _waits_beside(self, together: Sequence[Neighbour]) -> bool:
        """Whether another waits beside one of these hosts."""
        taken = {neighbour.host for waiting, _ in self._waiting for neighbour in waiting}
        return any(neighbour.host in taken for neighbour in together)

    def _set_weights(self, begun: Sequence[Neighbour]) -> None:
        for neighbour in begun:
            if neighbour.server_weight != BASE_WEIGHT:
                self._lab.balancer.set_weight(self._lab.hosts[neighbour.host].name, neighbour.server_weight)

    def _lost(self) -> dict[int, float]:
        """Host -> share that is taken now."""
        lost: dict[int, float] = {}
        for neighbour, _ in self._now:
            lost[neighbour.host] = max(lost.get(neighbour.host, 0.0), neighbour.thought_lost)
        return lost

    def _stop(self, pair: tuple[Neighbour, Noise]) -> None:
        neighbour, noise = pair
        noise.stop()
        self._now.remove(pair)
        if neighbour.server_weight != BASE_WEIGHT:
            self._lab.balancer.set_weight(noise.host, BASE_WEIGHT)
        self.past.append(noise)

    def stop(self) -> None:
        """Ends all that are on, or wait."""
        for pair in list(self._now):
            self._stop(pair)
        while self._waiting:
            self._waiting.pop()[1].give_up()

    @property
    def labels(self) -> list[Label]:
        """Labels of all neighbours that have ended."""
        return [
            Label(noise.host, noise.kind, noise.intensity, noise.on_unix_s, noise.off_unix_s or noise.on_unix_s)
            for noise in self.past
        ]

    @property
    def over(self) -> bool:
        return not self._left and not self._waiting and not self._now


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
    """Runs a scenario under a policy; the weights are the baseline again afterwards. Raises LabError.

    `capacity_rps` is what surges are shares of.
    """
    policy = POLICIES[run.policy]
    runner = policy.runner(lab, scenario)
    try:
        configured = lab.balancer.balance, lab.balancer.lines
        if configured != (policy.balance, runner.lines):
            lab.balancer.set_balance(policy.balance, runner.lines)
            lab.balancer.reload()
        _set_quotas(lab, scenario.quotas)
        aims = aims_of(lab, scenario)
        shares = {neighbour: aimed.weight for neighbour, aimed in aims.items()}
        neighbours = Neighbours(lab, scenario.neighbours, weights=shares)
        try:
            _begin(lab, runner, demand)
            neighbours.fill()
            return _measured(lab, run, scenario, runner, demand, capacity_rps, aims, neighbours)
        finally:
            neighbours.stop()
    finally:
        runner.end()
        _set_quotas(lab, ())
        set_weights(lab, {host.name: BASE_WEIGHT for host in lab.hosts})


def _begin(lab: Lab, runner: PolicyRunner, demand: Demand) -> None:
    """Starts the policy; one that learns what calm looks like does so under the load of the run."""
    if not runner.learns:
        runner.begin()
        return
    load = lab.load(demand, LONGEST_S, runner.url)
    try:
        runner.begin()
        stay(lab, time.monotonic() + runner.learns_s, load)
    finally:
        load.stop()


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
        costs = cost.between(before, cost.look(lab), time.monotonic() - before_s)
        _until_back(lab, runner, demand, watch)
        end_s = time.monotonic()
        requests = joined([load.finish() for load in loads])
    past = sorted(neighbours.past, key=lambda noise: noise.on_mono_s)
    off_s = max(noise.off_mono_s or noise.on_mono_s for noise in past)
    weights = [
        (look.mono_s - begin_s, server, weight, look.requests[server])
        for look in watch.history
        for server, weight in look.weight.items()
    ]
    recorded = Recorded(
        run=run,
        marks=Marks(SETTLE_S, past[0].on_mono_s - begin_s, off_s - begin_s, end_s - begin_s),
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
            "retries": lab.balancer.retries() - retries,
            "turned": [
                {
                    "at_s": change.time_unix_s - begin_unix_s,
                    "node": change.target,
                    "what": change.what,
                    "after": change.after,
                }
                for change in runner.knob_changes
            ],
        },
    )
    return RunResult(recorded, runner.samples, neighbours.labels)


def _until_back(lab: Lab, runner: PolicyRunner, demand: Demand, watch: BalancerWatch) -> None:
    """Waits under load until all weights stay the usual ones, `BACK_WITHIN_S` at most."""
    load = lab.load(demand, BACK_WITHIN_S + MARGIN_S, runner.url)
    try:
        end_s = time.monotonic() + BACK_WITHIN_S
        moved_s = time.monotonic()
        while (now_s := time.monotonic()) < end_s and now_s - moved_s < STAYS_S:
            runner.check()
            lab.check()
            load.check()
            if any(weight != BASE_WEIGHT for weight in watch.history[-1].weight.values()):
                moved_s = now_s
            time.sleep(POLL_S)
    finally:
        load.stop()


def judged(verdicts: Sequence[Verdict] | None, begin_unix_s: float) -> list[tuple[float, str, str]] | None:
    """Verdicts as they are recorded: (seconds from the run's begin, server, state) in order of time."""
    if verdicts is None:
        return None
    return sorted((verdict.time_unix_s - begin_unix_s, verdict.node, str(verdict.state)) for verdict in verdicts)


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
