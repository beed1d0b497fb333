"""Forecasts of the pool's p95: from what the detector learnt where it did, by the law elsewhere."""

from __future__ import annotations

import pytest

from lbengine.outcome.forecast import CURVE_S, Percentiles, after_ms, at_ms, now_ms
from slackwater.messages import Verdict

P95_MS = {"s1": 40.0, "s2": 5.0}
CAPACITY = {"s1": 100.0, "s2": 200.0}
RATES = {"s1": 80.0, "s2": 80.0}


def verdict(at_s: float, curve: list[tuple[float, float]], node: str = "s1") -> Verdict:
    plain = Verdict(1, node, "web", 1e9 + at_s, "calm", 1e9, 0.0, [], "thresholds", rps=80.0, rt_p95_ms=5.0)
    plain.p95_at_rps = curve
    return plain


def test_a_curve_is_read_between_its_points_and_says_nothing_beyond_them() -> None:
    curve = [(20.0, 4.0), (40.0, 8.0), (80.0, 10.0)]
    assert [at_ms(curve, rate) for rate in (20.0, 30.0, 60.0, 80.0)] == [4.0, 6.0, 9.0, 10.0]
    assert [at_ms(curve, rate) for rate in (19.0, 81.0)] == [None, None]
    assert at_ms([(20.0, 4.0), (20.0, 4.0)], 20.0) == 4.0
    assert at_ms([], 20.0) is None


def test_the_forecast_believes_what_was_learnt_of_these_rates_and_the_law_elsewhere() -> None:
    weights = {"s1": 50, "s2": 150}  # 40 and 120 requests/s
    by_law = after_ms(P95_MS, CAPACITY, RATES, weights, "share")
    flat = {"s1": [(30.0, 7.0), (50.0, 7.0)], "s2": [(100.0, 7.0), (130.0, 7.0)]}
    assert after_ms(P95_MS, CAPACITY, RATES, weights, "share", flat) == pytest.approx(7.0)
    assert after_ms(P95_MS, CAPACITY, RATES, weights, "share", {"s1": [(60.0, 1.0), (90.0, 1.0)]}) == by_law
    half = after_ms(P95_MS, CAPACITY, RATES, weights, "share", {"s2": flat["s2"]})
    assert by_law is not None
    assert half is not None
    assert half != by_law
    assert now_ms(P95_MS, RATES) == pytest.approx(30.7, abs=0.1)


def test_curves_are_kept_between_verdicts_that_carry_none_and_forgotten_when_no_more_come() -> None:
    kept = Percentiles()
    kept.add(0.0, {"s1": verdict(0.0, [(20.0, 4.0), (40.0, 8.0)])})
    kept.add(0.2, {"s1": verdict(0.2, [])})
    assert kept.curves() == {"s1": [(20.0, 4.0), (40.0, 8.0)]}
    kept.add(0.4, {"s1": verdict(0.4, [(20.0, 5.0), (40.0, 9.0)])})
    assert kept.curves() == {"s1": [(20.0, 5.0), (40.0, 9.0)]}
    kept.add(0.5 + CURVE_S, {"s1": verdict(5.4, [])})
    assert kept.curves() == {}
