"""What the comparison and the simulator must reach, each with what they did reach: one table for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from lab.compare.validation import SIMULATED
from lab.experiment.scenarios import SCENARIOS

ROUNDS = 5
"""The goals are of so many rounds; fewer decide nothing."""
ROUNDS_EACH = 3
"""The same for what concerns all scenarios."""
OURS = ("slackwater", "slackwater-lc")
NEVER_WORSE = 0.05
ORACLE = 1.25
VALIDATED = 0.15
ICE_MS = "second_means_median_ms"
LARGE = 10_000
PERIOD_S = 1.0


@dataclass(frozen=True)
class Goal:
    """One line: `reached` is None where it was not measured, or in too few rounds or scenarios."""

    what: str
    goal: str
    found: str
    reached: bool | None
    oracle: str = ""
    """What the oracle reached of the same, where it is measured: hardly anything that can be had is above it."""

    @property
    def word(self) -> str:
        return {True: "reached", False: "NOT reached", None: "not decided"}[self.reached]


def of_comparison(summary: dict[str, Any] | None) -> list[Goal]:
    """The goals in the lab. The interval's worse end need not reach the goal, the median must."""
    cells = {(cell["scenario"], cell["policy"]): cell for cell in summary["cells"]} if summary else {}

    def change(scenario: str, policy: str, other: str, measure: str) -> dict[str, Any] | None:
        found: dict[str, Any] = (cells.get((scenario, policy)) or {}).get("change", {}).get(other, {})
        return found.get(measure)

    found = []
    wanted = (
        ("one-closed", "static", ICE_MS, -0.94, "ICE's measure, closed loop, against `static`"),
        ("one-closed", "leastconn", ICE_MS, -0.39, "ICE's measure, closed loop, against `leastconn`"),
        ("one", "leastconn", "p99_ms", -0.70, "p99 against `leastconn` (DIAL: -70%)"),
        ("one", "leastconn", "p95_ms", -0.48, "p95 against `leastconn` (DIAL: -48%)"),
    )
    for scenario, other, measure, goal, what in wanted:
        for name in OURS:
            estimate = change(scenario, name, other, measure)
            reached = None if not _enough(estimate) else estimate["value"] <= goal
            best = change(scenario, "oracle", other, measure)
            outcome = percent(estimate), reached, percent(best) if best else ""
            found.append(Goal(f"{what}: `{name}`", f"{goal:.0%} or better", *outcome))
    for other, name in (*(("oracle", name) for name in OURS), ("oracle-lc", "slackwater-lc")):
        estimate = change("one", name, other, "p99_ms")
        reached = None if not _enough(estimate) else estimate["value"] <= ORACLE - 1.0
        found.append(Goal(f"p99 against `{other}`: `{name}`", f"within {ORACLE:g} times", percent(estimate), reached))
    medians = ((ICE_MS, "median over seconds of means"), ("p50_ms", "median of requests"))
    return found + [_never_worse(cells, name, *one) for one in medians for name in OURS]


def _never_worse(cells: dict[tuple[str, str], dict[str, Any]], name: str, measure: str, title: str) -> Goal:
    parts: list[str] = []
    worst, left = -1.0, set(SCENARIOS)
    for (scenario, policy), cell in cells.items():
        estimate = cell["change"].get("leastconn", {}).get(measure)
        if policy == name and estimate is not None:
            parts.append(f"{scenario} {estimate['value']:+.0%} of {estimate['count']}")
            if _enough(estimate, ROUNDS_EACH):
                worst = max(worst, estimate["value"])
                left.discard(scenario)
    # One scenario in which it is worse is enough; that it is never worse takes all of them.
    reached = False if worst > NEVER_WORSE else None if left else True
    if parts and left:
        parts.append(f"in fewer than {ROUNDS_EACH} rounds: {', '.join(one for one in SCENARIOS if one in left)}")
    what = f"against `leastconn` in each scenario, {title}: `{name}`"
    return Goal(what, f"never worse by more than {NEVER_WORSE:.0%}", "; ".join(parts) or "-", reached)


def of_simulator(runs: Sequence[dict[str, Any]], validation: Sequence[dict[str, Any]]) -> list[Goal]:
    """The goals of the simulator: 10,000 servers in real time on one core, and p95 near the lab's."""
    return [_real_time(runs), _validated(validation)]


def _real_time(runs: Sequence[dict[str, Any]]) -> Goal:
    """Reached only where no cycle took longer than its second, or what was late was always caught up with."""
    goal = "10,000 servers, a decision a second, in real time on one core"
    asked = "below 100% of the core, no cycle late or all caught up with"
    large = [
        run
        for run in runs
        if run["setup"]["servers"] >= LARGE and run["setup"]["period_s"] <= PERIOD_S and run["policy"] == "slackwater"
    ]
    if not large:
        return Goal(goal, asked, "-", None)
    run = large[0]
    parts = f"{run['core_share']:.0%} of the core, model and learning included"
    pace = run.get("pace")
    if pace is None:
        return Goal(goal, asked, f"{parts}; the file does not have how many cycles were late", None)
    parts += (
        f"; after learning {pace['late']} of {pace['cycles']} cycles took longer than {run['setup']['period_s']:g} s"
        f" (slowest {pace['slowest_s']:.2f} s), at most {pace['behind_max_s']:.2f} s behind, at the end"
        f" {pace['behind_end_s']:.2f} s"
    )
    return Goal(goal, asked, parts, run["core_share"] < 1.0 and (not pace["late"] or not pace["behind_end_s"]))


def _validated(validation: Sequence[dict[str, Any]]) -> Goal:
    goal, asked = "simulated p95 against the lab's, one of three noisy", f"within {VALIDATED:.0%} for every policy"
    if not validation:
        return Goal(goal, asked, "-", None)
    parts = [
        f"{one['comparison']}: {one['policy']} {one['error']:+.0%} of {one['rounds']}{' (fitted)' * one['fitted']}"
        for one in validation
    ]
    enough = [one for one in validation if one["rounds"] >= ROUNDS]
    left = [name for name in SIMULATED if name not in {one["policy"] for one in enough}]
    if left:
        parts.append(f"in fewer than {ROUNDS} rounds: {', '.join(left)}")
    # One policy that is off is enough; that all are near takes all of them.
    off = any(abs(one["error"]) > VALIDATED for one in enough)
    return Goal(goal, asked, "; ".join(parts), False if off else None if left else True)


def _enough(estimate: dict[str, Any] | None, rounds: int = ROUNDS) -> TypeGuard[dict[str, Any]]:
    return estimate is not None and estimate["count"] >= rounds


def percent(estimate: dict[str, Any] | None) -> str:
    """`-83% [-90%, -71%] of 5`."""
    if estimate is None:
        return "-"
    parts = f"{estimate['value']:+.0%}"
    if estimate["low"] is not None:
        parts += f" [{estimate['low']:+.0%}, {estimate['high']:+.0%}]"
    return f"{parts} of {estimate['count']} rounds"
