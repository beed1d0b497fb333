"""What is read of a whole pool over a long time, without the series of each node: quick with hundreds of servers."""

from __future__ import annotations

import math
from typing import NamedTuple

from slackwater.core.journal import schema
from slackwater.core.journal.journal import Journal
from slackwater.core.journal.series import values_a_step
from slackwater.core.messages import Resource, State

Requests = tuple[float, float | None, float | None, float | None]
"""A server's requests in a step: their number per second, and the p50, p95 and p99 of their response times in ms."""


class Begin(NamedTuple):
    """A time that a node spent in a state of an episode, without the reasons."""

    node: str
    state: State
    since_unix_s: float
    until_unix_s: float | None
    """When its next state began; None: there was none yet."""
    resource: Resource | None = None


class SlowTime(NamedTuple):
    """A time that a node spent in a state of an episode, and what it lost in it."""

    node: str
    state: State
    since_unix_s: float
    until_unix_s: float
    """When it was last in this state."""
    severity: float
    """The highest share of its calm capacity that it lost."""
    resource: Resource | None


def requests(
    journal: Journal, pool: str, since_unix_s: float, step_s: float, until_unix_s: float
) -> dict[int, list[Requests]]:
    """Number of the step from `since_unix_s` on -> what each server with Samples answered. Raises JournalError.

    Steps of a minute or more come from the rolled-up minutes, of an hour or more from hours.
    """
    tier = schema.HOUR_S if step_s >= schema.HOUR_S else schema.MINUTE_S if step_s >= schema.MINUTE_S else 0
    where = {"pool": pool, "since": since_unix_s, "until": until_unix_s, "step": step_s, "tier": tier, "nodes": None}
    by_slot: dict[int, list[Requests]] = {}
    with journal.reading() as database:
        for slot, rps, *times in database.execute(schema.ROLLED_REQUESTS if tier else schema.REQUESTS, where):
            by_slot.setdefault(slot, []).append((rps or 0.0, *times))
    return by_slot


def observed_s(journal: Journal, pool: str, since_unix_s: float, until_unix_s: float) -> float:
    """Seconds of the whole hours in which any server sent Samples. Raises JournalError."""
    since = since_unix_s // schema.HOUR_S * schema.HOUR_S
    with journal.reading() as database:
        where = {"pool": pool, "since": since, "until": until_unix_s}
        (hours,) = database.execute(schema.OBSERVED_HOURS, where).fetchone()
    return float(hours * schema.HOUR_S)


def begins(journal: Journal, pool: str, since_unix_s: float) -> list[Begin]:
    """The times of all episodes of a pool that went on since then, in order of their beginning. Raises JournalError."""
    with journal.reading() as database:
        rows = database.execute(schema.EPISODES, {"pool": pool, "since": since_unix_s})
        return [Begin(*row) for row in rows]


def slow_times(journal: Journal, pool: str, since_unix_s: float) -> list[SlowTime]:
    """What the nodes of a pool lost since then, in order of the beginning. Raises JournalError."""
    with journal.reading() as database:
        return [SlowTime(*row) for row in database.execute(schema.SLOW_TIMES, {"pool": pool, "since": since_unix_s})]


def fitting_step_s(journal: Journal, pool: str, seconds: float, most_values: int) -> int:
    """The shortest step in whole seconds with which a history of all nodes has no more values. Raises JournalError."""
    with journal.reading() as database:
        return max(1, math.ceil(seconds * values_a_step(database, pool, {}, None) / most_values))
