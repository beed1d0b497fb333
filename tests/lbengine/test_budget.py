"""The rate limit: Verdicts that come and go turn a weight only so often, whatever they are."""

from __future__ import annotations

import itertools
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from lbengine.decision.ramp import Position

from lbengine.decision import budget
from lbengine.decision.decide import Decisions
from slackwater.config import LbengineSettings
from slackwater.messages import State
from tests.support.pool_shown import decided, server, snapshot, verdict

SETTINGS = LbengineSettings()
MOST = SETTINGS.max_falls_per_min
NAMES = [f"host{n}" for n in range(4)]
NOW_S = 100.0
SPENT_S = tuple(NOW_S - 10.0 - n for n in range(MOST))


def turn(
    positions: dict[str, Position],
    states: dict[str, State],
    now_s: float,
    total_rps: float = 300.0,
    severity: float = 0.8,
) -> Decisions:
    """Four servers of 300 requests/s; those in interference have lost `severity` of it."""
    capacity = {name: 300.0 * (1.0 - severity * (states[name] == "interference")) for name in NAMES}
    verdicts = {
        name: verdict(name, state, severity * (state == "interference"), capacity[name])
        for name, state in states.items()
    }
    shown = snapshot([server(name, positions[name].weight) for name in NAMES])
    return decided(shown, positions, verdicts, now_s=now_s, total_rps=total_rps)


def play(
    turns: list[dict[str, State]], every_s: float, total_rps: float = 300.0, severity: float = 0.8
) -> dict[str, list[tuple[float, int]]]:
    """Each server's weights with their times."""
    positions = {name: Position(100) for name in NAMES}
    seen: dict[str, list[tuple[float, int]]] = {name: [(0.0, 100)] for name in NAMES}
    for number, states in enumerate(turns, start=1):
        decided = turn(positions, states, number * every_s, total_rps, severity)
        positions = {name: decision.position for name, decision in decided.servers.items()}
        for name, position in positions.items():
            seen[name].append((number * every_s, position.weight))
    return seen


def turns_down(weights: list[tuple[float, int]]) -> list[float]:
    """When a weight began to fall after it had stood or risen."""
    found, falling = [], False
    for (_, was), (at_s, now) in itertools.pairwise(weights):
        if now < was and not falling:
            found.append(at_s)
        falling = now < was or (now == was and falling)
    return found


def most_in_a_minute(times: list[float]) -> int:
    return max((sum(0.0 <= other - at_s < budget.WINDOW_S for other in times) for at_s in times), default=0)


def calm_or(*slow: str) -> dict[str, State]:
    return {name: "interference" if name in slow else "calm" for name in NAMES}


def flapping(seconds: float) -> list[dict[str, State]]:
    """Turns of 0.2 s: host0 is slow for 0.4 s and calm for 4 s, long enough to come back."""
    return [calm_or("host0") if number % 22 < 2 else calm_or() for number in range(int(seconds / 0.2))]


def test_verdicts_that_come_and_go_turn_a_weight_no_more_often_than_the_setting_says() -> None:
    seen = play(flapping(120.0), every_s=0.2)["host0"]
    times = turns_down(seen)
    assert most_in_a_minute(times) == MOST
    assert times[0] == 0.2, "the first one at once"
    held = [weight for at_s, weight in seen if times[MOST - 1] <= at_s < times[0] + budget.WINDOW_S]
    assert held
    assert set(held) == {0}, "the lower weight is held, not the higher one"


def test_verdicts_that_alternate_each_turn_do_so_too() -> None:
    seen = play([calm_or("host0") if number % 2 else calm_or() for number in range(1, 600)], every_s=0.2)["host0"]
    assert most_in_a_minute(turns_down(seen)) == MOST
    assert {weight for at_s, weight in seen if at_s > 0.2} <= {0, 1, 2}


def test_a_held_weight_comes_back_when_the_minute_is_over() -> None:
    calm = [calm_or()] * 250
    seen = play(flapping(28.0) + calm, every_s=0.2)["host0"]
    assert len(turns_down(seen)) == MOST
    climbs = [at_s for at_s, weight in seen if at_s > turns_down(seen)[-1] and weight > 0]
    assert budget.WINDOW_S <= climbs[0] <= budget.WINDOW_S + 1.0
    assert seen[-1][1] == 100


def test_a_held_weight_is_given_back_at_once_when_the_others_would_be_full() -> None:
    spent = Position(0, falling=True, falls_s=SPENT_S)
    positions = {name: Position(100) for name in NAMES} | {"host0": spent}
    held = turn(positions, calm_or(), NOW_S).servers["host0"]
    assert held.position.weight == 0
    assert held.why == f"calm; held for now: it has fallen {MOST} times within a minute"
    assert turn(positions, calm_or(), NOW_S, total_rps=800.0).servers["host0"].position.weight == 0, "89%: they can"
    decided = turn(positions, calm_or(), NOW_S, total_rps=880.0).servers["host0"]
    assert decided.position.weight == 100
    assert decided.why == "calm: given back at once, since the others would be 98% full"


def test_who_rose_when_nobody_was_believed_is_not_lowered_beyond_the_limit() -> None:
    positions = {name: Position(100) for name in NAMES} | {"host0": Position(100, falls_s=SPENT_S)}
    decided = turn(positions, calm_or("host0"), NOW_S).servers["host0"]
    assert decided.position.weight == 100
    assert f"not lowered again for now: it has fallen {MOST} times within a minute" in decided.why
    assert turn(positions, calm_or("host0"), NOW_S + 51.0).servers["host0"].position.weight == 0


def test_who_gets_worse_is_lowered_although_the_limit_is_reached() -> None:
    positions = {name: Position(100) for name in NAMES} | {"host0": Position(60, falling=True, falls_s=SPENT_S)}
    after = turn(positions, calm_or("host0"), NOW_S).servers["host0"].position
    assert after.weight == 0
    assert after.falls_s == SPENT_S


def test_overrides_and_pins_use_up_nothing() -> None:
    assert budget.noted(Position(100), Position(0), 5.0, counts=False) == Position(0, falling=True)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([*get_args(State), "interference", "calm"]), min_size=4, max_size=4),
        min_size=2,
        max_size=12,
    ),
    st.sampled_from([0.2, 0.5, 1.0]),
    st.floats(50.0, 1100.0),
    st.floats(0.05, 0.95),
)
def test_any_flapping_turns_each_weight_only_so_often(
    pattern: list[list[State]], every_s: float, total_rps: float, severity: float
) -> None:
    """The pattern is repeated for two minutes."""
    rows = [dict(zip(NAMES, states, strict=True)) for states in pattern]
    seen = play([rows[n % len(rows)] for n in range(int(120.0 / every_s))], every_s, total_rps, severity)
    for weights in seen.values():
        assert most_in_a_minute(turns_down(weights)) <= MOST
