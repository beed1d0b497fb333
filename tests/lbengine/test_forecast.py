"""Forecasts of the pool's p95."""

from __future__ import annotations

import pytest

from slackwater.lbengine.outcome.forecast import after_ms, now_ms

P95_MS = {"s1": 40.0, "s2": 5.0}
CAPACITY = {"s1": 100.0, "s2": 200.0}
RATES = {"s1": 80.0, "s2": 80.0}


def test_weights_that_bring_the_rates_of_now_keep_the_p95_and_relief_of_the_slow_server_lowers_it() -> None:
    now = now_ms(P95_MS, RATES)
    assert now == pytest.approx(30.7, abs=0.1)
    assert after_ms(P95_MS, CAPACITY, RATES, {"s1": 100, "s2": 100}, False) == pytest.approx(now)
    relieved = after_ms(P95_MS, CAPACITY, RATES, {"s1": 50, "s2": 150}, False)
    assert relieved is not None
    assert now is not None
    assert relieved < now / 2


def test_there_is_no_forecast_without_every_servers_capacity_or_any_p95() -> None:
    weights = {"s1": 100, "s2": 100}
    assert after_ms(P95_MS, {"s1": 100.0}, RATES, weights, False) is None
    assert after_ms({}, CAPACITY, RATES, weights, False) is None
    assert now_ms({}, RATES) is None
