"""Within an episode a weight moves only for reasons that last; where nothing shows calm it is tried with requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.lbengine.decision.position import (
    COST_SHARE,
    DECIDE_S,
    DOUBT,
    DWELL_S,
    LOOKS_S,
    MOST_APART_S,
    SILENT_S,
    Position,
    Requests,
    Stage,
    Trial,
    given_back,
    moved,
    settle,
    silent,
    tried,
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


# --- Trials

FEW, FEW_S, OTHERS, AFTER_S = 10, 1.0, 200, 1.0


def turn(
    position: Position,
    now_s: float,
    probability: float = 0.9,
    *,
    answered: bool = True,
    blind: bool = True,
    after_s: float = AFTER_S,
) -> Position:
    requests = Requests(probability, answered, FEW, FEW_S, OTHERS)
    return tried(position, 100, requests, now_s, blind=blind, after_s=after_s)


def in_trial(stage: Stage, since_s: float, weight: int, probability: float = 0.9) -> Position:
    return Position(weight, trial=Trial(stage, since_s, 0, probability))


def test_a_server_is_tried_with_few_requests_after_a_time_in_which_nothing_would_show_calm() -> None:
    position = Position(0, moved_s=1.0)
    for now_s in (10.0, 10.5, 10.0 + AFTER_S - 0.1):
        position = turn(position, now_s)
        assert (position.weight, position.blind_s, position.trial) == (0, 10.0, None)
    position = turn(position, 10.0 + AFTER_S)
    assert (position.weight, position.is_tried) == (FEW, True)
    assert turn(position, 10.0 + AFTER_S + FEW_S - 0.1).weight == FEW


def test_where_something_would_show_calm_nothing_is_tried() -> None:
    position = Position(0)
    for tenth in range(600):
        position = turn(position, tenth / 10.0, blind=False)
    assert position == Position(0)


def test_the_time_until_a_trial_begins_anew_when_something_showed_in_between() -> None:
    position = turn(Position(0), 10.0)
    position = turn(position, 10.8, blind=False)
    position = turn(position, 12.0)
    assert turn(position, 12.0 + AFTER_S - 0.1).weight == 0
    assert turn(position, 12.0 + AFTER_S).weight == FEW


def test_who_stands_at_its_baseline_is_not_tried() -> None:
    position = Position(100)
    for second in range(60):
        position = turn(position, float(second))
    assert position == Position(100)


def test_a_trial_ends_at_once_when_its_first_requests_are_slow() -> None:
    few = in_trial("few", 10.0, FEW)
    assert turn(few, 10.2, 0.9).weight == FEW, "as likely as before: nothing was answered yet"
    after = turn(few, 10.2, 0.95)
    assert (after.weight, after.is_tried) == (0, False)


def test_few_requests_that_are_fast_bring_the_baseline_weight_and_more_of_them_decide() -> None:
    few = in_trial("few", 10.0, FEW)
    assert turn(few, 10.2, 0.1).weight == FEW, "a single look may be chance"
    position = turn(few, 10.0 + LOOKS_S, 0.2)
    assert (position.weight, position.is_tried) == (100, True)
    for now_s, probability in ((11.0, 0.0), (12.0, 0.5), (20.0, 0.7)):
        assert turn(position, now_s, probability).weight == 100, "in doubt"
    after = turn(position, 12.0, 0.8)
    assert (after.weight, after.is_tried) == (0, False)


def test_a_server_is_fast_after_an_answer_in_the_trial_also_where_the_last_look_had_none() -> None:
    few = turn(in_trial("few", 10.0, FEW), 10.2, 0.3)
    assert turn(few, 10.6, 0.2, answered=False).weight == 100
    none = turn(in_trial("few", 10.0, FEW), 10.2, 0.3, answered=False)
    none = turn(none, 10.0 + FEW_S, 0.2, answered=False)
    none = turn(none, 10.0 + FEW_S + DECIDE_S, 0.2, answered=False)
    assert (none.weight, none.is_tried) == (0, False)


def test_few_requests_that_leave_a_doubt_are_waited_for_without_more() -> None:
    judged = turn(in_trial("few", 10.0, FEW), 10.0 + FEW_S, 0.5)
    assert (judged.weight, judged.is_tried) == (0, True)
    assert turn(judged, 11.2, 0.2).weight == 100
    after = turn(judged, 10.0 + FEW_S + DECIDE_S, 0.5)
    assert (after.weight, after.is_tried) == (0, False)
    assert after.blind_s == 10.0 + FEW_S, "the time to the next one began with the last request"


def seconds_until_the_next(after: Position, after_s: float = AFTER_S) -> float:
    """From the end of a trial to the next one."""
    for tenth in range(1000):
        after = turn(after, tenth / 10.0, after_s=after_s)
        if after.is_tried:
            return tenth / 10.0
    raise AssertionError


def test_the_more_requests_a_trial_took_the_longer_the_next_one_waits() -> None:
    few = turn(in_trial("few", 10.0, FEW), 10.2, 0.99)
    every = turn(in_trial("all", 10.0, 100, 0.1), 10.4, 0.9)
    assert seconds_until_the_next(few) == pytest.approx(AFTER_S)
    assert seconds_until_the_next(every) == pytest.approx(0.4 * (100 / 300) / COST_SHARE, abs=0.1)
    assert seconds_until_the_next(few, after_s=4.0) == pytest.approx(4.0)
    assert seconds_until_the_next(few, after_s=1e6) == MOST_APART_S


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans(), st.booleans(), st.floats(0.05, 2.0)), max_size=200))
def test_a_server_gets_its_baseline_weight_only_while_its_requests_are_fast_and_never_by_time_alone(
    turns: list[tuple[float, bool, bool, float]],
) -> None:
    position, now_s, has_answered = Position(0), 0.0, False
    for probability, answered, blind, pause_s in turns:
        now_s += pause_s
        before, position = position, turn(position, now_s, probability, answered=answered, blind=blind)
        has_answered = before.is_tried and (has_answered or answered)
        if position.weight == 100 > before.weight:
            assert has_answered
            assert probability <= DOUBT
        if position.weight == 100:
            assert position.trial is not None
            assert position.trial.stage == "all"


def test_a_neighbour_that_few_requests_do_not_show_costs_a_small_share_of_the_requests() -> None:
    """Fast in each trial's few requests, slow as soon as it has its baseline weight."""
    position, taken_s, now_s = Position(0), 0.0, 0.0
    for _ in range(3000):
        now_s += 0.2
        at_baseline = position.weight == 100
        since_s = position.trial.since_s if position.trial else 0.0
        position = turn(position, now_s, 0.9 if at_baseline and now_s - since_s > 0.5 else 0.1)
        taken_s += 0.2 * position.weight / (position.weight + OTHERS)
    assert taken_s <= 1.1 * COST_SHARE * now_s
    assert position.weight < 100 or position.is_tried


def test_a_server_of_which_nothing_is_heard_keeps_its_lower_weight_for_some_seconds() -> None:
    for position in (Position(0, moved_s=1.0), Position(0, moved_s=1.0, blind_s=1.0)):
        for now_s in (10.0, 12.0, 10.0 + SILENT_S - 0.1):
            position = silent(position, 100, now_s)
            assert position.weight == 0
        assert silent(position, 100, 10.0 + SILENT_S) == Position(100)


def test_what_was_given_back_for_want_of_room_is_not_taken_again_in_the_same_episode() -> None:
    """Else the law, which sees room with the server's load, and the headroom, which sees none without, take turns."""
    position = given_back(Position(0, moved_s=90.0), 100, 100.0)
    assert (position.weight, position.least) == (100, 100)
    for number in range(100):
        position = settle(position, 0, 100, 100.0 + number / 5.0, 0.05)
    assert position.weight == 100
