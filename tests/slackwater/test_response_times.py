"""Response times in buckets: what adds up in the journal, and the percentiles of the last minutes."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.journal.journal import Journal
from slackwater.core.journal.response_times import MOST_SERVERS_OF_NODE, SHOWN_S, WINDOW_S, WRITE_EVERY_S
from slackwater.core.messages import ResponseTimes, Sample, Traffic
from slackwater.core.response_times import BUCKETS_OF_CLASS, CLASS_BOUNDS_S, LAST_BUCKET, Histogram, upper_bound_s

T0 = 1_795_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now_unix_s = T0

    def __call__(self) -> float:
        return self.now_unix_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", clock=clock) as opened:
        yield opened


def sample(counts: list[tuple[int, int]], sum_s: float, at_unix_s: float, server: str = "s1") -> Sample:
    traffic = Traffic(rps=1.0, times=ResponseTimes(server, sum_s, counts))
    return Sample(1, "web1", "web", at_unix_s, "boot", 1, 0.2, source="balancer", traffic=traffic)


def bucket_of(time_s: float) -> int:
    return next(bucket for bucket in range(LAST_BUCKET + 1) if time_s <= upper_bound_s(bucket))


def test_each_class_ends_where_prometheus_has_a_bound() -> None:
    ends = [upper_bound_s((number + 1) * BUCKETS_OF_CLASS - 1) for number in range(len(CLASS_BOUNDS_S))]
    assert ends == pytest.approx(CLASS_BOUNDS_S)
    bounds = [upper_bound_s(bucket) for bucket in range(LAST_BUCKET + 1)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == float("inf")


def test_percentiles_are_within_three_percent_of_those_of_the_times_themselves() -> None:
    dice = random.Random(7)
    times_s = sorted(min(9.0, dice.lognormvariate(-4.0, 1.2)) for _ in range(20_000))
    histogram = Histogram()
    histogram.add(sum(times_s), [(bucket_of(time_s), 1) for time_s in times_s])
    for share in (0.5, 0.95, 0.99, 0.999):
        assert histogram.percentile_s(share) == pytest.approx(times_s[int(share * 20_000) - 1], rel=0.03), share
    assert histogram.cumulative() == [sum(time_s <= bound for time_s in times_s) for bound in CLASS_BOUNDS_S]


def test_a_percentile_needs_as_many_requests_as_it_stands_for() -> None:
    histogram = Histogram(1.0, {40: 999})
    assert histogram.percentile_s(0.99) is not None
    assert histogram.percentile_s(0.999) is None
    histogram.add(0.0, [(LAST_BUCKET, 1)])
    assert histogram.percentile_s(0.999) == histogram.percentile_s(0.5)
    assert Histogram(99.0, {LAST_BUCKET: 9}).percentile_s(0.5) == CLASS_BOUNDS_S[-1]
    assert Histogram().percentile_s(0.5) is None


def test_counts_add_up_and_the_last_minutes_are_told_apart(journal: Journal, clock: Clock) -> None:
    for second in range(0, 600, 10):
        clock.now_unix_s = T0 + second
        journal.record(sample([(40 if second < 300 else 90, 2)], 0.5, clock.now_unix_s))
    times = journal.response_times("web")["web1", "s1"]
    assert (times.total.counts, times.total.sum_s) == ({40: 60, 90: 60}, 30.0)
    assert times.recent.counts[90] == 60
    assert times.recent.counts.get(40, 0) <= 6, "the window is at most a slot longer"
    with journal.reading() as database:
        assert database.execute("SELECT count(*) FROM response_times").fetchone()[0] <= WINDOW_S / 30 + 2


def test_another_writer_goes_on_from_what_is_in_the_file(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "journal.sqlite"
    for _ in range(2):
        with Journal.open(path, clock=clock) as journal:
            journal.record(sample([(40, 5)], 1.0, clock.now_unix_s))
            clock.now_unix_s += 10.0
    with Journal.open(path, read_only=True, clock=clock) as journal:
        assert journal.response_times("web")["web1", "s1"].total.count == 10


def test_a_row_that_a_bad_disk_has_changed_counts_nothing_and_counting_goes_on(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal.open(path, clock=clock) as before:
        before.record(sample([(10, 5)], 0.1, clock.now_unix_s))
        with sqlite3.connect(path) as database:
            assert database.execute("UPDATE response_times SET counts = '[[1'").rowcount == 1
        assert before.response_times("web")["web1", "s1"].total.count == 0
    with Journal.open(path, clock=clock) as after:
        clock.now_unix_s += WRITE_EVERY_S
        after.record(sample([(10, 3)], 0.1, clock.now_unix_s))
        assert after.response_times("web")["web1", "s1"].total.count == 3


def test_after_an_hour_without_requests_a_server_begins_at_zero(journal: Journal, clock: Clock) -> None:
    journal.record(sample([(40, 5)], 1.0, clock.now_unix_s))
    clock.now_unix_s += SHOWN_S + 1.0
    assert journal.response_times("web") == {}
    journal.record(sample([(90, 1)], 1.0, clock.now_unix_s))
    assert journal.response_times("web")["web1", "s1"].recent.counts == {90: 1}


def test_a_node_cannot_fill_the_journal_with_names_of_servers(journal: Journal, clock: Clock) -> None:
    for number in range(MOST_SERVERS_OF_NODE + 5):
        journal.record(sample([(40, 1)], 1.0, clock.now_unix_s, f"s{number}"))
    assert len(journal.response_times("web")) == MOST_SERVERS_OF_NODE
