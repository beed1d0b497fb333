"""Which servers fail, and which lose good answers by it: on pools of which only rates are drawn."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from slackwater.core.messages import Cycle, ServerState
from slackwater.detector.classify.chernoff import bound as chernoff
from slackwater.detector.classify.failures import LEAST_S, WELL_S, Failing, Failures
from slackwater.detector.classify.reported import reported
from slackwater.detector.features.columns import Floats
from tests.support.seeds import seeds

PERIOD_S = 0.2
Rates = Callable[[float], Sequence[tuple[float, float]]]
"""Time in s -> (good answers, failures) per second of each server."""


@dataclass
class Pool:
    """The failures of a pool's servers, whose Samples come at the same times."""

    servers: int = 3
    seed: int = 1
    period_s: float = PERIOD_S
    is_monitor: bool = False
    refuses: bool = False
    """Failures are refused connections, and no answers."""
    now_s: float = 0.0
    last: Failing | None = None
    episodes: list[tuple[float, int]] = field(default_factory=list)
    """(time, server) of each begin."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.failures = Failures(1.0)
        self.failures.resize(self.servers)

    def run(self, seconds: float, rates: Rates) -> Pool:
        begin_s = self.now_s
        while self.now_s < begin_s + seconds - 1e-9:
            self.now_s += self.period_s
            counts = [[self._drawn(rate * self.period_s) for rate in pair] for pair in rates(self.now_s - begin_s)]
            self._look(np.array(counts, dtype=np.float64))
        return self

    def _look(self, counts: Floats) -> None:
        whole = counts.sum(axis=1)
        self.last = self.failures.update(
            self.now_s,
            np.arange(self.servers),
            {
                "period_s": np.full(self.servers, self.period_s),
                "traffic.rps": (counts[:, 0] if self.refuses else whole) / self.period_s,
                "traffic.errors_per_s": counts[:, 1] / self.period_s,
                "balancer.only": np.full(self.servers, 0.0 if self.is_monitor else 1.0),
            },
            np.full(self.servers, self.now_s),
            fresh=np.ones(self.servers, dtype=bool),
            in_episode=np.zeros(self.servers, dtype=bool),
        )
        self.episodes += [(self.now_s, server) for server in np.flatnonzero(self.last.began).tolist()]

    def _drawn(self, mean: float) -> int:
        """A number of Poisson's distribution."""
        count, left = -1, mean
        while left >= 0.0:
            count, left = count + 1, left - self.dice.expovariate(1.0)
        return count


def calm(*_: float) -> list[tuple[float, float]]:
    return [(20.0, 0.02)] * 3


@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize(
    ("about", "broken"),
    [
        ("random", [(0.0, 20.0), (20.0, 0.0), (20.0, 0.0)]),
        ("leastconn, where fast failures draw requests", [(0.0, 200.0), (6.5, 0.0), (6.5, 0.0)]),
        ("87% of them", [(2.6, 17.4), (20.0, 0.0), (20.0, 0.0)]),
    ],
)
def test_a_server_that_fails_at_once_is_in_an_episode_within_two_seconds(
    seed: int, about: str, broken: list[tuple[float, float]]
) -> None:
    pool = Pool(seed=seed).run(60.0, calm)
    assert not pool.episodes
    pool.run(4.0, lambda _: broken)
    ((began_s, server),) = pool.episodes
    most_s = 2.01 if about == "random" else 3.6
    assert (server, LEAST_S - 0.01 <= began_s - 60.0 <= most_s) == (0, True), (about, began_s - 60.0)
    assert pool.last is not None
    assert pool.last.recent[0] > 0.6
    assert np.isfinite(pool.last.peers[0])


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("servers", [2, 3])
def test_a_server_that_draws_nearly_all_requests_and_fails_them_leaves_its_peers_little_to_compare_with(
    seed: int, servers: int
) -> None:
    """Under least connections, with pages of half a second: the peers answer two requests a second."""
    pool = Pool(servers=servers, seed=seed).run(60.0, lambda _: [(20.0, 0.02)] * servers)
    drawn_rps = 20.0 * servers - 2.0 * (servers - 1)
    pool.run(5.0, lambda _: [(0.0, drawn_rps), *[(2.0, 0.0)] * (servers - 1)])
    ((began_s, server),) = pool.episodes
    assert (server, began_s - 60.0 <= 2.41) == (0, True), began_s - 60.0


@pytest.mark.parametrize("seed", seeds(3))
def test_it_ends_with_good_answers_and_not_with_time(seed: int) -> None:
    pool = Pool(seed=seed).run(30.0, calm).run(3.0, lambda _: [(0.0, 20.0), (20.0, 0.0), (20.0, 0.0)])
    pool.run(40.0, lambda _: [(0.0, 0.0), (30.0, 0.0), (30.0, 0.0)])
    assert pool.failures.on[0], "nothing is known without requests"
    pool.run(1.0, lambda _: [(0.0, 4.0), (28.0, 0.0), (28.0, 0.0)])
    assert pool.last is not None
    assert pool.last.probability[0] > 0.75, "a trial whose requests fail"
    pool.run(1.4, lambda _: [(8.0, 0.0), (26.0, 0.0), (26.0, 0.0)])
    assert pool.last.probability[0] < 0.25, "one whose requests do not"
    pool.run(5.0, calm)
    assert pool.failures.on[0], "it may fail only once it has its full load"
    pool.run(1.6, lambda _: [(0.0, 20.0), (20.0, 0.0), (20.0, 0.0)])
    assert pool.last.probability[0] > 0.75, "a second of failures takes that load away again"
    pool.run(WELL_S + 4.0, calm)
    assert not pool.failures.on.any()
    assert np.isnan(pool.last.peers).all(), "what it failed before says nothing any more"
    assert len(pool.episodes) == 1


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("bound_rps", [1.0, 5.0])
def test_a_client_that_is_bound_to_a_server_does_not_keep_it_drained(seed: int, bound_rps: float) -> None:
    pool = Pool(seed=seed).run(30.0, calm).run(3.0, lambda _: [(0.0, 20.0), (20.0, 0.0), (20.0, 0.0)])

    def run(seconds: float, part: float, good: float, failed: float) -> None:
        for _ in range(round(seconds / PERIOD_S)):
            pool.failures.report(pool.now_s, {"a": (math.nan, 0.0, part)}, lambda _: 0)
            pool.run(PERIOD_S, lambda _: [(good, failed), (28.0, 0.0), (28.0, 0.0)])

    run(5.0, 0.0, 0.0, bound_rps)
    assert pool.failures.on[0]
    run(2.0, 0.1, 0.0, bound_rps + 8.0)
    assert pool.last is not None
    assert pool.last.probability[0] > 0.9, "its own requests fail too"
    run(5.0, 0.0, 0.0, bound_rps)
    run(6.0, 0.1, 8.0, bound_rps)
    assert pool.last.probability[0] < 0.25
    run(2.0 * WELL_S, 1.0, 20.0, bound_rps)
    assert not pool.failures.on[0]


def test_answers_to_health_checks_do_not_show_a_monitor_that_a_drained_server_is_well() -> None:
    pool = Pool(is_monitor=True).run(30.0, calm).run(3.0, lambda _: [(0.5, 20.0), (20.0, 0.0), (20.0, 0.0)])
    for _ in range(100):
        pool.failures.report(pool.now_s, {"a": (0.0, 0.0, 0.0)}, lambda _: 0)
        pool.run(0.2, lambda _: [(1.0, 0.0), (30.0, 0.0), (30.0, 0.0)])
    assert pool.failures.on[0]
    assert pool.last is not None
    assert pool.last.probability[0] > 0.6


@pytest.mark.parametrize(
    ("outside", "fails"), [((0.0, 60.0), False), ((60.0, 0.0), True)], ids=["they fail", "they are answered well"]
)
def test_requests_past_the_balancer_say_nothing_of_those_of_its_users(
    outside: tuple[float, float], fails: bool
) -> None:
    """Whoever reaches a machine itself, or another pool on it, could drain it, or hide that it fails."""
    users = (0.0, 20.0) if fails else (20.0, 0.0)
    pool = Pool(is_monitor=True).run(30.0, calm)
    for _ in range(100):
        pool.failures.report(pool.now_s + 0.2, {"a": (20.0, users[1], 1.0)}, lambda _: 0)
        pool.run(0.2, lambda _: [(users[0] + outside[0], users[1] + outside[1]), (20.0, 0.0), (20.0, 0.0)])
    assert pool.failures.on.tolist() == [fails, False, False]
    assert pool.last is not None
    assert np.isfinite(pool.last.peers[0]) == fails, "whether load may be moved to it"


def test_a_sample_that_covers_no_time_hides_no_other_server_s_failures() -> None:
    pool = Pool().run(30.0, calm)
    pool.period_s = 0.0
    with np.errstate(all="ignore"):
        pool._look(np.full((3, 2), 4.0))
    pool.period_s = PERIOD_S
    pool.run(4.0, lambda _: [(0.0, 20.0), (20.0, 0.0), (20.0, 0.0)])
    assert [server for _, server in pool.episodes] == [0]


def test_a_server_at_its_weight_in_calm_is_not_lowered() -> None:
    servers = [
        ServerState(name, "up", weight, 100, weight, rps=20.0, errors_per_s=0.0, calm_weight=60)
        for name, weight in (("calm", 60), ("lowered", 30))
    ]
    cycle = Cycle(1, "web", 1.8e9, "act", paused=False, balance="random", law="equalise", sentence="", servers=servers)
    assert reported(cycle, {}) == {"calm": (20.0, 0.0, 1.0), "lowered": (20.0, 0.0, 0.5)}


def test_a_rate_that_the_balancer_does_not_count_is_no_rate_of_zero() -> None:
    for rps, on in ((math.nan, False), (0.0, True)):
        pool = Pool(is_monitor=True).run(30.0, calm).run(3.0, lambda _: [(0.0, 20.0), (20.0, 0.0), (20.0, 0.0)])
        for _ in range(100):
            pool.failures.report(pool.now_s, {"a": (rps, 0.0, 1.0)}, lambda _: 0)
            pool.run(0.2, calm)
        assert pool.failures.on[0] == on


STORIES: dict[str, Rates] = {
    "a deploy that breaks all": lambda _: [(0.0, 20.0)] * 3,
    "a deploy that breaks all, one half a second before": lambda at_s: [
        (0.0, 20.0) if at_s > server * 0.25 else (20.0, 0.0) for server in range(3)
    ],
    "a route that is broken everywhere": lambda _: [(14.0, 6.0)] * 3,
    "a client that provokes failures on a sticky server": lambda _: [(20.0, 200.0), (20.0, 0.0), (20.0, 0.0)],
    "such a client, which sends good requests to the others": lambda _: [(20.0, 200.0), (200.0, 0.0), (200.0, 0.0)],
    "such a client, which sends them ever more": lambda at_s: [
        (20.0, 200.0),
        *[(20.0 + 3.0 * at_s, 0.0)] * 2,
    ],
    "such a client, where traffic falls": lambda at_s: [
        (20.0 - at_s / 5.0, 100.0),
        (20.0 - at_s / 5.0, 0.0),
        (20.0 - at_s / 5.0, 0.0),
    ],
    "such a client, after it raised the server's good answers": lambda at_s: [
        (200.0, 0.0) if at_s < 30.0 else (20.0, 200.0),
        (20.0, 0.0),
        (20.0, 0.0),
    ],
    "such a client, after it raised all good answers": lambda at_s: [
        ((80.0, 0.0) if at_s < 30.0 else (20.0, 200.0)),
        *[(80.0, 0.0) if at_s < 30.0 else (20.0, 0.0)] * 2,
    ],
    "such a client, which had half of all good answers before": lambda at_s: [
        (20.0, 0.0) if at_s < 30.0 else (10.0, 30.0),
        *[(20.0, 0.0) if at_s < 30.0 else (10.0, 0.0)] * 2,
    ],
    "such a client, where there are hardly any requests": lambda at_s: [
        (3.0, 0.0) if at_s < 30.0 else (3.0, 4.0),
        (3.0, 0.0),
        (3.0, 0.0),
    ],
    "failures now and then": lambda _: [(19.0, 1.0), (20.0, 0.0), (20.0, 0.0)],
    "failures in bursts of a third of a second": lambda at_s: [
        (0.0, 20.0) if at_s % 10.0 < 0.35 else (20.0, 0.0),
        (20.0, 0.0),
        (20.0, 0.0),
    ],
}


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("story", STORIES)
def test_nothing_begins_by_what_is_no_fault_of_one_server(seed: int, story: str) -> None:
    assert Pool(seed=seed).run(30.0, calm).run(60.0, STORIES[story]).episodes == []


def test_two_of_three_that_fail_are_both_in_an_episode_and_all_three_end_it() -> None:
    pool = Pool().run(30.0, calm).run(4.0, lambda _: [(0.0, 20.0), (0.0, 20.0), (20.0, 0.0)])
    assert sorted(server for _, server in pool.episodes) == [0, 1]
    pool.run(2.0, lambda _: [(0.0, 0.0), (0.0, 0.0), (0.0, 60.0)])
    assert not pool.failures.on.any(), "a deploy that breaks all, one after the other"


def test_a_lowered_server_has_fewer_good_answers_for_that_reason() -> None:
    pool = Pool().run(30.0, calm)
    for rates in ((2.0, 20.0), (0.0, 0.5)):
        for _ in range(30):
            pool.failures.report(pool.now_s, {"a": (0.0, 0.0, 0.1)}, lambda _: 0)
            pool.run(1.0, lambda _, rates=rates: [rates, (28.0, 0.0), (28.0, 0.0)])  # type: ignore[misc]
    assert pool.episodes == []


def test_a_single_server_has_no_peers() -> None:
    assert Pool(servers=1).run(30.0, lambda _: [(20.0, 0.0)]).run(30.0, lambda _: [(0.0, 20.0)]).episodes == []


def test_refused_connections_are_told_by_the_balancer_where_a_monitor_sees_nothing() -> None:
    pool = Pool(is_monitor=True, period_s=1.0).run(30.0, calm)
    for _ in range(3):
        pool.failures.report(pool.now_s + 1.0, {"a": (20.0, 20.0, 1.0)}, lambda _: 0)
        pool.run(1.0, lambda _: [(0.0, 0.0), (20.0, 0.0), (20.0, 0.0)])
    assert [server for _, server in pool.episodes] == [0]


@pytest.mark.parametrize("share", [0.04, 0.05, 0.06])
def test_one_that_fails_just_so_often_is_named_once_and_not_by_turns(share: float) -> None:
    for seed in range(3):
        pool, named = Pool(seed=seed).run(30.0, lambda _: [(20.0, 0.0)] * 3), [False]
        for second in range(240):
            rates = (20.0 * (1.0 - share), 20.0 * share) if second < 90 else (20.0, 0.0)
            pool.run(1.0, lambda _, rates=rates: [rates, (20.0, 0.0), (20.0, 0.0)])  # type: ignore[misc]
            assert pool.last is not None
            named.append(bool(np.isfinite(pool.last.peers[0])))
        assert sum(now != was for was, now in itertools.pairwise(named)) == 2
        assert not pool.episodes


def test_a_few_failures_among_few_requests_are_not_well_above() -> None:
    assert chernoff(60.0, 0.0, 1.0) < 0.12
    pool = Pool().run(30.0, lambda _: [(2.0, 0.0)] * 3).run(0.2, lambda _: [(2.0, 5.0), (2.0, 0.0), (2.0, 0.0)])
    assert pool.last is not None
    assert np.isnan(pool.last.peers).all()


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(2)])
def test_nothing_begins_in_an_hour_of_calm_with_deploys(seed: int, refuses: bool) -> None:
    """Every 20 s another server restarts. It refuses all for 2 s, or answers all with 503 for 0.6 s. One request in 500
    fails at all times."""
    lasts_s = 2.0 if refuses else 0.6

    def rates(at_s: float) -> list[tuple[float, float]]:
        away = int(at_s // 20.0) % 3 if at_s > 20.0 and at_s % 20.0 < lasts_s else None
        others = 30.0 if refuses else 20.0
        calm = others if away is not None else 20.0
        return [(0.0, 20.0) if server == away else (0.998 * calm, 0.002 * calm) for server in range(3)]

    assert Pool(seed=seed, refuses=refuses).run(3600.0, rates).episodes == []
