"""Down at once, up slowly, small steps not at all; within an episode after a dwell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lbengine.decision.ramp import DWELL_S, Position, moved, settle, step


def climb(baseline: int, ramp_s: float, every_s: float, min_change: float, start: int = 0) -> list[tuple[float, int]]:
    """The positions on the way from `start` to the baseline, with their times."""
    position, now_s, seen = Position(start), 100.0, []
    while position.weight < baseline:
        position = step(position, baseline, baseline, now_s, ramp_s, min_change)
        seen.append((now_s - 100.0, position.weight))
        now_s += every_s
        assert now_s < 100.0 + ramp_s + 3 * every_s, seen
    return seen


def test_down_is_at_once() -> None:
    assert step(Position(100), 0, 100, 5.0, 4.0, 0.05).weight == 0
    assert step(Position(100), 37, 100, 5.0, 4.0, 0.05).weight == 37


def test_up_begins_with_a_trickle_and_doubles_until_the_ramp_time_is_over() -> None:
    seen = climb(100, 3.0, 0.05, 0.0)
    assert seen[0] == (0.0, 2)
    assert {weight for at_s, weight in seen if at_s < 0.99} == {2}
    assert seen[-1][1] == 100
    assert 2.9 <= seen[-1][0] <= 3.1
    weights = {round(at_s, 2): weight for at_s, weight in seen}
    assert weights[2.0] == pytest.approx(14, abs=1)
    assert all(weights[round(at_s, 2)] <= 2.4 * weights[round(at_s - 0.4, 2)] + 1 for at_s in (1.5, 2.0, 2.5, 2.95))


def test_up_is_as_slow_when_turns_come_quickly() -> None:
    seen = climb(100, 4.0, 0.001, 0.05)
    assert 3.9 <= seen[-1][0] <= 4.1
    assert len({weight for _, weight in seen}) <= 23


def test_a_server_that_carries_its_share_already_comes_back_after_the_trickles_time() -> None:
    position = step(Position(0), 100, 100, 0.0, 3.0, 0.05, carries=True)
    assert position.weight == 2
    assert step(position, 100, 100, 0.9, 3.0, 0.05, carries=True).weight == 2
    assert step(position, 100, 100, 1.01, 3.0, 0.05, carries=True).weight == 100
    assert step(position, 100, 100, 1.01, 3.0, 0.05, carries=False).weight == 2


def test_a_long_hold_does_not_count_as_time_on_the_ramp() -> None:
    held = Position(0)
    for now_s in (1.0, 50.0, 99.0):
        held = step(held, 0, 100, now_s, 4.0, 0.05)
    assert step(held, 100, 100, 100.0, 4.0, 0.05).weight == 2


def test_a_fall_on_the_way_up_starts_the_ramp_anew() -> None:
    position = Position(0)
    for now_s in (0.0, 1.0, 2.0, 2.5):
        position = step(position, 100, 100, now_s, 3.0, 0.05)
    assert position.weight > 30
    position = step(position, 0, 100, 2.6, 3.0, 0.05)
    assert position.weight == 0
    position = step(position, 100, 100, 3.0, 3.0, 0.05)
    assert position.weight == 2
    assert step(position, 100, 100, 3.9, 3.0, 0.05).weight == 2


def test_who_starts_higher_has_a_shorter_way() -> None:
    seen = climb(100, 3.0, 0.05, 0.05, start=25)
    assert seen[0][1] == 25
    assert 0.65 <= seen[-1][0] <= 0.8


def test_small_changes_are_not_made_but_the_last_one_is() -> None:
    assert step(Position(40), 37, 100, 0.0, 4.0, 0.05).weight == 40
    assert step(Position(40), 44, 100, 0.0, 4.0, 0.05).weight == 40
    assert step(Position(3), 0, 100, 0.0, 4.0, 0.05).weight == 0
    near = step(Position(98), 100, 100, 0.0, 4.0, 0.05)
    assert step(near, 100, 100, 1.0, 4.0, 0.05).weight == 100


@given(st.integers(1, 256), st.floats(0.1, 60.0), st.floats(0.01, 5.0), st.floats(0.0, 1.0), st.data())
def test_the_baseline_is_reached_from_anywhere(
    baseline: int, ramp_s: float, every_s: float, min_change: float, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, baseline - 1))
    weights = [weight for _, weight in climb(baseline, ramp_s, max(every_s, ramp_s / 50), min_change, start)]
    assert weights == sorted(weights)
    assert weights[0] >= min(1, baseline)


@given(
    st.integers(1, 256), st.lists(st.tuples(st.integers(0, 256), st.floats(0.0, 2.0)), max_size=40), st.floats(0.0, 1.0)
)
def test_any_targets_keep_the_weight_in_bounds(
    baseline: int, targets: list[tuple[int, float]], min_change: float
) -> None:
    position, now_s = Position(baseline), 0.0
    for target, pause_s in targets:
        now_s += pause_s
        position = step(position, min(target, baseline), baseline, now_s, 4.0, min_change)
        assert 0 <= position.weight <= baseline


def settled(position: Position, target: int, now_s: float) -> tuple[int, Position]:
    """`settle`, and the step that follows it."""
    aim, position = settle(position, target, 100, now_s)
    after = moved(position, step(position, aim, 100, now_s, 3.0, 0.05), now_s)
    return aim, after


def test_wanting_more_must_last_for_the_dwell_without_a_break() -> None:
    position = Position(20)
    for now_s in (10.0, 10.5, 11.9):
        aim, position = settled(position, 60, now_s)
        assert aim == position.weight == 20
    aim, position = settled(position, 60, 12.0)
    assert aim == 60
    assert settled(position, 60, 12.4)[1].weight > 20


def test_wanting_more_begins_anew_after_a_break() -> None:
    _, position = settled(Position(20), 60, 10.0)
    assert position.wants_more_s == 10.0
    _, position = settled(position, 20, 11.0)
    assert position.wants_more_s is None
    assert settled(position, 60, 11.5)[0] == 20
    _, position = settled(position, 60, 11.5)
    assert settled(position, 60, 13.4)[0] == 20
    assert settled(position, 60, 13.5)[0] == 60


def test_what_is_wanted_may_change_meanwhile() -> None:
    _, position = settled(Position(20), 60, 10.0)
    assert settled(position, 45, 12.0)[0] == 45


def test_a_small_fall_waits_until_the_dwell_after_the_last_move() -> None:
    position = Position(60, moved_s=10.0)
    assert settle(position, 41, 100, 11.9)[0] == 60
    assert settle(position, 41, 100, 12.0)[0] == 41


def test_a_large_fall_waits_for_nothing() -> None:
    position = Position(60, moved_s=10.0, wants_more_s=9.0)
    aim, after = settle(position, 40, 100, 10.1)
    assert aim == 40
    assert after.wants_more_s is None


def test_the_first_fall_of_an_episode_waits_for_nothing_however_small() -> None:
    assert settle(Position(100), 90, 100, 10.0)[0] == 90


def test_only_a_move_starts_the_dwell_anew() -> None:
    stood = moved(Position(60, moved_s=10.0), Position(60), 11.0)
    assert stood.moved_s == 10.0
    fell = moved(Position(60, moved_s=10.0), Position(30), 11.0)
    assert fell.moved_s == 11.0


@given(
    st.lists(st.tuples(st.integers(0, 100), st.floats(0.05, 1.0)), min_size=1, max_size=60),
    st.integers(0, 100),
)
def test_within_the_dwell_a_weight_never_rises_and_falls_only_far(wanted: list[tuple[int, float]], start: int) -> None:
    position, now_s = Position(start), 0.0
    since_s: float | None = None
    for target, pause_s in wanted:
        now_s += pause_s
        was = position
        since_s = (now_s if since_s is None else since_s) if target > was.weight else None
        _, position = settled(was, target, now_s)
        if position.weight > was.weight:
            assert since_s is not None
            assert now_s - since_s >= DWELL_S
        if position.weight < was.weight and was.moved_s is not None and now_s - was.moved_s < DWELL_S:
            assert was.weight - position.weight >= 20
