"""What the comparison and the simulator must reach, each with what they did reach: one table for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from evaluation.scenarios import SCENARIOS

ROUNDS = 5
"""The goals are of so many rounds; what fewer say decides nothing."""
OURS = ("slackwater", "slackwater-lc")
NEVER_WORSE = 0.05
ORACLE = 1.25
VALIDATED = 0.15
ICE_MS = "second_means_median_ms"


@dataclass(frozen=True)
class Goal:
    """One line: `reached` is None where it was not measured, or in too few rounds or scenarios."""

    what: str
    goal: str
    found: str
    reached: bool | None

    @property
    def word(self) -> str:
        return {True: "reached", False: "NOT reached", None: "not decided"}[self.reached]


def of_comparison(summary: dict[str, Any] | None) -> list[Goal]:
    """The goals in the lab. The interval's worse end need not reach the goal, the median must."""
    cells = {(cell["scenario"], cell["policy"]): cell for cell in summary["cells"]} if summary else {}
    found = []
    wanted = (
        ("one-closed", "static", ICE_MS, -0.94, "ICE's measure, closed loop, against `static`", OURS),
        ("one-closed", "leastconn", ICE_MS, -0.39, "ICE's measure, closed loop, against `leastconn`", OURS),
        ("one", "leastconn", "p99_ms", -0.70, "p99 against `leastconn` (DIAL: -70%)", OURS),
        ("one", "leastconn", "p95_ms", -0.48, "p95 against `leastconn` (DIAL: -48%)", OURS),
    )
    for scenario, other, measure, goal, what, ours in wanted:
        for name in ours:
            estimate = (cells.get((scenario, name)) or {}).get("change", {}).get(other, {}).get(measure)
            reached = None if not _enough(estimate) else estimate["value"] <= goal
            found.append(Goal(f"{what}: `{name}`", f"{goal:.0%} or better", percent(estimate), reached))
    for name in OURS:
        estimate = (cells.get(("one", name)) or {}).get("change", {}).get("oracle", {}).get("p99_ms")
        reached = None if not _enough(estimate) else estimate["value"] <= ORACLE - 1.0
        found.append(Goal(f"p99 against `oracle`: `{name}`", f"within {ORACLE:g} times", percent(estimate), reached))
    return found + [_never_worse(cells, name) for name in OURS]


def _never_worse(cells: dict[tuple[str, str], dict[str, Any]], name: str) -> Goal:
    what = f"against `leastconn` in each scenario, median over seconds of means: `{name}`"
    told: list[str] = []
    worst, left = -1.0, set(SCENARIOS)
    for (scenario, policy), cell in cells.items():
        estimate = cell["change"].get("leastconn", {}).get(ICE_MS)
        if policy == name and estimate is not None:
            told.append(f"{scenario} {estimate['value']:+.0%}")
            if _enough(estimate):
                worst = max(worst, estimate["value"])
                left.discard(scenario)
    # One scenario in which it is worse is enough; that it is never worse takes all of them.
    reached = False if worst > NEVER_WORSE else None if left else True
    return Goal(what, f"never worse by more than {NEVER_WORSE:.0%}", ", ".join(told) or "-", reached)


def of_simulator(runs: Sequence[dict[str, Any]], validation: Sequence[dict[str, Any]]) -> list[Goal]:
    """The goals of the simulator: 10,000 servers in real time on one core, and p95 near the lab's."""
    large = [run for run in runs if run["setup"]["servers"] >= 10_000 and run["policy"] == "slackwater"]
    goal = "10,000 servers, a decision a second, in real time on one core"
    if large:
        run = large[0]
        share, slowest = run["core_share"], sum(part["max"] or 0.0 for part in run["cost_ms"].values()) / 1e3
        told = f"{share:.0%} of the core, model and learning included; slowest cycle at most {slowest:.1f} s"
        found = [Goal(goal, "below 100% of the core", told, share < 1.0)]
    else:
        found = [Goal(goal, "below 100% of the core", "-", None)]
    goal = "simulated p95 against the lab's"
    if validation:
        told = ", ".join(f"{one['policy']} {one['error']:+.0%}{' (fitted)' * one['fitted']}" for one in validation)
        reached = all(abs(one["error"]) <= VALIDATED for one in validation)
        return [*found, Goal(goal, f"within {VALIDATED:.0%}", told, reached)]
    return [*found, Goal(goal, f"within {VALIDATED:.0%}", "-", None)]


def _enough(estimate: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    return estimate is not None and estimate["count"] >= ROUNDS


def percent(estimate: dict[str, Any] | None) -> str:
    """`-83% [-90%, -71%] of 5`."""
    if estimate is None:
        return "-"
    told = f"{estimate['value']:+.0%}"
    if estimate["low"] is not None:
        told += f" [{estimate['low']:+.0%}, {estimate['high']:+.0%}]"
    return f"{told} of {estimate['count']} rounds"
