"""What the journal keeps: roll-ups, ages and the size, on real files with made data."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import msgspec
import pytest

from slackwater.core.config import JournalSettings
from slackwater.core.journal import schema
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.journal.retention import LEAST_NODE_CHANGES, NODE_CHANGES, Keeper
from slackwater.core.messages import Change, Cpu, Cycle, Sample, ServerState, Traffic, Verdict
from slackwater.core.messages.fields import MOST_REAL

T0 = 1_794_999_600.0
"""The beginning of an hour."""
DAY_S = 86400.0


def sample(node: str, at_s: float, rps: float, p95: float | None) -> Sample:
    return Sample(
        1, node, "web", T0 + at_s, "boot", 0, 0.2, cpu=Cpu("cgroup", 0.25), traffic=Traffic(rps=rps, rt_p95_ms=p95)
    )


def cycle(at_s: float, weight: int) -> Cycle:
    servers = [ServerState("s1", "up", weight, 100, weight)]
    return Cycle(1, "web", T0 + at_s, "act", False, "roundrobin", "optimal", "web: unchanged", servers)


@pytest.fixture(autouse=True)
def room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """However full this machine's own disk is."""
    monkeypatch.setattr("slackwater.core.journal.retention.shutil.disk_usage", lambda _: SimpleNamespace(free=10**12))


@dataclass
class Running:
    """A controller whose clock has been right since T0."""

    keeper: Keeper
    now_unix_s: float = T0


RUNNING: WeakKeyDictionary[Journal, Running] = WeakKeyDictionary()


def keep(
    journal: Journal, settings: JournalSettings, now_unix_s: float, free_bytes: Callable[[Path], int] | None = None
) -> int:
    """What a controller does with its journal at that time; it may have been started with other settings before."""

    def now() -> float:
        return RUNNING[journal].now_unix_s

    def made() -> Keeper:
        return Keeper(journal, settings, now, now, free_bytes or (lambda _: 10**12))

    if journal not in RUNNING:
        RUNNING[journal] = Running(made())
        RUNNING[journal].keeper.keep()
    running = RUNNING[journal]
    running.now_unix_s = now_unix_s
    deleted = running.keeper.keep()
    running.keeper = made()
    return deleted + running.keeper.keep()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(journal_path(tmp_path), clock=lambda: T0) as opened:
        yield opened


def test_minutes_are_means_over_requests_and_outlive_the_samples(journal: Journal) -> None:
    assert T0 % schema.HOUR_S == 0.0
    journal.record(
        *(sample("host1", at_s, 10.0, 5.0) for at_s in range(30)),
        *(sample("host1", at_s, 30.0, 25.0) for at_s in range(30, 60)),
        *(sample("host1", at_s, 0.0, None) for at_s in range(60, 70)),
        *(cycle(at_s, 100 if at_s < 120 else 50) for at_s in range(0, 180, 10)),
    )
    keep(journal, JournalSettings(), T0 + 180.0)
    keep(journal, JournalSettings(), T0 + 2 * DAY_S)
    assert journal.history("web", T0, 1.0, until_unix_s=T0 + 60.0).nodes == {}, "the Samples are gone"
    history = journal.history("web", T0, 60.0, until_unix_s=T0 + 180.0, servers={"s1": "host1"})
    series = history.nodes["host1"]
    assert series.rps == [20.0, 0.0, None]
    assert series.rt_p95_ms == [pytest.approx((10 * 5.0 + 30 * 25.0) / 40), None, None]
    assert series.cpu == [0.25, 0.25, None]
    assert series.weight == [100.0, 100.0, 50.0]
    hour = journal.history("web", T0, 3600.0, until_unix_s=T0 + 3600.0, servers={"s1": "host1"}).nodes["host1"]
    assert hour.rps == [pytest.approx((60 * 20.0) / 70, abs=0.001)]
    assert hour.weight == [pytest.approx((100.0 + 100.0 + 50.0) / 3, abs=0.001)]


def test_a_minute_that_goes_on_is_made_anew(journal: Journal) -> None:
    journal.record(sample("host1", 1.0, 10.0, 5.0))
    keep(journal, JournalSettings(), T0 + 2.0)
    journal.record(sample("host1", 3.0, 30.0, 5.0), sample("host1", 61.0, 50.0, 5.0))
    keep(journal, JournalSettings(), T0 + 62.0)
    keep(journal, JournalSettings(), T0 + 63.0)
    assert journal.history("web", T0, 60.0, until_unix_s=T0 + 120.0).nodes["host1"].rps == [20.0, 50.0]
    assert journal.history("web", T0, 3600.0, until_unix_s=T0 + 3600.0).nodes["host1"].rps == [30.0]


def test_everything_goes_at_its_age_and_changes_stay(journal: Journal) -> None:
    verdict = Verdict(1, "host1", "web", T0, "interference", T0, 0.5, ["why"], "start")
    change = Change(1, "id1", "web", T0, "weight", "s1", 100, 0, "noise", "test", True)
    journal.record(sample("host1", 0.0, 10.0, 5.0), cycle(0.0, 100), verdict, change)
    keep(journal, JournalSettings(keep_samples_h=1.0), T0 + 3900.0)
    assert journal.history("web", T0, 1.0, until_unix_s=T0 + 1.0).nodes == {}
    assert [span.node for span in journal.states("web", T0 - 1.0)] == ["host1"], "an episode lives as long as minutes"
    assert keep(journal, JournalSettings(keep_minutes_d=1.0), T0 + DAY_S + 3900.0) == 4, "a minute and an hour of each"
    assert journal.states("web", T0 - 1.0) == []
    with sqlite3.connect(journal.path) as database:
        assert database.execute("SELECT count(*) FROM nodes").fetchone() == (0,)
    assert [kept.id for kept in journal.changes()] == ["id1"]


@pytest.mark.parametrize("full_disk", [False, True])
def test_a_journal_that_is_too_large_loses_its_oldest_samples_first(journal: Journal, full_disk: bool) -> None:
    for first in range(0, 90_000, 10_000):
        journal.record(
            *(sample(f"host{number % 10}", float(number // 10), 10.0, 5.0) for number in range(first, first + 10_000))
        )
    limit = JournalSettings() if full_disk else JournalSettings(max_mb=10.0)

    def free_bytes(path: Path) -> int:
        """A disk of 11 MB, of which a megabyte is to be left."""
        return int(11e6) - path.stat().st_size if full_disk else 10**12

    before = journal.used_bytes()
    keep(journal, JournalSettings(), T0 + 9000.0)
    minutes = journal.history("web", T0, 60.0, until_unix_s=T0 + 9000.0).nodes
    assert before < 10e6, "the made data fits"
    with sqlite3.connect(journal.path) as database:
        database.execute("CREATE TABLE ballast (x)")
        database.execute("INSERT INTO ballast VALUES (zeroblob(?))", (int(10e6 - 0.4 * before),))
    keep(journal, msgspec.structs.replace(limit, min_free_mb=1.0), T0 + 9000.0, free_bytes)
    assert journal.used_bytes() <= 10e6
    raw = journal.history("web", T0, 1.0, until_unix_s=T0 + 9000.0).nodes["host0"].rps
    assert raw[0] is None
    assert raw[-1] == 10.0
    assert journal.history("web", T0, 60.0, until_unix_s=T0 + 9000.0).nodes == minutes


def test_history_of_some_nodes_reads_no_others(journal: Journal) -> None:
    journal.record(sample("host1", 0.0, 1.0, 5.0), sample("host2", 0.0, 2.0, 5.0), cycle(0.0, 100))
    nodes = journal.history("web", T0, 1.0, until_unix_s=T0 + 1.0, servers={"s1": "host1"}, nodes=["host1"]).nodes
    assert {name: (series.rps, series.weight) for name, series in nodes.items()} == {"host1": ([1.0], [100.0])}


def test_queries_of_long_times_walk_no_table_from_end_to_end(journal: Journal) -> None:
    """With 300 servers and 90 days a scan of the roll-ups would take seconds."""
    where = {"pool": "web", "since": 0, "until": 1, "step": 60, "tier": 60, "nodes": None, "servers": None, "held": 1}
    with sqlite3.connect(journal.path) as database:
        for query in (schema.ROLLED_HISTORY, schema.ROLLED_WEIGHTS, schema.HISTORY):
            plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}", where)]
            big = [line for line in plan if "rolled" in line or "samples" in line]
            assert big, plan
            assert all(line.startswith("SEARCH") for line in big), plan


def of_node(node: str, number: int) -> Change:
    """A valid Change of a node's wsengine."""
    id_, why = f"{node}-{number}", "x" * 2000
    return Change(1, id_, "web", T0 + number / 20, "cpu.share", node, 1, 2, why, "wsengine", True, cause="ordered")


def test_a_node_that_floods_valid_changes_costs_itself_its_rows_and_nobody_else(journal: Journal) -> None:
    ours = Change(1, "ours", "web", T0, "pause", "web", None, None, "deploy", "anna", True)
    journal.record(ours, of_node("honest", 0), *(sample("honest", float(at_s), 10.0, 5.0) for at_s in range(600)))
    for first in range(0, NODE_CHANGES + 1000, 500):
        journal.record(*(of_node("flooder", number) for number in range(first, first + 500)))
    keep(journal, JournalSettings(), T0 + 600.0)
    kinds = Counter(made.target for made in journal.changes(limit=100_000))
    assert kinds == {"web": 1, "honest": 1, "flooder": NODE_CHANGES}
    assert journal.used_bytes() > 10e6
    keep(journal, JournalSettings(max_mb=10.0), T0 + 600.0)
    assert journal.used_bytes() <= 10e6
    kept = journal.changes(limit=100_000)
    assert Counter(made.target for made in kept) == {"web": 1, "honest": 1, "flooder": LEAST_NODE_CHANGES}
    assert kept[0].id == f"flooder-{NODE_CHANGES + 999}", "the newest stay"
    raw = journal.history("web", T0, 1.0, until_unix_s=T0 + 600.0).nodes["honest"].rps
    assert raw == [10.0] * 600, "no Sample of an honest node went"


def test_changes_go_at_their_age_too(journal: Journal) -> None:
    journal.record(
        *(
            Change(1, f"id{day}", "web", T0 + day * DAY_S, "weight", "s1", 100, 0, "noise", "lbengine", True)
            for day in (0, 2)
        )
    )
    keep(journal, JournalSettings(keep_changes_d=1.0), T0 + 2 * DAY_S)
    assert [made.id for made in journal.changes()] == ["id2"]


@pytest.mark.parametrize(("rps", "p95_ms"), [(20_000.0, 2000.0), (9e14, 9e14), (MOST_REAL, MOST_REAL)])
def test_sums_of_large_values_are_rolled_up(tmp_path: Path, rps: float, p95_ms: float) -> None:
    """Hours of a busy server that is slow, and of one that says about the most that a message may say."""
    settings = JournalSettings(keep_samples_h=0.5)
    with Journal.open(journal_path(tmp_path)) as journal:
        journal.record(*(sample("web1", float(at_s), rps, p95_ms) for at_s in range(2 * 3600)))
        keep(journal, settings, T0 + 3 * 3600.0)
        hours = journal.history("web", T0, 3600.0, until_unix_s=T0 + 2 * 3600.0)
        day = journal.history("web", T0, 2 * 3600.0, until_unix_s=T0 + 2 * 3600.0)
    kept = min(rps, 2**63 / schema.SCALE)
    assert hours.nodes["web1"].rps == pytest.approx([kept, kept])
    assert day.nodes["web1"].rt_p95_ms == pytest.approx([min(p95_ms, 2**63 / schema.SCALE)])
