"""What nodes lost of their calm capacity over time, from the states that they were in.

A span of a state is cut at the steps. In each it counts its seconds times the highest severity of the whole span, so
the result is an upper bound.
"""

from __future__ import annotations

import sqlite3

import msgspec

from slackwater.core.journal import schema
from slackwater.core.journal.series import steps


class Losses(msgspec.Struct):
    """One node's losses, a value a step."""

    known_s: list[float]
    """Seconds in a state other than `unknown`."""
    lost_s: list[float]
    """Seconds of its whole calm capacity that were lost: 60 s at severity 0.5 are 30 s."""
    episodes: list[int]
    """Episodes that went on in the step."""
    worst_unix_s: list[float | None]
    """When that one of them began that lost most in the step; None: there was none."""


def read_losses(
    database: sqlite3.Connection, pool: str, since_unix_s: float, step_s: float, until_unix_s: float
) -> dict[str, Losses]:
    """`Journal.losses`, from an open database. Raises ValueError as that does, sqlite3.Error."""
    length = steps(since_unix_s, until_unix_s, step_s)
    by_node: dict[int, Losses] = {}
    worst: dict[tuple[int, int], float] = {}

    def losses_of(node: int) -> Losses:
        if node not in by_node:
            by_node[node] = Losses([0.0] * length, [0.0] * length, [0] * length, [None] * length)
        return by_node[node]

    names = dict(database.execute("SELECT id, node FROM nodes WHERE pool = ?", (pool,)).fetchall())
    cut = 0
    if step_s == schema.DAY_S and since_unix_s % schema.DAY_S == 0.0:
        cut = max(0, length - 1)
        rolled = {"pool": pool, "since": since_unix_s, "until": since_unix_s + cut * step_s}
        for node, time_unix_s, known_s, lost_s, episodes, began in database.execute(schema.ROLLED_STATES, rolled):
            losses, slot = losses_of(node), round((time_unix_s - since_unix_s) / step_s)
            losses.known_s[slot], losses.lost_s[slot] = known_s, lost_s
            losses.episodes[slot], losses.worst_unix_s[slot] = episodes, began
    where = {"pool": pool, "since": since_unix_s + cut * step_s, "until": until_unix_s}
    for node, began, last, severity in database.execute(schema.SPANS, where):
        losses = losses_of(node)
        first = max(cut, int((began - since_unix_s) // step_s))
        final = min(length - 1, int((last - since_unix_s) // step_s))
        for slot in range(first, final + 1):
            begin = since_unix_s + slot * step_s
            seconds = min(last, begin + step_s) - max(began, begin)
            losses.known_s[slot] += seconds
            if severity is None:
                continue
            losses.lost_s[slot] += severity * seconds
            losses.episodes[slot] += 1
            if severity * seconds >= worst.get((node, slot), 0.0):
                worst[node, slot] = severity * seconds
                losses.worst_unix_s[slot] = began
    return {names[node]: losses for node, losses in by_node.items()}
