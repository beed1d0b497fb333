"""Journals of every schema are read with all their rows; released steps stay as they are."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slackwater.core.journal import schema
from slackwater.core.journal.journal import Journal
from slackwater.core.journal.steps import STEPS
from slackwater.core.messages import Cpu, Sample, Traffic
from tests.support.journal_files import FOLDER, ROWS, made, places

T0 = 1_795_000_000.0
OLD = [pytest.param(place, id=place.stem) for _, place in places()]
A_STEP_IS_MISSING = (
    "the journal's columns changed: add a step at the end of slackwater/core/journal/steps.py that "
    "adds the new columns to"
    " `samples` and to `rolled`, rows for it in tests/support/journal_files.py, and run"
    " `python -m tests.support.journal_files`"
)


def tables(path: Path) -> set[tuple[str, str, str, str]]:
    """Kind, name, table and SQL of all that is in the file's schema, however it is spaced."""
    with closing(sqlite3.connect(path)) as file:
        schema = file.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    return {(kind, name, table, re.sub(r"\s+", " ", sql).strip()) for kind, name, table, sql in schema}


def columns(path: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(path)) as file:
        return [row[1] for row in file.execute(f"PRAGMA table_info({table})")]


def rows(path: Path, columns_of: dict[str, list[str]]) -> dict[str, list[Any]]:
    """The values of these columns, table by table."""
    with closing(sqlite3.connect(path)) as file:
        return {
            table: sorted(file.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall(), key=repr)
            for table, names in columns_of.items()
        }


def tables_of(path: Path) -> dict[str, list[str]]:
    names = sorted(name for kind, name, _, _ in tables(path) if kind == "table" and not name.startswith("sqlite_"))
    return {name: columns(path, name) for name in names}


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    path = tmp_path / "fresh.sqlite"
    Journal.open(path).close()
    return path


def test_a_new_column_changes_no_step_that_was_released() -> None:
    assert schema.__file__
    source = Path(schema.__file__).read_text()
    last = '    "wall_cpu_ratio": ("counters", "wall_cpu_ratio"),\n'
    assert last in source
    tomorrow = ModuleType("tomorrow")
    exec(source.replace(last, last + '    "temperature": ("cpu", "temperature"),\n'), tomorrow.__dict__)
    assert "temperature" in tomorrow.SAMPLE_COLUMNS
    assert tomorrow.STEPS == STEPS, "files out there were made by these steps"


def test_there_is_a_journal_of_every_schema() -> None:
    assert len(ROWS) == len(STEPS), "rows for the new step are missing in tests/support/journal_files.py"
    assert sorted(FOLDER.glob("*.sqlite")) == sorted(place for _, place in places()), (
        "run `python -m tests.support.journal_files` and add the file"
    )


@pytest.mark.parametrize(("steps", "place"), [pytest.param(*place, id=place[1].stem) for place in places()])
def test_a_released_step_makes_what_it_made_then(steps: int, place: Path, tmp_path: Path) -> None:
    assert tables(made(tmp_path / "now.sqlite", steps, rows=False)) == tables(place), (
        "a released step was touched: put it back, and add a step at the end"
    )


@pytest.mark.parametrize("place", OLD)
def test_an_old_journal_keeps_its_rows_and_becomes_like_a_fresh_one(place: Path, tmp_path: Path, fresh: Path) -> None:
    path = Path(shutil.copy(place, tmp_path / "journal.sqlite"))
    old = tables_of(path)
    before = rows(path, old)
    assert all(before.values()), "each table of the old journal has rows"
    Journal.open(path).close()
    assert rows(path, old) == before
    assert tables(path) == tables(fresh)
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert file.execute("PRAGMA user_version").fetchone() == (len(STEPS),)


@pytest.mark.parametrize("place", OLD)
def test_an_updated_journal_is_read_and_written_as_ever(place: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(place, tmp_path / "journal.sqlite"))
    later = Sample(
        1, "host1", "web", T0 + 11.0, "b", 8, 0.2, cpu=Cpu("cgroup", 0.75), traffic=Traffic(rps=20.0, rt_p95_ms=7.0)
    )
    with Journal.open(path) as journal:
        journal.record(later)
        series = journal.history("web", T0 + 10.0, 1.0, until_unix_s=T0 + 12.0).nodes["host1"]
        assert (series.rps, series.rt_p95_ms, series.cpu) == ([80.0, 20.0], [5.0, 7.0], [0.5, 0.75])
        assert [span.state for span in journal.states("web", T0)] == ["calm", "interference"]
        assert [change.id for change in journal.changes("web", what="weight")] == ["c1"]
        assert list(journal.latest_samples("web")) == ["host1"]


def test_today_s_columns_are_what_the_steps_make(fresh: Path) -> None:
    names = list(schema.SAMPLE_COLUMNS)
    assert columns(fresh, "samples") == ["node_id", "time_unix_s", *names], A_STEP_IS_MISSING
    assert columns(fresh, "rolled") == ["step_s", "node_id", "time_unix_s", "n", *names], A_STEP_IS_MISSING
    assert set(schema.SIGNALS) <= set(names)
