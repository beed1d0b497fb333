"""Rounding to whole weights, against all weights there are."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.lbengine.laws.rounding import closest, grain


def off(kept_weight: int, kept_rate: float, rates: list[float], weights: tuple[int, ...] | list[int]) -> float:
    whole, total = kept_weight + sum(weights), kept_rate + sum(rates)
    return abs(kept_weight / whole - kept_rate / total) + sum(
        abs(weight / whole - rate / total) for weight, rate in zip(weights, rates, strict=True)
    )


@settings(deadline=None, max_examples=300)
@given(
    st.integers(1, 20),
    st.floats(1.0, 100.0),
    st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(0, 9)), min_size=1, max_size=3),
)
def test_no_other_weights_come_closer_to_the_wanted_split(
    kept_weight: int, kept_rate: float, servers: list[tuple[float, int]]
) -> None:
    rates, most = [rate for rate, _ in servers], [limit for _, limit in servers]
    ours = closest(kept_weight, kept_rate, rates, most)
    assert all(0 <= weight <= limit for weight, limit in zip(ours, most, strict=True))
    best = min(
        off(kept_weight, kept_rate, rates, weights)
        for weights in itertools.product(*(range(limit + 1) for limit in most))
    )
    assert off(kept_weight, kept_rate, rates, ours) == pytest.approx(best, abs=1e-9)


@settings(deadline=None)
@given(
    st.sampled_from([256, 65535]),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30),
    st.integers(1, 30),
)
def test_large_weights_come_as_close_as_their_grain_allows(most: int, shares: list[float], kept: int) -> None:
    baseline = most // 2
    weights = closest(kept * baseline, float(kept), shares, [most] * len(shares))
    whole = kept * baseline + sum(weights)
    assert off(kept * baseline, float(kept), shares, weights) <= (len(shares) / 2 + 1) / whole


def test_the_rest_of_one_server_is_the_gain_of_another() -> None:
    # 2.4 and 2.4 beside 10: rounding each would lose 0.8 of 14.8 together.
    assert sorted(closest(10, 10.0, [2.4, 2.4], [256, 256])) == [2, 3]


def test_nothing_wanted_is_no_weight() -> None:
    assert closest(200, 250.0, [0.0, 0.0], [100, 100]) == [0, 0]


@pytest.mark.parametrize(("kept_weight", "kept_rate"), [(0, 1.0), (1, 0.0), (1, -1.0), (-1, math.inf)])
def test_beside_nobody_there_is_no_share(kept_weight: int, kept_rate: float) -> None:
    with pytest.raises(ValueError, match="expected kept servers"):
        closest(kept_weight, kept_rate, [1.0], [256])


@pytest.mark.parametrize(
    ("baselines", "step"),
    [
        ([100, 100, 100], 5),
        ([20, 20], 1),
        ([40, 20], 2),
        ([100, 51], 1),
        ([1, 1], 1),
        ([65535, 65535], 1285),
        ([], 1),
    ],
)
def test_the_grain_divides_all_and_leaves_steps_of_a_twentieth(baselines: list[int], step: int) -> None:
    assert grain(baselines) == step
