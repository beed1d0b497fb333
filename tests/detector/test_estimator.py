"""The estimator: ICE's regression, each node's capacity, and what a neighbour takes of it."""

from __future__ import annotations

import numpy as np
import pytest

from detector.classify.judge import Judge
from detector.estimator import TERMS, WIDEN, Estimates, Estimator
from tests.support.detector_frames import frame
from tests.support.synthetic_cluster import CAPACITY_RPS, Cluster, swing


def calm(estimator: Estimator, rps: list[float], utilisation: list[float], ticks: int = 20) -> Estimates:
    yes, no = np.ones(len(rps), dtype=bool), np.zeros(len(rps), dtype=bool)
    for _ in range(ticks):
        estimates = estimator.update(frame(rps, utilisation), yes, no)
    return estimates


def fresh(slots: int) -> Estimator:
    estimator = Estimator()
    estimator.resize(slots)
    return estimator


def test_the_capacity_is_where_the_cpu_would_be_full() -> None:
    estimates = calm(fresh(2), [90.0, 50.0], [0.3, 0.5])
    assert estimates.capacity == pytest.approx([300.0, 100.0], rel=0.01)
    assert estimates.severity.tolist() == [0.0, 0.0]


def test_an_idle_node_stands_in_with_its_peers_capacity_and_nobody_knows_is_nan() -> None:
    estimator = fresh(2)
    assert np.isnan(calm(fresh(1), [0.0], [0.01]).capacity).all()
    assert calm(estimator, [90.0, 0.0], [0.3, 0.01]).capacity == pytest.approx([300.0, 300.0], rel=0.01)


def test_a_neighbour_on_the_run_queue_takes_capacity_though_the_cost_of_a_request_stays() -> None:
    estimator = fresh(1)
    calm(estimator, [90.0], [0.3])
    no, yes = np.zeros(1, dtype=bool), np.ones(1, dtype=bool)
    for _ in range(10):
        estimates = estimator.update(frame([40.0], [0.14], run_delay_per_cpu=9.0), no, yes)
    assert estimates.severity[0] == pytest.approx(0.8, abs=0.02)
    assert estimates.capacity[0] == pytest.approx(60.0, abs=5.0)


def test_what_it_serves_now_it_can_serve() -> None:
    estimator = fresh(1)
    calm(estimator, [90.0], [0.3])
    no, yes = np.zeros(1, dtype=bool), np.ones(1, dtype=bool)
    for _ in range(10):
        estimates = estimator.update(frame([150.0], [0.5], run_delay_per_cpu=99.0), no, yes)
    assert estimates.capacity[0] == pytest.approx(150.0, abs=1.0)
    assert estimates.severity[0] == pytest.approx(0.5, abs=0.02)


def test_a_drained_server_does_not_get_its_capacity_back_for_looking_calm() -> None:
    estimator = fresh(1)
    calm(estimator, [90.0], [0.3])
    no, yes = np.zeros(1, dtype=bool), np.ones(1, dtype=bool)
    for _ in range(10):
        estimator.update(frame([40.0], [0.14], run_delay_per_cpu=9.0), no, yes)
    for _ in range(50):
        estimates = estimator.update(frame([0.0], [0.0], canary_ratio=1.0), no, yes)
    assert estimates.severity[0] == pytest.approx(0.8, abs=0.02)
    after = estimator.update(frame([0.0], [0.0], canary_ratio=1.0), yes, no)
    assert after.severity[0] == 0.0
    assert after.capacity[0] == pytest.approx(300.0, rel=0.01)


def test_episodes_do_not_move_the_calm_capacity_and_one_odd_second_hardly_does() -> None:
    estimator = fresh(1)
    calm(estimator, [90.0], [0.3], ticks=200)
    no, yes = np.zeros(1, dtype=bool), np.ones(1, dtype=bool)
    for _ in range(100):
        estimator.update(frame([10.0], [0.9]), no, yes)
    assert estimator.calm_capacity[0] == pytest.approx(300.0, rel=0.01)
    calm(estimator, [90.0], [0.9], ticks=5)
    assert estimator.calm_capacity[0] > 260.0


def test_the_regression_learns_that_cpu_follows_requests_and_old_cpu() -> None:
    """Fed by the law itself with load that moves, the coefficients come out."""
    estimator = fresh(1)
    random = np.random.default_rng(3)
    calm(estimator, [90.0], [0.3], ticks=200)
    capacity = float(estimator.calm_capacity[0])
    no = np.zeros(1, dtype=bool)
    old, errors = 0.3, []
    for _ in range(1500):
        rps = random.uniform(20, 240)
        cpu = 0.4 * old + 0.55 * rps / capacity + 0.02
        # Not calm: the capacity stays where it is, so that the law does not move under the test.
        estimates = estimator.update(frame([rps], [cpu]), no, no)
        errors.append(abs(float(estimates.predicted[0]) - cpu))
        old = cpu
    a, b, _, d = estimator.coefficients[0]
    assert (a, b, d) == pytest.approx((0.4, 0.55, 0.02), abs=0.01)
    assert np.mean(errors[-100:]) < 0.01 < np.mean(errors[:20])


def test_coefficients_stay_physical_and_finite_under_constant_load() -> None:
    estimator = fresh(1)
    calm(estimator, [90.0], [0.3], ticks=5000)
    a, b, c, _ = estimator.coefficients[0]
    assert 0.0 <= a <= 0.9
    assert b > 0
    assert c >= 0
    assert np.isfinite(estimator.coefficients).all()


def test_absent_values_give_absent_estimates() -> None:
    estimator = fresh(1)
    nothing = frame([float("nan")], [float("nan")])
    estimates = estimator.update(nothing, np.ones(1, dtype=bool), np.zeros(1, dtype=bool))
    assert np.isnan(estimates.capacity).all()
    assert np.isnan(estimates.predicted).all()
    assert estimates.severity.tolist() == [0.0]
    assert np.isfinite(estimator.coefficients).all()


def test_starting_coefficients_must_fit() -> None:
    with pytest.raises(ValueError, match=f"expected {len(TERMS)} numbers"):
        Estimator((1.0,))


def test_on_a_cluster_the_predictions_are_close_and_the_capacity_is_right() -> None:
    judge, cluster = Judge("web", stale_after_s=1.0, calm_dwell_s=2.0), Cluster(seed=5)
    errors, capacities = [], []
    for now_s, samples in cluster.run(60, swing(cluster, 0.2, 0.7, 20.0)):
        for verdict in judge.tick(now_s, samples):
            if now_s > 20:
                assert verdict.cpu_predicted is not None
                assert verdict.cpu is not None
                assert verdict.capacity_rps is not None
                errors.append(abs(verdict.cpu_predicted - verdict.cpu))
                capacities.append(verdict.capacity_rps)
    assert np.mean(errors) < 0.15
    assert np.median(capacities) == pytest.approx(CAPACITY_RPS, rel=0.1)


def test_the_standard_error_shows_how_much_the_capacity_of_steady_and_unsteady_nodes_can_be_trusted() -> None:
    random = np.random.default_rng(1)
    steady, unsteady = fresh(1), fresh(1)
    yes, no = np.ones(1, dtype=bool), np.zeros(1, dtype=bool)
    errors = []
    for _ in range(400):
        noise = float(random.normal(0.0, 0.1))
        sure = steady.update(frame([90.0], [0.3]), yes, no)
        estimates = unsteady.update(frame([90.0 * (1.0 + noise)], [0.3]), yes, no)
        errors.append(float(estimates.capacity[0]) - 300.0)
    assert sure.capacity_stderr[0] == pytest.approx(0.0, abs=0.01)
    # 300 requests/s with 10% of noise a tick, over about 100 ticks.
    assert 1.5 < estimates.capacity_stderr[0] < 6.0
    assert np.std(errors[100:]) == pytest.approx(estimates.capacity_stderr[0], rel=0.6)


def test_an_unsteady_neighbour_makes_the_capacity_that_is_left_less_sure() -> None:
    yes, no = np.ones(1, dtype=bool), np.zeros(1, dtype=bool)
    found = []
    for delays in ((9.0, 9.0), (4.0, 19.0)):
        estimator = fresh(1)
        calm(estimator, [90.0], [0.3])
        for tick in range(20):
            estimates = estimator.update(frame([20.0], [0.1], run_delay_per_cpu=delays[tick % 2]), no, yes)
        found.append(float(estimates.capacity_stderr[0]))
    assert found[0] < 2.0 < 5.0 < found[1]


def test_a_capacity_borrowed_from_peers_has_no_standard_error() -> None:
    assert np.isnan(calm(fresh(2), [90.0, 0.0], [0.3, 0.01]).capacity_stderr).tolist() == [False, True]


def taught(random: np.random.Generator, signal: str = "cpi", by_cpi: float = 0.0) -> tuple[Estimator, float]:
    """An estimator that learnt cpu = 0.4 old + 0.55 requests + `by_cpi` CPI + 0.02 below 80% load; and the last CPU."""
    estimator = fresh(1)
    calm(estimator, [90.0], [0.3], ticks=200)
    no, old = np.zeros(1, dtype=bool), 0.3
    for _ in range(1500):
        rps, cpi = random.uniform(20, 240), random.uniform(1.0, 1.5)
        cpu = 0.4 * old + 0.55 * rps / 300.0 + by_cpi * (cpi - 1.0) + 0.02
        estimator.update(frame([rps], [cpu], **{signal: cpi}), no, no)
        old = cpu
    return estimator, old


def test_ten_times_the_requests_ever_seen_are_not_extrapolated_and_do_not_bend_the_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One odd Sample: 10 x the rate, at a CPU as ever. Without the guard both would go astray."""
    no = np.zeros(1, dtype=bool)

    def after_an_odd_sample() -> tuple[float, float, float]:
        estimator, old = taught(np.random.default_rng(3))
        before = estimator.coefficients[0].copy()
        highest = 0.4 * old + 0.55 * (1.0 + WIDEN) + 0.02
        estimate = float(estimator.update(frame([3000.0], [0.5], cpi=1.2), no, no).predicted[0])
        bent = float(np.abs(estimator.coefficients[0] - before).max())
        return estimate, highest, bent

    estimate, highest, bent = after_an_odd_sample()
    assert estimate == pytest.approx(highest, abs=0.02), "as if it were just beyond what was seen"
    monkeypatch.setattr("detector.estimator.WIDEN", np.inf)
    told_unguarded, _, bent_unguarded = after_an_odd_sample()
    assert told_unguarded == 2.0
    assert bent < 0.5 * bent_unguarded


@pytest.mark.parametrize("signal", ["cpi", "probe_cycles"])
def test_the_law_learns_what_a_higher_cpi_costs_and_takes_it_off_the_capacity_in_an_episode(signal: str) -> None:
    """Of hardware, and of the probe where there is none."""
    estimator, _ = taught(np.random.default_rng(4), signal, by_cpi=0.2)
    a, b, c, d = estimator.coefficients[0]
    assert (a, b, c, d) == pytest.approx((0.4, 0.55, 0.2, 0.02), abs=0.02)
    no, yes = np.zeros(1, dtype=bool), np.ones(1, dtype=bool)
    for _ in range(10):
        estimates = estimator.update(frame([30.0], [0.12], **{signal: 1.5}), no, yes)
    # The CPU is full where a + b x + c cpi + d = 1: at (1 - a - d - 0.5 c) / (1 - a - d) of the calm rate.
    assert estimates.capacity[0] / 300.0 == pytest.approx(1.0 - 0.5 * 0.2 / 0.58, abs=0.03)


def test_a_new_node_starts_with_the_models_law_and_not_with_what_its_peers_have_learnt() -> None:
    start = (0.5, 0.4, 0.1, 0.0)
    estimator = Estimator(start)
    estimator.resize(1)
    calm(estimator, [90.0], [0.3], ticks=300)
    assert not np.allclose(estimator.coefficients[0], start)
    estimator.resize(2)
    assert tuple(estimator.coefficients[1]) == start
    estimator.forget(0)
    assert tuple(estimator.coefficients[0]) == start
