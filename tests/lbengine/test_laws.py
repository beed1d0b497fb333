"""The laws against a numeric optimiser and against what they promise."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from slackwater.lbengine.laws.laws import ice, optimal

capacities = st.lists(st.floats(20.0, 1000.0), min_size=1, max_size=8)
thresholds = st.floats(0.5, 1.0)


def mean_in_system(rates: list[float], capacity: list[float]) -> float:
    return math.fsum(rate / (mu - rate) for rate, mu in zip(rates, capacity, strict=True))


@settings(deadline=None, max_examples=150)
@given(capacities, st.floats(0.05, 0.97), thresholds)
def test_optimal_is_what_a_numeric_optimiser_finds(capacity: list[float], load: float, u_threshold: float) -> None:
    total = load * u_threshold * sum(capacity)
    mu = numpy.array(capacity)
    minimum = minimize(
        lambda r: float(numpy.sum(r / (mu - r))),
        x0=mu * load * u_threshold,
        jac=lambda r: mu / (mu - r) ** 2,
        bounds=[(0.0, min(u_threshold, 0.9999) * m) for m in capacity],
        constraints={"type": "eq", "fun": lambda r: float(numpy.sum(r)) - total, "jac": lambda r: numpy.ones_like(r)},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assume(minimum.success)
    ours = optimal(capacity, total, u_threshold)
    assert math.isclose(math.fsum(ours), total, rel_tol=1e-9)
    best = mean_in_system([float(rate) for rate in minimum.x], capacity)
    assert mean_in_system(ours, capacity) <= best * (1 + 1e-6)
    assert ours == pytest.approx(minimum.x.tolist(), abs=0.01 * max(capacity))


@given(capacities, st.floats(0.0, 2.0), thresholds)
def test_optimal_carries_everything_and_keeps_the_cap_where_it_can(
    capacity: list[float], load: float, u_threshold: float
) -> None:
    total = load * sum(capacity)
    rates = optimal(capacity, total, u_threshold)
    assert math.isclose(math.fsum(rates), total, rel_tol=1e-9, abs_tol=1e-9)
    assert min(rates) >= 0.0
    fullest = max(u_threshold, load)
    assert all(rate <= fullest * mu * (1 + 1e-9) for rate, mu in zip(rates, capacity, strict=True))


@given(capacities, thresholds)
def test_optimal_has_no_jump_where_the_cap_ends(capacity: list[float], u_threshold: float) -> None:
    edge = u_threshold * sum(capacity)
    below, above = optimal(capacity, edge * (1 - 1e-9), u_threshold), optimal(capacity, edge, u_threshold)
    assert below == pytest.approx(above, rel=1e-4, abs=1e-4)


def test_optimal_drains_the_slow_server_when_the_rest_can_carry_the_load() -> None:
    assert optimal([300.0, 300.0, 53.0], 250.0, 0.8) == pytest.approx([125.0, 125.0, 0.0])


def test_optimal_keeps_the_slow_server_when_they_cannot() -> None:
    rates = optimal([300.0, 300.0, 53.0], 510.0, 0.8)
    assert rates[2] >= 510.0 - 2 * 0.8 * 300.0 - 1e-6


def test_optimal_without_enough_capacity_fills_all_alike() -> None:
    assert optimal([300.0, 100.0], 800.0, 0.8) == pytest.approx([600.0, 200.0])


@pytest.mark.parametrize("capacity", [[], [0.0, 0.0], [100.0, -1.0]])
def test_optimal_refuses_capacities_that_carry_nothing(capacity: list[float]) -> None:
    with pytest.raises(ValueError, match="capacities must be"):
        optimal(capacity, 10.0)


@given(
    st.floats(1.0, 1000.0),
    st.one_of(st.none(), st.floats(0.0, 2.0)),
    st.one_of(st.none(), st.floats(0.0, 1000.0)),
    st.floats(0.0, 1000.0),
    thresholds,
)
def test_ice_stays_between_nothing_and_the_fair_share(
    capacity: float, cpu: float | None, rps: float | None, fair: float, u_threshold: float
) -> None:
    assert 0.0 <= ice(capacity, cpu, rps, fair, u_threshold) <= fair


def test_ice_solves_its_line_for_the_rate_at_the_threshold() -> None:
    # cpu = 0.1 + 0.009·rps: 1.0 at 100 requests/s, 0.8 at 77.8.
    assert ice(100.0, 0.1 + 0.009 * 60.0, 60.0, 90.0, 0.8) == pytest.approx(0.7 / 0.009)


def test_ice_leaves_a_server_alone_that_stays_below_the_threshold() -> None:
    assert ice(300.0, 0.3, 80.0, 83.0, 0.8) == 83.0


def test_ice_gives_the_same_answer_after_it_was_followed() -> None:
    before = ice(53.0, 0.95, 50.0, 83.0, 0.8)
    line = 0.05 / 3.0
    after = ice(53.0, 1.0 - line * (53.0 - before), before, 83.0, 0.8)
    assert after == pytest.approx(before)


def test_ice_without_a_prediction_goes_by_the_capacity() -> None:
    assert ice(50.0, None, None, 83.0, 0.8) == pytest.approx(40.0)
