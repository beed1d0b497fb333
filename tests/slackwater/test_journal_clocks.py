"""Clocks that are wrong, of nodes and of the controller: the journal loses nothing early, keeps nothing for ever."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.config import JournalSettings
from slackwater.core.journal import age
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.journal.receipt import NEAR_S, Receipt
from slackwater.core.journal.retention import DAY_S, Keeper
from slackwater.core.journal.service import JournalWriter, Queue
from slackwater.core.messages import Change, Cpu, Cycle, Sample, ServerState, Traffic, Verdict

T0 = 1_794_999_600.0
"""The beginning of an hour."""
HOUR_S, YEAR_S = 3600.0, 366 * DAY_S
STEPS_S = [sign * step_s for step_s in (1.0, 90.0, HOUR_S, DAY_S, 100 * DAY_S, YEAR_S) for sign in (1, -1)]
KEPT = JournalSettings(keep_samples_h=24.0, keep_minutes_d=90.0)


class Machine:
    """A controller: its clock can be set, and what passes is counted all the same."""

    def __init__(self, folder: Path) -> None:
        self.now_unix_s, self.passed_s = T0, 0.0
        self.receipt = Receipt(lambda: self.now_unix_s)
        self.journal = Journal.open(journal_path(folder), clock=lambda: self.now_unix_s)
        self.restart()

    def restart(self, settings: JournalSettings = KEPT) -> None:
        self.keeper = Keeper(self.journal, settings, lambda: self.now_unix_s, lambda: self.passed_s)

    def work(self, seconds: float, off_s: float = 0.0) -> int:
        """Takes a Sample a second, from a node whose clock is off by so much; the rows that went meanwhile."""
        deleted = 0
        for second in range(round(seconds)):
            self.go_on(1.0)
            self.journal.record(self.receipt.dated(sample(self.now_unix_s + off_s)), cycle(self.now_unix_s))
            if second % 60 == 59:
                deleted += self.keeper.keep()
        return deleted

    def go_on(self, seconds: float) -> None:
        self.now_unix_s += seconds
        self.passed_s += seconds

    def rows(self, table: str) -> list[float]:
        """Dates."""
        with sqlite3.connect(self.journal.path) as database:
            return [row[0] for row in database.execute(f"SELECT time_unix_s FROM {table} ORDER BY 1")]

    def minutes(self) -> int:
        """How many minutes have been rolled up."""
        with sqlite3.connect(self.journal.path) as database:
            (count,) = database.execute("SELECT count(*) FROM rolled WHERE step_s = 60").fetchone()
        return int(count)


def sample(at_unix_s: float, rps: float = 10.0) -> Sample:
    return Sample(1, "host1", "web", at_unix_s, "boot", 0, 0.2, cpu=Cpu("cgroup", 0.25), traffic=Traffic(rps=rps))


def cycle(at_unix_s: float) -> Cycle:
    return Cycle(1, "web", at_unix_s, "act", False, "roundrobin", "optimal", "", [ServerState("s1", "up", 9, 9, 9)])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.journal.close()


# --- the controller's clock


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_step_of_the_controllers_clock_costs_no_row_and_stops_no_roll_up(
    machine: Machine, step_s: float, restarted: bool
) -> None:
    assert machine.work(180) == 0
    before = machine.minutes()
    for set_by_s in (step_s, -step_s):  # wrong for a while, then right again
        machine.now_unix_s += set_by_s
        if restarted:
            machine.restart()
        assert machine.work(180) == 0
    again = 180 if abs(step_s) < 180 else 0  # a row of the same second takes the other's place
    assert len(machine.rows("samples")) >= 540 - again
    grown = machine.minutes() - before
    assert grown >= (5 if abs(step_s) > 180 else 2)
    if not restarted:
        machine.go_on(DAY_S + 600.0)
        machine.keeper.keep()
        machine.go_on(DAY_S)  # what was dated up to a day ahead of what the clock showed
        machine.keeper.keep()
        assert machine.rows("samples") == machine.rows("weights") == []
        machine.go_on(92 * DAY_S)
        machine.keeper.keep()
        assert machine.minutes() == 0, "also what is dated in the future goes at its age"


def test_a_clock_ahead_at_each_restart_costs_an_hour_each(machine: Machine) -> None:
    """Between two runs nothing but the wall clock counts, and it is believed for an hour at most."""
    machine.work(120)
    for _ in range(20):
        machine.now_unix_s += 100 * DAY_S
        machine.restart()
        assert machine.keeper.keep() == 0
    assert len(machine.rows("samples")) == 120


def test_a_machine_that_was_off_goes_on_where_it_was(machine: Machine) -> None:
    machine.work(120)
    machine.now_unix_s += 0.9 * HOUR_S
    machine.restart(JournalSettings(keep_samples_h=0.5))
    assert machine.keeper.keep() > 0, "the time that it was off counts"
    assert machine.rows("samples") == []


@pytest.mark.parametrize("step_s", [-YEAR_S, YEAR_S])
def test_a_journal_that_is_too_large_loses_its_oldest_rows_by_age(machine: Machine, step_s: float) -> None:
    machine.work(60)
    machine.now_unix_s += step_s
    for _ in range(12):
        machine.go_on(600.0)
        machine.work(60)
    ballast = "x" * 1_000_000
    with sqlite3.connect(machine.journal.path) as database:
        database.execute("CREATE TABLE ballast (x)")
        database.executemany("INSERT INTO ballast VALUES (?)", [(ballast,)] * 10)
    machine.restart(JournalSettings(max_mb=10.0))
    machine.keeper.keep()
    left = machine.rows("samples")
    assert left
    assert max(left) == machine.now_unix_s, "the newest stay"
    assert len(left) < 13 * 60
    assert all(abs(unix_s - machine.now_unix_s) < HOUR_S for unix_s in left), "those of before the step went first"


def test_a_journal_of_before_is_believed_up_to_its_newest_row(machine: Machine) -> None:
    """The first start after an update, with a clock that is 100 days ahead."""
    machine.journal.record(*(sample(T0 - back_s) for back_s in (DAY_S - HOUR_S, HOUR_S, 0.0)))
    machine.now_unix_s += 100 * DAY_S
    machine.restart(JournalSettings(keep_samples_h=48.0))
    assert machine.keeper.keep() == 0
    assert len(machine.rows("samples")) == 3


# --- the age, without a journal


def test_the_last_day_is_what_the_clock_showed_in_it() -> None:
    segments = age.advance([age.first(T0)], T0, None)
    assert age.shown(segments, DAY_S) == (T0 - DAY_S, T0)
    segments = age.advance(segments, T0 + 60.0 + YEAR_S, 60.0)
    assert len(segments) == 2
    assert age.shown(segments, DAY_S) == (T0 + 60.0 - DAY_S, T0 + 60.0 + YEAR_S)
    segments = age.advance(segments, T0 + 120.0, 60.0)
    assert age.shown(segments, 30.0) == (T0 + 90.0, T0 + 120.0 + YEAR_S), "it may have been set back just now"
    segments = age.advance(segments, T0 + DAY_S + 300.0, DAY_S + 180.0)
    assert len(segments) == 3, "a clock that runs makes no segments"
    assert age.shown(segments, DAY_S) == (T0 + 300.0, T0 + DAY_S + 300.0)


def test_time_that_nobody_counted_is_at_least_nothing_and_at_most_an_hour() -> None:
    for away_s, counted_s in ((-YEAR_S, 0.0), (0.0, 0.0), (60.0, 60.0), (YEAR_S, HOUR_S)):
        assert age.advance([age.first(T0)], T0 + away_s, None)[-1].end_age_s == counted_s


# --- nodes' clocks


@pytest.mark.parametrize("off_s", STEPS_S)
def test_a_node_whose_clock_is_off_is_drawn_at_our_time(machine: Machine, off_s: float) -> None:
    machine.work(180, off_s)
    assert machine.rows("samples")[-1] == pytest.approx(machine.now_unix_s, abs=NEAR_S)
    assert machine.minutes() >= 3
    histories = machine.journal.history("web", T0, 60.0, until_unix_s=T0 + 240.0, nodes=["host1"]).nodes
    assert [value for value in histories["host1"].rps if value is not None] == [10.0] * machine.minutes()


@pytest.mark.parametrize("off_s", [DAY_S, -DAY_S, 1e9])
def test_one_sample_with_a_wrong_date_stops_nothing(machine: Machine, off_s: float) -> None:
    queue = Queue()
    writer = JournalWriter(machine.journal, queue)
    machine.work(60)
    queue.put(machine.receipt.dated(sample(machine.now_unix_s + off_s, rps=10.0)))
    assert asyncio.run(writer.flush())
    machine.keeper.keep()
    machine.work(120)
    assert machine.minutes() == 4
    assert max(machine.rows("samples")) == machine.now_unix_s


def test_distances_and_order_of_a_sender_stay() -> None:
    now_unix_s = T0
    receipt = Receipt(lambda: now_unix_s)
    dates = []
    for number in range(10):
        now_unix_s = T0 + number + (0.4 if number % 2 else 0.0)  # they come when they come
        dates.append(receipt.dated(sample(T0 - HOUR_S + number)).time_unix_s)
    assert dates == [T0 + number for number in range(10)]
    now_unix_s += 1.0
    right = sample(now_unix_s)
    assert receipt.dated(right) is right, "its clock was set right"


def test_times_of_a_verdict_move_together_and_changes_of_ours_not_at_all() -> None:
    receipt = Receipt(lambda: T0)
    verdict = receipt.dated(Verdict(1, "host1", "web", T0 + DAY_S, "calm", T0 + DAY_S - 5.0, 0.0, [], "start"))
    assert (verdict.since_unix_s, verdict.time_unix_s) == (T0 - 5.0, T0)
    for by, shown in (("lbengine", T0 + DAY_S), ("anna", T0 + DAY_S), ("wsengine", T0)):
        change = Change(1, "id", "web", T0 + DAY_S, "cpu.share", "host1", 1, 2, "why", by, True)
        assert receipt.dated(change).time_unix_s == shown
