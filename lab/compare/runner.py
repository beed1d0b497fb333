"""One run of a comparison in the lab: warm-up, calm, the scenario's disturbance, calm again; everything recorded."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from detector.recordings.recording import Label
from detector.recordings.recording import write as write_samples
from lab.cluster.balancer import BASE_WEIGHT
from lab.cluster.commit import commit
from lab.cluster.lab import Lab
from lab.cluster.load import Demand, Load, Requests
from lab.cluster.noise import Noise
from lab.compare import cost, recording
from lab.compare.account import Account
from lab.compare.actors import Actor, set_weights
from lab.compare.plan import Run
from lab.compare.policies import POLICIES
from lab.compare.policy_runners import ACTORS
from lab.compare.recording import Marks, Recorded
from lab.compare.scenarios import AFTER_S, CALM_S, SCENARIOS, Loud, Scenario
from lab.stories.watch import Watch
from slackwater.messages import Verdict

SETTLE_S = 3.0
WARM_UP_S = 10.0
MARGIN_S = 3.0
POLL_S = 0.02


class Stage:
    """Begins and ends the scenario's neighbours when it is time by `clock`, and tells the policy."""

    def __init__(
        self,
        lab: Lab,
        scenario: Scenario,
        actor: Actor,
        at_mono_s: float,
        account: Account,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lab, self._actor, self._at_s, self._account, self._clock = lab, actor, at_mono_s, account, clock
        self._left = sorted(scenario.loud, key=lambda one: one.begin_s, reverse=True)
        self._now: list[tuple[Loud, Noise]] = []
        self.past: list[tuple[Loud, Noise]] = []

    def tend(self) -> None:
        """Call it often. Raises LabError when a neighbour ended by itself."""
        at = self._clock() - self._at_s
        before = self._lost()
        for pair in [pair for pair in self._now if at >= pair[0].end_s]:
            self._stop(pair)
        for _, noise in self._now:
            noise.check()
        due = []
        while self._left and at >= self._left[-1].begin_s:
            due.append(self._left.pop())
        for (kind, intensity, weight, lasts_s), alike in itertools.groupby(
            due, lambda loud: (loud.kind, loud.intensity, loud.weight, loud.end_s - loud.begin_s + MARGIN_S)
        ):
            together = list(alike)
            hosts = [self._lab.hosts[loud.host] for loud in together]
            self._now += zip(together, self._lab.noise_in(hosts, kind, intensity, lasts_s, weight), strict=True)
            self._account.turn(True)
        after = self._lost()
        if after != before:
            self._actor.noisy(after)

    def _lost(self) -> dict[int, float]:
        """What is taken now, by host."""
        found: dict[int, float] = {}
        for loud, _ in self._now:
            found[loud.host] = max(found.get(loud.host, 0.0), loud.lost * loud.intensity)
        return found

    def _stop(self, pair: tuple[Loud, Noise]) -> None:
        pair[1].stop()
        self._now.remove(pair)
        self._account.turn(bool(self._now))
        self.past.append(pair)

    def stop(self) -> None:
        """Ends all that are on."""
        for pair in list(self._now):
            self._stop(pair)

    @property
    def over(self) -> bool:
        return not self._left and not self._now


def one_run(lab: Lab, run: Run, folder: Path, capacity_rps: float) -> Recorded:
    """Runs and records; the weights are the baseline again afterwards. Raises LabError, with nothing recorded."""
    scenario = SCENARIOS[run.scenario]
    balance = POLICIES[run.policy].balance
    actor = ACTORS[run.policy](lab, scenario, run.policy)
    rate_rps = round(scenario.load * capacity_rps, 1)
    demand = Demand(rate_rps=rate_rps, clients=scenario.clients)
    try:
        if (lab.balancer.balance, lab.balancer.lines) != (balance, actor.lines):
            lab.balancer.set_balance(balance, actor.lines)
            lab.balancer.reload()
        _quotas(lab, scenario.quotas)
        warm = lab.load(demand, WARM_UP_S)
        actor.begin()
        warm.finish()
        return _measured(lab, run, scenario, actor, demand, capacity_rps, folder)
    finally:
        actor.end()
        _quotas(lab, ())
        set_weights(lab, {host.name: BASE_WEIGHT for host in lab.hosts})


def _measured(
    lab: Lab, run: Run, scenario: Scenario, actor: Actor, demand: Demand, capacity_rps: float, folder: Path
) -> Recorded:
    lasts_s = SETTLE_S + CALM_S + scenario.seconds + AFTER_S + MARGIN_S
    with contextlib.ExitStack() as stack:
        before, before_s = cost.look(lab), time.monotonic()
        watch = stack.enter_context(Watch(lab.balancer.snapshot))
        loads = [lab.load(demand, lasts_s)]
        begin_s = loads[0].begin_mono_s
        begin_unix_s = time.time() - (time.monotonic() - begin_s)
        on_s = begin_s + SETTLE_S + CALM_S
        account = Account(lab.cgroups.cpu_s, lab.hosts)
        stage = Stage(lab, scenario, actor, on_s, account)
        stack.callback(stage.stop)
        surges = sorted(scenario.surges, key=lambda one: one.begin_s, reverse=True)
        end_s = on_s + scenario.seconds + AFTER_S
        while time.monotonic() < end_s:
            stage.tend()
            actor.check()
            lab.check()
            loads[0].check()
            while surges and time.monotonic() >= on_s + surges[-1].begin_s:
                more = surges.pop()
                rate = Demand(rate_rps=round(more.share * capacity_rps, 1))
                loads.append(lab.load(rate, more.end_s - more.begin_s))
            time.sleep(POLL_S)
        costs = cost.between(before, cost.look(lab), time.monotonic() - before_s)
        requests = _together(loads)
    past = sorted(stage.past, key=lambda pair: pair[1].on_mono_s)
    first_s = past[0][1].on_mono_s
    last_s = max(noise.off_mono_s or noise.on_mono_s for _, noise in past)
    weights = [
        (look.mono_s - begin_s, server, weight, look.requests[server])
        for look in watch.history
        for server, weight in look.weight.items()
    ]
    on_at_s, off_at_s = first_s - begin_s, last_s - begin_s
    recorded = Recorded(
        run=run,
        marks=Marks(SETTLE_S, on_at_s, off_at_s, off_at_s + AFTER_S),
        lost=requests.lost_count,
        due_s=requests.due_mono_s - begin_s,
        seconds=requests.seconds,
        status=requests.status,
        weights=weights,
        verdicts=judged(actor.verdicts, begin_unix_s),
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
                for _, noise in past
            ],
            "cpu": account.used,
            "cost": costs,
            "turned": [
                {"at_s": one.time_unix_s - begin_unix_s, "node": one.target, "what": one.what, "after": one.after}
                for one in actor.turned
            ],
        },
    )
    if samples := actor.samples:
        labels = [
            Label(noise.host, noise.kind, noise.intensity, noise.on_unix_s, noise.off_unix_s or noise.on_unix_s)
            for _, noise in past
        ]
        about = f"comparison, {run.scenario}, {run.policy}, round {run.round}"
        write_samples(recording.path_of(folder, run.number, "samples"), samples, labels, about)
    recording.write(folder, recorded)
    return recorded


def judged(verdicts: Sequence[Verdict] | None, begin_unix_s: float) -> list[tuple[float, str, str]] | None:
    """What the detector said, as it is recorded: (seconds from the run's begin, server, state) in order of time."""
    if verdicts is None:
        return None
    return sorted((one.time_unix_s - begin_unix_s, one.node, str(one.state)) for one in verdicts)


def _together(loads: Sequence[Load]) -> Requests:
    """All generators' requests as one, in order of due time."""
    parts = [one.finish() for one in loads]
    due = np.concatenate([part.due_mono_s for part in parts])
    order = np.argsort(due, kind="stable")
    lost: dict[str, int] = {}
    for part in parts:
        for why, count in part.lost.items():
            lost[why] = lost.get(why, 0) + count
    return Requests(
        due[order],
        np.concatenate([part.seconds for part in parts])[order],
        np.concatenate([part.status for part in parts])[order],
        lost,
    )


def _quotas(lab: Lab, quotas: Sequence[float]) -> None:
    """Gives each host its quota; empty: the lab's own."""
    for number, host in enumerate(lab.hosts):
        lab.cgroups.make(host.cgroup, quota_cores=quotas[number] if quotas else lab.settings.quota_cores)
