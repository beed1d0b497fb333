"""Scenarios: calm, then a neighbour in some hosts, then calm again, under one policy; measured throughout.

The load runs on through all three phases; each request belongs to the phase in which it was due.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.cluster import machine
from lab.cluster.balancer import BASE_WEIGHT
from lab.cluster.hosts import Host
from lab.cluster.lab import Lab
from lab.cluster.load import Demand, Load
from lab.cluster.noise import Noise
from lab.cluster.paths import LabError
from lab.cluster.spawn import wait_until
from lab.stories.measure import Figures, figures
from lab.stories.policies import POLICIES, Policy
from lab.stories.watch import Watch, first_at, first_reduction, share

SETTLE_S = 3.0
"""Load before the calm phase of each round that is not counted: connections are opened, caches filled."""

WARM_UP_S = 10.0
"""Load before the first round; a controller learns what calm looks like."""

RESTORE_WAIT_S = 20.0
"""How long after the load the weights may take to be the baseline again."""

BASELINE_WAIT_S = 60.0
NOISE_MARGIN_S = 3.0
CALIBRATION_S = 5.0
PHASES = ("calm", "noise", "after")
SCENARIOS: dict[str, Callable[[Sequence[Host]], Sequence[Host]]] = {
    "one-noisy": lambda members: members[:1],
    "two-noisy": lambda members: members[:2],
    "weights-all-noisy": lambda members: members,
}
"""By name, the hosts that get a neighbour, all at the same time; the first is the one whose share is told."""


@dataclass(frozen=True)
class Plan:
    """One run: `seconds` is the length of each phase."""

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


def capacity_rps(lab: Lab) -> float:
    """Requests per second at which the hosts' quotas are full, from the CPU time that a request takes in calm."""
    demand = Demand(rate_rps=lab.app.rate_rps / 2)
    lab.load(demand, SETTLE_S).finish()
    before_s = lab.vm_cpu_s()
    requests = lab.load(demand, CALIBRATION_S).finish()
    if not len(requests.seconds):
        raise LabError("no request was answered, so the capacity cannot be told")
    cpu_s = (lab.vm_cpu_s() - before_s) / len(requests.seconds)
    return lab.settings.quota_cores * len(lab.hosts) / cpu_s


def left_rps(lab: Lab, plan: Plan) -> float:
    """Requests per second that the hosts answer beside the plan's neighbours, each asked for as many as it can."""
    noises = start_noise(lab, plan, SETTLE_S + CALIBRATION_S + NOISE_MARGIN_S)
    full = Demand(clients=2 * lab.settings.php_children)
    try:
        stay(lab, time.monotonic() + SETTLE_S, noises=noises)
        loads = [lab.load(full, CALIBRATION_S, f"http://{host.address}") for host in lab.hosts]
        return sum(len(load.finish().seconds) for load in loads) / CALIBRATION_S
    finally:
        for noise in noises:
            noise.stop()


def start_noise(lab: Lab, plan: Plan, seconds: float) -> list[Noise]:
    """The plan's neighbours, all on when this returns."""
    return lab.noise_in(SCENARIOS[plan.scenario](lab.hosts), plan.noise, plan.intensity, seconds)


def stay(lab: Lab, until_mono_s: float, load: Load | None = None, noises: Sequence[Noise] = ()) -> None:
    """Waits for an instant; raises LabError as soon as something has ended that should run."""
    while (left := until_mono_s - time.monotonic()) > 0:
        lab.check()
        if load:
            load.check()
        for noise in noises:
            noise.check()
        time.sleep(min(left, 0.1))


def at_baseline(lab: Lab) -> bool:
    return all(weight == BASE_WEIGHT for weight in lab.balancer.snapshot().weight.values())


def one_round(lab: Lab, policy: Policy, plan: Plan, demand: Demand) -> dict[str, Any]:
    """One calm, noise, after; gives the round of the run's JSON."""
    wait_until(lambda: at_baseline(lab), "all weights at the baseline", BASELINE_WAIT_S, watch=lab.programs)
    loud = SCENARIOS[plan.scenario](lab.hosts)
    noisy = loud[0]
    with Watch(lab.balancer.snapshot) as watch:
        load = lab.load(demand, SETTLE_S + 3 * plan.seconds + NOISE_MARGIN_S)
        calm_s = load.begin_mono_s + SETTLE_S
        stay(lab, calm_s + plan.seconds, load)
        noises = start_noise(lab, plan, plan.seconds + NOISE_MARGIN_S)
        for host in loud:
            policy.noise_on(host)
        on_s = noises[-1].on_mono_s
        stay(lab, on_s + plan.seconds, load, noises)
        for noise in noises:
            noise.stop()
        for host in loud:
            policy.noise_off(host)
        off_s = time.monotonic() if noises[-1].off_mono_s is None else noises[-1].off_mono_s
        end_s = off_s + plan.seconds
        stay(lab, end_s, load)
        requests = load.finish()
        changed = first_reduction(watch.history, noisy.name, on_s)
        if changed is not None:
            with contextlib.suppress(LabError):  # that they do not come back is a result; the next round waits again
                wait_until(lambda: at_baseline(lab), "the weights to come back", RESTORE_WAIT_S)
                time.sleep(0.2)  # for the watch to see it too
            lab.check()
    marks = (calm_s, on_s, off_s, end_s)
    # The generator gives no time for requests that never got a response. They count where a policy may have lost them.
    lost = {"noise": requests.lost_count}
    phases: dict[str, Figures] = {
        name: figures(requests, begin, end, share(watch.history, noisy.name, begin, end), lost.get(name, 0))
        for name, (begin, end) in zip(PHASES, itertools.pairwise(marks), strict=True)
    }
    return {
        "phases": phases,
        "detection_s": changed if changed is not None and changed <= off_s - on_s else None,
        "restored_s": first_at(watch.history, noisy.name, BASE_WEIGHT, off_s),
    }


def run(lab: Lab, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; gives the JSON of the run. Progress goes to `say`."""
    demand = plan.demand
    if demand is None:
        capacity = left_rps(lab, plan) if plan.of_what_is_left else capacity_rps(lab)
        when = "beside the neighbours" if plan.of_what_is_left else "in calm"
        demand = Demand(rate_rps=round((plan.load or 0.3) * capacity, 1))
        say(f"capacity {capacity:.0f} requests/s {when}; the load is {demand.rate_rps:g} requests/s")
    facts = machine.describe(lab)
    policy = POLICIES[plan.policy](lab)
    say(f"policy {plan.policy}; warming up for {WARM_UP_S:g} s")
    warm = lab.load(demand, WARM_UP_S)
    policy.begin()
    warm.finish()
    rounds = []
    for number in range(1, plan.rounds + 1):
        rounds.append(one_round(lab, policy, plan, demand))
        say(f"round {number} of {plan.rounds}: {sentence(rounds[-1])}")
    settings = {
        "scenario": plan.scenario,
        "policy": plan.policy,
        "noise": plan.noise,
        "intensity": plan.intensity,
        "seconds": plan.seconds,
        "rate_rps": demand.rate_rps,
        "clients": demand.clients,
    }
    return {"machine": facts, "settings": settings, "rounds": rounds}


def shown(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)


def sentence(found: dict[str, Any]) -> str:
    """A round in a line."""
    p95 = ", ".join(f"{name} {shown(found['phases'][name]['p95_ms'])}" for name in PHASES)
    errors = sum(found["phases"][name]["errors"] for name in PHASES)
    return (
        f"p95 ms {p95}; errors {errors}; first weight change after {shown(found['detection_s'], '.2f')} s, "
        f"back after {shown(found['restored_s'], '.2f')} s"
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
