"""Capacities: what calm Samples, waiting requests and the highest rate served say, and how sure that is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slackwater.detector.capacity.filter import Capacity, CapacityFilter, Parameters
from tests.support.detector_frames import columns

CAPACITY_RPS = 800.0
CORES = 0.4
WAKE = Parameters().wake


class Server:
    """A filter of one slot, fed by a server whose requests cost this share more when they find it empty."""

    def __init__(
        self, capacity_rps: float = CAPACITY_RPS, wake: float = WAKE, seed: int = 1, steal: float = math.nan
    ) -> None:
        self.filter = CapacityFilter()
        self.filter.resize(1)
        self.capacity_rps, self.wake, self.steal = capacity_rps, wake, steal
        self._random = np.random.default_rng(seed)
        self._now_s = 1000.0

    def feed(
        self,
        seconds: float,
        load: float,
        *,
        neighbour: bool = False,
        rt_mean_ms: float | None = None,
        run_delay_per_cpu: float = 1.0,
        utilisation: float | None = None,
        rps_error_share: float = 0.0,
    ) -> Capacity:
        """A load of so much of the calm capacity for so long; unless said otherwise as processor sharing has it."""
        estimate = None
        for _ in range(round(seconds / 0.2)):
            self._now_s += 0.2
            rps = float(self._random.poisson(load * self.capacity_rps * 0.2) / 0.2)
            rt_s = 1.0 / (self.capacity_rps * (1.0 - min(load, 0.95))) if rt_mean_ms is None else rt_mean_ms / 1e3
            cost = (1.0 + self.wake / (1.0 + rps * rt_s)) / self.capacity_rps
            sample = columns(
                [rps],
                [rps * cost if utilisation is None else utilisation],
                time_unix_s=self._now_s,
                rt_mean_ms=rt_s * 1e3,
                run_delay_per_cpu=run_delay_per_cpu,
                rps_error_share=rps_error_share,
                steal=self.steal,
            )
            estimate = self.filter.update(
                np.zeros(1, np.int64), sample, np.array([not neighbour]), np.array([neighbour])
            )
        assert estimate is not None
        return estimate


def test_requests_over_utilisation_at_low_load_is_no_capacity_but_with_the_curve_it_is() -> None:
    server = Server()
    estimate = server.feed(60.0, 0.3)
    assert 1.0 / (1.0 + WAKE / 1.5) < 0.85, "what the ratio alone says"
    assert estimate.rps[0] == pytest.approx(CAPACITY_RPS, rel=0.1)
    assert estimate.lost[0] == 0.0


@pytest.mark.parametrize("wake", [0.05, 0.7])
def test_loads_that_differ_teach_what_a_wake_up_costs(wake: float) -> None:
    server = Server(wake=wake)
    for load in (0.1, 0.8, 0.2, 0.9):
        estimate = server.feed(10.0, load)
    assert estimate.rps[0] == pytest.approx(CAPACITY_RPS, rel=0.1)


def test_wake_ups_are_next_to_nothing_to_a_slow_application() -> None:
    slow_rps = 17.0
    wake = Parameters().wake_ms / (1e3 * CORES / slow_rps)
    estimate = Server(slow_rps, wake).feed(40.0, 0.3)
    assert estimate.rps[0] == pytest.approx(slow_rps, rel=0.2)


def test_a_fast_machine_is_known_at_once() -> None:
    """A request costs as much CPU time as a wake-up does elsewhere: that it is nothing but a wake-up cannot be."""
    rps = 1.05e3 * CORES / Parameters().wake_ms
    estimate = Server(rps, wake=0.2).feed(2.0, 0.3)
    assert estimate.rps[0] == pytest.approx(rps, rel=0.25)
    assert estimate.stderr_rps[0] < 0.3 * estimate.rps[0]


def test_at_low_load_the_capacity_is_less_sure() -> None:
    at_low, at_high = Server().feed(30.0, 0.1), Server().feed(30.0, 0.9)
    assert at_low.stderr_rps[0] > 1.1 * at_high.stderr_rps[0]
    assert at_high.stderr_rps[0] > 0.05 * at_high.rps[0], "the law itself is not exact"


@pytest.mark.parametrize("load", [0.03, 0.01])
def test_a_server_that_hardly_works_has_a_capacity_too(load: float) -> None:
    """What it uses beside its requests makes that too small."""
    estimate = Server().feed(20.0, load, utilisation=load + 0.01)
    assert 0.3 * CAPACITY_RPS < estimate.rps[0] < 1.1 * CAPACITY_RPS
    assert estimate.rps[0] + 2.0 * estimate.stderr_rps[0] > CAPACITY_RPS


def test_a_limit_that_a_machine_is_not_told_of_is_reckoned_with_and_remembered_once_it_was_met() -> None:
    """It may have 45% of its processor. The less it uses the less of that shows."""

    def seen_at(load: float) -> float:
        return load * (0.45 + 0.55 * load)

    server = Server(steal=0.0)
    before = server.feed(30.0, 0.35, utilisation=seen_at(0.35))
    assert before.rps[0] > 1.3 * CAPACITY_RPS
    assert before.rps[0] - 2.0 * before.stderr_rps[0] < CAPACITY_RPS
    met = server.feed(5.0, 0.9, utilisation=seen_at(0.9))
    assert met.rps[0] == pytest.approx(CAPACITY_RPS, rel=0.2)
    after = server.feed(120.0, 0.35, utilisation=seen_at(0.35))
    assert after.rps[0] == pytest.approx(CAPACITY_RPS, rel=0.25)
    assert after.stderr_rps[0] < 0.6 * before.stderr_rps[0]


def test_a_cgroup_knows_its_limit() -> None:
    machine, cgroup = Server(steal=0.0).feed(30.0, 0.3), Server().feed(30.0, 0.3)
    assert machine.stderr_rps[0] > 1.5 * cgroup.stderr_rps[0]
    assert machine.rps[0] == pytest.approx(cgroup.rps[0], rel=0.05)


def test_two_of_three_errors_lie_within_one_standard_error() -> None:
    """Servers whose wake-ups and laws are spread as the priors say."""
    random, prior = np.random.default_rng(7), Parameters()
    within = []
    for seed in range(40):
        server = Server(wake=max(0.0, float(random.normal(prior.wake, prior.wake_sd))), seed=seed)
        estimate = server.feed(10.0, 0.3)
        law = random.normal(0.0, prior.law_sd) * CAPACITY_RPS
        within.append(abs(estimate.rps[0] - CAPACITY_RPS + law) <= estimate.stderr_rps[0])
    assert 0.5 < np.mean(within) < 0.95


def test_completions_while_requests_wait_are_the_capacity_without_any_counter() -> None:
    server = Server()
    server.feed(30.0, 0.5)
    estimate = server.feed(12.0, 0.4, neighbour=True, rt_mean_ms=800.0, run_delay_per_cpu=20.0, utilisation=math.nan)
    assert estimate.rps[0] == pytest.approx(0.4 * CAPACITY_RPS, rel=0.2)
    assert estimate.lost[0] == pytest.approx(0.6, abs=0.1)


def test_requests_that_wait_for_something_else_than_a_cpu_say_nothing_of_it() -> None:
    """A slow database: they take long, but no thread runs or waits for a CPU most of the time."""
    server = Server()
    before = server.feed(30.0, 0.5).rps[0]
    after = server.feed(6.0, 0.1, rt_mean_ms=800.0, run_delay_per_cpu=0.1).rps[0]
    assert after == pytest.approx(before, rel=0.2)


def test_run_delay_beside_a_neighbour_suggests_a_loss_that_more_of_the_same_does_not_make_surer() -> None:
    server = Server()
    server.feed(30.0, 0.2)
    first = server.feed(2.0, 0.2, neighbour=True, rt_mean_ms=6.0, run_delay_per_cpu=5.0)
    later = server.feed(20.0, 0.2, neighbour=True, rt_mean_ms=6.0, run_delay_per_cpu=5.0)
    assert 0.3 < later.lost[0] < 0.8
    assert later.stderr_rps[0] > 0.2 * later.rps[0]
    assert later.stderr_rps[0] == pytest.approx(first.stderr_rps[0], rel=0.3)
    worse = server.feed(10.0, 0.2, neighbour=True, rt_mean_ms=6.0, run_delay_per_cpu=50.0)
    assert worse.lost[0] > later.lost[0] + 0.05


@pytest.mark.parametrize("run_delay_per_cpu", [1.0, 20.0])
def test_a_machines_share_is_by_what_a_request_costs_alone(run_delay_per_cpu: float) -> None:
    """Its threads wait because of the time that is booked on its requests, so that is no second loss."""
    server = Server(steal=0.0)
    server.feed(30.0, 0.3, utilisation=0.3)
    estimate = server.feed(
        10.0, 0.3, neighbour=True, rt_mean_ms=8.0, utilisation=0.75, run_delay_per_cpu=run_delay_per_cpu
    )
    assert estimate.lost[0] == pytest.approx(1.0 - 2.5 ** -Parameters().left_cost, abs=0.05)
    assert estimate.rps[0] == pytest.approx(estimate.calm_rps[0] / 2.5, rel=0.15)


def test_a_machine_that_is_asked_for_nothing_keeps_its_share() -> None:
    server = Server(steal=0.0)
    server.feed(30.0, 0.3, utilisation=0.3)
    before = server.feed(10.0, 0.3, neighbour=True, rt_mean_ms=8.0, utilisation=0.75)
    after = server.feed(30.0, 0.0, neighbour=True, utilisation=0.02)
    assert after.lost[0] == pytest.approx(before.lost[0], abs=0.05)


def test_what_is_served_well_beside_a_neighbour_is_a_floor_that_fades() -> None:
    server = Server()
    server.feed(30.0, 0.5)
    estimate = server.feed(10.0, 0.8, neighbour=True, rt_mean_ms=6.0, run_delay_per_cpu=40.0)
    assert estimate.rps[0] > 0.78 * CAPACITY_RPS
    faded = server.feed(60.0, 0.05, neighbour=True, rt_mean_ms=6.0, run_delay_per_cpu=40.0)
    assert faded.rps[0] < 0.7 * CAPACITY_RPS


def test_an_episode_leaves_the_calm_capacity_where_it_was() -> None:
    server = Server()
    before = server.feed(30.0, 0.4)
    server.feed(30.0, 0.4, neighbour=True, rt_mean_ms=30.0, run_delay_per_cpu=20.0)
    after = server.feed(0.2, 0.4)
    assert after.calm_rps[0] == pytest.approx(before.calm_rps[0], rel=0.1)
    assert after.lost[0] == 0.0


def test_a_drained_server_keeps_what_was_suggested_last() -> None:
    server = Server()
    server.feed(30.0, 0.3)
    before = server.feed(5.0, 0.3, neighbour=True, rt_mean_ms=6.0, run_delay_per_cpu=30.0)
    after = server.feed(30.0, 0.0, neighbour=True, run_delay_per_cpu=0.0, utilisation=0.0)
    assert after.lost[0] == pytest.approx(before.lost[0], abs=0.1)


def test_peers_stand_in_without_a_standard_error_until_a_node_has_its_own() -> None:
    two = CapacityFilter()
    two.resize(2)
    yes, no, slots = np.ones(2, dtype=bool), np.zeros(2, dtype=bool), np.arange(2)
    for tick in range(60):
        estimate = two.update(slots, columns([240.0, 0.0], [0.45, 0.0], time_unix_s=0.2 * tick), yes, no)
    assert estimate.rps[1] == pytest.approx(estimate.rps[0], rel=0.01)
    assert np.isnan(estimate.stderr_rps).tolist() == [False, True]


def test_a_server_of_which_nothing_is_known_has_no_capacity() -> None:
    alone = CapacityFilter()
    alone.resize(1)
    yes, no, slots = np.ones(1, dtype=bool), np.zeros(1, dtype=bool), np.arange(1)
    for tick in range(60):
        estimate = alone.update(slots, columns([math.nan], [math.nan], time_unix_s=0.2 * tick), yes, no)
    assert np.isnan([estimate.rps[0], estimate.stderr_rps[0], estimate.calm_rps[0]]).all()
    assert estimate.lost[0] == 0.0


def test_an_absent_value_spoils_nothing_that_comes_after_it() -> None:
    server = Server()
    server.feed(10.0, 0.4)
    absent = {name: np.full(1, math.nan) for name in columns([0.0], [0.0], time_unix_s=0.0)}
    server.filter.update(np.zeros(1, np.int64), absent, np.ones(1, dtype=bool), np.zeros(1, dtype=bool))
    estimate = server.feed(20.0, 0.4)
    assert estimate.rps[0] == pytest.approx(CAPACITY_RPS, rel=0.15)
    assert np.isfinite(server.filter._mean).all()
    assert np.isfinite(server.filter._covariance).all()


def test_a_gap_between_samples_starts_an_observation_anew() -> None:
    """What ended before the gap is not put together with what came after."""
    server, other = Server(), Server()
    server.feed(20.0, 0.4)
    other.feed(20.0, 0.4)
    server.feed(0.4, 0.9, utilisation=0.1)
    server._now_s += 60.0
    assert server.feed(10.0, 0.4).rps[0] == pytest.approx(other.feed(10.0, 0.4).rps[0], rel=0.05)


def test_rates_from_a_sample_of_the_connections_leave_the_capacity_less_sure() -> None:
    errors = [Server().feed(10.0, 0.5, rps_error_share=share).stderr_rps[0] for share in (0.0, 0.1, 0.3)]
    assert errors[0] < errors[1] < errors[2]
