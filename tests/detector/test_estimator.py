"""The estimator: ICE's regression beside each node's capacity (which `test_capacity.py` is about)."""

from __future__ import annotations

import numpy as np
import pytest

from slackwater.detector.estimator import TERMS, WIDEN, Estimates, Estimator
from tests.support.detector_frames import columns, frame
from tests.support.judges import new_judge
from tests.support.synthetic_cluster import CAPACITY_RPS, Cluster, swing


class Driven:
    """An estimator that gets a tick each 0.2 s."""

    def __init__(self, slots: int, start: tuple[float, ...] | None = None) -> None:
        self.estimator = Estimator() if start is None else Estimator(start)
        self.estimator.resize(slots)
        self._now_s = 0.0

    def tick(self, rps: list[float], utilisation: list[float], learn: bool, **signals: float) -> Estimates:
        self._now_s += 0.2
        calm, no = np.full(len(rps), learn), np.zeros(len(rps), dtype=bool)
        seen = columns(rps, utilisation, time_unix_s=self._now_s)
        return self.estimator.update(frame(rps, utilisation, **signals), seen, calm, no)

    def calm(self, rps: list[float], utilisation: list[float], ticks: int = 20) -> Estimates:
        for _ in range(ticks):
            estimates = self.tick(rps, utilisation, True)
        return estimates

    @property
    def calm_rps(self) -> float:
        nothing, no = columns([0.0], [0.0], time_unix_s=self._now_s), np.zeros(1, dtype=bool)
        return float(self.estimator.capacity.update(np.zeros(1, np.int64), nothing, no, no).calm_rps[0])


def test_the_regression_learns_that_cpu_follows_requests_and_old_cpu() -> None:
    """Fed by the law itself with load that moves, the coefficients come out."""
    driven = Driven(1)
    random = np.random.default_rng(3)
    driven.calm([90.0], [0.3], ticks=200)
    capacity = driven.calm_rps
    old, errors = 0.3, []
    for _ in range(1500):
        rps = random.uniform(20, 240)
        cpu = 0.4 * old + 0.55 * rps / capacity + 0.02
        # Not calm: the capacity stays where it is, so that the law does not move under the test.
        estimates = driven.tick([rps], [cpu], False)
        errors.append(abs(float(estimates.predicted[0]) - cpu))
        old = cpu
    a, b, _, d = driven.estimator.coefficients[0]
    assert (a, b, d) == pytest.approx((0.4, 0.55, 0.02), abs=0.03)
    assert np.mean(errors[-100:]) < 0.02 < np.mean(errors[:20])


def test_coefficients_stay_physical_and_finite_under_constant_load() -> None:
    driven = Driven(1)
    driven.calm([90.0], [0.3], ticks=3000)
    a, b, c, _ = driven.estimator.coefficients[0]
    assert 0.0 <= a <= 0.9
    assert b > 0
    assert c >= 0
    assert np.isfinite(driven.estimator.coefficients).all()


def test_absent_values_give_absent_estimates() -> None:
    driven = Driven(1)
    estimates = driven.calm([float("nan")], [float("nan")], ticks=1)
    assert np.isnan(estimates.capacity).all()
    assert np.isnan(estimates.predicted).all()
    assert estimates.severity.tolist() == [0.0]
    assert np.isfinite(driven.estimator.coefficients).all()


def test_starting_coefficients_must_fit() -> None:
    with pytest.raises(ValueError, match=f"expected {len(TERMS)} numbers"):
        Estimator((1.0,))


def test_on_a_cluster_the_predictions_are_close_and_the_capacity_is_right() -> None:
    judge, cluster = new_judge(), Cluster(seed=5)
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
    # The cluster's requests cost the same at any load, which the prior of wake-ups does not expect.
    assert np.median(capacities) == pytest.approx(CAPACITY_RPS, rel=0.3)


def taught(random: np.random.Generator, signal: str = "cpi", by_cpi: float = 0.0) -> tuple[Driven, float]:
    """An estimator that learnt cpu = 0.4 old + 0.55 requests + `by_cpi` CPI + 0.02 below 80% load; and the last CPU."""
    driven = Driven(1)
    driven.calm([90.0], [0.3], ticks=200)
    capacity, old = driven.calm_rps, 0.3
    for _ in range(1500):
        load, cpi = random.uniform(0.07, 0.8), random.uniform(1.0, 1.5)
        cpu = 0.4 * old + 0.55 * load + by_cpi * (cpi - 1.0) + 0.02
        driven.tick([load * capacity], [cpu], False, **{signal: cpi})
        old = cpu
    return driven, old


def test_ten_times_the_requests_ever_seen_are_not_extrapolated_and_do_not_bend_the_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One odd Sample: 10 x the rate, at a CPU as ever. Without the guard both would go astray."""

    def after_an_odd_sample() -> tuple[float, float, float]:
        driven, old = taught(np.random.default_rng(3))
        before = driven.estimator.coefficients[0].copy()
        highest = 0.4 * old + 0.55 * (1.0 + WIDEN) + 0.02
        estimate = float(driven.tick([3000.0], [0.5], False, cpi=1.2).predicted[0])
        bent = float(np.abs(driven.estimator.coefficients[0] - before).max())
        return estimate, highest, bent

    estimate, highest, bent = after_an_odd_sample()
    assert estimate == pytest.approx(highest, abs=0.03), "as if it were just beyond what was seen"
    monkeypatch.setattr("slackwater.detector.estimator.WIDEN", np.inf)
    told_unguarded, _, bent_unguarded = after_an_odd_sample()
    assert told_unguarded == 2.0
    assert bent < 0.5 * bent_unguarded


@pytest.mark.parametrize("signal", ["cpi", "probe_cycles"])
def test_the_law_learns_what_a_higher_cpi_costs(signal: str) -> None:
    """Of hardware, and of the probe where there is none."""
    driven, _ = taught(np.random.default_rng(4), signal, by_cpi=0.2)
    assert driven.estimator.coefficients[0] == pytest.approx((0.4, 0.55, 0.2, 0.02), abs=0.03)


def test_a_new_node_starts_with_the_models_law_and_not_with_what_its_peers_have_learnt() -> None:
    start = (0.5, 0.4, 0.1, 0.0)
    driven = Driven(1, start)
    driven.calm([90.0], [0.3], ticks=300)
    assert not np.allclose(driven.estimator.coefficients[0], start)
    driven.estimator.resize(2)
    assert tuple(driven.estimator.coefficients[1]) == start
    driven.estimator.forget(0)
    assert tuple(driven.estimator.coefficients[0]) == start
