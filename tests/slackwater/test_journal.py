"""The journal, on real files."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slackwater.core import messages
from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus
from slackwater.core.journal.journal import Journal, JournalError, journal_path
from slackwater.core.journal.service import COMPLAIN_S, JournalWriter, Queue
from slackwater.core.journal.steps import STEPS
from slackwater.core.messages import Change, Cpu, Cycle, Message, Sample, ServerState, Traffic, Verdict
from tests.support.nats_process import open_server
from tests.support.paths import ROOT
from tests.support.real_processes import free_address

IN_TIME_S = 60.0
T0 = 1_795_000_000.0


def sample(node: str, at_s: float, rps: float | None = 50.0, p95: float | None = 5.0, **more: Any) -> Sample:
    return Sample(
        1,
        node,
        "web",
        T0 + at_s,
        "boot",
        0,
        0.2,
        cpu=Cpu("cgroup", 0.5),
        traffic=Traffic(rps=rps, rt_p95_ms=p95, **more),
    )


def verdict(
    node: str, at_s: float, state: messages.State = "calm", since: float = 0.0, severity: float = 0.0
) -> Verdict:
    return Verdict(1, node, "web", T0 + at_s, state, T0 + since, severity, [f"{state} since {since:g}"], "start")


def change(number: int, at_s: float = 0.0, pool: str = "web") -> Change:
    return Change(1, f"id{number}", pool, T0 + at_s, "weight", "host1", 100, 0, "noise", "test", True)


def cycle(at_s: float, **weights: int) -> Cycle:
    servers = [ServerState(name, "up", weight, 100, weight) for name, weight in weights.items()]
    return Cycle(1, "web", T0 + at_s, "act", False, "roundrobin", "optimal", "web: unchanged", servers)


def golden() -> list[Message]:
    paths = sorted((ROOT / "schema/examples").glob("*.json"))
    assert paths
    return [messages.decode(path.name.partition("-")[0], path.read_bytes()) for path in paths]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(tmp_path)


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with Journal.open(path, clock=lambda: T0 + 100.0) as opened:
        yield opened


def test_golden_messages_come_back_as_they_went_in(journal: Journal, path: Path) -> None:
    journal.record(*golden())
    with Journal.open(path, read_only=True) as reader:
        back: list[Message] = [
            *reader.latest_samples("web").values(),
            *reader.latest_verdicts("web").values(),
            *reader.changes("web"),
        ]
        last = reader.latest_cycle("web")
        assert last is not None
        back.append(last)
        assert reader.pools() == ["web"]
    expected: list[Message] = [message for message in golden() if isinstance(message, Sample | Verdict | Change)]
    expected.append([message for message in golden() if isinstance(message, Cycle)][-1])
    assert sorted(map(messages.encode, back)) == sorted(map(messages.encode, expected)), "of Cycles the last is kept"


def test_the_last_message_of_a_kind_is_the_latest_and_nothing_is_none(journal: Journal) -> None:
    assert journal.latest_cycle("web") is None
    assert journal.latest_samples("web") == {}
    journal.record(sample("host1", 0.0, rps=1.0), sample("host1", 0.2, rps=2.0))
    journal.record(sample("host1", 0.4, rps=3.0), sample("host2", 0.4, rps=4.0))
    assert {node: latest.traffic and latest.traffic.rps for node, latest in journal.latest_samples("web").items()} == {
        "host1": 3.0,
        "host2": 4.0,
    }
    assert journal.latest_samples("other") == {}
    assert journal.received("sample", "web") == {"host1": T0 + 100.0, "host2": T0 + 100.0}


def test_a_change_is_kept_once_and_its_first_version_stays(journal: Journal) -> None:
    journal.record(change(1))
    journal.record(msgspec.structs.replace(change(1), why="told again"), change(2, at_s=1.0))
    assert [(kept.id, kept.why) for kept in journal.changes()] == [("id2", "noise"), ("id1", "noise")]


def test_changes_are_newest_first_and_can_be_asked_for_by_pool_time_and_number(journal: Journal) -> None:
    journal.record(*(change(number, at_s=number) for number in range(5)), change(9, at_s=9.0, pool="other"))
    assert [kept.id for kept in journal.changes(limit=2)] == ["id9", "id4"]
    assert [kept.id for kept in journal.changes("web", since_unix_s=T0 + 3.0)] == ["id4", "id3"]
    assert journal.pools() == ["other", "web"]


def test_a_batch_is_written_wholly_or_not_at_all(journal: Journal) -> None:
    impossible = sample("host1", 0.0, in_flight=10**400)
    with pytest.raises(OverflowError):
        journal.record(change(1), sample("host2", 0.0), impossible)
    assert journal.changes() == []
    assert journal.latest_samples("web") == {}
    journal.record(sample("host2", 0.0), change(2))
    assert [kept.id for kept in journal.changes()] == ["id2"]
    assert list(journal.history("web", T0, 1.0).nodes) == ["host2"]


def test_states_become_spans_with_their_first_reason_and_highest_severity(journal: Journal) -> None:
    journal.record(verdict("host1", 1.0), verdict("host1", 2.0, "interference", 2.0, 0.3))
    journal.record(verdict("host1", 3.0, "interference", 2.0, 0.9), verdict("host1", 4.0, "interference", 2.0, 0.5))
    journal.record(verdict("host1", 5.0, "calm", 5.0))
    spans = journal.states("web", T0)
    assert [(span.state, span.since_unix_s - T0, span.last_unix_s - T0, span.severity) for span in spans] == [
        ("calm", 0.0, 1.0, 0.0),
        ("interference", 2.0, 4.0, 0.9),
        ("calm", 5.0, 5.0, 0.0),
    ]
    assert spans[1].path == ["interference since 2"]
    assert journal.states("web", T0 + 4.5) == spans[2:]


def test_history_is_on_one_grid_and_weighs_response_times_with_requests(journal: Journal) -> None:
    journal.record(
        sample("host1", 0.1, rps=90.0, p95=10.0),
        sample("host1", 0.3, rps=10.0, p95=110.0),
        sample("host1", 2.5, rps=0.0, p95=None),
        sample("host2", 1.5, rps=None, p95=None),
    )
    history = journal.history("web", T0, 1.0, until_unix_s=T0 + 4.0)
    assert history.time_unix_s == [T0, T0 + 1, T0 + 2, T0 + 3]
    assert history.nodes["host1"].rps == [50.0, None, 0.0, None]
    assert history.nodes["host1"].rt_p95_ms == [pytest.approx(20.0), None, None, None]
    assert history.nodes["host2"].rps == [None] * 4
    assert history.nodes["host2"].cpu == [None, 0.5, None, None]


def test_history_holds_a_weight_until_the_next_and_no_longer_than_it_was_looked_at(journal: Journal) -> None:
    journal.record(*(cycle(at_s, web1=100, web2=100) for at_s in (0.0, 0.2, 1.0)), cycle(2.0, web1=0, web2=100))
    history = journal.history("web", T0, 1.0, until_unix_s=T0 + 40.0, servers={"web1": "host1"})
    assert history.nodes["host1"].weight[:4] == [100, 100, 0, 0]
    assert history.nodes["host1"].weight[30:] == [None] * 10
    assert set(history.nodes) == {"host1", "web2"}


def test_history_of_a_node_whose_clock_is_far_off_does_no_harm(journal: Journal) -> None:
    journal.record(sample("host1", 1.0), sample("host2", 1e12))
    history = journal.history("web", T0, 1.0)
    assert len(history.time_unix_s) == 100
    assert list(history.nodes) == ["host1"]


@pytest.mark.parametrize("step_s", [0.0, -1.0, 1e-6])
def test_history_refuses_a_step_that_makes_no_sense(journal: Journal, step_s: float) -> None:
    with pytest.raises(ValueError, match="step_s"):
        journal.history("web", T0, step_s)


def test_readings_are_means_of_the_last_seconds_by_the_nodes_own_clock(journal: Journal) -> None:
    journal.record(sample("host1", 0.0, rps=1000.0), sample("host1", 9.0, rps=10.0), sample("host1", 10.0, rps=20.0))
    journal.record(sample("host2", -5000.0, rps=7.0), sample("host3", 10.0, rps=None, p95=None))
    readings = journal.readings("web", last_s=2.0)
    assert {node: reading.rps for node, reading in readings.items()} == {"host1": 15.0, "host2": 7.0, "host3": None}


def test_two_processes_write_at_the_same_time_and_both_are_kept(path: Path) -> None:
    writer = (
        "import sys; from slackwater.core.journal.journal import Journal; from slackwater.core.messages import Change\n"
        "journal = Journal.open(sys.argv[1], wait_s=60)\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for i in range(100):\n"
        "    journal.record(Change(1, sys.argv[2] + str(i), 'web', i, 'weight', 'host1', 0, 1, '', 'me', True))\n"
    )
    arguments = [[sys.executable, "-c", writer, str(path), name] for name in ("a", "b")]
    both = [
        subprocess.Popen(argument, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        for argument in arguments
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        process.communicate(timeout=IN_TIME_S)
        assert process.returncode == 0
    with Journal.open(path, read_only=True) as reader:
        assert len(reader.changes(limit=1000)) == 200


def test_threads_of_one_process_share_a_journal(journal: Journal) -> None:
    def write(first: int) -> None:
        for number in range(first, first + 50):
            journal.record(change(number), sample(f"host{number}", 0.0))

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(journal.changes(limit=1000)) == 150


def test_a_writer_that_is_killed_leaves_a_journal_that_can_be_read_and_written(path: Path) -> None:
    writer = (
        "import sys; from slackwater.core.journal.journal import Journal; from slackwater.core.messages import Change\n"
        "journal = Journal.open(sys.argv[1])\n"
        "for i in range(10**9):\n"
        "    journal.record(*(Change(1, f'{i}-{k}', 'web', i, 'weight', 'host1', 0, 1, 'x' * 500, 'me', True)"
        " for k in range(40)))\n"
        "    print(i, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", writer, str(path)], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert process.stdout is not None
    while int(process.stdout.readline()) < 5:
        pass
    process.kill()
    confirmed = [int(line) for line in process.stdout.read().split("\n")[:-1] if line]
    process.wait()
    with Journal.open(path) as journal:
        kept = journal.changes(limit=10**6)
        assert len(kept) >= 40 * (max([5, *confirmed]) + 1), "what was confirmed is there"
        assert len(kept) % 40 == 0, "no transaction is there by half"
        journal.record(change(1))
    check = sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone()
    assert check == ("ok",)


def test_it_is_in_wal_mode_and_only_changes_wait_for_the_disk(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)
    forced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        forced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    journal.record(sample("host1", 0.0))
    assert forced == []
    journal.record(sample("host1", 0.2), change(1))
    assert forced == ["journal.sqlite-wal", path.parent.name], "the log, and once its name in the folder"
    journal.record(change(2), wait=False)
    assert len(forced) == 2
    journal.force()
    journal.force()
    assert forced[2:] == ["journal.sqlite-wal"]


def test_what_is_not_forced_yet_is_read_by_others_and_survives_the_death_of_its_writer(path: Path) -> None:
    writer = (
        "import os, signal, sys\n"
        "from slackwater.core.journal.journal import Journal; from slackwater.core.messages import Change\n"
        "made = Change(1, 'id1', 'web', 0.0, 'weight', 'host1', 100, 0, 'noise', 'test', True)\n"
        "journal = Journal.open(sys.argv[1])\n"
        "journal.record(made, wait=False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", writer, str(path)], cwd=ROOT, timeout=IN_TIME_S)
    assert done.returncode == -signal.SIGKILL
    with Journal.open(path) as journal:
        assert [made.id for made in journal.changes()] == ["id1"]


def test_a_disk_that_refuses_to_be_forced_is_reported_and_tried_again(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuses)
        with pytest.raises(JournalError, match="the disk refused"):
            journal.record(change(1))
        with pytest.raises(JournalError, match="the disk refused"):
            journal.force()
    journal.force()


def test_a_missing_journal_is_reported_in_words(path: Path) -> None:
    with pytest.raises(JournalError, match=rf"no journal at {path}: is `slackwater serve` running with this state_dir"):
        Journal.open(path, read_only=True)
    assert not path.exists()


def test_a_newer_journal_is_refused_and_left_alone(path: Path) -> None:
    Journal.open(path).close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version=99")
    other.close()
    for read_only in (True, False):
        with pytest.raises(JournalError, match=rf"newer Slackwater \(schema 99, expected at most {len(STEPS)}\)"):
            Journal.open(path, read_only)
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (99,)


def test_a_state_that_this_version_does_not_know_is_said_in_words(journal: Journal, path: Path) -> None:
    """A newer version may have written it."""
    journal.record(verdict("host1", 0.0, "slow"), verdict("host1", 1.0, "slow"))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE states SET state = 'bewitched'")
    with pytest.raises(JournalError, match=r"journal\.sqlite: a row cannot be read: Invalid enum value 'bewitched'"):
        journal.states("web", 0.0)


def test_somebody_elses_file_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("dear diary")
    with pytest.raises(JournalError, match="not an SQLite file"):
        Journal.open(path)
    assert path.read_text() == "dear diary"
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name)")
    other.close()
    with pytest.raises(JournalError, match="not a journal of Slackwater"):
        Journal.open(path)
    assert sqlite3.connect(path).execute("SELECT name FROM sqlite_schema").fetchall() == [("recipes",)]


def test_an_empty_file_is_no_journal_yet_for_a_reader(path: Path) -> None:
    path.touch()
    with pytest.raises(JournalError, match="being made"):
        Journal.open(path, read_only=True)


def test_a_reader_cannot_write(path: Path) -> None:
    Journal.open(path).close()
    with Journal.open(path, read_only=True) as reader, pytest.raises(JournalError, match="read-only"):
        reader.record(change(1))


def test_a_locked_journal_is_reported_in_words_and_nothing_is_half_written(path: Path) -> None:
    with Journal.open(path, wait_s=0.05) as journal:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match="another process has been writing to it for too long"):
            journal.record(change(1))
        other.execute("ROLLBACK")
        assert journal.changes() == []
        journal.record(change(1))
        assert len(journal.changes()) == 1


def test_a_full_disk_is_reported_in_words_and_the_journal_lives_on(journal: Journal) -> None:
    journal.record(change(1))
    pages = journal._database.connection.execute("PRAGMA page_count").fetchone()[0]
    journal._database.connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(JournalError, match="disk is full"):
        journal.record(*(change(number) for number in range(10, 2000)))
    journal._database.connection.execute("PRAGMA max_page_count=1000000")
    journal.record(change(2))
    assert [kept.id for kept in journal.changes()] == ["id2", "id1"]


def test_a_folder_that_cannot_be_made_is_reported_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be made"):
        Journal.open(tmp_path / "file" / "journal.sqlite")


def test_a_journal_that_was_deleted_is_begun_anew(journal: Journal, path: Path) -> None:
    journal.record(change(1), sample("host1", 0.0))
    for file in path.parent.glob("journal.sqlite*"):
        file.unlink()
    journal.record(change(2), sample("host1", 0.2))
    with Journal.open(path, read_only=True) as reader:
        assert [kept.id for kept in reader.changes()] == ["id2"]
        assert reader.latest_samples("web").keys() == {"host1"}


# --- the process that writes


def test_the_queue_drops_the_oldest_samples_and_no_change_for_them() -> None:
    queue = Queue(keep=6)
    for number in range(5):
        queue.put(change(number))
    for number in range(8):
        queue.put(sample(f"host{number}", 0.0))
    batch = queue.take()
    assert [message.id for message in batch if isinstance(message, Change)] == [f"id{number}" for number in range(5)]
    assert [message.node for message in batch if isinstance(message, Sample)] == [
        f"host{number}" for number in range(2, 8)
    ]
    assert queue.dropped == 2
    queue.put(change(9))
    queue.put(sample("host9", 0.0))
    queue.put_back(batch)
    again = queue.take()
    assert [message.node for message in again if isinstance(message, Sample)][-2:] == ["host7", "host9"]
    assert [message.id for message in again if isinstance(message, Change)][-2:] == ["id4", "id9"]


def test_memory_is_bounded_while_nothing_can_be_written(caplog: pytest.LogCaptureFixture) -> None:
    """However many Changes one node sends: it takes nobody else's place."""
    queue = Queue(keep=3, keep_node_changes=2)
    for number in range(50):
        queue.put(msgspec.structs.replace(change(number), by="wsengine", target="flooder"))
        queue.put_back(queue.take())
    queue.put(msgspec.structs.replace(change(100), by="wsengine", target="honest"))
    for number in range(200, 205):
        queue.put(change(number))
    waiting = [message.id for message in queue.take() if isinstance(message, Change)]
    assert waiting == ["id48", "id49", "id100", "id202", "id203", "id204"]
    assert queue.dropped == 48 + 2
    lost = [record.getMessage() for record in caplog.records]
    assert [text.startswith("not in the journal: ") for text in lost] == [True, True], "the controller's are logged"


def test_what_cannot_be_written_waits_and_is_complained_about_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "slackwater.journal")
    now_s = 0.0
    queue = Queue()
    with Journal.open(path, wait_s=0.01) as journal:
        writer = JournalWriter(journal, queue, clock=lambda: now_s)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        queue.put(change(1))
        assert [asyncio.run(writer.flush()) for _ in range(3)] == [False, False, False]
        assert len(caplog.records) == 1
        assert "tries: 1, messages waiting: 1, dropped so far: 0" in caplog.text
        now_s = COMPLAIN_S
        asyncio.run(writer.flush())
        assert len(caplog.records) == 2
        other.execute("ROLLBACK")
        assert asyncio.run(writer.flush())
        assert "written again after 4 tries" in caplog.text
        assert [kept.id for kept in journal.changes()] == ["id1"]


def test_one_message_that_cannot_be_stored_does_not_hold_up_the_others(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue()
    for message in (sample("host1", 0.0), sample("host2", 0.0, in_flight=10**400), sample("host3", 0.0), change(1)):
        queue.put(message)
    assert asyncio.run(JournalWriter(journal, queue).flush())
    assert journal.latest_samples("web").keys() == {"host1", "host3"}
    assert len(journal.changes()) == 1
    assert "host2" in caplog.text


def test_messages_of_one_sender_that_cannot_be_stored_are_told_once_a_minute(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue()
    writer = JournalWriter(journal, queue, clock=lambda: 0.0)
    for second in range(5):
        queue.put(sample("host2", float(second), in_flight=10**400))
        queue.put(sample("host3", float(second)))
        assert asyncio.run(writer.flush())
    assert [record.levelname for record in caplog.records if "left out" in record.getMessage()] == ["ERROR"]
    assert len(caplog.records) == 1


def test_changes_that_could_not_be_written_to_the_very_end_are_in_the_log(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue()
    with Journal.open(path, wait_s=0.01) as journal:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        queue.put(change(1))
        queue.put(sample("host1", 0.0))
        asyncio.run(JournalWriter(journal, queue).finish())
        other.execute("ROLLBACK")
    assert messages.encode(change(1)).decode() in caplog.text
    assert "ended with 2 messages that were not written" in caplog.text


@pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not on the PATH")
def test_the_service_writes_what_goes_over_the_bus_and_flushes_on_sigterm(tmp_path: Path) -> None:
    address = free_address()
    bus_folder = tmp_path / "bus"
    bus_folder.mkdir()
    config = (
        f'state_dir = "{tmp_path}"\n[bus]\nurl = "nats://{address}"\n'
        '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/tmp/none"\n'
    )
    code = (
        "import asyncio, sys, slackwater.lbengine.backends.table\n"
        "from slackwater.core.journal import service; from slackwater.core.config import parse\n"
        "asyncio.run(service.run(parse(sys.argv[1], 'test')))\n"
    )
    nats = subprocess.Popen(open_server(bus_folder, address))
    service = None
    try:
        nats_server.wait_until_it_answers(address, bus_folder / "nats.log", IN_TIME_S)
        service = subprocess.Popen([sys.executable, "-c", code, config], cwd=ROOT)
        path = journal_path(tmp_path)

        async def talk() -> None:
            bus = await Bus.connect(f"nats://{address}", "test")
            now = time.time()
            deadline = time.monotonic() + IN_TIME_S
            here = msgspec.structs.replace(sample("host1", 0.0), time_unix_s=now)
            while not _heard(path):
                assert time.monotonic() < deadline, "no Sample came to the journal"
                await bus.publish(here)
                await asyncio.sleep(0.05)
            for message in (change(1), change(2, pool="other"), cycle(0.0, host1=100), verdict("host1", 0.0)):
                await bus.publish(message)
            await bus.flush(IN_TIME_S)
            os.kill(service.pid, signal.SIGTERM)
            await bus.close()

        asyncio.run(talk())
        assert service.wait(IN_TIME_S) == 0
    finally:
        for process in (service, nats):
            if process is not None:
                process.kill()
                process.wait()
    with Journal.open(path, read_only=True) as journal:
        assert [kept.id for kept in journal.changes()] == ["id1"], "the other pool is not configured"
        assert journal.latest_cycle("web") is not None
        assert journal.latest_verdicts("web").keys() == {"host1"}


def _heard(path: Path) -> bool:
    try:
        with Journal.open(path, read_only=True) as journal:
            return "host1" in journal.latest_samples("web")
    except JournalError:
        return False
