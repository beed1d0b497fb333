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

    beside: str
    times: int
    node_days: float
    episodes: int
    per_node_day: float | None
    interval: list[float] | None


def of_one_state(minutes: Sequence[Minute]) -> list[Minute]:
    """The minutes that were measured with the same decision code as the last one."""
    return [minute for minute in minutes if minute.decision_commit == minutes[-1].decision_commit] if minutes else []


def episodes(minutes: Sequence[Minute], *, counting: bool = True) -> list[Began]:
    """The false episodes: in time that counts, or in time that does not."""
    return [began for minute in minutes for began in minute.began if began.is_false and began.counts == counting]


def slow_by_itself(minutes: Sequence[Minute]) -> dict[str, int]:
    """Kind of disturbance, or `nothing` -> how many servers without a monitor were called slow beside it in time that
    counts, and were."""
    return dict(
        Counter(began.beside for minute in minutes for began in minute.began if began.was_slow and began.counts)
    )


def rates(minutes: Sequence[Minute]) -> list[Rate]:
    """Rates of all time that counts, of the time without and with a disturbance, and of each kind of disturbance."""
    node_s: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for minute in minutes:
        for kind, seconds in minute.node_s.items():
            node_s[kind] += seconds  # type: ignore[assignment]
        times.update(minute.disturbances)
    false = Counter(began.beside for began in episodes(minutes))
    kinds = sorted({*node_s, *times} - {NOTHING})
    rows = [("all", [NOTHING, *kinds]), ("nothing was done", [NOTHING]), ("beside a disturbance", kinds)]
    rows += [(kind, [kind]) for kind in kinds]
    return [
        _rate(
            beside,
            sum(times[kind] for kind in members),
            sum(node_s[kind] for kind in members),
            sum(false[kind] for kind in members),
        )
        for beside, members in rows
    ]


def _rate(beside: str, times: int, node_s: float, count: int) -> Rate:
    days = node_s / DAY_S
    return Rate(
        beside=beside,
        times=times,
        node_days=round(days, 4),
        episodes=count,
        per_node_day=round(count / days, 2) if days else None,
        interval=rate_interval(count, days),
    )


def shared(minutes: Sequence[Minute]) -> dict[str, dict[str, int]]:
    """State that is no episode -> kind of disturbance, or `nothing` -> how many nodes began to have it."""
    return {
        state: dict(
            Counter(
                began.beside for minute in minutes for began in minute.began if began.state == state and began.counts
            )
        )
        for state in SHARED
    }


def reached(whole: Rate) -> str:
    """Whether the goal is shown, as a word."""
    if whole["interval"] is None or whole["node_days"] < GOAL_NODE_DAYS:
        return "not shown"
    low, high = whole["interval"]
    return "yes" if high <= GOAL_PER_NODE_DAY else "no" if low > GOAL_PER_NODE_DAY else "not shown"


def summary(minutes: Sequence[Minute]) -> dict[str, Any]:
    """The summary, for JSON."""
    return {
        "decision_commit": minutes[-1].decision_commit if minutes else None,
        "minutes": len(minutes),
        "rates": rates(minutes),
        "goal_reached": reached(rates(minutes)[0]),
        "states_of_pools": shared(minutes),
        "slow_by_itself": slow_by_itself(minutes),
        "overloaded_node_days": round(sum(minute.overloaded_node_s for minute in minutes) / DAY_S, 4),
        "episodes_while_overloaded": len(episodes(minutes, counting=False)),
        "unjudged_node_days": round(sum(minute.unjudged_node_s for minute in minutes) / DAY_S, 4),
        "requests": sum(minute.requests for minute in minutes),
        "errors": sum(minute.errors for minute in minutes),
        "busy_share_mean": _mean([value for minute in minutes for value in minute.busy_shares]),
        "wait_ms_mean": _mean([value for minute in minutes for value in minute.waits_ms]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None
