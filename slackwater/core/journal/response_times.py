"""The servers' response times in the journal: for each server, its histogram since the journal began, every 30 s.

The newest row is what Prometheus reads, and the difference to an older one gives the percentiles of the last minutes.
"""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass, field

import msgspec

from slackwater.core.messages import Sample
from slackwater.core.response_times import Histogram

SLOT_S = 30
"""Time between two rows of a server."""
WINDOW_S = 300
"""The time that the percentiles are of."""
WRITE_EVERY_S = 5.0
"""A server's newest row is written again at this interval: what came since is lost when the process is killed."""
SHOWN_S = 3600.0
"""A server without a request for this time is not shown, and begins at zero after it."""
MOST_SERVERS_OF_NODE = 32
"""Most servers of a node, whose Samples may name any number; the others are left out."""

_NEWEST = (
    "SELECT server, last_unix_s, sum_s, counts, max(slot_unix_s) FROM response_times"
    " WHERE pool = ? AND node = ? GROUP BY server"
)
_INSERT = "INSERT OR REPLACE INTO response_times VALUES (?,?,?,?,?,?,?)"
_DELETE = (
    "DELETE FROM response_times WHERE pool = :pool AND node = :node AND server = :server AND (slot_unix_s > :slot OR"
    " slot_unix_s < (SELECT max(slot_unix_s) FROM response_times WHERE pool = :pool AND node = :node"
    " AND server = :server AND slot_unix_s <= :slot - :window))"
)
"""Rows of the future, as after a step of the clock, and those that no window needs any more."""
_DELETE_ALL = "DELETE FROM response_times WHERE pool = :pool AND node = :node AND server = :server"
_READ = (
    "SELECT node, server, last_unix_s, max(slot_unix_s), sum_s, counts FROM response_times WHERE pool = ?"
    " AND last_unix_s <= ? GROUP BY node, server"
)
"""The newest row of each server (https://sqlite.org/lang_select.html#bareagg)."""
WHY_NONE = (
    "SELECT node, coalesce(json_extract(json, '$.source'), 'monitor') AS source,"
    " coalesce(json_extract(json, '$.absent.\"traffic.times\"'), '') AS reason FROM latest"
    " WHERE kind = 'sample' AND pool = ?"
)
PRUNE = "DELETE FROM response_times WHERE last_unix_s < :since OR last_unix_s >= :until"


@dataclass(frozen=True)
class ServerTimes:
    """The response times of one server."""

    total: Histogram
    """Since the journal began."""
    recent: Histogram
    """Its times of about the last `WINDOW_S`."""


@dataclass
class _Server:
    total: Histogram = field(default_factory=Histogram)
    written_unix_s: float = 0.0


class ServerTotals:
    """The histograms that a writer of the journal adds up."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, str], dict[str, _Server]] = {}

    def forget(self) -> None:
        """Has the rows of the journal read again: a transaction was taken back, or the file is another one."""
        self._nodes.clear()

    def add(self, database: sqlite3.Connection, sample: Sample, now_unix_s: float) -> None:
        """Adds a Sample's response times, and writes its server's row where that is due."""
        times = None if sample.traffic is None else sample.traffic.times
        if times is None:
            return
        servers = self._nodes.get((sample.pool, sample.node))
        if servers is None:
            rows = database.execute(_NEWEST, (sample.pool, sample.node)).fetchall()
            servers = {row["server"]: _Server(_histogram(row), row["last_unix_s"]) for row in rows}
            self._nodes[sample.pool, sample.node] = servers
        if times.server not in servers and len(servers) >= MOST_SERVERS_OF_NODE:
            return
        server = servers.setdefault(times.server, _Server())
        of_server = {"pool": sample.pool, "node": sample.node, "server": times.server}
        idle_s = now_unix_s - server.written_unix_s
        if idle_s > SHOWN_S:
            server.total = Histogram()
            database.execute(_DELETE_ALL, of_server)
        server.total.add(times.sum_s, times.counts)
        if 0.0 <= idle_s < WRITE_EVERY_S:
            return
        server.written_unix_s = now_unix_s
        slot = int(now_unix_s // SLOT_S * SLOT_S)
        counts = msgspec.json.encode(sorted(server.total.counts.items())).decode()
        database.execute(_INSERT, (*of_server.values(), slot, now_unix_s, server.total.sum_s, counts))
        database.execute(_DELETE, {**of_server, "slot": slot, "window": WINDOW_S + SLOT_S})


def read_response_times(
    database: sqlite3.Connection, pool: str, now_unix_s: float
) -> dict[tuple[str, str], ServerTimes]:
    """(Node, server) -> its times, for those that had requests within `SHOWN_S`."""
    newest = database.execute(_READ, (pool, math.inf)).fetchall()
    older = {
        (row["node"], row["server"]): _histogram(row) for row in database.execute(_READ, (pool, now_unix_s - WINDOW_S))
    }
    shown = {}
    for row in newest:
        if row["last_unix_s"] >= now_unix_s - SHOWN_S:
            names, total = (row["node"], row["server"]), _histogram(row)
            shown[names] = ServerTimes(total, total.since(older.get(names, Histogram())))
    return shown


def _histogram(row: sqlite3.Row) -> Histogram:
    """What a row counts; nothing where a bad disk has changed it, so that counting goes on."""
    try:
        counts = msgspec.json.decode(row["counts"], type=list[tuple[int, int]])
    except msgspec.MsgspecError:
        return Histogram()
    return Histogram(row["sum_s"], dict(counts))
