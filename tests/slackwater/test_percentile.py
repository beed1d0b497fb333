"""The percentile that all users of a pool feel."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slackwater.core.journal.pool_totals import Requests
from slackwater.views.percentile import pooled_ms


def exponential(rps: float, mean_ms: float) -> Requests:
    return rps, mean_ms, mean_ms * math.log(2), mean_ms * math.log(20), mean_ms * math.log(100)


def test_of_one_server_it_is_its_own() -> None:
    assert pooled_ms([(10.0, 7.0, 3.0, 20.0, 90.0)], 0.95) == pytest.approx(20.0)
    assert pooled_ms([(10.0, 7.0, 3.0, 20.0, 90.0)], 0.99) == pytest.approx(90.0)


def test_a_mixture_of_exponentials_is_met_exactly() -> None:
    servers = [exponential(80.0, 5.0), exponential(20.0, 50.0)]
    random = np.random.default_rng(1)
    drawn = np.concatenate([random.exponential(5.0, 800_000), random.exponential(50.0, 200_000)])
    for q in (0.95, 0.99):
        assert pooled_ms(servers, q) == pytest.approx(np.quantile(drawn, q), rel=0.01)


@pytest.mark.parametrize("longest_ms", [20.0, 50.0])
def test_times_that_are_evenly_spread_are_met_exactly_by_their_mean(longest_ms: float) -> None:
    """Requests wait for the end of a pause, such as that of a CPU quota."""
    paused = 20.0, longest_ms / 2, 0.5 * longest_ms, 0.95 * longest_ms, 0.99 * longest_ms
    random = np.random.default_rng(1)
    drawn = np.concatenate([random.exponential(1.0, 800_000), random.uniform(0.0, longest_ms, 200_000)])
    for q in (0.9, 0.95, 0.98):
        assert pooled_ms([exponential(80.0, 1.0), paused], q) == pytest.approx(np.quantile(drawn, q), rel=0.02)
    without = pooled_ms([exponential(80.0, 1.0), (20.0, None, *paused[2:])], 0.95)
    assert without is not None
    assert without < 0.9 * np.quantile(drawn, 0.95), "without a mean it is taken as exponential"


def test_a_mean_that_percentiles_cannot_have_changes_nothing() -> None:
    usual = exponential(80.0, 5.0)
    low = 0.1, *usual[2:]
    assert pooled_ms([(20.0, *low), exponential(80.0, 1.0)], 0.95) == pooled_ms(
        [(20.0, None, *usual[2:]), exponential(80.0, 1.0)], 0.95
    )


def test_a_slow_server_without_requests_hurts_nobody() -> None:
    assert pooled_ms([exponential(80.0, 5.0), exponential(0.0, 500.0)], 0.95) == pytest.approx(5.0 * math.log(20))


def test_what_is_not_known_is_not_zero() -> None:
    assert pooled_ms([], 0.95) is None
    assert pooled_ms([(10.0, None, None, None, None)], 0.95) is None
    assert pooled_ms([(10.0, None, None, 20.0, None)], 0.95) == pytest.approx(20.0)
