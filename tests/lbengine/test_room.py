"""What the others can carry: the prediction, and what is given back for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slackwater.lbengine.decision import room
from slackwater.lbengine.decision.loads import Load
from slackwater.lbengine.decision.rates import Backlog
from tests.support.coarse_weights import a_step_more_is_no_better

pools = st.lists(
    st.tuples(st.integers(0, 256), st.sampled_from([20.0, 60.0, 300.0]) | st.floats(1.0, 1000.0), st.booleans()),
    min_size=1,
    max_size=8,
)
"""Weight, capacity, kept."""


def given_back(
    weights: list[int],
    baselines: list[int],
    capacity: list[float],
    kept: list[bool],
    total_rps: float,
    u_threshold: float = 0.8,
    by_concurrency: bool = False,
    step: int = 1,
) -> list[int]:
    """The weights after `Room.give_back`, where these capacities are known surely."""
    loads = [
        Load(f"{n}", most, weight, reduce=not keeps)
        for n, (weight, most, keeps) in enumerate(zip(weights, baselines, kept, strict=True))
    ]
    pool = room.Room(loads, total_rps, u_threshold, by_concurrency, step)
    vars(pool)["_capacity"] = capacity
    given = {load.server: weight for load, weight in zip(loads, weights, strict=True)}
    raised = given | pool.give_back(given, {load.server for load in loads if load.reduce})[1]
    return [raised[load.server] for load in loads]


def test_under_round_robin_a_server_is_as_full_as_its_share_of_the_weight_makes_it() -> None:
    assert room.fullest([0, 100, 100], [60.0, 300.0, 200.0], [False, True, True], 300.0, False) == 0.75
    assert room.fullest([100, 100, 100], [60.0, 300.0, 200.0], [False, True, True], 300.0, False) == 0.5


def test_under_least_connections_servers_of_equal_weights_are_equally_full() -> None:
    filled = room.fullest([100, 100, 100], [60.0, 300.0, 200.0], [False, True, True], 280.0, True)
    assert filled == pytest.approx(0.5)


@settings(deadline=None)
@given(pools, st.floats(0.01, 0.97))
def test_under_least_connections_the_predicted_rates_add_up(pool: list[tuple[int, float, bool]], load: float) -> None:
    weights, capacity = [row[0] for row in pool], [row[1] for row in pool]
    assume(any(weights))
    total = load * sum(mu for weight, mu in zip(weights, capacity, strict=True) if weight)
    filled = [
        room.fullest(weights, capacity, [n == raised for n in range(len(pool))], total, True)
        for raised in range(len(pool))
    ]
    assert math.fsum(f * mu for f, mu in zip(filled, capacity, strict=True)) == pytest.approx(total, rel=1e-3)
    for f, weight in zip(filled, weights, strict=True):
        for other, its in zip(filled, weights, strict=True):
            if weight and its:
                assert f / (1 - f) / weight == pytest.approx(other / (1 - other) / its, rel=1e-3)


def test_a_pool_beyond_its_capacity_is_reported() -> None:
    assert room.fullest([0, 100, 100], [60.0, 300.0, 300.0], [False, True, True], 900.0, True) == 1.5


def test_nobody_is_nobody() -> None:
    assert room.fullest([0, 0], [1.0, 1.0], [True, True], 10.0, False) == 0.0
    assert room.fullest([5], [1.0], [False], 10.0, True) == 0.0


@settings(deadline=None)
@given(
    pools,
    st.floats(1.0, 3000.0),
    st.floats(0.1, 1.0),
    st.sampled_from([False, True]),
    st.sampled_from([1, 5]),
)
def test_enough_is_given_back_or_all_and_nothing_is_taken(
    pool: list[tuple[int, float, bool]], total: float, u_threshold: float, by_concurrency: bool, step: int
) -> None:
    baselines, capacity, kept = [255] * len(pool), [row[1] for row in pool], [row[2] for row in pool]
    weights = [255 if keeps else weight - weight % 5 for weight, _, keeps in pool]
    given = given_back(weights, baselines, capacity, kept, total, u_threshold, by_concurrency, step)
    for before, after, keeps in zip(weights, given, kept, strict=True):
        assert before <= after <= 255
        assert after == before or not keeps
        assert after % step == 0
    limit = room.allowed(capacity, total, u_threshold)
    if any(weight < 255 for weight in given):
        raised, every = [not keeps for keeps in kept], [True] * len(kept)
        most = max(limit, room.fullest(given, capacity, raised, total, by_concurrency))
        if room.fullest(given, capacity, kept, total, by_concurrency) > most:

            def filled(trial: Sequence[int]) -> float:
                return room.fullest(trial, capacity, every, total, by_concurrency)

            assert a_step_more_is_no_better(given, baselines, raised, step, filled)
    if room.fullest(weights, capacity, kept, total, by_concurrency) <= limit:
        assert given == weights


def test_no_more_is_given_back_than_is_needed() -> None:
    (less, *others) = given_back([0, 100, 100], [100] * 3, [60.0, 300.0, 300.0], [False, True, True], 520.0)
    assert others == [100, 100]
    assert 520.0 * 100 / (200 + less) <= 300.0 * 0.8 < 520.0 * 100 / (200 + less - 2)


def test_with_coarse_weights_a_dead_server_is_not_filled_to_spare_a_full_one() -> None:
    """All baselines are 1, and the server that keeps its weight is overloaded whatever the others do."""
    capacity, kept = [100.0, 100.0, 100.0, 52.0, 2.0], [True, True, True, True, False]
    assert given_back([1, 1, 1, 1, 0], [1] * 5, capacity, kept, 345.0) == [1, 1, 1, 1, 0]


def test_under_least_connections_a_drained_server_gets_load_where_more_wait_than_it_would_hold() -> None:
    """The prediction may be wrong: what a server carries is known to some 15%. What waits at the others is seen, also
    before the drain: it would end in the next turn."""
    for before, queue, after in ((0, 0.5, 0), (0, 1.5, 60), (100, 1.5, 60)):
        loads = [Load("slow", 100, before, reduce=True), *(Load(name, 100, 100, queue=Backlog(queue)) for name in "ab")]
        pool = room.Room(loads, 300.0, 0.9, True, undrained={"slow": 60})
        vars(pool)["_capacity"] = [50.0, 300.0, 300.0]
        filled, given = pool.give_back({"slow": 0, "a": 100, "b": 100}, {"slow"})
        assert given.get("slow", 0) == after
        assert (filled is None) == (after > 0)


def test_chance_alone_ends_no_drain_of_a_large_pool() -> None:
    """Of 40 servers some always hold more than usual, and others less."""
    others = [f"s{number}" for number in range(39)]

    def given_for(queues: Sequence[Backlog]) -> dict[str, int]:
        loads = [Load("slow", 100, 0, reduce=True)]
        loads += [Load(name, 100, 100, queue=queue) for name, queue in zip(others, queues, strict=True)]
        pool = room.Room(loads, 3000.0, 0.9, True, undrained={"slow": 60})
        vars(pool)["_capacity"] = [50.0] + [300.0] * 39
        return pool.give_back({"slow": 0, **dict.fromkeys(others, 100)}, {"slow"})[1]

    assert not given_for([Backlog(0.4 if number % 2 else -0.4) for number in range(39)])
    assert not given_for([Backlog(0.2, 0.2) for _ in range(39)]), "8 wait, within three standard deviations"
    assert given_for([Backlog(0.3, 0.2) for _ in range(39)]) == {"slow": 60}
