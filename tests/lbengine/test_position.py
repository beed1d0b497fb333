"""Within an episode a weight moves only for reasons that last; where nothing shows calm it is tried with requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slackwater.lbengine.decision.position import (
    DWELL_S,
    MOST_TRIALS,
    TRIAL_AFTER_S,
    TRIAL_S,
    WATCH_AFTER_S,
    Position,
    given_back,
    moved,
    settle,
    tried,
    watched,
)


def settled(position: Position, target: int, now_s: float, min_change: float = 0.05) -> Position:
    return settle(position, target, 100, now_s, min_change)


def test_the_first_fall_of_an_episode_waits_for_nothing_however_small() -> None:
    assert settled(Position(100), 90, 10.0) == Position(90, moved_s=10.0)


def test_a_large_fall_waits_for_nothing() -> None:
    after = settled(Position(60, moved_s=10.0), 40, 10.1)
    assert after == Position(40, moved_s=10.1)


def test_a_small_fall_waits_until_the_dwell_after_the_last_move() -> None:
    position = Position(60, moved_s=10.0)
    assert settled(position, 41, 11.9).weight == 60
    assert settled(position, 41, 12.0).weight == 41


def test_within_an_episode_a_weight_never_rises_whatever_the_law_wants() -> None:
    """What is believed of a drained server is of before it was drained."""
    position = Position(20, moved_s=1.0)
    for second in range(10, 70):
        assert settled(position, 60, float(second)) == position


def test_small_falls_are_not_made_unless_they_end_at_0() -> None:
    assert settled(Position(40), 37, 0.0).weight == 40
    assert settled(Position(3), 0, 0.0).weight == 0


def test_only_a_move_starts_the_dwell_anew() -> None:
    assert moved(Position(60, moved_s=10.0), 60, 11.0).moved_s == 10.0
    assert moved(Position(60, moved_s=10.0), 30, 11.0).moved_s == 11.0


@given(
    st.lists(st.tuples(st.integers(0, 100), st.floats(0.05, 1.0)), min_size=1, max_size=60),
    st.integers(0, 100),
    st.integers(0, 20),
)
def test_any_targets_only_lower_a_weight_and_within_the_dwell_only_far(
    wanted: list[tuple[int, float]], start: int, least: int
) -> None:
    position, now_s = Position(max(start, least), least=least), 0.0
    for target, pause_s in wanted:
        now_s += pause_s
        was, position = position, settled(position, target, now_s)
        assert least <= position.weight <= was.weight
        if position.weight < was.weight and was.moved_s is not None and now_s - was.moved_s < DWELL_S:
            assert was.weight - position.weight >= 20


# --- Requests that show the neighbour


def blind(position: Position, now_s: float) -> Position:
    """A turn in which nothing would show that its neighbour is gone."""
    return watched(tried(position, 100, now_s, blind=True), 7, now_s)


def test_a_server_of_which_nothing_shows_calm_gets_some_requests_after_a_while_and_keeps_them() -> None:
    position = blind(Position(0), 10.0)
    assert blind(position, 10.0 + WATCH_AFTER_S - 0.1).weight == 0
    position = blind(position, 10.0 + WATCH_AFTER_S)
    assert (position.weight, position.least) == (7, 7)
    assert settled(position, 0, 20.0).weight == 7


def test_who_has_more_than_it_takes_to_be_watched_keeps_what_it_has() -> None:
    position = blind(Position(30), 10.0)
    position = blind(position, 10.0 + WATCH_AFTER_S)
    assert (position.weight, position.least) == (30, 7)
    assert settled(position, 0, 20.0).weight == 7


def test_a_moment_in_which_nothing_would_show_calm_is_no_reason() -> None:
    position = Position(0)
    for tenth in range(300):
        position = blind(position, tenth / 10.0) if tenth % 10 else tried(position, 100, tenth / 10.0, blind=False)
    assert position.weight == 0


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


def test_what_was_given_back_for_want_of_room_is_not_taken_again_in_the_same_episode() -> None:
    """Else the law, which sees room with the server's load, and the headroom, which sees none without, take turns."""
    position = given_back(Position(0, moved_s=90.0), 100, 100.0)
    assert (position.weight, position.least) == (100, 100)
    for number in range(100):
        position = settle(position, 0, 100, 100.0 + number / 5.0, 0.05)
    assert position.weight == 100
