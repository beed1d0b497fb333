"""No oscillation: with several servers slow at once and with noise that comes and goes, in a simulated pool.

The traces are in tests/traces; `python -m tests.lbengine.test_oscillation` writes them anew.
"""

from __future__ import annotations

import itertools
import math
import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.paths import TRACES
from tests.support.pool_simulation import WAITS_BESIDE, WAITS_IN_CALM, Noise, Tick, as_text, falls, onsets, simulate


def two_at_once(server: int, at_s: float) -> bool:
    """Servers 0 and 1 of five, from 2 s to 20 s."""
    return server < 2 and 2.0 <= at_s < 20.0


def two_of_three(server: int, at_s: float) -> bool:
    """Servers 0 and 1 of three, from 2 s to 20 s: one is drained at most."""
    return server < 2 and 2.0 <= at_s < 20.0


def comes_and_goes(server: int, at_s: float) -> bool:
    """Server 0: 3 s on, 6 s off, for a minute."""
    return server == 0 and at_s < 60.0 and at_s % 9.0 >= 6.0


def in_turns(server: int, at_s: float) -> bool:
    """One of three after the other, 4 s each."""
    return at_s < 60.0 and int(at_s / 4.0) % 3 == server


CALM_S = 8.0
"""Before the noise."""
STORIES: dict[str, tuple[Noise, int, float]] = {
    "two_at_once": (two_at_once, 5, 700.0),
    "two_of_three": (two_of_three, 3, 250.0),
    "comes_and_goes": (comes_and_goes, 3, 250.0),
    "in_turns": (in_turns, 3, 250.0),
}
"""Noise, number of servers, requests per second."""


@cache
def trace(name: str, balance: str) -> list[Tick]:
    noise, servers, total_rps = STORIES[name]
    return simulate(noise, servers=servers, seconds=100.0, total_rps=total_rps, balance=balance)


@pytest.mark.parametrize("balance", ["roundrobin", "leastconn"])
@pytest.mark.parametrize("name", STORIES)
def test_a_weight_falls_no_more_often_than_noise_begins_and_ends_at_the_baseline(name: str, balance: str) -> None:
    ticks = trace(name, balance)
    for server in range(len(ticks[0].weights)):
        assert falls(ticks, server) <= onsets(ticks, server) + 1, as_text(ticks)
    assert set(ticks[-1].weights) == {100}, as_text(ticks)


@pytest.mark.parametrize("balance", ["roundrobin", "leastconn"])
@pytest.mark.parametrize("name", STORIES)
def test_no_weight_falls_long_after_the_noise_has_ended(name: str, balance: str) -> None:
    """An episode that only waits for its end is no reason: nor when a panic is over that it was part of."""
    ticks = trace(name, balance)
    ended_s = max(tick.at_s for tick in ticks if any(tick.noisy))
    for before, tick in itertools.pairwise(ticks):
        if tick.at_s > ended_s + 2.0:
            fell = [now < was for was, now in zip(before.weights, tick.weights, strict=True)]
            assert not any(fell), as_text(ticks)


@pytest.mark.parametrize("balance", ["roundrobin", "leastconn"])
def test_noise_in_turns_is_met_each_time_that_it_comes_back(balance: str) -> None:
    """Servers that still wait for the end of their episodes are not counted as slow for ever, which would be panic."""
    ticks = trace("in_turns", balance)
    for begin_s in range(0, 60, 4):
        there = [tick for tick in ticks if begin_s <= tick.at_s < begin_s + 4]
        assert any(tick.weights[tick.noisy.index(True)] < 30 for tick in there), as_text(ticks)


def steadily(total_s: float) -> Noise:
    """Beside server 0 from `CALM_S` on, for so long."""
    return lambda server, at_s: server == 0 and CALM_S <= at_s < CALM_S + total_s


def rises(ticks: list[Tick], server: int) -> int:
    return sum(tick.weights[server] > before.weights[server] for before, tick in itertools.pairwise(ticks))


@pytest.mark.parametrize(
    ("balance", "rps", "waits_beside", "waits_in_calm"),
    [  # each pair of two values once
        ("roundrobin", 5.0, WAITS_BESIDE, WAITS_IN_CALM),
        ("leastconn", 20.0, WAITS_BESIDE, WAITS_IN_CALM),
        ("roundrobin", 60.0, WAITS_BESIDE, WAITS_IN_CALM),
        ("leastconn", 5.0, 0.85, 0.5),
        ("roundrobin", 20.0, 0.85, 0.5),
        ("leastconn", 60.0, 0.85, 0.5),
    ],
)
def test_steady_noise_is_one_fall_and_one_rise_soon_after_its_end(
    balance: str, rps: float, waits_beside: float, waits_in_calm: float
) -> None:
    """Also where the machine wavers so that random moments wait in calm too."""
    back_s = []
    for seed in range(3):
        ticks = simulate(
            steadily(30.0),
            servers=3,
            seconds=CALM_S + 30.0 + 20.0,
            total_rps=3 * rps,
            balance=balance,
            seed=seed,
            waits_beside=waits_beside,
            waits_in_calm=waits_in_calm,
        )
        assert (falls(ticks, 0, 1), rises(ticks, 0)) == (1, 1), as_text(ticks)
        assert {weight for tick in ticks for weight in tick.weights[1:]} == {100}
        back_s.append(next(tick.at_s for tick in reversed(ticks) if tick.weights[0] < 100) - CALM_S - 30.0)
    assert min(back_s) >= 0.0
    assert sorted(back_s)[1] <= (3.0 if rps >= 20.0 else 6.0)
    assert max(back_s) <= 8.0


@pytest.mark.parametrize("balance", ["roundrobin", "leastconn"])
@pytest.mark.parametrize("rps", [5.0, 60.0])
def test_noise_that_shows_nowhere_but_in_requests_is_tried_and_back_soon_after_its_end(
    balance: str, rps: float
) -> None:
    """It falls from its baseline weight twice at most: the few requests of a trial may be fast by chance."""
    for seed in range(2):
        ticks = simulate(
            steadily(60.0),
            servers=3,
            seconds=CALM_S + 60.0 + 15.0,
            total_rps=3 * rps,
            balance=balance,
            seed=seed,
            waits_beside=WAITS_IN_CALM,
        )
        assert 1 <= falls(ticks, 0, 90) <= 2, as_text(ticks)
        below_s = [tick.at_s for tick in ticks if tick.weights[0] < 100]
        assert below_s[-1] <= CALM_S + 60.0 + 8.0, as_text(ticks)


@pytest.mark.parametrize(("balance", "rps"), [("roundrobin", 20.0), ("leastconn", 5.0)])
@pytest.mark.parametrize(("waits_beside", "waits_in_calm"), [(0.1, 0.1), (0.4, 0.2)])
def test_a_neighbour_that_leaves_right_after_the_drain_holds_nobody_for_long(
    balance: str, rps: float, waits_beside: float, waits_in_calm: float
) -> None:
    """Where random moments show it hardly or not at all."""
    for seed in range(2):
        ticks = simulate(
            steadily(1.0),
            servers=3,
            seconds=CALM_S + 14.0,
            total_rps=3 * rps,
            balance=balance,
            seed=seed,
            waits_beside=waits_beside,
            waits_in_calm=waits_in_calm,
        )
        below_s = [tick.at_s for tick in ticks if tick.weights[0] < 100]
        assert falls(ticks, 0, 1) == 1, as_text(ticks)
        assert below_s[-1] <= CALM_S + 1.0 + 8.0, as_text(ticks)


@pytest.mark.parametrize("balance", ["roundrobin", "leastconn"])
@pytest.mark.parametrize("servers", [3, 5])
def test_a_single_clear_episode_is_met_on_the_tick_on_which_it_is_known(servers: int, balance: str) -> None:
    ticks = simulate(
        lambda server, at_s: server == 0 and at_s >= 6.0,
        servers=servers,
        seconds=8.0,
        total_rps=100.0 * servers,
        balance=balance,
    )
    known = next(tick for tick in ticks if tick.states[0] == "interference")
    assert known.weights == [0] + [100] * (servers - 1)


def test_when_a_peer_goes_down_in_an_episode_the_slow_server_takes_at_once_what_the_others_cannot_carry() -> None:
    ticks = simulate(
        lambda server, at_s: server == 0 and at_s >= 2.0,
        servers=4,
        seconds=20.0,
        total_rps=560.0,
        down=lambda server, at_s: server == 3 and at_s >= 10.0,
    )
    before = next(tick for tick in ticks if tick.at_s >= 9.0)
    assert (before.weights[0] < 10, before.weights[1:]) == (True, [100, 100, 100])
    for tick in ticks:
        if tick.at_s >= 10.0:
            assert max(tick.utilisation[1:3]) <= 0.94, as_text(ticks)
            assert tick.weights[0] > 0


def test_when_the_load_rises_in_an_episode_the_slow_server_takes_at_once_what_the_others_cannot_carry() -> None:
    ticks = simulate(
        lambda server, at_s: server == 0 and at_s >= 2.0,
        servers=3,
        seconds=20.0,
        total_rps=lambda at_s: 400.0 if at_s < 10.0 else 560.0,
    )
    assert next(tick for tick in ticks if tick.at_s >= 9.0).weights[0] < 10
    for tick in ticks:
        if tick.at_s >= 2.4:
            assert max(tick.utilisation[1:]) <= 0.94, as_text(ticks)


@pytest.mark.parametrize("balance", ["roundrobin", "leastconn"])
@pytest.mark.parametrize("name", STORIES)
def test_the_trace_is_the_one_on_record(name: str, balance: str) -> None:
    assert as_text(trace(name, balance)) == (TRACES / f"{name}_{balance}.txt").read_text()


def test_while_one_is_slow_the_others_stay_below_the_threshold() -> None:
    for tick in trace("two_at_once", "roundrobin"):
        assert all(filled <= 0.9 + 0.02 for filled, loud in zip(tick.utilisation, tick.noisy, strict=True) if not loud)


@examples(3, 50)
@given(
    st.integers(0, 10_000),
    st.integers(3, 8),
    st.floats(0.1, 0.7),
    st.sampled_from(["roundrobin", "leastconn"]),
)
def test_random_noise_never_reduces_too_many_nor_moves_a_weight_more_often_than_it_must(
    seed: int, servers: int, load: float, balance: str
) -> None:
    chance = random.Random(seed)
    on = [[chance.random() < 0.3 for _ in range(15)] for _ in range(servers)]
    ticks = simulate(
        lambda server, at_s: at_s < 30.0 and on[server][min(int(at_s / 2.0), 14)],
        servers=servers,
        seconds=90.0,
        total_rps=load * 300.0 * servers,
        balance=balance,
        seed=seed,
    )
    for tick in ticks:
        assert sum(weight < 10 for weight in tick.weights) <= math.floor(servers * 0.5)
        assert all(0 <= weight <= 100 for weight in tick.weights)
        assert any(tick.weights)
    assert set(ticks[-1].weights) == {100}
    for server in range(servers):
        # An onset of anybody's may change what the others can carry.
        assert falls(ticks, server) <= 2 * sum(onsets(ticks, other) for other in range(servers)) + 2


if __name__ == "__main__":
    TRACES.mkdir(exist_ok=True)
    for story in STORIES:
        for algorithm in ("roundrobin", "leastconn"):
            (TRACES / f"{story}_{algorithm}.txt").write_text(as_text(trace(story, algorithm)))
