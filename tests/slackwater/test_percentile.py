"""The percentile that all users of a pool feel."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest

from slackwater.core.journal.pool_totals import Requests
from slackwater.views.percentile import pooled_ms, share_above


def exponential(rps: float, mean_ms: float) -> Requests:
    return rps, mean_ms * math.log(2), mean_ms * math.log(20), mean_ms * math.log(100)


def drawn_requests(rps: float, times_ms: np.ndarray, method: Literal["linear", "higher"] = "linear") -> Requests:
    p50, p95, p99 = np.quantile(times_ms, (0.5, 0.95, 0.99), method=method)
    return rps, float(p50), float(p95), float(p99)


def test_of_one_server_it_is_its_own() -> None:
    assert pooled_ms([(10.0, 3.0, 20.0, 90.0)], 0.95) == pytest.approx(20.0)
    assert pooled_ms([(10.0, 3.0, 20.0, 90.0)], 0.99) == pytest.approx(90.0)


def test_a_mixture_of_exponentials_is_met_exactly() -> None:
    servers = [exponential(80.0, 5.0), exponential(20.0, 50.0)]
    random = np.random.default_rng(1)
    drawn = np.concatenate([random.exponential(5.0, 800_000), random.exponential(50.0, 200_000)])
    for q in (0.95, 0.99):
        assert pooled_ms(servers, q) == pytest.approx(np.quantile(drawn, q), rel=0.01)


@pytest.mark.parametrize("longest_ms", [20.0, 50.0])
def test_times_that_are_evenly_spread_are_met_exactly(longest_ms: float) -> None:
    """Requests wait for the end of a pause, such as that of a CPU quota."""
    paused = 20.0, 0.5 * longest_ms, 0.95 * longest_ms, 0.99 * longest_ms
    random = np.random.default_rng(1)
    drawn = np.concatenate([random.exponential(1.0, 800_000), random.uniform(0.0, longest_ms, 200_000)])
    for q in (0.9, 0.95, 0.98):
        assert pooled_ms([exponential(80.0, 1.0), paused], q) == pytest.approx(np.quantile(drawn, q), rel=0.02)


def test_a_few_requests_that_time_out_do_not_move_the_others() -> None:
    random = np.random.default_rng(1)
    slow = random.exponential(20.0, 200_000)
    slow[random.random(len(slow)) < 0.004] = 5000.0
    drawn = np.concatenate([random.exponential(1.0, 800_000), slow])
    servers = [exponential(80.0, 1.0), drawn_requests(20.0, slow)]
    assert pooled_ms(servers, 0.95) == pytest.approx(np.quantile(drawn, 0.95), rel=0.05)
    assert share_above(servers, 30.0) == pytest.approx(np.mean(drawn > 30.0), rel=0.05)


def test_of_few_requests_the_slowest_is_both_percentiles() -> None:
    """Samples of a 20th of a second have eight requests each."""
    random = np.random.default_rng(1)
    drawn = random.uniform(0.0, 40.0, (500, 8))
    samples = [drawn_requests(20.0 / len(drawn), few, "higher") for few in drawn]
    both = np.concatenate([random.exponential(1.0, 4 * drawn.size), drawn.ravel()])
    assert pooled_ms([exponential(80.0, 1.0), *samples], 0.95) == pytest.approx(np.quantile(both, 0.95), rel=0.1)


@pytest.mark.parametrize(("least", "most"), [(5e-324, 1e-323), (1e15, 1e15), (5e-324, 1e15)])
def test_whatever_a_node_says_there_is_a_number(least: float, most: float) -> None:
    some = (least, None, None), (None, least, None), (None, None, most)
    for marks in (*some, (least, most, most), (least, least, most)):
        for rps in (5e-324, 1.0, 1e15):
            value = pooled_ms([(rps, *marks), exponential(1.0, 1.0)], 0.95)
            assert value is not None
            assert math.isfinite(value)
            share = share_above([(rps, *marks), exponential(1.0, 1.0)], 1.0)
            assert share is not None
            assert 0.0 <= share <= 1.0


def test_a_slow_server_without_requests_hurts_nobody() -> None:
    assert pooled_ms([exponential(80.0, 5.0), exponential(0.0, 500.0)], 0.95) == pytest.approx(5.0 * math.log(20))


def test_what_is_not_known_is_not_zero() -> None:
    assert pooled_ms([], 0.95) is None
    assert pooled_ms([(10.0, None, None, None)], 0.95) is None
    assert pooled_ms([(10.0, None, 20.0, None)], 0.95) == pytest.approx(20.0)
