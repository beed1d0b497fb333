"""Retention: rolls Samples up to minutes and hours, deletes old rows, limits the size of the journal.

In short transactions, a few nodes each, so that lbengine's Changes never wait for long.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import astuple

from slackwater.core.config import JournalSettings
from slackwater.core.journal import age, response_times, schema
from slackwater.core.journal.journal import Journal

log = logging.getLogger("slackwater.journal")

NODES_AT_ONCE = 20
LEAST_RAW_S = 600.0
"""Samples of the last minutes are kept whatever their size: minutes are made of them."""
FULL = 0.95
"""A journal above its size limit is reduced to this share of it."""
SHORTER = 0.9
"""A journal that is too large keeps this share of its time with each round."""
LATE_S = 180.0
"""The most that a row's date differs from the time when it is written: `receipt.NEAR_S`, and what it waited."""
ROLL_AGAIN_S = 600.0
"""The time that the run before this one may not have rolled up."""
DAY_S = 86400.0
AHEAD_S = DAY_S
"""A row is not taken for old that is dated at most this much ahead: another controller's clock may be off."""
NODE_CHANGES = 5000
"""Newest Changes of each node that are kept: a node may publish any number, and must not fill the disk."""
LEAST_NODE_CHANGES = 500
"""Newest Changes of each node that are kept in a journal that is too large."""
CHANGES_AT_ONCE = 5000


class JournalNode(NamedTuple):
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
"""The tiers in the order in which they go when the journal is too large."""


class Keeper:
    """Keeps one journal. `wall` gives this machine's wall time, `elapsed` seconds that no clock step changes.

    What is old is decided by the journal's own age (`slackwater.core.journal.age`), never by the wall clock alone.
    """

    def __init__(
        self,
        journal: Journal,
        settings: JournalSettings,
        wall: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._wall = wall
        self._elapsed = elapsed
        self._free_bytes = free_bytes
        self._ran_s: float | None = None
        self._rolled_age_s: float | None = None

    def keep(self, all_is_written: bool = True) -> int:
        """Rolls up, deletes rows that are too old, and more while the journal is too large; returns the rows deleted.

        Too large is above `max_mb`, or so large that less than `min_free_mb` of its disk are free. Unless
        `all_is_written`, messages wait that will be dated in this time: it is rolled up again.

        Of a journal that is too large the Changes of nodes that made very many go first, then the oldest Samples,
        minutes and hours; the controller's and people's Changes and episodes never for their size. Raises
        JournalError.
        """
        journal, settings = self._journal, self._settings
        segments = self._advance()
        nodes = _nodes(journal)
        if self._rolled_age_s is None:
            self._rolled_age_s = segments[0].begin_age_s
        age_s = segments[-1].end_age_s
        _roll_all(journal, nodes, *age.shown(segments, age_s - self._rolled_age_s))
        raw_s, rolled_s = settings.keep_samples_h * 3600.0, settings.keep_minutes_d * DAY_S
        _roll_days(journal, *age.shown(segments, min(rolled_s, age_s - self._rolled_age_s)))
        if all_is_written:
            self._rolled_age_s = age_s
        deleted = sum(_delete(journal, nodes, tier, segments, rolled_s if tier.step_s else raw_s) for tier in TIERS)
        deleted += _prune_changes(journal, age.shown(segments, settings.keep_changes_d * DAY_S)[0], NODE_CHANGES)
        _tidy(journal, _range(segments, raw_s, 0), _range(segments, rolled_s, 0))
        free = journal.file_bytes() + self._free_bytes(journal.path) - settings.min_free_mb * 1e6
        most = min(settings.max_mb * 1e6, free)
        if journal.used_bytes() <= most:
            return deleted
        deleted += _prune_changes(journal, None, LEAST_NODE_CHANGES)
        for tier in TIERS:
            last_s = rolled_s if tier.step_s else raw_s
            while journal.used_bytes() > FULL * most and last_s > LEAST_RAW_S:
                last_s = max(LEAST_RAW_S, last_s * SHORTER)
                deleted += _delete(journal, nodes, tier, segments, last_s)
        return deleted

    def _advance(self) -> list[age.Segment]:
        """The journal's age until now, kept in it."""
        stored: list[age.Segment] = []
        newest: list[float | None] = []

        def read(database: sqlite3.Connection) -> None:
            stored.extend(age.Segment(*row) for row in database.execute(schema.SEGMENTS))
            newest.extend(database.execute("SELECT max(received_unix_s) FROM latest").fetchone())

        self._journal.keeping(read, "read")
        now_unix_s, now_s = self._wall(), self._elapsed()
        passed_s = None if self._ran_s is None else now_s - self._ran_s
        if stored and self._rolled_age_s is None:
            self._rolled_age_s = stored[-1].end_age_s - ROLL_AGAIN_S
        segments = age.advance(stored or [age.first(newest[0] or now_unix_s)], now_unix_s, passed_s)
        if passed_s is not None and len(segments) > len(stored) > 0:
            log.warning(
                "the clock jumped by %+.0f s: old rows are deleted by the time that really passed, not by their dates",
                now_unix_s - segments[-2].end_unix_s,
            )
        kept_s = max(self._settings.keep_changes_d, self._settings.keep_minutes_d) * DAY_S

        kept = [segment for segment in segments if segment.end_age_s >= segments[-1].end_age_s - kept_s]

        def write(database: sqlite3.Connection) -> None:
            database.execute("DELETE FROM clock")
            database.executemany("INSERT INTO clock VALUES (?,?,?)", map(astuple, kept))

        self._journal.keeping(write, "written")
        self._ran_s = now_s
        return segments


def _range(segments: list[age.Segment], last_s: float, step_s: int) -> dict[str, float]:
    """What is dated within the last `last_s` of age, from the beginning of a step on."""
    since, until = age.shown(segments, last_s)
    since -= LATE_S
    return {"since": since // step_s * step_s if step_s else since, "until": until + AHEAD_S}


def _roll_all(journal: Journal, nodes: list[JournalNode], since: float, until: float) -> None:
    where = {}
    for name, step_s in (("minute", schema.MINUTE_S), ("hour", schema.HOUR_S)):
        where[f"since_{name}"] = (since - LATE_S) // step_s * step_s
        where[f"until_{name}"] = ((until + LATE_S) // step_s + 1) * step_s

    def roll(database: sqlite3.Connection, node: JournalNode) -> None:
        where_node = {"node": node.id, "pool": node.pool, "server": node.name, **where}
        for statement in (schema.ROLL_MINUTES, schema.ROLL_HOURS, *schema.ROLL_WEIGHTS):
            database.execute(statement, where_node)

    _each(journal, nodes, roll, "rolled up")


def _roll_days(journal: Journal, since: float, until: float) -> None:
    """What each node lost of its capacity, day by day; a day in a transaction."""
    for day in range(int((since - LATE_S) // schema.DAY_S), int((until + LATE_S) // schema.DAY_S) + 1):
        journal.keeping(partial(_roll_day, day=day * schema.DAY_S), "rolled up")


def _roll_day(database: sqlite3.Connection, day: int) -> None:
    database.execute(schema.ROLL_STATES, {"day": day})


def _nodes(journal: Journal) -> list[JournalNode]:
    nodes: list[JournalNode] = []
    query = "SELECT id, pool, node FROM nodes"
    journal.keeping(lambda database: nodes.extend(JournalNode(*row) for row in database.execute(query)), "read")
    return nodes


def _each(
    journal: Journal, nodes: list[JournalNode], work: Callable[[sqlite3.Connection, JournalNode], None], verb: str
) -> None:
    """`work` on all nodes, some in a transaction."""

    def some(database: sqlite3.Connection) -> None:
        for node in batch:
            work(database, node)

    for first in range(0, len(nodes), NODES_AT_ONCE):
        batch = nodes[first : first + NODES_AT_ONCE]
        journal.keeping(some, verb)


def _delete(journal: Journal, nodes: list[JournalNode], tier: Tier, segments: list[age.Segment], last_s: float) -> int:
    """Deletes the rows that are older than `last_s`, by whole steps of what is made of them."""
    deleted = 0
    dated = _range(segments, last_s, schema.HOUR_S if tier.step_s else schema.MINUTE_S)

    def work(database: sqlite3.Connection, node: JournalNode) -> None:
        nonlocal deleted
        where = {"node": node.id, "pool": node.pool, "server": node.name, "step": tier.step_s, **dated}
        for statement in tier.statements:
            deleted += database.execute(statement, where).rowcount

    _each(journal, nodes, work, "pruned")
    return deleted


def _prune_changes(journal: Journal, since_unix_s: float | None, keep_of_node: int) -> int:
    """Deletes the Changes from before `since_unix_s`, and each node's beyond its newest `keep_of_node`; some in a
    transaction."""
    deleted = [0]

    def work(database: sqlite3.Connection) -> None:
        where = {"keep": keep_of_node, "at_once": CHANGES_AT_ONCE}
        deleted.append(database.execute(schema.PRUNE_NODES_CHANGES, where).rowcount)

    def old(database: sqlite3.Connection) -> None:
        deleted.append(database.execute(schema.PRUNE_CHANGES, {"since": since_unix_s}).rowcount)

    if since_unix_s is not None:
        journal.keeping(old, "pruned")
    journal.keeping(work, "pruned")
    while deleted[-1] == CHANGES_AT_ONCE:
        journal.keeping(work, "pruned")
    return sum(deleted)


def _tidy(journal: Journal, raw: dict[str, float], rolled: dict[str, float]) -> None:
    """Deletes what is too old in the other tables."""

    def work(database: sqlite3.Connection) -> None:
        database.execute(schema.PRUNE_STATES, rolled)
        database.execute(schema.PRUNE_DAYS, rolled)
        database.execute(schema.PRUNE_LATEST, raw)
        database.execute(response_times.PRUNE, rolled)
        database.execute(schema.PRUNE_NODES)

    journal.keeping(work, "pruned")
