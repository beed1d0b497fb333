"""Percentiles of a mixture of exponential response times, against a bracketing search."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from slackwater.lbengine.outcome.percentile import percentile_s


def test_the_percentile_of_one_server_is_that_of_an_exponential() -> None:
    assert percentile_s([1.0], [50.0], 0.95) == pytest.approx(math.log(20.0) / 50.0)


def test_the_percentile_of_a_mixture_solves_its_equation() -> None:
    time_s = percentile_s([0.9, 0.1], [100.0, 5.0], 0.99)
    assert 0.9 * math.exp(-100.0 * time_s) + 0.1 * math.exp(-5.0 * time_s) == pytest.approx(0.01)


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
