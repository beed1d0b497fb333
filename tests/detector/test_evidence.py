"""Evidence: likelihood ratios from counts, and the threshold that a rate of false episodes asks for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import poisson

from slackwater.detector.classify.evidence import (
    DAY_S,
    ENOUGH_PEAKS,
    LIKELY_PEAKS,
    QUIET,
    REFERENCE_S,
    CalmSums,
    Evidence,
    counts,
    weight,
)

COUNTED = Evidence(calm=(9_900, 60, 80, 20), neighbour=(200, 50, 250, 500))
PEAKS = tuple(float(height) for height in range(14, 4, -1))


def test_a_ratio_is_the_logarithm_of_how_much_more_often_a_level_shows_beside_a_neighbour() -> None:
    assert COUNTED.ratios[-1] == pytest.approx(math.log((500.5 / 1002) / (20.5 / 10_062)))
    assert COUNTED.ratios[QUIET] < 0 < COUNTED.ratios[-1]


def test_what_was_never_counted_is_rare_and_not_impossible() -> None:
    assert np.isfinite(Evidence(calm=(1000, 0, 0), neighbour=(10, 10, 10)).ratios).all()


def test_as_many_are_expected_as_ten_that_were_counted_do_not_rule_out() -> None:
    assert poisson.cdf(ENOUGH_PEAKS, LIKELY_PEAKS) == pytest.approx(0.05, abs=1e-3)


def test_the_threshold_is_the_sum_that_calm_surely_exceeds_no_more_often() -> None:
    sums = CalmSums(days=2.0, peaks=PEAKS)
    assert sums.threshold(LIKELY_PEAKS / 2.0) == PEAKS[-1]
    assert sums.threshold(100.0) == PEAKS[-1], "how often lower sums were exceeded is not kept"


def test_beyond_what_calm_showed_each_unit_makes_false_episodes_rarer_by_e() -> None:
    sums = CalmSums(days=2.0, peaks=PEAKS)
    often = sums.threshold(5.0)
    assert often > PEAKS[-1]
    assert sums.threshold(5.0 / math.e) == pytest.approx(often + 1.0)
    assert sums.threshold(1.0) == pytest.approx(often + math.log(5.0))


@pytest.mark.parametrize("sums", [CalmSums(), CalmSums(2.0, PEAKS[: ENOUGH_PEAKS - 1]), CalmSums(0.01, PEAKS)])
def test_with_too_little_calm_it_is_lordens_bound(sums: CalmSums) -> None:
    """A mean of exp(threshold) Samples until a false episode."""
    assert math.exp(sums.threshold(1.0)) == pytest.approx(DAY_S / REFERENCE_S)


def test_lordens_bound_holds_where_the_ratios_are_right() -> None:
    threshold, dice = 5.0, np.random.default_rng(7)
    shares = np.array(COUNTED.calm) / sum(COUNTED.calm)
    total = steps = episodes = 0.0
    for level in dice.choice(len(shares), size=500_000, p=shares):
        total, steps = max(0.0, total + COUNTED.ratios[level]), steps + 1
        if total >= threshold:
            total, episodes = 0.0, episodes + 1
    assert steps / max(episodes, 1.0) >= math.exp(threshold)


def test_counts_and_sums_are_checked_when_they_are_read() -> None:
    assert Evidence.of(COUNTED.as_dict()) == COUNTED
    sums = CalmSums(1.5, PEAKS)
    assert CalmSums.of(sums.as_dict()) == sums
    for wrong in ([1, 2], [1, 2, -3], [1, 2, math.inf], [1, 2, math.nan], []):
        with pytest.raises(ValueError, match="expected counts"):
            Evidence.of({"calm": wrong, "neighbour": [1, 2, 3] if wrong else []})
    for days, peaks in ((1.0, [2.0, 3.0]), (0.0, [2.0]), (-1.0, []), (1.0, [math.nan])):
        with pytest.raises(ValueError, match="expected"):
            CalmSums.of({"days": days, "peaks": peaks})


def test_a_sample_that_covers_less_time_weighs_less_and_none_weighs_more_than_one() -> None:
    assert weight(np.array([0.05, 0.2, 1.0])).tolist() == pytest.approx([0.25, 1.0, 1.0])


def test_a_sample_counts_for_the_time_that_it_covers_up_to_a_bound() -> None:
    assert counts(np.array([0.05, 0.2, 1.0, 3600.0])).tolist() == pytest.approx([0.25, 1.0, 5.0, 6.0])
