"""Evidence: likelihood ratios from counts, and the threshold that a rate of false episodes asks for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from detector.classify.evidence import (
    DAY_S,
    GRID,
    HIGHEST,
    LEVELS,
    QUIET,
    REFERENCE_S,
    STRONG,
    Evidence,
    counts,
    weight,
)

SPARSE = Evidence(
    calm=((9_800, 60, 80, 20), (60, 0, 0, 0), (80, 0, 0, 0), (20, 0, 0, 0)),
    neighbour=(200, 50, 250, 500),
)


def test_a_ratio_is_the_logarithm_of_how_much_more_often_a_level_shows_beside_a_neighbour() -> None:
    assert SPARSE.ratios[STRONG] == pytest.approx(math.log((500.5 / 1002) / (20.5 / 10_122)))
    assert SPARSE.ratios[QUIET] < 0 < SPARSE.ratios[STRONG]


def test_what_was_never_counted_is_rare_and_not_impossible() -> None:
    never = Evidence(calm=((1000, 0, 0, 0), *((0,) * 4,) * 3), neighbour=(10, 10, 10, 10))
    assert np.isfinite(never.ratios).all()
    assert math.isfinite(never.false_episodes_per_day(10.0))


def test_fewer_false_episodes_take_more_evidence() -> None:
    thresholds = [SPARSE.threshold(rate) for rate in (1000.0, 100.0, 10.0, 1.0)]
    assert thresholds == sorted(thresholds)
    assert thresholds[0] < thresholds[-1] <= HIGHEST
    for rate, threshold in zip((100.0, 10.0, 1.0), thresholds[1:], strict=True):
        assert SPARSE.false_episodes_per_day(threshold) <= rate
        assert SPARSE.false_episodes_per_day(threshold - GRID) > rate


def test_the_rate_is_that_of_a_calm_node() -> None:
    """Levels drawn from the counts reach the threshold as often as the Markov chain says."""
    threshold, dice = 6.0, np.random.default_rng(7)
    counts = np.array(SPARSE.calm).sum(axis=0)
    steps = np.round(SPARSE.ratios / GRID) * GRID
    total = episodes = 0
    reached = 0.0
    for level in dice.choice(len(LEVELS), size=1_000_000, p=counts / counts.sum()):
        reached = max(0.0, reached + steps[level])
        total += 1
        if reached >= threshold:
            episodes, reached = episodes + 1, 0.0
    simulated = episodes / (total * REFERENCE_S / DAY_S)
    assert SPARSE.false_episodes_per_day(threshold) == pytest.approx(simulated, rel=0.2)


def test_what_comes_in_rows_takes_more_evidence() -> None:
    in_rows = Evidence(
        calm=((9_860, 60, 80, 10), (60, 0, 0, 0), (80, 0, 0, 0), (10, 0, 0, 10)), neighbour=SPARSE.neighbour
    )
    assert np.sum(in_rows.calm, axis=0)[STRONG] == np.sum(SPARSE.calm, axis=0)[STRONG]
    assert in_rows.threshold(1.0) > SPARSE.threshold(1.0) + 2.0


def test_counts_are_checked_when_they_are_read() -> None:
    assert Evidence.of(SPARSE.as_dict()) == SPARSE
    with pytest.raises(ValueError, match="expected 4 rows of 4 counts"):
        Evidence.of({"calm": [[1, 2, 3]] * 4, "neighbour": [1, 2, 3, 4]})
    with pytest.raises(ValueError, match="expected 4 rows of 4 counts"):
        Evidence.of({"calm": [[1, 2, 3, -4]] * 4, "neighbour": [1, 2, 3, 4]})


def test_a_sample_that_covers_less_time_weighs_less_and_none_weighs_more_than_one() -> None:
    assert weight(np.array([0.05, 0.2, 1.0])).tolist() == pytest.approx([0.25, 1.0, 1.0])


def test_a_sample_counts_for_the_time_that_it_covers_up_to_a_bound() -> None:
    assert counts(np.array([0.05, 0.2, 1.0, 3600.0])).tolist() == pytest.approx([0.25, 1.0, 5.0, 6.0])


def test_shares_of_a_count_are_read_and_what_is_no_count_is_refused() -> None:
    shares = Evidence(calm=((100.25, 0, 0, 0), *((0.5,) * 4,) * 3), neighbour=(0.25, 0.75, 10.0, 10.0))
    assert Evidence.of(shares.as_dict()) == shares
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected 4 rows of 4 counts"):
            Evidence.of({"calm": [[1, 2, 3, wrong]] * 4, "neighbour": [1, 2, 3, 4]})
