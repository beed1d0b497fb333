"""The percentile that all users of a pool feel."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slackwater.views.percentile import Known, pooled_ms


def exponential(rps: float, mean_ms: float) -> Known:
    return rps, mean_ms * math.log(2), mean_ms * math.log(20), mean_ms * math.log(100)


def test_of_one_server_it_is_its_own() -> None:
    assert pooled_ms([(10.0, 3.0, 20.0, 90.0)], 0.95) == pytest.approx(20.0)
    assert pooled_ms([(10.0, 3.0, 20.0, 90.0)], 0.99) == pytest.approx(90.0)


def test_a_mixture_of_exponentials_is_met_exactly() -> None:
    servers = [exponential(80.0, 5.0), exponential(20.0, 50.0)]
    random = np.random.default_rng(1)
    drawn = np.concatenate([random.exponential(5.0, 800_000), random.exponential(50.0, 200_000)])
    for q in (0.95, 0.99):
        assert pooled_ms(servers, q) == pytest.approx(np.quantile(drawn, q), rel=0.01)


def test_a_slow_server_without_requests_hurts_nobody() -> None:
    assert pooled_ms([exponential(80.0, 5.0), exponential(0.0, 500.0)], 0.95) == pytest.approx(5.0 * math.log(20))


def test_what_is_not_known_is_not_zero() -> None:
    assert pooled_ms([], 0.95) is None
    assert pooled_ms([(10.0, None, None, None)], 0.95) is None
    assert pooled_ms([(10.0, None, 20.0, None)], 0.95) == pytest.approx(20.0)
