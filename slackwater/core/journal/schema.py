"""Opens the journal's file; the statements that write and read its tables.

The tables are made by the steps in `slackwater.core.journal.steps`; a file of a newer version than ours is refused in
words.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

from slackwater.core.files import exists, force_folder, make_state_dir
from slackwater.core.journal.steps import STEPS

APPLICATION_ID = 0x534C574B
"""`SLWK`: distinguishes our files from other SQLite files (https://sqlite.org/pragma.html#pragma_application_id)."""

SAMPLE_COLUMNS: dict[str, tuple[str, str]] = {
    "rps": ("traffic", "rps"),
    "rt_mean_ms": ("traffic", "rt_mean_ms"),
    "rt_p50_ms": ("traffic", "rt_p50_ms"),
    "rt_p95_ms": ("traffic", "rt_p95_ms"),
    "rt_p99_ms": ("traffic", "rt_p99_ms"),
    "in_flight": ("traffic", "in_flight"),
    "errors_per_s": ("traffic", "errors_per_s"),
    "cpu": ("cpu", "utilisation"),
    "steal": ("cpu", "steal"),
    "run_delay_per_cpu_s": ("sched", "run_delay_per_cpu_s"),
    "pressure_cpu": ("pressure", "cpu_some"),
    "pressure_memory": ("pressure", "memory_some"),
    "pressure_io": ("pressure", "io_some"),
    "cpi": ("counters", "cpi"),
    "cache_miss_rate": ("counters", "cache_miss_rate"),
    "wall_cpu_ratio": ("counters", "wall_cpu_ratio"),
}
"""Column of `samples` -> section and field of a Sample, in the order of the table. `rolled` has the same columns. A new
one goes to the end, with a new step that adds it to both tables."""

SCALE = 10_000
"""Rolled-up values are kept as whole numbers of 1/SCALE: SQLite keeps those in 1 to 4 bytes instead of 8."""
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
"""The steps of rolled-up series; states are rolled up by days (UTC)."""

INSERT_CHANGE = "INSERT OR IGNORE INTO changes (id, pool, time_unix_s, what, target, json, node) VALUES (?,?,?,?,?,?,?)"
"""`node`: the one whose wsengine made it; NULL for the controller's and people's."""
PRUNE_CHANGES = "DELETE FROM changes WHERE time_unix_s < :since"
PRUNE_NODES_CHANGES = (
    "DELETE FROM changes WHERE rowid IN (SELECT row FROM (SELECT rowid AS row, row_number() OVER"
    " (PARTITION BY pool, node ORDER BY time_unix_s DESC) AS number FROM changes WHERE node IS NOT NULL)"
    " WHERE number > :keep LIMIT :at_once)"
)
"""The newest of each node stay."""
INSERT_SAMPLE = f"INSERT OR REPLACE INTO samples VALUES (?,?,{','.join('?' * len(SAMPLE_COLUMNS))})"

_KEPT = (
    *("samples WHERE", "states WHERE", "rolled_states WHERE"),
    *(f"{table} WHERE step_s = {step} AND" for table in ("rolled", "rolled_weights") for step in (MINUTE_S, HOUR_S)),
)
PRUNE_NODES = "DELETE FROM nodes WHERE " + " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {kept} node_id = id)" for kept in _KEPT
)
"""Nodes of which nothing is left. Servers have their ids in `nodes` too, by the balancer's name."""


def _mean(name: str, count: str) -> str:
    """Response times: mean over requests, not over Samples; a Sample without traffic has none. In floating point: a
    sum of whole numbers beyond 64 bits is an error of SQLite's."""
    weight = f"1.0 * rps * {count}" if name.startswith("rt_") else f"1.0 * {count}"
    return f"sum({name} * {weight}) / nullif(sum(CASE WHEN {name} IS NOT NULL THEN {weight} END), 0)"


def _means(names: Iterable[str], count: str = "1", scale: str = "") -> str:
    return ", ".join(f"{_mean(name, count)}{scale} AS {name}" for name in names)


_REQUESTS = ("rps", "rt_p50_ms", "rt_p95_ms", "rt_p99_ms")
_READ = (*_REQUESTS, "cpu")
SIGNALS = (
    *_REQUESTS,
    *("cpu", "errors_per_s", "run_delay_per_cpu_s", "steal", "pressure_cpu", "pressure_io", "cpi"),
)
"""The columns that a `PoolSeries` has."""
_WHOLE = ", ".join(f"CAST(round({_mean(name, '1')} * {SCALE}) AS INTEGER)" for name in SAMPLE_COLUMNS)
_WHOLE_AGAIN = ", ".join(f"CAST(round({_mean(name, 'n')}) AS INTEGER)" for name in SAMPLE_COLUMNS)

# Whole steps: the times are at the beginnings of minutes, or of hours.
_OF_MINUTES = "time_unix_s >= :since_minute AND time_unix_s < :until_minute"
_OF_HOURS = "time_unix_s >= :since_hour AND time_unix_s < :until_hour"
ROLL_MINUTES = (
    f"INSERT OR REPLACE INTO rolled SELECT {MINUTE_S}, node_id,"
    f" CAST(time_unix_s / {MINUTE_S} AS INTEGER) * {MINUTE_S} AS minute, count(*), {_WHOLE} FROM samples"
    f" WHERE node_id = :node AND {_OF_MINUTES} GROUP BY minute"
)
ROLL_HOURS = (
    f"INSERT OR REPLACE INTO rolled SELECT {HOUR_S}, node_id, time_unix_s / {HOUR_S} * {HOUR_S} AS hour, sum(n),"
    f" {_WHOLE_AGAIN} FROM rolled WHERE step_s = {MINUTE_S} AND node_id = :node AND {_OF_HOURS}"
    " GROUP BY hour"
)
ROLL_WEIGHTS = tuple(
    f"INSERT OR REPLACE INTO rolled_weights SELECT {step}, :node,"
    f" CAST(time_unix_s / {step} AS INTEGER) * {step} AS slot, CAST(round(avg(weight){times}) AS INTEGER),"
    f" CAST(round(avg(wanted){times}) AS INTEGER) FROM {source} GROUP BY slot"
    for step, times, source in (
        (MINUTE_S, f" * {SCALE}", f"weights WHERE pool = :pool AND server = :server AND {_OF_MINUTES}"),
        (HOUR_S, "", f"rolled_weights WHERE step_s = {MINUTE_S} AND node_id = :node AND {_OF_HOURS}"),
    )
)
_LOSING = "state IN ('interference', 'slow', 'errors', 'overload', 'all_slow')"
_SECONDS = f"max(0, min(last_unix_s, :day + {DAY_S}) - max(since_unix_s, :day))"
_LOST = f"CASE WHEN {_LOSING} THEN severity * {_SECONDS} END"
ROLL_STATES = (
    f"INSERT OR REPLACE INTO rolled_states SELECT node_id, :day, sum({_SECONDS}), coalesce(sum({_LOST}), 0),"
    f" sum({_LOSING}), CASE WHEN max({_LOST}) IS NOT NULL THEN since_unix_s END FROM states"
    f" WHERE last_unix_s >= :day AND since_unix_s < :day + {DAY_S} AND state <> 'unknown' GROUP BY node_id"
)
"""One day of all nodes. `since_unix_s` is that of the row with the highest loss
(https://sqlite.org/lang_select.html#bareagg)."""
_OUTSIDE = "(time_unix_s < :since OR time_unix_s >= :until)"
SEGMENTS = "SELECT begin_age_s, end_age_s, begin_unix_s FROM clock ORDER BY rowid"
"""The segments of the clock (`slackwater.core.journal.age.Segment`)."""
PRUNE_STATES = "DELETE FROM states WHERE last_unix_s < :since OR since_unix_s >= :until"
PRUNE_DAYS = "DELETE FROM rolled_states WHERE time_unix_s < :since OR time_unix_s >= :until"
PRUNE_LATEST = "DELETE FROM latest WHERE kind <> 'cycle' AND (received_unix_s < :since OR received_unix_s >= :until)"
DELETE_RAW = (
    f"DELETE FROM samples WHERE node_id = :node AND {_OUTSIDE}",
    f"DELETE FROM weights WHERE pool = :pool AND server = :server AND {_OUTSIDE}",
)
DELETE_ROLLED = tuple(
    f"DELETE FROM {table} WHERE step_s = :step AND node_id = :node AND {_OUTSIDE}"
    for table in ("rolled", "rolled_weights")
)

_SLOT = "CAST((time_unix_s - :since) / :step AS INTEGER) AS slot"
_CHOSEN = "pool = :pool AND (:nodes IS NULL OR node IN (SELECT value FROM json_each(:nodes)))"
_IN_TIME = "time_unix_s >= :since AND time_unix_s < :until GROUP BY id, slot ORDER BY id, slot"
_OF_SAMPLES = f"FROM nodes JOIN samples ON node_id = id WHERE {_CHOSEN} AND {_IN_TIME}"
# `CROSS JOIN` has SQLite go from each node to its own rows of the time, not through those of all times.
_OF_ROLLED = f"FROM nodes CROSS JOIN rolled ON step_s = :tier AND node_id = id WHERE {_CHOSEN} AND {_IN_TIME}"
HISTORY = f"SELECT node, {_SLOT}, {_means(SIGNALS)} {_OF_SAMPLES}"
ROLLED_HISTORY = f"SELECT node, {_SLOT}, {_means(SIGNALS, 'n', f' / {SCALE}.0')} {_OF_ROLLED}"
REQUESTS = f"SELECT {_SLOT}, {_means(_REQUESTS)} {_OF_SAMPLES}"
ROLLED_REQUESTS = f"SELECT {_SLOT}, {_means(_REQUESTS, 'n', f' / {SCALE}.0')} {_OF_ROLLED}"
_OF_HOUR = f"rolled WHERE step_s = {HOUR_S} AND node_id = id AND time_unix_s"
OBSERVED_HOURS = (
    f"WITH RECURSIVE hours (hour) AS (SELECT min((SELECT min(time_unix_s) FROM {_OF_HOUR} >= :since)) FROM nodes"
    f" WHERE pool = :pool UNION ALL SELECT hour + {HOUR_S} FROM hours WHERE hour + {HOUR_S} < :until)"
    " SELECT count(*) FROM hours WHERE hour < :until AND EXISTS (SELECT 1 FROM nodes WHERE pool = :pool AND EXISTS"
    f" (SELECT 1 FROM {_OF_HOUR} = hour AND (rps IS NOT NULL OR cpu IS NOT NULL)))"
)
"""Looks up one node after the other until one has rows: most often the first."""
EPISODES = (
    "SELECT node, state, since_unix_s, (SELECT min(since_unix_s) FROM states AS later WHERE later.node_id ="
    " states.node_id AND later.since_unix_s > states.since_unix_s), resource FROM states JOIN nodes ON id = node_id"
    " WHERE pool = :pool"
    f" AND last_unix_s >= :since AND {_LOSING} ORDER BY since_unix_s, node"
)
SLOW_TIMES = (
    "SELECT node, state, since_unix_s, max(since_unix_s, last_unix_s), severity, resource FROM states"
    f" JOIN nodes ON id = node_id WHERE pool = :pool AND last_unix_s >= :since AND {_LOSING}"
    " ORDER BY since_unix_s, node"
)
WEIGHTS = (
    "SELECT server, time_unix_s, weight FROM weights WHERE pool = :pool AND time_unix_s >= :since - :held"
    " AND time_unix_s < :until AND (:servers IS NULL OR server IN (SELECT value FROM json_each(:servers)))"
    " ORDER BY time_unix_s"
)
ROLLED_WEIGHTS = (
    f"SELECT node AS server, time_unix_s, weight / {SCALE}.0 AS weight FROM nodes CROSS JOIN rolled_weights ON"
    " step_s = :tier AND node_id = id WHERE pool = :pool AND"
    " (:servers IS NULL OR node IN (SELECT value FROM json_each(:servers)))"
    " AND time_unix_s >= :since AND time_unix_s < :until ORDER BY time_unix_s"
)
ROLLED_STATES = (
    "SELECT node_id, time_unix_s, known_s, lost_s, episodes, worst_unix_s FROM nodes JOIN rolled_states ON node_id = id"
    " WHERE pool = :pool AND time_unix_s >= :since AND time_unix_s < :until"
)
SPANS = (
    f"SELECT node_id, since_unix_s, max(since_unix_s, last_unix_s), CASE WHEN {_LOSING} THEN severity END"
    " FROM states JOIN nodes ON id = node_id WHERE pool = :pool AND last_unix_s >= :since AND since_unix_s < :until"
    " AND state <> 'unknown'"
)
READINGS = (
    f"SELECT nodes.node, {_means(_READ)}, received_unix_s FROM nodes"
    " JOIN latest ON kind = 'sample' AND latest.pool = nodes.pool AND latest.node = nodes.node"
    " JOIN samples ON node_id = id AND time_unix_s > json_extract(json, '$.time_unix_s') - :last_s"
    " AND time_unix_s <= json_extract(json, '$.time_unix_s')"
    " WHERE nodes.pool = :pool GROUP BY id ORDER BY nodes.node"
)


class JournalError(Exception):
    """The journal cannot be opened, read or written; the text names the file, what happened and what to look at."""


def failure(path: Path, verb: str, error: sqlite3.Error) -> JournalError:
    """SQLite's error in words."""
    advice = {
        "SQLITE_FULL": "the disk is full",
        "SQLITE_BUSY": "another process has been writing to it for too long",
        "SQLITE_READONLY": "it, or its folder, is read-only for this user",
        "SQLITE_CANTOPEN": "it cannot be opened: look at the rights on its folder",
        "SQLITE_IOERR": "the disk refused",
        "SQLITE_CORRUPT": "it is damaged; move it away and a new one is begun",
        "SQLITE_INTERRUPT": "it took too long; ask for less",
        "SQLITE_NOTADB": "it is not an SQLite file; move it away and a new one is begun",
    }
    name = getattr(error, "sqlite_errorname", None) or ""
    words = next((text for code, text in advice.items() if name.startswith(code)), "unexpected")
    return JournalError(f"{path}: not {verb}: {words} ({error})")


def connect(path: Path, read_only: bool, wait_s: float) -> sqlite3.Connection:
    """Opens the file, makes or updates its tables unless `read_only`. Raises JournalError."""
    if read_only and not exists(path):
        raise JournalError(f"no journal at {path}: is `slackwater serve` running with this state_dir?")
    if path.is_fifo():  # SQLite would wait for it for ever
        raise JournalError(f"{path}: is a pipe, and no file")
    try:
        if not read_only:
            make_state_dir(path.parent)
        uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        connection = sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        if isinstance(error, sqlite3.Error):
            raise failure(path, "opened", error) from error
        raise JournalError(f"{path}: cannot be made: {error}") from None
    connection.row_factory = sqlite3.Row
    try:
        if not read_only:
            _use_wal(connection, wait_s)
            connection.execute("PRAGMA synchronous=NORMAL")  # what must be on the disk at once is forced there after it
            _update(connection)
        _check(connection, path, read_only)
    except sqlite3.Error as error:
        connection.close()
        raise failure(path, "opened", error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def force_log(database: Path, known_inode: int) -> int:
    """Forces the write-ahead log to the disk, and its name too if it is new; returns its inode.

    It is missing, and 0 is returned, when all of it is in the database. Raises OSError.
    """
    try:
        handle = os.open(f"{database}-wal", os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        os.fsync(handle)
        inode = os.fstat(handle).st_ino
    finally:
        os.close(handle)
    if inode != known_inode:
        force_folder(database.parent)
    return inode


def _use_wal(connection: sqlite3.Connection, wait_s: float) -> None:
    """The switch to WAL does not wait for other users by itself, so two processes that make the file would collide."""
    give_up = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > give_up:
                raise
            time.sleep(0.02)
        else:
            return


def _numbers(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Application id, schema version, number of tables."""
    return (
        int(connection.execute("PRAGMA application_id").fetchone()[0]),
        int(connection.execute("PRAGMA user_version").fetchone()[0]),
        int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]),
    )


def _update(connection: sqlite3.Connection) -> None:
    """Runs the missing steps; a foreign or newer file is left unchanged (`_check` refuses it)."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        application, version, tables = _numbers(connection)
        if application == APPLICATION_ID or (application, version, tables) == (0, 0, 0):
            for number, statements in enumerate(STEPS[version:], start=version + 1):
                for statement in statements:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={number}")
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check(connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
    application, version, tables = _numbers(connection)
    if application != APPLICATION_ID:
        if read_only and tables == 0:
            raise JournalError(f"no journal at {path} yet: it is being made")
        raise JournalError(f"{path}: is an SQLite file, but not a journal of Slackwater")
    if version > len(STEPS):
        raise JournalError(
            f"{path}: was written by a newer Slackwater (schema {version}, expected at most {len(STEPS)}): update"
        )
    if version < len(STEPS):
        raise JournalError(f"{path}: has schema {version}, expected {len(STEPS)}: `slackwater serve` updates it")
