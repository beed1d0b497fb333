"""Predicted numbers of requests against theory, and against a Markov chain that is solved here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbengine.decision.prediction import EXACT, FULL, Alike, by_share, one_queue, own_queues
from lbengine.decision.two_choices import held_together

MOST = 80
"""Requests that the chain can hold."""


def solved(capacity_rps: list[float], total_rps: float) -> float:
    """Mean requests of the chain whose states are the busy servers, and when all are busy the number waiting."""
    count = len(capacity_rps)
    states: list[frozenset[int] | int] = [
        frozenset(busy) for k in range(count + 1) for busy in itertools.combinations(range(count), k)
    ]
    states += range(1, MOST)
    number = {state: n for n, state in enumerate(states)}
    everyone = frozenset(range(count))
    goes = np.zeros((len(states), len(states)))
    for state, n in number.items():
        if isinstance(state, int):
            goes[n, number[state - 1] if state > 1 else number[everyone]] += sum(capacity_rps)
            if state + 1 in number:
                goes[n, number[state + 1]] += total_rps
            continue
        for server in state:
            goes[n, number[state - {server}]] += capacity_rps[server]
        for server in everyone - state:
            goes[n, number[state | {server}]] += total_rps / len(everyone - state)
        if state == everyone:
            goes[n, number[1]] += total_rps
    balance = goes.T - np.diag(goes.sum(axis=1))
    balance[0] = 1.0
    chances = np.linalg.solve(balance, np.eye(len(states))[0])
    held = [count + state if isinstance(state, int) else len(state) for state in states]
    return float(chances @ np.array(held))


def each(*capacity_rps: float, weight: float = 100.0) -> list[Alike]:
    return [Alike(1, weight, mu) for mu in capacity_rps]


@pytest.mark.parametrize("total_rps", [20.0, 150.0, 330.0])
@pytest.mark.parametrize("capacity_rps", [(250.0, 250.0), (250.0, 250.0, 40.0), (300.0, 200.0, 80.0, 20.0)])
def test_one_queue_is_the_solution_of_its_markov_chain(capacity_rps: tuple[float, ...], total_rps: float) -> None:
    assert one_queue(each(*capacity_rps), total_rps) == pytest.approx(solved(list(capacity_rps), total_rps), rel=1e-4)


def test_one_server_alone_is_an_m_m_1_queue_in_every_model() -> None:
    for model in (by_share, own_queues, one_queue):
        assert model(each(100.0), 60.0) == pytest.approx(1.5, rel=1e-6)


def test_a_balancer_that_goes_round_makes_shorter_queues_than_chance_and_never_none() -> None:
    three = by_share(each(100.0, 100.0, 100.0), 180.0)
    assert 3 * 0.6 < three < 3 * 1.5


def test_of_many_servers_hardly_any_request_waits() -> None:
    few, many = (one_queue([Alike(count, 100.0, 100.0)], 70.0 * count) for count in (EXACT, 40 * EXACT))
    assert few >= 0.7 * EXACT
    assert many == pytest.approx(0.7 * 40 * EXACT)


def test_own_queues_in_proportion_to_the_weights_carry_the_whole_rate() -> None:
    groups = [Alike(2, 100.0, 250.0), Alike(1, 20.0, 60.0)]
    held = own_queues(groups, 400.0)
    each_weight = held / 220.0
    carried = 2 * 250.0 * 100 * each_weight / (1 + 100 * each_weight) + 60.0 * 20 * each_weight / (1 + 20 * each_weight)
    assert carried == pytest.approx(400.0, rel=1e-6)


@pytest.mark.parametrize("model", [own_queues, one_queue])
def test_under_least_connections_no_server_answers_more_than_its_capacity(
    model: Callable[[Sequence[Alike], float], float],
) -> None:
    """One works at 400 requests/s until its part of the processor is spent, which is 100 a second."""
    slower = Alike(1, 100.0, 100.0)
    limited, unlimited = (model([slower, Alike(1, 100.0, *fast)], 180.0) for fast in ((100.0, 4.0), (400.0, 1.0)))
    assert 2 * unlimited < limited < model([slower, slower], 180.0)


groups_strategy = st.lists(
    st.builds(
        Alike,
        st.integers(1, 30),
        st.sampled_from([0.0, 1.0, 37.0, 100.0]),
        st.floats(1e-3, 1e4),
        st.sampled_from([1.0, 1.0, 2.5, 8.0]),
    ),
    min_size=1,
    max_size=6,
).filter(lambda groups: any(group.weight > 0 for group in groups))


@pytest.mark.parametrize("model", [by_share, own_queues, one_queue, held_together])
@given(groups_strategy, st.floats(1e-3, 3.0))
def test_what_is_held_is_finite_and_grows_with_the_load(model: object, groups: list[Alike], load: float) -> None:
    assert callable(model)
    able_rps = sum(group.count * group.capacity_rps for group in groups if group.weight > 0)
    less, more = model(groups, load * able_rps), model(groups, 1.1 * load * able_rps)
    assert 0.0 < less < more < math.inf


@pytest.mark.parametrize("model", [by_share, own_queues, one_queue, held_together])
def test_a_server_that_works_faster_than_its_capacity_holds_less_until_that_is_spent(model: object) -> None:
    assert callable(model)
    even, fast = ([Alike(3, 100.0, 100.0, speed)] for speed in (1.0, 4.0))
    as_fast = [Alike(3, 100.0, 400.0)]
    assert model(fast, 150.0) == pytest.approx(model(as_fast, 150.0))
    assert model(fast, 150.0) < model(even, 150.0)
    assert model(fast, 360.0) > 10 * model(as_fast, 360.0)


def test_beyond_the_capacity_a_queue_grows_evenly() -> None:
    held = [one_queue(each(100.0, 100.0), 200.0 * load) for load in (FULL, 1.2, 1.4)]
    assert held[2] - held[1] == pytest.approx((held[1] - held[0]) * 0.2 / (1.2 - FULL))
