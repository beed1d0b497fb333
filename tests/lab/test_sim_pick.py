"""The request-level model's balancers, request by request."""

from __future__ import annotations

import numpy as np
import pytest

from lab.sim.pick import Picker


def picker(balance: str, *weights: int, seed: int = 1) -> Picker:
    return Picker(balance, len(weights), np.array(weights), np.random.default_rng(seed))


def test_roundrobin_serves_by_weight_and_as_evenly_as_it_can() -> None:
    one = picker("roundrobin", 200, 100, 100)
    assert [one.pick() for _ in range(8)] == [0, 1, 2, 0] * 2
    one.set_weights(np.array([0, 100, 100]))
    assert {one.pick() for _ in range(6)} == {1, 2}
    assert one.requests == [4, 5, 5]


def test_leastconn_takes_who_has_least_in_flight_for_its_weight_and_equals_in_turn() -> None:
    one = picker("leastconn", 100, 100, 100)
    assert [one.pick() for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    one.in_flight = [3, 1, 2]
    assert one.pick() == 1
    one.in_flight = [3, 3, 0]
    assert one.pick() == 2, "an idle server first"


def test_leastconn_takes_an_idle_server_first_whatever_its_weight_but_not_at_weight_zero() -> None:
    one = picker("leastconn", 100, 1, 0)
    one.in_flight = [1, 0, 0]
    assert one.pick() == 1
    # 2 in flight of weight 1 are more than 50 of weight 100.
    one.in_flight = [50, 1, 0]
    assert one.pick() == 0


def test_random2_draws_by_weight_and_takes_the_less_loaded_of_the_two() -> None:
    one = picker("random2", 100, 100, 0)
    one.in_flight = [10, 0, 0]
    taken = []
    for _ in range(400):
        one.in_flight = [10, 0, 0]
        taken.append(one.pick())
    # The loaded one is only taken when both draws are of it: a quarter of the time.
    assert taken.count(0) / 400 == pytest.approx(0.25, abs=0.06)
    assert taken.count(2) == 0


def test_random2_counts_load_for_its_weight() -> None:
    one = picker("random2", 300, 100)
    taken = []
    for _ in range(400):
        one.in_flight = [3, 2]  # 1 for each 100, and 2 for each 100
        taken.append(one.pick())
    # The second is only taken when both draws are of it: a sixteenth of the time.
    assert taken.count(1) / 400 == pytest.approx(1 / 16, abs=0.035)
