"""What nodes lost of their capacity: cut at steps, and the same from the rolled-up days as from the states."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.config import JournalSettings
from slackwater.core.journal import schema
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.journal.retention import Keeper
from slackwater.core.messages import State, Verdict

DAY_S = 86400.0
T0 = 20_774 * DAY_S
"""The beginning of a day."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(journal_path(tmp_path)) as opened:
        yield opened


def span(node: str, state: State, since: float, last: float, severity: float = 0.0) -> list[Verdict]:
    """The first and the last Verdict of a time in a state, in seconds from T0."""
    times = (T0 + since, T0 + last)
    return [Verdict(1, node, "web", unix_s, state, T0 + since, severity, ["why"], "model") for unix_s in times]


def keep(journal: Journal, now_s: float) -> None:
    clock = lambda: T0 + now_s  # noqa: E731
    Keeper(journal, JournalSettings(), clock, clock, lambda _: 10**12).keep()


def test_an_episode_is_cut_at_the_steps_and_counts_its_highest_severity(journal: Journal) -> None:
    journal.record(*span("web1", "calm", 0, 50), *span("web1", "interference", 50, 90, 0.5))
    journal.record(*span("web1", "overload", 95, 100, 1.0), *span("web2", "unknown", 0, 100))
    losses = journal.losses("web", T0, 60.0, T0 + 180.0)
    assert list(losses) == ["web1"], "a node of which nothing is known has no entry"
    lost = losses["web1"]
    assert lost.known_s == [60.0, 35.0, 0.0]
    assert lost.lost_s == [5.0, 20.0, 0.0]
    assert lost.episodes == [1, 2, 0]
    assert lost.worst_unix_s == [T0 + 50.0, T0 + 50.0, None]


def test_days_are_the_same_rolled_up_or_not(journal: Journal) -> None:
    for day in range(4):
        begin = day * DAY_S
        journal.record(*span("web1", "calm", begin, begin + 40_000))
        journal.record(*span("web1", "interference", begin + 40_000, begin + 40_600, 0.25 * day))
        journal.record(*span("web1", "interference", begin + 86_000, begin + DAY_S + 100, 0.1))
    journal.record(*span("web2", "calm", 0, 4 * DAY_S))
    hours = journal.losses("web", T0, 3600.0, T0 + 4 * DAY_S)
    keep(journal, 4 * DAY_S - 60.0)
    with sqlite3.connect(journal.path) as database:
        database.execute("DELETE FROM states WHERE last_unix_s < ?", (T0 + 3 * DAY_S,))
    days = journal.losses("web", T0, DAY_S, T0 + 4 * DAY_S)
    for node, of_hours in hours.items():
        for values, by_hour in (
            (days[node].known_s, of_hours.known_s),
            (days[node].lost_s, of_hours.lost_s),
        ):
            assert values == pytest.approx([sum(by_hour[day * 24 : day * 24 + 24]) for day in range(4)])
    assert days["web1"].episodes == [2, 3, 3, 3]
    assert days["web1"].worst_unix_s[2] == T0 + 2 * DAY_S + 40_000


def test_a_journal_of_before_is_rolled_up_from_its_beginning(journal: Journal) -> None:
    journal.record(*span("web1", "interference", 0, 600, 0.5), *span("web1", "calm", 30 * DAY_S, 30 * DAY_S + 60))
    keep(journal, 30 * DAY_S + 60)
    assert journal.losses("web", T0, DAY_S, T0 + 31 * DAY_S)["web1"].lost_s[0] == 300.0
    journal.record(*span("web1", "interference", 30 * DAY_S + 100, 30 * DAY_S + 300, 0.5))
    keep(journal, 30 * DAY_S + 300)
    with sqlite3.connect(journal.path) as database:
        last = database.execute("SELECT lost_s FROM rolled_states ORDER BY time_unix_s DESC LIMIT 1").fetchone()
    assert last == (100.0,), "the present day is made anew"


def test_days_go_at_their_age(journal: Journal) -> None:
    journal.record(*span("web1", "interference", 0, 600, 0.5))
    keep(journal, 600)
    keep(journal, 600 + 3000)
    with sqlite3.connect(journal.path) as database:
        assert database.execute("SELECT count(*) FROM rolled_states").fetchone() == (1,)
    clock = [T0 + 3600.0]
    keeper = Keeper(journal, JournalSettings(), lambda: clock[0], lambda: clock[0], lambda _: 10**12)
    keeper.keep()
    clock[0] += 91 * DAY_S
    keeper.keep()
    with sqlite3.connect(journal.path) as database:
        assert database.execute("SELECT count(*) FROM rolled_states").fetchone() == (0,)


def test_losses_over_long_times_read_no_states_but_the_last_days(journal: Journal) -> None:
    with sqlite3.connect(journal.path) as database:
        where = {"pool": "web", "since": 0, "until": 1}
        for query in (schema.ROLLED_STATES, schema.SPANS):
            plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}", where)]
            assert not any(line.startswith("SCAN") and "nodes" not in line for line in plan), plan
    with pytest.raises(ValueError, match="step_s"):
        journal.losses("web", T0, 0.0, T0 + 1.0)
    with pytest.raises(ValueError, match="20000"):
        journal.losses("web", T0, 0.001, T0 + 3600.0)
