"""What status, page and API say of a pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import (
    Change,
    Cpu,
    Cycle,
    DecisionCause,
    Knobs,
    KnobState,
    Mode,
    Resource,
    ResponseTimes,
    Sample,
    ServerCondition,
    ServerState,
    State,
    Traffic,
    Verdict,
    WeightsMean,
)
from slackwater.views import pool as view
from slackwater.views.percentiles import NO_SAMPLE, OF_MONITOR
from slackwater.views.pool import describe_change, duration, pool_status
from slackwater.views.reasons import expected
from slackwater.views.row import clock

T0 = 1_795_000_000.0


class Pool:
    """A journal into which a controller writes at `now_unix_s`."""

    def __init__(self, path: Path) -> None:
        self.now_unix_s = T0
        self.journal = Journal.open(journal_path(path), clock=lambda: self.now_unix_s)

    def sample(self, node: str, rps: float = 80.0) -> None:
        traffic = Traffic(rps=rps, rt_p95_ms=5.0)
        self.journal.record(
            Sample(1, node, "web", self.now_unix_s, "boot", 0, 0.2, cpu=Cpu("cgroup", 0.4), traffic=traffic)
        )

    def verdict(self, node: str, state: State, path: str = "because") -> None:
        unix_s = self.now_unix_s
        resource: Resource | None = "cache" if state == "interference" else None
        self.journal.record(
            Verdict(1, node, "web", unix_s, state, unix_s - 5, 0.5, [path, "2 of 3"], "start", resource)
        )

    def cycle(
        self,
        *servers: ServerState,
        mode: Mode = "act",
        balance: str = "roundrobin",
        weights_mean: WeightsMean | None = "share",
    ) -> None:
        unix_s, sentence = self.now_unix_s, "web: unchanged"
        self.journal.record(
            Cycle(1, "web", unix_s, mode, False, balance, "optimal", sentence, list(servers), weights_mean)
        )

    def view(self, after_s: float = 0.0, servers: dict[str, str] | None = None) -> view.PoolStatus:
        return pool_status(self.journal, "web", self.now_unix_s + after_s, servers)


def server(
    name: str, why: str = "", weight: int = 100, condition: ServerCondition = "up", cause: DecisionCause | None = None
) -> ServerState:
    return ServerState(name, condition, weight, 100, weight, rps=70.0, why=why, cause=cause)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    yield made
    made.journal.close()


def test_a_row_joins_what_balancer_detector_and_monitor_say(pool: Pool) -> None:
    pool.sample("host1")
    pool.verdict("host1", "interference")
    pool.cycle(server("host1", weight=0), server("host2"))
    seen = pool.view(after_s=0.5)
    assert (seen.stale, seen.mode, seen.law, seen.age_s) == (False, "act", "optimal", 0.5)
    first, second = seen.rows
    assert (first.node, first.state, first.since_unix_s) == ("host1", "interference", T0 - 5)
    assert (first.weight, first.baseline, first.rps, first.rt_p95_ms, first.cpu) == (0, 100, 80.0, 5.0, 0.4)
    assert (first.why, first.resource) == ("because; 2 of 3", "cache")
    assert second.resource is None
    assert (second.state, second.why, second.rt_p95_ms, second.rps) == ("unknown", "not judged yet", None, 70.0)


def test_a_controller_that_has_just_started_has_judged_nobody_yet(pool: Pool) -> None:
    pool.verdict("host1", "calm")
    pool.now_unix_s += 600.0  # it was stopped
    pool.cycle(server("host1", cause="waiting"))
    assert not pool.view().judged
    pool.cycle(server("host1", cause="no_verdict"))
    assert pool.view().judged


@pytest.mark.parametrize(
    ("balance", "weights_mean", "wanted"),
    [
        ("roundrobin", "share", 0.5),
        ("wrr", "share", 0.5),
        ("leastconn", "concurrency", None),
        ("random", "draws", None),
        ("wlc", "concurrency", None),
        ("mh", "keys", None),
        ("rr", "none", None),
        ("newrr", None, None),
    ],
)
def test_a_wanted_share_is_shown_only_where_weights_set_shares(
    pool: Pool, balance: str, weights_mean: WeightsMean | None, wanted: float | None
) -> None:
    pool.cycle(server("host1"), server("host2"), balance=balance, weights_mean=weights_mean)
    assert [row.share_wanted for row in pool.view().rows] == [wanted, wanted]


def test_a_backup_server_and_one_that_is_down_have_no_wanted_share(pool: Pool) -> None:
    """They get requests only while no other server takes any, or none at all."""
    spare, down = structs.replace(server("host2"), backup=True), server("host3", condition="down")
    pool.cycle(server("host1"), spare, down, balance="roundrobin", weights_mean="share")
    assert [row.share_wanted for row in pool.view().rows] == [1.0, None, None]


def test_a_silent_controller_is_never_calm(pool: Pool) -> None:
    pool.sample("host1")
    pool.verdict("host1", "calm")
    pool.cycle(server("host1"))
    assert pool.view(after_s=2.9).rows[0].state == "calm"
    seen = pool.view(after_s=12.0)
    assert seen.stale
    assert seen.state == "unknown"
    written = clock(T0)
    assert seen.headline == f"The controller is silent: no data for 12 s; the weights are those of {written}"
    assert seen.weights_unix_s == T0
    row = seen.rows[0]
    assert (row.state, row.since_unix_s, row.rps, row.cpu) == ("unknown", None, None, None)
    assert row.why == "no data for 12 s; last known: calm"


def test_a_silent_detector_is_seen_while_the_engine_lives(pool: Pool) -> None:
    pool.verdict("host1", "calm")
    pool.now_unix_s += 8.0
    pool.sample("host1")
    pool.cycle(server("host1"))
    row = pool.view().rows[0]
    assert (row.state, row.why, row.rps) == ("unknown", "not judged for 8.0 s; last known: calm", 80.0)


def test_an_old_sample_is_not_shown_as_if_it_were_now(pool: Pool) -> None:
    pool.sample("host1")
    pool.now_unix_s += 8.0
    pool.verdict("host1", "unknown", "no Sample for 8.0 s")
    pool.cycle(server("host1"))
    row = pool.view().rows[0]
    assert (row.rt_p95_ms, row.cpu, row.rps) == (None, None, 70.0), "the balancer's own rate is left"
    assert row.why == "no Sample for 8.0 s; 2 of 3"


def test_nothing_recorded_is_stale_and_says_so(pool: Pool) -> None:
    seen = pool.view()
    assert (seen.stale, seen.age_s, seen.mode, seen.rows) == (True, None, None, [])
    assert "nothing recorded yet" in seen.sentence


def test_the_engines_reason_stands_alone_when_it_names_the_state(pool: Pool) -> None:
    pool.verdict("host1", "interference", "run delay 14x")
    pool.verdict("host2", "interference", "run delay 9x")
    pool.verdict("host3", "calm")
    pool.verdict("host4", "calm")
    pool.verdict("host5", "calm")
    pool.verdict("host6", "interference", "run delay 7x")
    pool.cycle(
        server("host1", "words of any kind, run delay 14x", 0, cause="interference"),
        server("host2", "interference: run delay 9x: baseline weights", cause="panic"),
        server("host3", "ramp", condition="down"),
        server("host4", "all is well", cause="calm"),
        server("host5", "calm: on its way back to 100", 40, cause="calm"),
        server("host6", "of an lbengine of before"),
    )
    assert [row.why for row in pool.view().rows] == [
        "words of any kind, run delay 14x",
        "interference: run delay 9x: baseline weights; run delay 9x; 2 of 3",
        "down in the balancer; ramp",
        "",
        "calm: on its way back to 100",
        "of an lbengine of before; run delay 7x; 2 of 3",
    ]
    assert [row.summary for row in pool.view().rows] == [
        "a noisy neighbour takes its CPU cache, so it gets weight 0 instead of 100",
        "all servers are slow together, so each has its full weight; a noisy neighbour takes its CPU cache",
        "down in the balancer; ramp",
        "",
        "it is calm again and gets its full weight",
        "of an lbengine of before; a noisy neighbour takes its CPU cache",
    ]


def test_a_server_without_health_checks_is_nothing_to_remark(pool: Pool) -> None:
    pool.verdict("host1", "calm")
    pool.cycle(server("host1", condition="unchecked"))
    assert [row.why for row in pool.view().rows] == [""]


def test_servers_find_their_nodes_through_the_settings(pool: Pool) -> None:
    pool.sample("vm-17")
    pool.verdict("vm-17", "calm")
    pool.cycle(server("web1"))
    row = pool.view(servers={"web1": "vm-17"}).rows[0]
    assert (row.node, row.server, row.state) == ("vm-17", "web1", "calm")


def test_a_node_that_is_no_server_is_listed_with_the_way_out(pool: Pool) -> None:
    pool.sample("vm-17")
    pool.cycle(server("web1"))
    rows = {row.node: row for row in pool.view().rows}
    assert rows["vm-17"].why.endswith("this name, or not any more (see `servers` in the pool's settings)")
    assert rows["vm-17"].weight is None
    pool.verdict("web1", "calm")
    pool.verdict("vm-17", "calm")
    assert pool.view().headline == "1 of 2 calm; vm-17 is no server of the balancer"
    pool.now_unix_s += 61.0
    assert "vm-17" not in {row.node for row in pool.view().rows}


def test_the_headline_counts_and_names(pool: Pool) -> None:
    states: list[State] = ["interference", "calm", "overload", "unknown"]
    for number, state in enumerate(states, start=1):
        pool.verdict(f"host{number}", state)
    pool.cycle(*(server(f"host{number}") for number in range(1, 5)))
    seen = pool.view()
    assert seen.state == "interference"
    assert seen.headline == ("1 of 4 calm; host1 is beside a noisy neighbour; host3 is overloaded; host4 is unknown")


def test_all_calm_has_its_own_headline(pool: Pool) -> None:
    pool.verdict("host1", "calm")
    pool.cycle(server("host1"))
    assert (pool.view().state, pool.view().headline) == ("calm", "The only server is calm")
    pool.verdict("host2", "calm")
    pool.cycle(server("host1"), server("host2"))
    assert pool.view().headline == "All 2 servers are calm"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min"), (200, "3 min 20 s"), (3600, "1 h"),
     (7500, "2 h 5 min"), (273_600, "3 d 4 h")],
)  # fmt: skip
def test_durations_are_reported_in_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_changes_are_reported_in_words() -> None:
    weight = Change(1, "1", "web", T0, "weight", "host1", 100, 0, "", "lbengine", True)
    assert describe_change(weight) == "weight of host1: 100 → 0"
    assert describe_change(Change(1, "2", "web", T0, "pause", "web", None, None, "", "alice", True)) == "pause"


def test_what_the_second_stage_has_changed_is_shown_while_the_node_reports_it(pool: Pool) -> None:
    pool.sample("host1")
    pool.verdict("host1", "interference")
    pool.cycle(server("host1"))
    held = KnobState("php_fpm.max_children", 16, 4, order="o1", by="retune")
    own = KnobState("cpu.frequency", "schedutil", "schedutil")
    governed = KnobState("cpu.cores", 1, 2, order="o2", by="governor")
    pool.journal.record(Knobs(1, "host1", "web", pool.now_unix_s, "any", [held, own, governed]))
    (row,) = pool.view().rows
    assert (row.retuned, row.governed) == (["php_fpm.max_children 4 → 16"], ["cpu.cores 2 → 1"])
    assert row.why.endswith(
        "; the second stage has set php_fpm.max_children 4 → 16; the governor has set cpu.cores 2 → 1"
    )
    (row,) = pool.view(after_s=30.0).rows
    assert row.retuned == []


def test_a_servers_percentiles_come_from_its_histogram_or_say_why_there_are_none(pool: Pool) -> None:
    for node, name, counts in (("host1", "web1", [(40, 1900), (90, 100)]), ("host2", "web2", [(40, 50)])):
        traffic = Traffic(rps=80.0, times=ResponseTimes(name, 9.0, counts))
        pool.journal.record(Sample(1, node, "web", pool.now_unix_s, "boot", 0, 0.2, source="balancer", traffic=traffic))
    pool.sample("web3")
    absent = {"traffic.times": "no times from packets on eth0: needs CAP_NET_RAW"}
    pool.journal.record(Sample(1, "web4", "web", pool.now_unix_s, "boot", 0, 0.2, source="balancer", absent=absent))
    pool.cycle(*(server(f"web{number}") for number in range(1, 6)))
    rows = pool.view(servers={"web1": "host1", "web2": "host2"}).rows
    first, second, third, fourth, fifth = (row.percentiles for row in rows)
    assert first is not None
    assert (first.requests, first.absent) == (2000, "")
    assert first.p50_ms == pytest.approx(0.72, rel=0.03)
    assert first.p95_ms == first.p50_ms
    assert first.p99_ms == first.p999_ms
    assert first.p99_ms == pytest.approx(7.9, rel=0.03)
    assert second is not None
    assert (second.p95_ms, second.p99_ms, second.p999_ms) == (first.p50_ms, None, None)
    assert second.absent == "there were 50 requests in the last 5 minutes, and 100 are needed"
    assert [None if figures is None else (figures.p50_ms, figures.absent) for figures in (third, fourth, fifth)] == [
        (None, OF_MONITOR),
        (None, absent["traffic.times"]),
        (None, NO_SAMPLE),
    ]


def test_a_slow_server_that_counts_as_calm_is_not_said_to_be_well_again(pool: Pool) -> None:
    pool.verdict("host1", "slow")
    pool.cycle(server("host1", why="calm", cause="calm"))  # as after `slackwater end-episode host1`
    (row,) = pool.view().rows
    assert row.summary == (
        "it counts as calm and has its full weight; it is slow, and the cause is not visible from the balancer"
    )


def test_an_expectation_that_nothing_changes_is_not_worth_saying() -> None:
    about = Change(1, "c", "web", T0, "weight", "host1", 21, 0, "tried", "lbengine", True)
    assert expected(msgspec.structs.replace(about, rt_p95_ms=12.2, rt_p95_predicted_ms=12.4)) == ""
    text = expected(msgspec.structs.replace(about, rt_p95_ms=14.0, rt_p95_predicted_ms=9.0))
    assert text == "expected p95 9.0 ms instead of 14 ms"
