"""The simulator's queues against what queueing theory says of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slackwater_lab.cluster.cgroups import PERIOD_S
from slackwater_lab.sim.requests import Dice, Simulation, simulate
from slackwater_lab.sim.server import Processors, Server, fair
from slackwater_lab.sim.setup import WARM_UP_S, Setup, SimulationError

ONE = Setup(servers=1, capacity_rps=100.0, load=0.7, children=10**9, noisy=0.0, seconds=600.0, period_s=1.0)


def mean_ms(setup: Setup) -> float:
    mean = simulate(setup, "static", None).felt["mean_ms"]
    assert mean is not None
    return mean


def test_mm1_ps_has_the_mean_and_the_variance_of_theory() -> None:
    run = Simulation(replace(ONE, seconds=1500.0), "static", None)
    felt = run.run().felt
    assert felt["mean_ms"] == pytest.approx(1e3 / (100.0 - 70.0), rel=0.05)
    took = np.array(
        [end - run._began[request] for request, end in run._ended.items() if run._began[request] > WARM_UP_S]
    )
    # Variance over squared mean of the sojourn time in M/M/1-PS: (2 + u)/(2 - u), Coffman, Muntz and Trotter 1970.
    assert took.var() / took.mean() ** 2 == pytest.approx((2 + 0.7) / (2 - 0.7), rel=0.15)


@pytest.mark.parametrize("cv2", [0.0, 0.25, 4.0])
def test_mg1_ps_has_the_same_mean_whatever_the_distribution_of_the_work(cv2: float) -> None:
    assert mean_ms(replace(ONE, cost_cv2=cv2, load=0.6, seconds=1000.0)) == pytest.approx(1e3 / 40.0, rel=0.05)


def test_mg1_ps_has_the_same_mean_also_for_heavy_tails() -> None:
    """Pareto with the exponent 2.3: a request in a thousand takes eleven times the mean."""
    run = Simulation(replace(ONE, load=0.6, seconds=1000.0), "static", None)
    dice, exponent = np.random.default_rng(12), 2.3
    run._cost = Dice(lambda count: (1.0 + dice.pareto(exponent, count)) * (exponent - 1.0) / exponent)
    assert run.run().felt["mean_ms"] == pytest.approx(1e3 / 40.0, rel=0.05)


def test_a_request_takes_its_work_over_the_idle_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """E[T | work x] = x/(1 - u) in M/G/1-PS: long requests do not starve short ones."""
    run = Simulation(replace(ONE, load=0.5, seconds=1000.0), "static", None)
    work: dict[int, float] = {}
    add = run.servers[0].add

    def noted(number: int, cost: float) -> None:
        work[number] = cost
        add(number, cost)

    monkeypatch.setattr(run.servers[0], "add", noted)
    run.run()
    done = [request for request in run._ended if run._began[request] > WARM_UP_S]
    costs = np.array([work[request] for request in done])
    took = np.array([run._ended[request] - run._began[request] for request in done])
    for low, high in ((0.0, 0.5), (0.5, 1.5), (1.5, 8.0)):
        some = (costs > low / 100.0) & (costs <= high / 100.0)
        assert took[some].mean() == pytest.approx(costs[some].mean() / 0.5, rel=0.08)


def test_one_server_alone_takes_all_its_speed_for_one_request() -> None:
    server = Server(children=4)
    server.add(1, 0.02)
    assert server.next_s() == pytest.approx(0.02)
    server.add(2, 0.02)
    assert server.next_s() == pytest.approx(0.04)
    server.advance(0.04)
    assert server.finished() == [1, 2]
    assert server.next_s() == math.inf
    assert server.cpu_s == pytest.approx(0.04)
    assert server.runnable_s == pytest.approx(0.08)


def test_more_requests_than_children_wait_in_order() -> None:
    server = Server(children=1)
    for request in (1, 2, 3):
        server.add(request, 0.01)
    finished = []
    while server.next_s() < 1.0:
        server.advance(server.next_s())
        finished += [(request, round(server.at_s, 6)) for request in server.finished()]
    assert finished == [(1, 0.01), (2, 0.02), (3, 0.03)]
    assert server.runnable_s == pytest.approx(0.03), "who waits outside does not want the CPU yet"


def test_a_quota_stops_a_server_until_the_next_period() -> None:
    server = Server(children=4, quota_cores=0.4)
    server.add(1, 0.05)
    times = []
    while server.next_s() < 1.0 and not server.finished():
        server.advance(server.next_s())
        times.append(round(server.at_s, 6))
    spent_s = 0.4 * PERIOD_S
    whole, left_s = divmod(0.05, spent_s)
    halts = [
        moment for number in range(int(whole)) for moment in (number * PERIOD_S + spent_s, (number + 1) * PERIOD_S)
    ]
    assert times == pytest.approx([*halts, whole * PERIOD_S + left_s])


def test_a_neighbour_spends_the_quota_too() -> None:
    server = Server(children=4, quota_cores=0.4)
    server.taken = 0.5
    server.add(1, 0.1)
    while not server.finished():
        server.advance(server.next_s())
    # One processor for the two, so each gets half of it until the quota is spent.
    spent_s = 0.4 * PERIOD_S
    assert server.at_s == pytest.approx((round(0.1 / (spent_s / 2.0)) - 1) * PERIOD_S + spent_s)


@pytest.mark.parametrize(("quota_cores", "taken"), [(0.4, 0.3), (0.4, 0.85), (1.5, 0.7)])
def test_a_full_server_loses_the_share_that_its_neighbour_takes_whatever_the_quota(
    quota_cores: float, taken: float
) -> None:
    server = Server(children=8, quota_cores=quota_cores)
    server.taken = taken
    for request in range(8):
        server.add(request, 100.0)
    while server.at_s < 10.0:
        server.advance(min(server.next_s(), 10.0))
    assert server.cpu_s == pytest.approx(10.0 * quota_cores * (1.0 - taken), rel=0.01)


def test_a_neighbour_stays_on_its_servers_processor() -> None:
    server = Server(children=4, quota_cores=0.4)
    server.taken = 0.5
    assert server.wants() == (0.0, 1.0)
    for request in (1, 2):
        server.add(request, 1.0)
    assert server.wants() == (1.0, 1.0)
    assert server.divided(1.0) == (0.5, 0.5)


def test_a_machine_is_shared_fairly() -> None:
    assert fair([1.0, 1.0, 1.0], 2.0) == pytest.approx([2 / 3] * 3)
    assert fair([0.5, 3.0, 1.0], 2.0) == pytest.approx([0.5, 0.75, 0.75])
    assert fair([0.5, 1.0], 2.0) == [0.5, 1.0]
    assert fair([1.0, 1.0], 1.0, (0.3, 0.7)) == pytest.approx([0.3, 0.7])
    assert fair([0.1, 1.0], 1.0, (0.3, 0.7)) == pytest.approx([0.1, 0.9])
    quiet, loud = (Server(children=4, quota_cores=0.4) for _ in range(2))
    loud.taken = 0.5
    for request in (1, 2):
        quiet.add(request, 0.01)
    processors = Processors(1, [quiet, loud])
    processors.share()
    assert (quiet.runs_on, loud.runs_on) == ((0.5, 0.0), (0.0, 0.5))
    assert processors.taken_share == 0.5
    assert quiet.next_s() == pytest.approx(0.04)


def test_servers_are_spread_over_the_processors_in_turn() -> None:
    setup = Setup(servers=5, quota_cores=0.4, machine_cores=2)
    assert [list(setup.neighbours_of(number)) for number in (0, 3)] == [[0, 2, 4], [1, 3]]
    wide = replace(setup, quota_cores=1.4, machine_cores=4)
    assert list(wide.neighbours_of(2)) == [0, 2, 4]
    assert list(replace(setup, machine_cores=0).neighbours_of(3)) == [3]
    with pytest.raises(SimulationError, match="machine_cores 3: expected a multiple of 2"):
        replace(wide, machine_cores=3)


def test_who_comes_to_a_processor_that_a_neighbour_has_waits_for_a_slice_and_nobody_else_does() -> None:
    setup = Setup(servers=2, capacity_rps=100.0, load=0.05, cost_cv2=0.0, quota_cores=0.4, machine_cores=1)
    setup = replace(setup, noisy=0.5, taken=0.5, episode_s=0.0, seconds=60.0, warm_up_s=2.0)
    waiting = replace(setup, slice_ms=20.0)
    still = simulate(replace(waiting, noisy=0.0), "static", None).felt
    assert still["p50_ms"] == pytest.approx(4.0), "the work of one request"

    def mean_of(changed: Setup) -> float:
        mean_ms = simulate(changed, "oracle", None).felt["mean_ms"]
        assert mean_ms is not None
        return mean_ms

    # The neighbour spends its host's 20 ms of 50: two fifths of the other host's requests come then, and wait 10 ms on
    # average. Some begin when the neighbour has gone, and so save what sharing with it would have cost.
    without = mean_of(setup)
    more = mean_of(waiting) - without
    assert 0.5 * 0.4 * 10.0 < more <= 0.4 * 10.0
    assert mean_of(replace(waiting, behind_share=0.25)) - without == pytest.approx(0.25 * more, abs=0.3)


def test_servers_on_a_machine_with_room_for_all_are_as_if_each_had_its_own() -> None:
    setup = Setup(servers=3, capacity_rps=100.0, quota_cores=0.4, noisy=0.0, seconds=20.0, warm_up_s=2.0)
    alone: Any = simulate(setup, "static", None).felt
    together: Any = simulate(replace(setup, machine_cores=100), "static", None).felt
    assert together["requests"] == alone["requests"]
    assert together["p95_ms"] == pytest.approx(alone["p95_ms"], rel=0.25)
    crowded: Any = simulate(replace(setup, machine_cores=1), "static", None).felt
    assert crowded["p95_ms"] > 1.2 * together["p95_ms"]


def test_a_steady_beat_makes_no_queue_and_chance_does() -> None:
    setup = Setup(servers=2, capacity_rps=100.0, load=0.9, noisy=0.0, cost_cv2=0.0, seconds=20.0, warm_up_s=2.0)
    even: Any = simulate(replace(setup, arrivals_cv2=0.0), "static", None).felt
    random: Any = simulate(setup, "static", None).felt
    assert even["p95_ms"] == pytest.approx(10.0)
    assert random["p95_ms"] > 1.5 * even["p95_ms"]
