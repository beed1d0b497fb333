"""Retention: rolls Samples up to minutes and hours, deletes old rows, limits the size of the journal.

In short transactions, a few nodes each, so that lbengine's Changes never wait for long.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from slackwater.config import JournalSettings
from slackwater.journal import schema
from slackwater.journal.journal import Journal

NODES_AT_ONCE = 20
LEAST_RAW_S = 600.0
"""Samples of the last minutes are kept whatever their size: minutes are made of them."""
FULL = 0.95
"""A journal above its size limit is reduced to this share of it."""
STEP_SHARE = 0.1
"""Each round deletes the oldest tenth of the time that is there."""
MOST_ROUNDS = 60
NODE_CHANGES = 5000
"""Newest Changes of each node that are kept: nodes say as much as they like, and one must not fill the disk."""
LEAST_NODE_CHANGES = 500
"""The same in a journal that is too large."""
CHANGES_AT_ONCE = 5000


class Node(NamedTuple):
    """A node, or a server by the balancer's name."""

    id: int
    pool: str
    name: str


class Tier(NamedTuple):
    """Rows of one fineness."""

    table: str
    step_s: int
    """0: Samples as they came."""
    statements: tuple[str, ...]


TIERS = (
    Tier("samples", 0, schema.DELETE_RAW),
    Tier("rolled", schema.MINUTE_S, schema.DELETE_ROLLED),
    Tier("rolled", schema.HOUR_S, schema.DELETE_ROLLED),
)
"""In the order in which they go when the journal is too large."""


def keep(
    journal: Journal,
    settings: JournalSettings,
    now_unix_s: float,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> int:
    """Rolls up, deletes rows that are too old, and more while the journal is too large; returns the rows deleted.

    Too large is above `max_mb`, or so large that less than `min_free_mb` of its disk are free.

    Of a journal that is too large the Changes of nodes that made very many go first, then the oldest Samples, minutes
    and hours; the controller's and people's Changes and episodes never for their size. Raises JournalError.
    """
    nodes = _nodes(journal)
    _each(journal, nodes, _roll, "rolled up")
    raw_before = now_unix_s - settings.keep_samples_h * 3600.0
    before = now_unix_s - settings.keep_minutes_d * 86400.0
    deleted = sum(_delete(journal, nodes, tier, before if tier.step_s else raw_before) for tier in TIERS)
    deleted += _prune_changes(journal, now_unix_s - settings.keep_changes_d * 86400.0, NODE_CHANGES)
    _tidy(journal, raw_before, before)
    most = min(settings.max_mb * 1e6, journal.file_bytes() + free_bytes(journal.path) - settings.min_free_mb * 1e6)
    if journal.used_bytes() <= most:
        return deleted
    deleted += _prune_changes(journal, 0.0, LEAST_NODE_CHANGES)
    latest = now_unix_s - LEAST_RAW_S
    for tier in TIERS:
        for _ in range(MOST_ROUNDS):
            oldest = _oldest(journal, nodes, tier)
            if journal.used_bytes() <= FULL * most or oldest is None or oldest >= latest:
                break
            deleted += _delete(journal, nodes, tier, min(latest, oldest + max(1.0, STEP_SHARE * (latest - oldest))))
    return deleted


def _nodes(journal: Journal) -> list[Node]:
    found: list[Node] = []
    query = "SELECT id, pool, node FROM nodes"
    journal.keeping(lambda database: found.extend(Node(*row) for row in database.execute(query)), "read")
    return found


def _each(journal: Journal, nodes: list[Node], work: Callable[[sqlite3.Connection, Node], None], verb: str) -> None:
    """`work` on all nodes, some in a transaction."""

    def some(database: sqlite3.Connection) -> None:
        for node in batch:
            work(database, node)

    for first in range(0, len(nodes), NODES_AT_ONCE):
        batch = nodes[first : first + NODES_AT_ONCE]
        journal.keeping(some, verb)


def _roll(database: sqlite3.Connection, node: Node) -> None:
    where = {"node": node.id, "pool": node.pool, "server": node.name}
    for statement in (schema.ROLL_MINUTES, schema.ROLL_HOURS, *schema.ROLL_WEIGHTS):
        database.execute(statement, where)


def _delete(journal: Journal, nodes: list[Node], tier: Tier, before_unix_s: float) -> int:
    deleted = 0

    def work(database: sqlite3.Connection, node: Node) -> None:
        nonlocal deleted
        where = {"node": node.id, "pool": node.pool, "server": node.name, "step": tier.step_s, "before": before_unix_s}
        for statement in tier.statements:
            deleted += database.execute(statement, where).rowcount

    _each(journal, nodes, work, "pruned")
    return deleted


def _prune_changes(journal: Journal, before_unix_s: float, keep_of_node: int) -> int:
    """Deletes those that are older, and each node's beyond its newest; some in a transaction."""
    deleted = [0]

    def work(database: sqlite3.Connection) -> None:
        where = {"keep": keep_of_node, "at_once": CHANGES_AT_ONCE}
        deleted.append(database.execute(schema.PRUNE_NODES_CHANGES, where).rowcount)

    def age(database: sqlite3.Connection) -> None:
        deleted.append(database.execute(schema.PRUNE_CHANGES, {"before": before_unix_s}).rowcount)

    journal.keeping(age, "pruned")
    journal.keeping(work, "pruned")
    while deleted[-1] == CHANGES_AT_ONCE:
        journal.keeping(work, "pruned")
    return sum(deleted)


def _oldest(journal: Journal, nodes: list[Node], tier: Tier) -> float | None:
    """The time of the oldest row; None when there is none."""
    of_step = f"step_s = {tier.step_s} AND " if tier.step_s else ""
    found: list[float] = []

    def work(database: sqlite3.Connection, node: Node) -> None:
        query = f"SELECT min(time_unix_s) FROM {tier.table} WHERE {of_step}node_id = ?"
        found.extend(row[0] for row in database.execute(query, (node.id,)) if row[0] is not None)

    _each(journal, nodes, work, "read")
    return min(found, default=None)


def _tidy(journal: Journal, raw_before_unix_s: float, before_unix_s: float) -> None:
    """What belongs to no time series."""

    def work(database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM states WHERE last_unix_s < ?", (before_unix_s,))
        database.execute("DELETE FROM latest WHERE kind <> 'cycle' AND received_unix_s < ?", (raw_before_unix_s,))
        database.execute(schema.PRUNE_NODES)

    journal.keeping(work, "pruned")
