"""Within an episode a weight moves only for reasons that last; where nothing shows calm it is tried with requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbengine.decision.position import (
    DWELL_S,
    MOST_TRIALS,
    TRIAL_AFTER_S,
    TRIAL_S,
    Position,
    moved,
    settle,
    tried,
)


def settled(position: Position, target: int, now_s: float, min_change: float = 0.05) -> Position:
    return settle(position, target, 100, now_s, min_change)


def test_the_first_fall_of_an_episode_waits_for_nothing_however_small() -> None:
    assert settled(Position(100), 90, 10.0) == Position(90, moved_s=10.0)


def test_a_large_fall_waits_for_nothing() -> None:
    after = settled(Position(60, moved_s=10.0, wants_more_s=9.0), 40, 10.1)
    assert after == Position(40, moved_s=10.1)


def test_a_small_fall_waits_until_the_dwell_after_the_last_move() -> None:
    position = Position(60, moved_s=10.0)
    assert settled(position, 41, 11.9).weight == 60
    assert settled(position, 41, 12.0).weight == 41


def test_wanting_more_must_last_for_the_dwell_without_a_break() -> None:
    position = Position(20)
    for now_s in (10.0, 10.5, 11.9):
        position = settled(position, 60, now_s)
        assert position.weight == 20
    assert settled(position, 60, 12.0).weight == 60


def test_wanting_more_begins_anew_after_a_break() -> None:
    position = settled(Position(20), 60, 10.0)
    assert position.wants_more_s == 10.0
    position = settled(position, 20, 11.0)
    assert position.wants_more_s is None
    position = settled(position, 60, 11.5)
    assert settled(position, 60, 13.4).weight == 20
    assert settled(position, 60, 13.5).weight == 60


def test_what_is_wanted_may_change_meanwhile() -> None:
    assert settled(settled(Position(20), 60, 10.0), 45, 12.0).weight == 45


def test_small_changes_are_not_made_unless_they_end_at_0_or_at_the_baseline() -> None:
    assert settled(Position(40), 37, 0.0).weight == 40
    assert settled(settled(Position(40), 44, 0.0), 44, 9.0).weight == 40
    assert settled(Position(3), 0, 0.0).weight == 0
    assert settled(settled(Position(98), 100, 0.0), 100, 9.0).weight == 100


def test_only_a_move_starts_the_dwell_anew() -> None:
    assert moved(Position(60, moved_s=10.0), 60, 11.0).moved_s == 10.0
    assert moved(Position(60, moved_s=10.0), 30, 11.0).moved_s == 11.0


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
        position = settled(was, target, now_s)
        assert 0 <= position.weight <= 100
        if position.weight > was.weight:
            assert since_s is not None
            assert now_s - since_s >= DWELL_S
        if position.weight < was.weight and was.moved_s is not None and now_s - was.moved_s < DWELL_S:
            assert was.weight - position.weight >= 20


# --- Trials


def test_a_server_is_tried_with_its_baseline_weight_after_a_time_in_which_nothing_would_show_calm() -> None:
    position = Position(0, moved_s=1.0)
    for now_s in (10.0, 12.0, 10.0 + TRIAL_AFTER_S - 0.1):
        position = tried(position, 100, now_s, blind=True)
        assert (position.weight, position.blind_s, position.trials) == (0, 10.0, 0)
        assert not position.is_tried(now_s)
    begin_s = 10.0 + TRIAL_AFTER_S
    position = tried(position, 100, begin_s, blind=True)
    assert (position.weight, position.trials) == (100, 1)
    assert position.is_tried(begin_s)
    assert position.is_tried(begin_s + TRIAL_S - 0.1)
    assert not position.is_tried(begin_s + TRIAL_S)


def test_where_something_would_show_calm_nothing_is_tried() -> None:
    position = Position(0)
    for tenth in range(600):
        position = tried(position, 100, tenth / 10.0, blind=False)
    assert position == Position(0)


def test_the_time_until_a_trial_begins_anew_when_something_showed_in_between() -> None:
    position = tried(Position(0), 100, 10.0, blind=True)
    position = tried(position, 100, 13.0, blind=False)
    position = tried(position, 100, 14.0, blind=True)
    assert tried(position, 100, 14.0 + TRIAL_AFTER_S - 0.1, blind=True).weight == 0
    assert tried(position, 100, 14.0 + TRIAL_AFTER_S, blind=True).weight == 100


def test_who_stands_at_its_baseline_is_not_tried() -> None:
    position = Position(100)
    for second in range(60):
        position = tried(position, 100, float(second), blind=True)
    assert position == Position(100)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.05, 2.0)), max_size=200))
def test_a_weight_falls_no_more_often_than_it_may_be_tried(turns: list[tuple[bool, float]]) -> None:
    """After the last trial it keeps its baseline weight until the episode is over, whatever is wanted."""
    position, now_s, falls = Position(100), 0.0, 0
    for blind, pause_s in turns:
        now_s += pause_s
        position = tried(position, 100, now_s, blind)
        if not position.is_tried(now_s):
            before = position.weight
            position = settled(position, 0, now_s)
            falls += position.weight < before
        assert falls <= MOST_TRIALS
        assert position.trials <= MOST_TRIALS
