"""The steps that make the journal's tables, in order. `PRAGMA user_version` is how many of them a file has had.

A step that was released is never touched again, since files out there were made by it: it is plain text, and does not
follow other code's idea of today's columns. A change of the tables is a new step at the end, for old files and
fresh ones alike, and a file of it for the tests (tests/support/journal_files.py).
"""

from __future__ import annotations

STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE changes (id TEXT PRIMARY KEY, pool TEXT NOT NULL, time_unix_s REAL NOT NULL, what TEXT NOT"
        " NULL, target TEXT NOT NULL, json TEXT NOT NULL, node TEXT)",
        "CREATE INDEX changes_time ON changes (time_unix_s)",
        "CREATE INDEX changes_pool_time ON changes (pool, time_unix_s)",
        "CREATE INDEX changes_target_time ON changes (target, time_unix_s)",
        "CREATE INDEX changes_node ON changes (pool, node, time_unix_s) WHERE node IS NOT NULL",
        "CREATE INDEX changes_what ON changes (pool, what, time_unix_s)",
        "CREATE TABLE nodes (id INTEGER PRIMARY KEY, pool TEXT NOT NULL, node TEXT NOT NULL, UNIQUE (pool, node))",
        "CREATE TABLE samples (node_id INTEGER NOT NULL, time_unix_s REAL NOT NULL, rps REAL, rt_mean_ms REAL,"
        " rt_p50_ms REAL, rt_p95_ms REAL, rt_p99_ms REAL, in_flight REAL, errors_per_s REAL, cpu REAL, steal REAL,"
        " run_delay_per_cpu_s REAL, pressure_cpu REAL, pressure_memory REAL, pressure_io REAL, cpi REAL,"
        " cache_miss_rate REAL, wall_cpu_ratio REAL, PRIMARY KEY (node_id, time_unix_s)) WITHOUT ROWID",
        "CREATE TABLE states (node_id INTEGER NOT NULL, since_unix_s REAL NOT NULL, state TEXT NOT NULL,"
        " last_unix_s REAL NOT NULL, severity REAL NOT NULL, path TEXT NOT NULL, resource TEXT, PRIMARY KEY (node_id,"
        " since_unix_s, state)) WITHOUT ROWID",
        "CREATE INDEX states_last ON states (last_unix_s)",
        "CREATE TABLE weights (pool TEXT NOT NULL, server TEXT NOT NULL, time_unix_s REAL NOT NULL, weight INTEGER"
        " NOT NULL, wanted INTEGER NOT NULL, PRIMARY KEY (pool, server, time_unix_s)) WITHOUT ROWID",
        "CREATE TABLE latest (kind TEXT NOT NULL, pool TEXT NOT NULL, node TEXT NOT NULL, received_unix_s REAL NOT"
        " NULL, json TEXT NOT NULL, PRIMARY KEY (kind, pool, node)) WITHOUT ROWID",
        "CREATE TABLE rolled (step_s INTEGER NOT NULL, node_id INTEGER NOT NULL, time_unix_s INTEGER NOT NULL, n"
        " INTEGER NOT NULL, rps INTEGER, rt_mean_ms INTEGER, rt_p50_ms INTEGER, rt_p95_ms INTEGER, rt_p99_ms"
        " INTEGER, in_flight INTEGER, errors_per_s INTEGER, cpu INTEGER, steal INTEGER, run_delay_per_cpu_s"
        " INTEGER, pressure_cpu INTEGER, pressure_memory INTEGER, pressure_io INTEGER, cpi INTEGER, cache_miss_rate"
        " INTEGER, wall_cpu_ratio INTEGER, PRIMARY KEY (step_s, node_id, time_unix_s)) WITHOUT ROWID",
        "CREATE TABLE rolled_weights (step_s INTEGER NOT NULL, node_id INTEGER NOT NULL, time_unix_s INTEGER NOT"
        " NULL, weight INTEGER NOT NULL, wanted INTEGER NOT NULL, PRIMARY KEY (step_s, node_id, time_unix_s))"
        " WITHOUT ROWID",
        "CREATE TABLE clock (begin_age_s REAL NOT NULL, end_age_s REAL NOT NULL, begin_unix_s REAL NOT NULL)",
        "CREATE TABLE rolled_states (node_id INTEGER NOT NULL, time_unix_s INTEGER NOT NULL, known_s REAL NOT NULL,"
        " lost_s REAL NOT NULL, episodes INTEGER NOT NULL, worst_unix_s REAL, PRIMARY KEY (node_id, time_unix_s))"
        " WITHOUT ROWID",
        "CREATE TABLE response_times (pool TEXT NOT NULL, node TEXT NOT NULL, server TEXT NOT NULL, slot_unix_s"
        " INTEGER NOT NULL, last_unix_s REAL NOT NULL, sum_s REAL NOT NULL, counts TEXT NOT NULL, PRIMARY KEY (pool,"
        " node, server, slot_unix_s)) WITHOUT ROWID",
    ),
)
