"""`slackwater lab run`: one policy, calm, a neighbour in some hosts, calm again, as often as there are rounds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater_lab.cluster import machine
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand
from slackwater_lab.experiment.balancer_watch import first_at, first_reduction, share
from slackwater_lab.experiment.measures import figures
from slackwater_lab.experiment.recording import Run
from slackwater_lab.experiment.run import MARGIN_S, Outcome, aims_of, one_run
from slackwater_lab.experiment.scenarios import Neighbour, Scenario
from slackwater_lab.experiment.steady import CALIBRATION_S, SETTLE_S, capacity_rps, served_rps, shown

RESTORE_WAIT_S = 20.0
"""How long after the load the weights may take to be the baseline again."""

PHASES = ("calm", "noise", "after")
SCENARIOS: dict[str, int | None] = {"one-noisy": 1, "two-noisy": 2, "weights-all-noisy": None}
"""By name, how many hosts get a neighbour, all at the same time (None: all); the table shows the first one's share."""


@dataclass(frozen=True)
class PolicyTest:
    """What is tested: `seconds` is the length of each phase."""

    policy: str
    noise: str
    intensity: float
    seconds: float
    rounds: int
    demand: Demand | None
    load: float | None = None
    """Share of the pool's capacity; used when there is no `demand`."""
    of_what_is_left: bool = False
    """`load` is a share of the capacity that the neighbours leave."""
    scenario: str = "one-noisy"

    def described(self, hosts: int) -> Scenario:
        """As the scenario that is run."""
        noisy = range(min(hosts, SCENARIOS[self.scenario] or hosts))
        return Scenario(
            self.scenario,
            tuple(Neighbour(host, 0.0, self.seconds, self.noise, self.intensity) for host in noisy),
            seconds=self.seconds,
            load=None if self.of_what_is_left else self.load,
            calm_s=self.seconds,
            after_s=self.seconds,
            back_within_s=RESTORE_WAIT_S,
            keeps_balance=True,
        )


def left_rps(lab: Lab, scenario: Scenario) -> float:
    """Requests per second that the hosts answer beside the neighbours, each asked for as many as it can."""
    first = scenario.neighbours[0]
    hosts = [lab.hosts[one.host] for one in scenario.neighbours]
    weight = aims_of(lab, scenario)[first].weight
    noises = lab.noise_in(hosts, first.kind, first.intensity, SETTLE_S + CALIBRATION_S + MARGIN_S, weight)
    try:
        return served_rps(lab, noises)
    finally:
        for noise in noises:
            noise.stop()


def as_round(outcome: Outcome, noisy: str) -> dict[str, Any]:
    """A round of the JSON. Requests without any response count where a policy may have lost them: beside the noise."""
    recorded, history, begin_s = outcome.recorded, outcome.history, outcome.begin_mono_s
    marks = recorded.marks
    phases = {}
    spans = itertools.pairwise((marks.calm_s, marks.on_s, marks.off_s, marks.end_s))
    for name, (begin, end) in zip(PHASES, spans, strict=True):
        part = share(history, noisy, begin_s + begin, begin_s + end)
        lost = recorded.lost if name == "noise" else 0
        phases[name] = figures(recorded, recorded.due_s, begin, end, lost, part)
    first_s = first_reduction(history, noisy, begin_s + marks.on_s)
    return {
        "phases": phases,
        "taken": recorded.facts["taken"],
        "detection_s": first_s if first_s is not None and first_s <= marks.off_s - marks.on_s else None,
        "restored_s": first_at(history, noisy, BASE_WEIGHT, begin_s + marks.off_s),
    }


def run(lab: Lab, test: PolicyTest, progress: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; gives the JSON of the run. Progress goes to `progress`."""
    scenario = test.described(len(lab.hosts))
    demand = test.demand
    if demand is None:
        capacity = left_rps(lab, scenario) if test.of_what_is_left else capacity_rps(lab)
        when = "beside the neighbours" if test.of_what_is_left else "in calm"
        demand = Demand(rate_rps=round((test.load or 0.3) * capacity, 1))
        progress(f"capacity {capacity:.0f} requests/s {when}; the load is {demand.rate_rps:g} requests/s")
    facts = machine.describe(lab)
    rounds = []
    for number in range(1, test.rounds + 1):
        outcome = one_run(lab, Run(number, number, test.scenario, test.policy), scenario, demand)
        rounds.append(as_round(outcome, lab.noisy.name))
        progress(f"round {number} of {test.rounds}: {sentence(rounds[-1])}")
    settings = {
        "scenario": test.scenario,
        "policy": test.policy,
        "noise": test.noise,
        "intensity": test.intensity,
        "seconds": test.seconds,
        "rate_rps": demand.rate_rps,
        "clients": demand.clients,
    }
    return {"machine": facts, "settings": settings, "rounds": rounds}


def sentence(found: dict[str, Any]) -> str:
    """A round in a line."""
    p95 = ", ".join(f"{name} {shown(found['phases'][name]['p95_ms'])}" for name in PHASES)
    errors = sum(found["phases"][name]["errors"] for name in PHASES)
    taken = "".join(f"; {one['kind']} takes {one['measured']:.0%} of the capacity" for one in found["taken"])
    return (
        f"p95 ms {p95}; errors {errors}{taken}; first weight change after {shown(found['detection_s'], '.2f')} s, "
        f"back after {shown(found['restored_s'], '.2f')} s"
    )


COLUMNS = (
    ("requests", "d"),
    ("errors", "d"),
    ("rps", ".1f"),
    ("mean_ms", ".1f"),
    ("p50_ms", ".1f"),
    ("p95_ms", ".1f"),
    ("p99_ms", ".1f"),
    ("noisy_share", ".2f"),
)


def medians(result: dict[str, Any], phases: Sequence[str] = PHASES) -> list[list[str]]:
    """Rows of the table: a phase a row, medians over the rounds (errors: the sum)."""
    rows = []
    for name in phases:
        row = [name]
        for key, form in COLUMNS:
            values = [one["phases"][name][key] for one in result["rounds"] if one["phases"][name][key] is not None]
            value = (sum(values) if key in ("requests", "errors") else statistics.median(values)) if values else None
            row.append(shown(value, form))
        rows.append(row)
    return rows
