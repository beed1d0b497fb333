"""Somebody deletes a file beside an open journal: it is told, what was written is kept, and writing goes on."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.journal.journal import Journal, JournalError
from slackwater.core.messages import Change

T0 = 1_795_000_000.0
CHANGE = (
    "from slackwater.core.messages import Change\n"
    f"def change(name): return Change(1, name, 'web', {T0}, 'weight', 'host1', 100, 0, 'noise', 'test', True)\n"
)
GONE = [("-wal",), ("-shm",), ("-wal", "-shm")]


def change(name: str) -> Change:
    return Change(1, name, "web", T0, "weight", "host1", 100, 0, "noise", "test", True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


WRITER = f"""
import sys
from slackwater.core.journal.journal import Journal
{CHANGE}
with Journal.open(sys.argv[1]) as journal:
    for line in sys.stdin:
        journal.record(change(line.strip()))
        print("written", flush=True)
"""


READER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
print(database.execute("PRAGMA integrity_check").fetchall())
for (id_,) in database.execute("SELECT id FROM changes"):
    print(id_)
"""


class Other:
    """Another process that has the journal open all the time, as the parts of the controller have."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def record(self, name: str) -> None:
        assert self.process.stdin
        assert self.process.stdout
        print(name, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "written\n"


@pytest.fixture
def journals(path: Path) -> Iterator[tuple[Journal, Other]]:
    with Journal.open(path) as journal:
        other = Other(path)
        journal.record(change("before"))
        other.record("before, by the other")
        yield journal, other
        with other.process:
            pass


def delete(path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path.with_name(path.name + name).unlink()


def kept(path: Path) -> set[str]:
    """What somebody reads who opens it now; it is whole."""
    done = subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True, text=True, check=True)
    whole, *ids = done.stdout.splitlines()
    assert whole == "[('ok',)]"
    return set(ids)


BEFORE = {"before", "before, by the other"}


@pytest.mark.parametrize("names", GONE, ids=" ".join)
def test_what_is_written_after_a_deletion_is_found_by_everybody(
    path: Path, journals: tuple[Journal, Other], names: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    journal, other = journals
    delete(path, names)
    journal.record(change("after"))
    assert kept(path) == {*BEFORE, "after"}
    other.record("after, by the other")
    journal.record(change("again"))
    assert kept(path) == {*BEFORE, "after", "after, by the other", "again"}
    assert {change.id for change in journal.changes()} == kept(path)
    errors = [record for record in caplog.records if "was deleted while in use" in record.getMessage()]
    assert [record.levelno for record in errors] == [logging.ERROR], "once"


@pytest.mark.parametrize("names", GONE, ids=" ".join)
def test_somebody_who_opened_it_meanwhile_harms_nothing(
    path: Path, journals: tuple[Journal, Other], names: tuple[str, ...]
) -> None:
    """A page that is asked for between the deletion and the next write makes files of its own."""
    delete(path, names)
    subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True)  # it may be refused
    journal, other = journals
    journal.record(change("after"))
    other.record("after, by the other")
    assert kept(path) == {*BEFORE, "after", "after, by the other"}


@pytest.mark.parametrize("names", GONE, ids=" ".join)
def test_the_writer_s_death_afterwards_loses_nothing(path: Path, names: tuple[str, ...]) -> None:
    program = (
        f"import os, sys\nfrom pathlib import Path\nfrom slackwater.core.journal.journal import Journal\n{CHANGE}"
        "journal = Journal.open(sys.argv[1])\njournal.record(change('before'))\n"
        "for name in sys.argv[2:]: Path(sys.argv[1] + name).unlink()\n"
        "journal.record(change('after'))\nos.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path), *names], stderr=subprocess.DEVNULL)
    assert kept(path) == {"before", "after"}


def test_it_is_told_while_somebody_still_reads_from_a_deleted_log(path: Path, journals: tuple[Journal, Other]) -> None:
    """Nothing is thrown away that could not be saved: the next write tries again."""
    journal, _ = journals
    program = (
        "import sqlite3, sys\ndatabase = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "database.execute('BEGIN')\ndatabase.execute('SELECT count(*) FROM changes').fetchone()\n"
        "print('reads', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin
        assert reader.stdout
        reader.stdout.readline()
        journal.record(change("while it reads"))
        delete(path, ("-wal",))
        with pytest.raises(JournalError, match="was deleted while another process still reads it"):
            journal.record(change("after"))
        reader.stdin.close()
        reader.wait()
    journal.record(change("after"))
    assert kept(path) == {*BEFORE, "while it reads", "after"}


def test_processes_that_write_all_the_time_never_damage_it(path: Path) -> None:
    program = f"import sys\nfrom slackwater.core.journal.journal import Journal, JournalError\n{CHANGE}" + (
        "journal = Journal.open(sys.argv[1])\nprint('open', flush=True)\n"
        "for number in range(int(sys.argv[3])):\n"
        "    try: journal.record(change(f'{sys.argv[2]}{number}'), wait=False)\n"
        "    except JournalError: pass\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), name, "30"], stdout=subprocess.PIPE, stderr=-3)
        for name in "abc"
    ]
    for writer in writers:
        assert writer.stdout
        writer.stdout.readline()
    while any(writer.poll() is None for writer in writers):
        for name in ("-wal", "-shm"):
            path.with_name(path.name + name).unlink(missing_ok=True)
        subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True)
    for writer in writers:
        with writer:
            assert writer.wait() == 0
    assert {"a29", "b29", "c29"} & kept(path)
