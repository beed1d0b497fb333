"""A neighbour is given the weight with which it takes what a scenario states."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater_lab.experiment.neighbour_share import NEAR, search


def taker(factor: float, power: float) -> Callable[[int], float]:
    """What a neighbour takes by its weight: odds that grow with a power of it."""

    def taken(weight: int) -> float:
        odds: float = factor * (weight / 100.0) ** power
        return odds / (1.0 + odds)

    return taken


@given(lost=st.floats(0.2, 0.85), factor=st.floats(0.5, 2.0), power=st.floats(0.7, 1.2))
def test_the_weight_is_found_whatever_a_weight_takes(lost: float, factor: float, power: float) -> None:
    taken = taker(factor, power)
    weight, measured, good = search(taken, lost)
    assert good, f"{weight} takes {measured}"
    assert taken(weight) == pytest.approx(lost, abs=NEAR)


def test_a_share_that_no_weight_takes_is_not_called_found() -> None:
    weight, measured, good = search(lambda _: 0.1, 0.5)
    assert not good
    assert measured == 0.1
    assert weight > 1000, "it was tried with a large weight too"


def test_measurements_that_scatter_are_averaged() -> None:
    dice = random.Random(3)
    taken = taker(1.5, 0.7)
    weight, _, good = search(lambda weight: taken(weight) + dice.gauss(0.0, 0.05), 0.5)
    assert good
    assert taken(weight) == pytest.approx(0.5, abs=2 * NEAR)


def test_one_lucky_measurement_is_not_enough() -> None:
    values = itertools.cycle([0.5, 0.8])
    assert search(lambda _: next(values), 0.5)[2] is False
