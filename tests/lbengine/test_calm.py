"""How fast a calm pool's servers are: learnt from the requests that they hold, and forgotten when they change."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbengine.baseline import Baseline
from lbengine.decision.calm import SPEEDS, Calm
from lbengine.decision.position import Position
from lbengine.decision.prediction import Alike, by_share
from lbengine.decision.state import PoolState, PoolView
from lbengine.decision.step import step
from slackwater.config import LbengineSettings
from slackwater.messages import State
from tests.support.pool_shown import POOL, server, snapshot, verdict

NAMES = ("host1", "host2", "host3")
RPS = 300.0
CAPACITY_RPS = 250.0


def predicted(rps: float = RPS) -> list[float]:
    return [by_share([Alike(3, 100.0, CAPACITY_RPS, speed)], rps) for speed in SPEEDS]


def seen(calm: Calm, speed: float, seconds: int, began_s: float = 0.0) -> Calm:
    held = by_share([Alike(3, 100.0, CAPACITY_RPS, speed)], RPS)
    for second in range(seconds):
        calm = calm.after(began_s + second, held, predicted())
    return calm


def test_nothing_seen_means_that_a_server_is_as_fast_as_its_capacity() -> None:
    assert Calm().speed == 1.0


@pytest.mark.parametrize("speed", [1.0, 1.4, 2.5, 7.0])
def test_the_speed_is_found_from_what_is_held(speed: float) -> None:
    assert seen(Calm(), speed, 60).speed == pytest.approx(speed, rel=0.05)


def test_one_look_at_a_pool_that_is_just_empty_is_not_believed() -> None:
    calm = Calm().after(0.0, 0, predicted()).after(0.2, 0, predicted())
    assert calm.speed < 1.3


def test_a_pool_that_becomes_slower_is_noticed_within_the_memory() -> None:
    calm = seen(Calm(), 4.0, 60)
    assert seen(calm, 1.5, 90, began_s=60.0).speed == pytest.approx(1.5, rel=0.1)


def test_time_that_nobody_looked_at_counts_as_one_second_at_most() -> None:
    calm = seen(Calm(), 2.5, 60)
    assert calm.after(10_000.0, 40, predicted()).held < calm.held + 40.0


@pytest.mark.parametrize("seed", range(5))
def test_queues_that_vary_give_nearly_the_speed(seed: int) -> None:
    """Three processor-sharing servers at twice the speed, each busy for a fifth of the time."""
    dice, busy = random.Random(seed), RPS / 3 / CAPACITY_RPS / 2.0
    calm = Calm()
    for second in range(90):
        calm = calm.after(second, sum(int(math.log(dice.random(), busy)) for _ in NAMES), predicted())
    assert 1.5 < calm.speed < 3.0


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 10_000), st.floats(1.0, 749.0)), max_size=50))
def test_whatever_is_seen_the_speed_is_one_that_was_asked_about(looks: list[tuple[float, int, float]]) -> None:
    calm, now_s = Calm(), 0.0
    for passed_s, held, rps in looks:
        now_s += passed_s
        calm = calm.after(now_s, held, predicted(rps))
    assert SPEEDS[0] <= calm.speed <= SPEEDS[-1]


# --- when a turn learns


def after_turns(state_of_first: State, in_flight: int = 0) -> PoolState:
    """host1 has this state; each second its servers answer 100 requests each."""
    state = PoolState(
        "acting",
        baselines={name: Baseline(100, 100) for name in NAMES},
        positions={name: Position(100) for name in NAMES},
    )
    states: dict[str, State] = {"host1": state_of_first, "host2": "calm", "host3": "calm"}
    verdicts = {name: verdict(name, one, 0.0, CAPACITY_RPS) for name, one in states.items()}
    for second in range(40):
        requests = 100 * second + in_flight
        servers = [replace(server(name, 100), requests=requests, in_flight=in_flight) for name in NAMES]
        view = PoolView(now_s=float(second), snapshot=replace(snapshot(servers), counts="requests"), verdicts=verdicts)
        state, _ = step(state, view, POOL, LbengineSettings())
    return state


def test_a_calm_pool_that_holds_hardly_anything_is_fast() -> None:
    assert after_turns("calm").calm.speed > 3.0


def test_a_calm_pool_that_holds_what_was_predicted_is_as_fast_as_its_capacity() -> None:
    assert after_turns("calm", in_flight=1).calm.speed < 1.5


def test_nothing_is_learnt_from_a_pool_that_is_not_calm() -> None:
    assert after_turns("interference").calm == Calm()
    assert after_turns("overload").calm == Calm()
