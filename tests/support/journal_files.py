"""Journals as earlier versions left them: `tests/journals/schema-N.sqlite` is a file that had the first N steps.

`python -m tests.support.journal_files` writes those that are missing. One that is there is never written again: it
stands for the files of that version on other people's disks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from slackwater.core.journal.schema import APPLICATION_ID
from slackwater.core.journal.steps import STEPS
from tests.support.paths import TESTS

FOLDER = TESTS / "journals"

CHANGE = (
    '{"v":1,"id":"c1","pool":"web","time_unix_s":1795000010.0,"what":"weight","target":"host1","before":100,"after":0,'
    '"why":"noise","by":"lbengine","applied":true}'
)
MARK = (
    '{"v":1,"id":"c2","pool":"web","time_unix_s":1795000020.0,"what":"mark_episode","target":"host1","before":null,'
    '"after":"backup","why":"the nightly one","by":"anna","applied":true,"since_unix_s":1795000005.0}'
)
SAMPLE = (
    '{"v":1,"node":"host1","pool":"web","time_unix_s":1795000010.0,"boot_id":"b","seq":7,"period_s":0.2,'
    '"cpu":{"source":"cgroup","utilisation":0.5}}'
)

ROWS: tuple[tuple[str, ...], ...] = (
    (
        "INSERT INTO nodes (id, pool, node) VALUES (1, 'web', 'host1'), (2, 'web', 'host2')",
        "INSERT INTO samples (node_id, time_unix_s, rps, rt_mean_ms, rt_p50_ms, rt_p95_ms, rt_p99_ms, in_flight,"
        " errors_per_s, cpu, steal, run_delay_per_cpu_s, pressure_cpu, pressure_memory, pressure_io, cpi,"
        " cache_miss_rate, wall_cpu_ratio)"
        " VALUES (1, 1795000010.0, 80, 2, 1.5, 5, 9, 3, 0, 0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 1.7, 0.01, 1.2),"
        " (2, 1795000010.1, 40, NULL, NULL, NULL, NULL, 0, 0, 0.25, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "INSERT INTO states (node_id, since_unix_s, state, last_unix_s, severity, path)"
        " VALUES (1, 1795000005.0, 'interference', 1795000010.0, 0.5, '[\"steal 0.3\"]'),"
        " (2, 1795000000.0, 'calm', 1795000010.0, 0.0, '[]')",
        "INSERT INTO weights (pool, server, time_unix_s, weight, wanted)"
        " VALUES ('web', 'host1', 1795000000.0, 100, 100), ('web', 'host1', 1795000010.0, 0, 0)",
        "INSERT INTO changes (id, pool, time_unix_s, what, target, json)"
        f" VALUES ('c1', 'web', 1795000010.0, 'weight', 'host1', '{CHANGE}')",
        "INSERT INTO latest (kind, pool, node, received_unix_s, json)"
        f" VALUES ('sample', 'web', 'host1', 1795000010.3, '{SAMPLE}')",
        "UPDATE states SET resource = 'cpu' WHERE node_id = 1",
        "INSERT INTO rolled (step_s, node_id, time_unix_s, n, rps, rt_mean_ms, rt_p50_ms, rt_p95_ms, rt_p99_ms,"
        " in_flight, errors_per_s, cpu, steal, run_delay_per_cpu_s, pressure_cpu, pressure_memory, pressure_io, cpi,"
        " cache_miss_rate, wall_cpu_ratio) VALUES (60, 1, 1794999960, 300, 800000, 20000, 15000, 50000, 90000, 30000,"
        " 0, 5000, 1000, 2000, 3000, 4000, 6000, 17000, 100, 12000)",
        "INSERT INTO rolled_weights (step_s, node_id, time_unix_s, weight, wanted)"
        " VALUES (60, 1, 1794999960, 1000000, 1000000)",
        "INSERT INTO clock (begin_age_s, end_age_s, begin_unix_s) VALUES (-315576000, 60, 1479424010.3)",
        "INSERT INTO changes (id, pool, time_unix_s, what, target, json)"
        f" VALUES ('c2', 'web', 1795000020.0, 'mark_episode', 'host1', '{MARK}')",
        "INSERT INTO rolled_states (node_id, time_unix_s, known_s, lost_s, episodes, worst_unix_s)"
        " VALUES (1, 1794960000, 5, 2.5, 1, 1795000005.0)",
        "INSERT INTO response_times (pool, node, server, slot_unix_s, last_unix_s, sum_s, counts)"
        " VALUES ('web', 'host1', 'web1', 1794999990, 1795000010.3, 1.25, '[[40,7],[96,3]]')",
    ),
)
"""What is filled in after each step, in the form of that step."""


def made(path: Path, steps: int, rows: bool = True) -> Path:
    """A journal of the first `steps` steps, made without the code that opens journals."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode=WAL")
        for statements, filled in zip(STEPS[:steps], ROWS[:steps], strict=True):
            for statement in (*statements, *(filled if rows else ())):
                file.execute(statement)
        file.execute(f"PRAGMA application_id={APPLICATION_ID}")
        file.execute(f"PRAGMA user_version={steps}")
    return path


def places() -> Iterator[tuple[int, Path]]:
    """How many steps a kept journal had, and where it is."""
    for steps in range(1, len(STEPS) + 1):
        yield steps, FOLDER / f"schema-{steps}.sqlite"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for steps, place in places():
        if not place.exists():
            print(made(place, steps))


if __name__ == "__main__":
    main()
