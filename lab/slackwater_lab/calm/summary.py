"""What the minutes of calm add up to: node-time that counts, episodes, and their rate with its exact interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypedDict

from slackwater.detector.train.scores import rate_interval
from slackwater_lab.calm.data import NOTHING, Began, Minute

DAY_S = 86_400.0
GOAL_PER_NODE_DAY = 1.0
GOAL_NODE_DAYS = 4.0
SHARED = ("all_slow", "overload")
"""States that are no episode of a node: its pool, or its own load, is slow."""


class Rate(TypedDict):
    """Episodes in some node-time, per node-day; `interval` is the exact one of 95%."""

    what: str
    times: int
    node_days: float
    episodes: int
    per_node_day: float | None
    interval: list[float] | None


def of_one_state(found: Sequence[Minute]) -> list[Minute]:
    """The minutes that were measured with the same decision code as the last one."""
    return [one for one in found if one.decision_commit == found[-1].decision_commit] if found else []


def episodes(found: Sequence[Minute], *, counting: bool = True) -> list[Began]:
    """The false episodes: in time that counts, or in time that does not."""
    return [began for one in found for began in one.began if began.state == "interference" and began.counts == counting]


def rates(found: Sequence[Minute]) -> list[Rate]:
    """Of all time that counts, of that without and with a disturbance, and of each kind of disturbance."""
    node_s: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for one in found:
        for kind, seconds in one.node_s.items():
            node_s[kind] += seconds  # type: ignore[assignment]
        times.update(one.disturbances)
    false = Counter(began.beside for began in episodes(found))
    kinds = sorted({*node_s, *times} - {NOTHING})
    rows = [("all", [NOTHING, *kinds]), ("nothing was done", [NOTHING]), ("beside a disturbance", kinds)]
    rows += [(kind, [kind]) for kind in kinds]
    return [
        _rate(what, sum(times[one] for one in of), sum(node_s[one] for one in of), sum(false[one] for one in of))
        for what, of in rows
    ]


def _rate(what: str, times: int, node_s: float, count: int) -> Rate:
    days = node_s / DAY_S
    return Rate(
        what=what,
        times=times,
        node_days=round(days, 4),
        episodes=count,
        per_node_day=round(count / days, 2) if days else None,
        interval=rate_interval(count, days),
    )


def shared(found: Sequence[Minute]) -> dict[str, dict[str, int]]:
    """State that is no episode -> kind of disturbance, or `nothing` -> how many nodes began to have it."""
    return {
        state: dict(
            Counter(began.beside for one in found for began in one.began if began.state == state and began.counts)
        )
        for state in SHARED
    }


def reached(whole: Rate) -> str:
    """Whether the goal is shown, as a word."""
    if whole["interval"] is None or whole["node_days"] < GOAL_NODE_DAYS:
        return "not shown"
    low, high = whole["interval"]
    return "yes" if high <= GOAL_PER_NODE_DAY else "no" if low > GOAL_PER_NODE_DAY else "not shown"


def summary(found: Sequence[Minute]) -> dict[str, Any]:
    """All of it, for JSON."""
    return {
        "decision_commit": found[-1].decision_commit if found else None,
        "minutes": len(found),
        "rates": rates(found),
        "goal_reached": reached(rates(found)[0]),
        "states_of_pools": shared(found),
        "overloaded_node_days": round(sum(one.overloaded_node_s for one in found) / DAY_S, 4),
        "episodes_while_overloaded": len(episodes(found, counting=False)),
        "unjudged_node_days": round(sum(one.unjudged_node_s for one in found) / DAY_S, 4),
        "requests": sum(one.requests for one in found),
        "errors": sum(one.errors for one in found),
        "busy_share_mean": _mean([value for one in found for value in one.busy_shares]),
        "wait_ms_mean": _mean([value for one in found for value in one.waits_ms]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None
