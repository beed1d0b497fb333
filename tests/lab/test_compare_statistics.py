"""Medians and their intervals on distributions whose medians are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slackwater_lab.compare import statistics


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda dice, count: dice.normal(10.0, 3.0, count), 10.0),
        (lambda dice, count: dice.exponential(5.0, count), 5.0 * math.log(2.0)),
        (lambda dice, count: dice.lognormal(1.0, 1.0, count), math.e),
    ],
)
def test_intervals_hold_the_true_median_about_as_often_as_they_say(draw, truth: float, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(statistics, "RESAMPLES", 499)
    dice = np.random.default_rng(7)
    inside = 0
    for _ in range(200):
        estimate = statistics.median(draw(dice, 40))
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low <= estimate.value <= estimate.high
        inside += estimate.low <= truth <= estimate.high
    assert 0.90 <= inside / 200 <= 0.99


def test_of_five_rounds_the_interval_is_reported_as_of_five() -> None:
    estimate = statistics.median([5.0, 1.0, 4.0, 2.0, 3.0])
    assert estimate is not None
    assert (estimate.value, estimate.count) == (3.0, 5)
    assert (estimate.low, estimate.high) == (1.0, 5.0)


def test_too_few_values_have_no_interval_and_none_have_no_median() -> None:
    two = statistics.median([1.0, 2.0])
    assert two == statistics.Estimate(1.5, None, None, 2)
    assert statistics.median([]) is None
    assert statistics.median([math.nan]) is None


def test_values_that_are_all_alike_have_an_interval_of_no_width() -> None:
    assert statistics.median([2.0] * 6) == statistics.Estimate(2.0, 2.0, 2.0, 6)


def test_a_ratio_is_found_in_pairs_although_the_rounds_differ_more() -> None:
    dice = np.random.default_rng(3)
    theirs = dice.lognormal(3.0, 1.0, 60)
    ours = theirs * 0.5 * dice.normal(1.0, 0.02, 60)
    estimate = statistics.ratio(zip(ours.tolist(), theirs.tolist(), strict=True))
    assert estimate is not None
    assert estimate.value == pytest.approx(0.5, abs=0.05)
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.high - estimate.low < 0.2, "the rounds' own spread, a factor of e, is taken out by the pairs"


def test_a_ratio_needs_pairs_of_positive_values() -> None:
    assert statistics.ratio([]) is None
    assert statistics.ratio([(1.0, 0.0), (None, 2.0)]) is None
    estimate = statistics.ratio([(1.0, 4.0), (math.nan, 9.0)])
    assert estimate is not None
    assert (estimate.low, estimate.high, estimate.count) == (None, None, 1)
    assert estimate.value == pytest.approx(0.25)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(5).normal(0, 1, 25).tolist()
    assert statistics.median(values) == statistics.median(values)
