"""The simulator's balancers, request by request."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater_lab.sim.balancers import knapsack
from slackwater_lab.sim.balancers.base import Balancer
from slackwater_lab.sim.balancers.haproxy import BoundedRandom, Rate
from slackwater_lab.sim.balancers.nginx_least_time import NginxLeastTime, averaged
from slackwater_lab.sim.balancers.peak_ewma import PeakEwma
from slackwater_lab.sim.balancers.prequal import Prequal, Prequal60
from slackwater_lab.sim.balancers.table import BALANCERS
from slackwater_lab.sim.balancers.traefik_least_time import TraefikLeastTime

ALL = pytest.mark.parametrize("name", BALANCERS)
FEEL_TIME = pytest.mark.parametrize(
    "name", [name for name, algorithm in BALANCERS.items() if not algorithm.takes_weights]
)


def made(name: str, *weights: int, seed: int = 1) -> Balancer:
    return BALANCERS[name](len(weights), np.array(weights), np.random.default_rng(seed))


def picked(balancer: Balancer, count: int) -> list[int]:
    """Requests without an answer meanwhile."""
    first = sum(balancer.requests)
    return [balancer.pick(first + number, 0.0) for number in range(count)]


def served(balancer: Balancer, took_s: list[float], requests: int, gap_s: float, seed: int = 1) -> list[int]:
    """How many requests each server got, coming at random, when a server takes so long for one on average."""
    dice = np.random.default_rng(seed)
    flying: list[tuple[float, int]] = []
    now_s = 0.0
    for request in range(requests):
        now_s += float(dice.exponential(gap_s))
        while flying and flying[0][0] <= now_s:
            ended_s, done = heapq.heappop(flying)
            balancer.answered(done, ended_s)
        mean_s = took_s[balancer.pick(request, now_s)]
        heapq.heappush(flying, (now_s + float(dice.gamma(4.0, mean_s / 4.0)), request))
    return balancer.requests


@pytest.mark.parametrize("name", [name for name in BALANCERS if name != "knapsack"])
@settings(max_examples=3)
@given(servers=st.integers(2, 4), took_ms=st.floats(2.0, 200.0), seed=st.integers(0, 1000))
def test_servers_that_are_alike_get_equal_shares(name: str, servers: int, took_ms: float, seed: int) -> None:
    """Over several runs: within one, those that learn may prefer a server that was lucky."""
    runs, requests = 12, 30 * servers
    gap_s = took_ms / 1e3 / servers
    all_runs = [
        served(made(name, *[100] * servers, seed=seed + run), [took_ms / 1e3] * servers, requests, gap_s, seed + run)
        for run in range(runs)
    ]
    shares = np.sum(all_runs, axis=0)
    assert shares.sum() == runs * requests
    # Prequal trusts few answers, so that one run goes far to one side.
    within = 0.6 if name.startswith("prequal") else 0.3
    assert shares.tolist() == pytest.approx([runs * 30] * servers, rel=within)


@given(servers=st.integers(2, 6), flat_ms=st.floats(1.0, 100.0), bend_ms=st.floats(1.0, 1000.0))
def test_knapsack_gives_equal_weights_to_servers_with_the_same_curve(
    servers: int, flat_ms: float, bend_ms: float
) -> None:
    alike = knapsack.curve((flat_ms, 0.0, bend_ms), highest=1.0, lost=1.0)
    weights = knapsack.split([alike] * servers)
    assert max(weights) - min(weights) <= 1


@ALL
@given(
    answers=st.lists(st.booleans(), max_size=60),
    servers=st.integers(1, 5),
    step_s=st.floats(1e-4, 3.0),
    seed=st.integers(0, 99),
)
def test_what_is_in_flight_is_what_was_picked_and_not_answered(
    name: str, answers: list[bool], servers: int, step_s: float, seed: int
) -> None:
    balancer = made(name, *[100] * servers, seed=seed)
    flying: dict[int, int] = {}
    for number, ends in enumerate(answers):
        now_s = number * step_s
        if ends and flying:
            request = next(iter(flying))
            del flying[request]
            balancer.answered(request, now_s)
        else:
            flying[number] = balancer.pick(number, now_s)
        assert balancer.in_flight == [list(flying.values()).count(server) for server in range(servers)]


@FEEL_TIME
def test_a_server_ten_times_as_slow_gets_less(name: str) -> None:
    # 400 ms are beyond nginx's steps of 20 ms; a third of the requests would keep 13 of them at the slow server.
    requests = served(made(name, 100, 100, 100), [0.4, 0.04, 0.04], 3000, gap_s=0.01)
    most = 0.34 if name == "bounded-random" else 0.2
    assert requests[0] / 3000 < most


def test_random_gives_a_raised_weight_the_ties_until_its_rate_has_caught_up() -> None:
    """The same as HAProxy 3.4 does (tests/lbengine/test_algorithms.py); each request is answered before the next."""
    balancer = made("random2", 10, 100, 100)
    shares = []
    for weight, first, last in ((10, 0, 2000), (100, 2000, 2400), (100, 4000, 8000), (10, 8000, 8400)):
        balancer.set_weights(np.array([weight, 100, 100]))
        before = balancer.requests[0]
        for request in range(first, last):
            balancer.pick(request, request / 1000)
            balancer.answered(request, request / 1000)
        shares.append((balancer.requests[0] - before) / (last - first))
    assert shares == pytest.approx([10 / 210, 5 / 9, 1 / 3, 0.0], abs=0.06)


def test_a_rate_is_of_the_last_second() -> None:
    rate = Rate()
    for number in range(200):
        rate.add(number / 100)
    assert rate.read(1.999) == pytest.approx(100.0, abs=1.0)
    assert rate.read(2.5) == pytest.approx(50.0)
    assert rate.read(3.5) == 0.0


def test_roundrobin_serves_by_weight_and_as_evenly_as_it_can() -> None:
    balancer = made("roundrobin", 200, 100, 100)
    assert picked(balancer, 8) == [0, 1, 2, 0] * 2
    balancer.set_weights(np.array([0, 100, 100]))
    assert set(picked(balancer, 6)) == {1, 2}
    assert balancer.requests == [4, 5, 5]


def test_leastconn_takes_who_has_least_in_flight_for_its_weight_and_equals_in_turn() -> None:
    balancer = made("leastconn", 100, 100, 100)
    assert picked(balancer, 6) == [0, 1, 2, 0, 1, 2]
    balancer.in_flight = [3, 1, 2]
    assert balancer.choose(0.0) == 1
    balancer.in_flight = [3, 3, 0]
    assert balancer.choose(0.0) == 2, "an idle server first"


def test_leastconn_takes_an_idle_server_first_whatever_its_weight_but_not_at_weight_zero() -> None:
    balancer = made("leastconn", 100, 1, 0)
    balancer.in_flight = [1, 0, 0]
    assert balancer.choose(0.0) == 1
    # 2 in flight of weight 1 are more than 50 of weight 100.
    balancer.in_flight = [50, 1, 0]
    assert balancer.choose(0.0) == 0


def share_of(balancer: Balancer, in_flight: list[int], server: int) -> float:
    balancer.in_flight = in_flight
    return [balancer.choose(0.0) for _ in range(400)].count(server) / 400


def test_random2_draws_by_weight_and_takes_the_less_loaded_of_the_two() -> None:
    balancer = made("random2", 100, 100, 0)
    # The loaded one is only taken when both draws are of it: a quarter of the time.
    assert share_of(balancer, [10, 0, 0], 0) == pytest.approx(0.25, abs=0.06)
    assert share_of(balancer, [10, 0, 0], 2) == 0


def test_random2_counts_load_for_its_weight() -> None:
    # 1 for each 100, and 2 for each 100: the second is only taken when both draws are of it, a sixteenth of the time.
    assert share_of(made("random2", 300, 100), [3, 2], 1) == pytest.approx(1 / 16, abs=0.035)


@given(in_flight=st.lists(st.integers(0, 30), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_bounded_random_leaves_no_server_above_its_bound(in_flight: list[int], seed: int) -> None:
    balancer = made("bounded-random", *[100] * len(in_flight), seed=seed)
    balancer.in_flight = list(in_flight)
    chosen = balancer.choose(0.0)
    bound = math.ceil((sum(in_flight) + 1) * BoundedRandom.FACTOR / 100 / len(in_flight))
    assert in_flight[chosen] < max(1, bound)


def test_peak_ewma_follows_a_slow_answer_at_once_and_forgets_it_in_seconds() -> None:
    balancer = made("peak-ewma", 100, 100)
    assert isinstance(balancer, PeakEwma)
    for server in (0, 1):
        balancer.learn(server, 0.0, 0.01)
    balancer.learn(0, 0.1, 1.0)
    assert balancer.choose(0.1) == 1
    balancer.in_flight = [0, 1]
    assert balancer.choose(0.2) == 1, "twice 10 ms are less than a second"
    balancer.learn(1, 9.0, 0.01)
    assert balancer.choose(9.0) == 0


def test_nginx_expects_the_mean_in_steps_of_20_ms_times_those_in_flight() -> None:
    assert [averaged(0, 40), averaged(40, 0), averaged(100, 200)] == [40, 38, 105]
    balancer = made("nginx-least-time", 100, 100)
    assert isinstance(balancer, NginxLeastTime)
    for server, took_s in ((0, 0.001), (1, 0.019)):
        balancer.pick(server, 0.0)
        balancer.learn(server, took_s, took_s)
    balancer.in_flight = [0, 0]
    assert {balancer.choose(1.0), balancer.choose(1.0)} == {0, 1}, "both are below 20 ms"
    balancer.learn(1, 2.0, 0.5)
    assert [balancer.choose(2.0) for _ in range(3)] == [0, 0, 0]
    assert balancer.choose(60.0) == 1, "half as much for each 11 s in which it was not asked, and then equal"


def test_nginx_sees_a_server_that_does_not_answer() -> None:
    balancer = made("nginx-least-time", 100, 100)
    balancer.pick(0, 0.0)
    balancer.pick(1, 0.0)
    balancer.answered(1, 0.001)
    assert {balancer.pick(2 + number, 3.0 + 0.001 * number) for number in range(5)} == {1}


def test_traefik_multiplies_the_mean_of_the_last_100_by_one_more_than_in_flight() -> None:
    balancer = made("traefik-least-time", 100, 100)
    assert isinstance(balancer, TraefikLeastTime)
    assert picked(balancer, 4) == [0, 0, 1, 0], "earliest deadline first"
    for _ in range(100):
        balancer.learn(0, 0.0, 0.010)
        balancer.learn(1, 0.0, 0.025)
    balancer.in_flight = [1, 0]
    assert balancer.choose(0.0) == 0, "2 x 10 ms are less than 25"
    balancer.in_flight = [2, 0]
    assert balancer.choose(0.0) == 1, "3 x 10 ms are more than 25"
    for _ in range(100):
        balancer.learn(1, 0.0, 0.0005)
    balancer.in_flight = [0, 9]
    assert balancer.choose(0.0) == 1, "answers below a millisecond count nothing"


@pytest.mark.parametrize("kind", [Prequal, Prequal60])
def test_prequal_takes_the_quickest_cold_server_and_else_the_emptiest(kind: type[Prequal]) -> None:
    balancer = kind(3, np.array([100, 100, 100]), np.random.default_rng(1))
    balancer._rifs.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    balancer._probe(0.0, 0)
    reported = ((20, 0.001), (2, 0.03), (3, 0.02))
    for probe in balancer._pool:
        probe.in_flight, probe.expected_s = reported[probe.server]
    assert [probe.server for probe in balancer._ranked()] == [2, 1, 0], "the hot one last, though it is quick"
    for probe in balancer._pool:
        probe.in_flight += 100
    assert [probe.server for probe in balancer._ranked()] == [1, 2, 0]


def test_prequal_expects_what_was_met_with_as_many_in_flight() -> None:
    balancer = made("prequal-84", 100, 100)
    assert isinstance(balancer, Prequal)
    balancer._met[0].extend([(0, 0.01), (0, 0.012), (0, 0.5), (4, 0.2)])
    assert [balancer._expected_s(0, held) for held in (0, 1, 9)] == [0.012, 0.012, 0.2]
    assert balancer._expected_s(1, 0) == 0.0


@given(levels=st.lists(st.tuples(st.floats(0.001, 0.1), st.floats(0.0, 1.0)), min_size=2, max_size=5))
def test_knapsack_finds_no_worse_weights_than_any_step_beside_them(levels: list[tuple[float, float]]) -> None:
    curves = [knapsack.curve((flat, 0.0, bend), highest=1.0, lost=1.0) for flat, bend in levels]
    shares = knapsack.split(curves)
    assert sum(shares) == knapsack.STEPS
    assert min(shares) >= 1

    def cost(weights: list[int]) -> float:
        return float(sum(weight * curve[weight] for weight, curve in zip(weights, curves, strict=True)))

    for giver in range(len(shares)):
        for taker in range(len(shares)):
            if giver != taker and shares[giver] > 1:
                other = list(shares)
                other[giver] -= 1
                other[taker] += 1
                assert cost(shares) <= cost(other) + 1e-12


def test_a_curve_is_compressed_where_weights_count_more() -> None:
    polynomial = knapsack.fitted([0.2, 0.4, 0.8], [0.0104, 0.0116, 0.0164])
    assert polynomial == pytest.approx((0.01, 0.0, 0.01))
    calm = knapsack.curve(polynomial, highest=0.8, lost=1.0)
    slower = knapsack.curve(polynomial, highest=0.8, lost=2.0)
    assert slower[10] == pytest.approx(calm[20])
    assert calm[40] == pytest.approx(0.0164)
    assert math.isinf(calm[42]), "no higher weight was tried"
    assert math.isinf(slower[22])
    assert math.isfinite(knapsack.curve(polynomial, highest=0.8, lost=20.0)[1]), "every server keeps a step"


def test_knapsack_takes_weight_from_a_server_that_becomes_slower() -> None:
    balancer = made("knapsack", 100, 100, 100)
    served(balancer, [0.02, 0.02, 0.02], 2400, gap_s=0.01)
    for server, time_s in enumerate((0.5, 0.02, 0.02)):
        for _ in range(20):
            balancer.learn(server, 30.0, time_s)
    before = balancer.weights[0] / sum(balancer.weights)
    balancer.choose(1e6)
    assert balancer.weights[0] / sum(balancer.weights) < 0.6 * before
