"""The tail law against a numeric optimiser, and the percentiles that it rests on."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

from lbengine.laws.laws import equalise, optimal
from lbengine.laws.percentile import percentile_s
from lbengine.laws.tail import tail

capacities = st.lists(st.floats(20.0, 1000.0), min_size=1, max_size=6)
thresholds = st.floats(0.5, 1.0)


def p99_s(rates: list[float], capacity: list[float]) -> float:
    total = math.fsum(rates)
    slack = [mu - rate for mu, rate in zip(capacity, rates, strict=True)]
    return percentile_s([rate / total for rate in rates], slack, 0.99)


@settings(deadline=None, max_examples=60)
@given(capacities, st.floats(0.05, 0.95), thresholds)
def test_tail_is_what_a_numeric_optimiser_finds(capacity: list[float], load: float, u_threshold: float) -> None:
    total = load * u_threshold * sum(capacity)
    ours = tail(capacity, total, u_threshold)
    assert math.isclose(math.fsum(ours), total, rel_tol=1e-9)
    assert all(-1e-9 <= rate <= u_threshold * mu * (1 + 1e-6) for rate, mu in zip(ours, capacity, strict=True))
    least = p99_s(ours, capacity)
    scale = max(capacity)
    for start in (equalise(capacity, total), optimal(capacity, total, u_threshold), ours):
        found = minimize(
            lambda r: p99_s([max(float(x), 0.0) * scale for x in r], capacity) * scale,
            x0=numpy.array(start) / scale,
            bounds=[(0.0, u_threshold * mu / scale * (1 - 1e-6)) for mu in capacity],
            constraints={"type": "eq", "fun": lambda r: float(numpy.sum(r)) - total / scale},
            method="SLSQP",
        )
        if abs(float(numpy.sum(found.x)) - total / scale) < 1e-6:
            assert least <= float(found.fun) / scale * (1 + 1e-4)


@settings(deadline=None, max_examples=200)
@given(capacities, st.floats(0.05, 0.95), thresholds)
def test_no_other_law_has_a_lower_tail(capacity: list[float], load: float, u_threshold: float) -> None:
    total = load * u_threshold * sum(capacity)
    least = p99_s(tail(capacity, total, u_threshold), capacity)
    for other in (optimal(capacity, total, u_threshold), equalise(capacity, total)):
        assert least <= p99_s(other, capacity) * (1 + 1e-6)


@given(capacities, st.floats(0.0, 2.0), thresholds)
@settings(deadline=None)
def test_tail_carries_everything(capacity: list[float], load: float, u_threshold: float) -> None:
    total = load * sum(capacity)
    rates = tail(capacity, total, u_threshold)
    assert math.isclose(math.fsum(rates), total, rel_tol=1e-9, abs_tol=1e-9)
    fullest = max(u_threshold, load)
    assert all(rate <= fullest * mu * (1 + 1e-6) for rate, mu in zip(rates, capacity, strict=True))


def test_tail_drains_a_server_that_is_much_slower_than_the_rest() -> None:
    assert tail([300.0, 300.0, 53.0], 250.0, 0.8)[2] == pytest.approx(0.0, abs=1.0)


def test_a_hundred_servers_are_no_trouble() -> None:
    capacity = [300.0] * 90 + [53.0] * 10
    rates = tail(capacity, 20000.0, 0.8)
    assert math.isclose(math.fsum(rates), 20000.0, rel_tol=1e-9)


@pytest.mark.parametrize("capacity", [[], [0.0, 0.0], [100.0, -1.0]])
def test_tail_refuses_capacities_that_carry_nothing(capacity: list[float]) -> None:
    with pytest.raises(ValueError, match="capacities must be"):
        tail(capacity, 10.0)


def test_the_percentile_of_one_server_is_that_of_an_exponential() -> None:
    assert percentile_s([1.0], [50.0], 0.95) == pytest.approx(math.log(20.0) / 50.0)


def test_the_percentile_of_a_mixture_solves_its_equation() -> None:
    found = percentile_s([0.9, 0.1], [100.0, 5.0], 0.99)
    assert 0.9 * math.exp(-100.0 * found) + 0.1 * math.exp(-5.0 * found) == pytest.approx(0.01)


def test_a_server_that_never_answers_is_the_tail_when_it_has_enough_requests() -> None:
    assert percentile_s([0.98, 0.02], [100.0, 0.0], 0.99) == math.inf
    assert percentile_s([0.995, 0.005], [100.0, 0.0], 0.99) == pytest.approx(math.log(0.995 / 0.005) / 100.0)
    assert percentile_s([1.0, 0.0], [100.0, -5.0], 0.99) == pytest.approx(math.log(100.0) / 100.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(1e-3, 1e5)), min_size=1, max_size=8), st.floats(0.5, 0.999))
def test_percentiles_are_what_a_bracketing_search_finds(servers: list[tuple[float, float]], quantile: float) -> None:
    whole = math.fsum(share for share, _ in servers)
    shares, rates = [share / whole for share, _ in servers], [rate for _, rate in servers]

    def log_beyond(time_s: float) -> float:
        tails = [math.log(share) - rate * time_s for share, rate in zip(shares, rates, strict=True)]
        most = max(tails)
        return most + math.log(math.fsum(math.exp(tail - most) for tail in tails)) - math.log(1.0 - quantile)

    longest_s = 1.001 * math.log(1.0 / (1.0 - quantile)) / min(rates)
    assert percentile_s(shares, rates, quantile) == pytest.approx(brentq(log_beyond, 0.0, longest_s, xtol=1e-15), 1e-9)
