"""The journal's tables and how the file is opened. `PRAGMA user_version` is the version of the schema.

A later version adds a step to `STEPS`; a file of a newer version than ours is refused in words.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

APPLICATION_ID = 0x534C574B
"""`SLWK`: tells our files from other SQLite files (https://sqlite.org/pragma.html#pragma_application_id)."""

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
"""Column of `samples` -> section and field of a Sample."""

STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE changes (id TEXT PRIMARY KEY, pool TEXT NOT NULL, time_unix_s REAL NOT NULL, what TEXT NOT NULL,"
        " target TEXT NOT NULL, json TEXT NOT NULL)",
        "CREATE INDEX changes_time ON changes (time_unix_s)",
        "CREATE TABLE nodes (id INTEGER PRIMARY KEY, pool TEXT NOT NULL, node TEXT NOT NULL, UNIQUE (pool, node))",
        f"CREATE TABLE samples (node_id INTEGER NOT NULL, time_unix_s REAL NOT NULL,"
        f" {', '.join(f'{name} REAL' for name in SAMPLE_COLUMNS)}, PRIMARY KEY (node_id, time_unix_s)) WITHOUT ROWID",
        "CREATE TABLE states (node_id INTEGER NOT NULL, since_unix_s REAL NOT NULL, state TEXT NOT NULL,"
        " last_unix_s REAL NOT NULL, severity REAL NOT NULL, path TEXT NOT NULL,"
        " PRIMARY KEY (node_id, since_unix_s, state)) WITHOUT ROWID",
        "CREATE TABLE weights (pool TEXT NOT NULL, server TEXT NOT NULL, time_unix_s REAL NOT NULL,"
        " weight INTEGER NOT NULL, wanted INTEGER NOT NULL, PRIMARY KEY (pool, server, time_unix_s)) WITHOUT ROWID",
        "CREATE TABLE latest (kind TEXT NOT NULL, pool TEXT NOT NULL, node TEXT NOT NULL,"
        " received_unix_s REAL NOT NULL, json TEXT NOT NULL, PRIMARY KEY (kind, pool, node)) WITHOUT ROWID",
    ),
    ("ALTER TABLE states ADD COLUMN resource TEXT",),
)

INSERT_SAMPLE = f"INSERT OR REPLACE INTO samples VALUES (?,?,{','.join('?' * len(SAMPLE_COLUMNS))})"

PRUNE_NODE = (
    "DELETE FROM samples WHERE node_id = ? AND time_unix_s < ?",
    "DELETE FROM states WHERE node_id = ? AND last_unix_s < ?",
)
PRUNE_NODES = (
    "DELETE FROM nodes WHERE NOT EXISTS (SELECT 1 FROM samples WHERE node_id = id)"
    " AND NOT EXISTS (SELECT 1 FROM states WHERE node_id = id)"
)


def _weighted(name: str) -> str:
    """Mean over requests, not over Samples; a Sample without traffic says nothing about response times."""
    return f"sum({name} * rps) / nullif(sum(CASE WHEN {name} IS NOT NULL THEN rps END), 0) AS {name}"


_MEANS = f"avg(rps) AS rps, {_weighted('rt_p50_ms')}, {_weighted('rt_p95_ms')}, avg(cpu) AS cpu"

HISTORY = (
    f"SELECT node, CAST((time_unix_s - :since) / :step AS INTEGER) AS slot, {_MEANS}"
    " FROM nodes JOIN samples ON node_id = id WHERE pool = :pool AND time_unix_s >= :since AND time_unix_s < :until"
    " GROUP BY id, slot ORDER BY id, slot"
)
WEIGHTS = (
    "SELECT server, time_unix_s, weight FROM weights WHERE pool = :pool AND time_unix_s >= :since - :held"
    " AND time_unix_s < :until ORDER BY time_unix_s"
)
READINGS = (
    f"SELECT nodes.node, {_MEANS}, received_unix_s FROM nodes"
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
        "SQLITE_NOTADB": "it is not an SQLite file; move it away and a new one is begun",
    }
    name = getattr(error, "sqlite_errorname", None) or ""
    words = next((text for code, text in advice.items() if name.startswith(code)), "unexpected")
    return JournalError(f"{path}: not {verb}: {words} ({error})")


def connect(path: Path, read_only: bool, wait_s: float) -> sqlite3.Connection:
    """Opens the file, makes or updates its tables unless `read_only`. Raises JournalError."""
    if read_only and not path.exists():
        raise JournalError(f"no journal at {path}: is `slackwater serve` running with this state_dir?")
    try:
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True)
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
            _update(connection)
        _check(connection, path, read_only)
    except sqlite3.Error as error:
        connection.close()
        raise failure(path, "opened", error) from error
    except BaseException:
        connection.close()
        raise
    return connection


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
    """Runs the steps that are missing; a file that is not ours or newer is left as it is (`_check` refuses it)."""
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
