"""The state machine: into a state by evidence that adds up, out when calm has lasted. Only requests are a test."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.classify.episodes import (
    CODES,
    LOUD_WEIGHT,
    MAX_DWELL_S,
    NO_REQUESTS_TIMEOUT_S,
    REOPENS_WITHIN_S,
    STATES,
    StateMachines,
)
from detector.classify.evidence import QUIET
from slackwater.messages import State
from tests.support.one_machine import EVIDENCE, FAINT, STRONG, THRESHOLD, WEAK, OneMachine, Status

PERIOD_S = 0.2
DWELL_S = 2.0


def machines(count: int) -> StateMachines:
    made = StateMachines(DWELL_S)
    made.resize(count)
    for slot in range(count):
        made.add_node(slot, 0.0, 1000.0)
    return made


class Run:
    """Steps a machine tick by tick."""

    def __init__(self) -> None:
        self.one = OneMachine(DWELL_S, 0.0, 1000.0)
        self.machines = self.one.machines
        self.now_s = 0.0

    @property
    def state(self) -> State:
        return self.one.state

    def step(
        self,
        seen: State,
        *,
        low_traffic: bool = False,
        residual: str = "",
        answered: bool = False,
        covers_s: float = PERIOD_S,
    ) -> Status:
        self.now_s += covers_s
        label_unix_s = 1000.0 + self.now_s
        return self.one.step(
            self.now_s,
            label_unix_s,
            seen,
            low_traffic=low_traffic,
            residual=residual,
            answered=answered,
        )

    def until(self, state: State, seen: State = "calm", limit_s: float = 120.0, *, low_traffic: bool = False) -> float:
        begin = self.now_s
        while self.state != state:
            assert self.now_s - begin < limit_s, f"still {self.state} after {limit_s} s"
            self.step(seen, low_traffic=low_traffic)
        return self.now_s - begin


def test_one_odd_tick_changes_nothing() -> None:
    run = Run()
    odd: list[State] = ["calm", "interference", "calm", "calm", "calm", "calm", "interference"]
    assert [run.step(seen).state for seen in odd] == ["calm"] * 7


def test_an_episode_begins_when_the_evidence_reaches_the_threshold() -> None:
    run = Run()
    run.step("interference")
    run.step("calm")
    status = run.step("interference")
    assert (status.state, status.began, status.episode) == ("interference", True, 1)
    ratios = EVIDENCE.ratios
    assert status.why == f"evidence {2 * ratios[STRONG] + ratios[0]:.1f} of 12.0 needed"
    assert status.since_unix_s == 1000.0 + run.now_s


def levels(run: Run, *ticks: int | None, weight: float = 1.0) -> list[State]:
    """States after ticks of interference of these levels; None is a calm tick."""
    found: list[State] = []
    for level in ticks:
        run.now_s += PERIOD_S
        seen: State = "calm" if level is None else "interference"
        status = run.one.step(run.now_s, 1000.0 + run.now_s, seen, level=level or 0, weight=weight)
        found.append(status.state)
    return found


def test_clearer_ticks_are_needed_less_often() -> None:
    assert levels(Run(), STRONG) == ["calm"]
    assert levels(Run(), WEAK, STRONG) == ["calm", "interference"]
    assert levels(Run(), WEAK, WEAK, WEAK) == ["calm", "calm", "interference"]
    assert levels(Run(), *[FAINT] * 3) == ["calm"] * 3
    assert levels(Run(), *[FAINT] * 5)[-1] == "interference"
    assert levels(Run(), WEAK, None, None, WEAK, None, WEAK)[-1] == "calm"


def test_a_tick_that_covers_less_time_says_less() -> None:
    assert levels(Run(), STRONG, STRONG, weight=0.25) == ["calm", "calm"]
    assert levels(Run(), *[STRONG] * 6, weight=0.25)[-1] == "interference"


def test_evidence_that_fades_is_forgotten() -> None:
    run = Run()
    assert levels(run, STRONG, *[None] * 10, WEAK, WEAK)[-1] == "calm"


def test_two_different_states_do_not_add_up() -> None:
    run = Run()
    different: list[State] = ["interference", "overload", "all_slow"]
    assert [run.step(seen).state for seen in different] == ["calm"] * 3


def test_an_episode_ends_after_the_dwell_and_not_before() -> None:
    run = Run()
    run.until("interference", "interference")
    took = run.until("calm")
    assert DWELL_S <= took <= DWELL_S + 2 * PERIOD_S


def test_a_loud_tick_takes_back_several_quiet_ones() -> None:
    run = Run()
    run.until("interference", "interference")
    for _ in range(8):
        run.step("calm")
    run.step("interference")
    left_s = DWELL_S - (8 - LOUD_WEIGHT) * PERIOD_S
    assert abs(run.until("calm") - left_s) < PERIOD_S / 2


def test_a_loud_tick_is_one_observation_and_a_quiet_one_all_that_it_covers() -> None:
    """A glitch on a drained server whose Samples are a second apart, since nothing happens there."""
    seldom, often = Run(), Run()
    for run in (seldom, often):
        run.until("interference", "interference")
        run.step("calm", low_traffic=True, residual="a glitch", covers_s=1.0)
    one = seldom.step("calm", low_traffic=True, covers_s=1.0)
    five = [often.step("calm", low_traffic=True) for _ in range(5)][-1]
    assert one.why == five.why == "held: looks calm for 1.0 of 2.0 s"
    assert one.probability == pytest.approx(five.probability, rel=0.1)
    seldom.step("calm", low_traffic=True, residual="a glitch", covers_s=1.0)
    left_s = DWELL_S - (1.0 - LOUD_WEIGHT * PERIOD_S)
    assert abs(seldom.until("calm", low_traffic=True) - left_s) < PERIOD_S


@pytest.mark.parametrize("low_traffic", [True, False])
def test_an_episode_ends_within_ten_seconds_though_one_tick_in_five_is_loud(low_traffic: bool) -> None:
    took_s = []
    for seed in range(100):
        run, dice = Run(), random.Random(seed)
        run.until("interference", "interference")
        begin_s = run.now_s
        while run.state != "calm":
            loud = dice.random() < 0.2
            run.step("interference" if loud else "calm", low_traffic=low_traffic, residual="a glitch" if loud else "")
        took_s.append(run.now_s - begin_s)
    assert np.median(took_s) <= 6.0
    assert np.quantile(took_s, 0.9) <= 10.0, "glitches come in a row now and then, not often"


@pytest.mark.parametrize("share", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_neighbour_that_shows_in_half_of_the_ticks_holds_the_episode(seed: int, share: float) -> None:
    """Without requests, until it is time for a trial."""
    run, dice = Run(), random.Random(seed)
    run.until("interference", "interference")
    quiet = 0
    while run.now_s < NO_REQUESTS_TIMEOUT_S:
        loud = dice.random() < share
        quiet += run.step("calm", low_traffic=True, residual="the canary's wait" if loud else "").state == "calm"
        if run.state == "calm":
            run.step("interference", answered=True)
            run.step("interference", answered=True)
    assert quiet <= 4, "it came back too early now and then, and its first requests showed the neighbour"


def test_what_shows_without_requests_is_reported() -> None:
    run = Run()
    run.until("interference", "interference")
    shows = "canary wall/CPU ratio 9 is 9x its calm baseline"
    assert run.step("calm", low_traffic=True, residual=shows).why == f"held: {shows}"
    assert run.step("calm", low_traffic=True).why == "held: looks calm for 0.2 of 2.0 s"


def test_what_idle_processes_do_is_no_sign_where_there_are_no_requests() -> None:
    run = Run()
    run.until("interference", "interference")
    run.step("interference", low_traffic=True)
    assert run.until("calm", "interference", low_traffic=True) <= DWELL_S + PERIOD_S


def test_without_requests_an_episode_ends_for_a_trial_whatever_shows() -> None:
    run = Run()
    run.until("interference", "interference")
    run.step("interference")
    begin_s = run.now_s
    while (status := run.step("interference", low_traffic=True, residual="late")).state != "calm":
        assert run.now_s - begin_s <= 60.0
    assert status.why == "episode 1 ended: 55 s without requests, and only requests can tell"
    for _ in range(100):
        assert run.step("interference", low_traffic=True, residual="late").state == "calm", (
            "nothing was asked of it yet"
        )
    assert run.step("interference", low_traffic=True, answered=True).state == "calm"
    assert run.step("interference", low_traffic=True, answered=True).state == "interference"


def test_after_an_end_without_requests_only_requests_begin_another() -> None:
    run = Run()
    run.until("interference", "interference")
    run.until("calm", low_traffic=True)
    for _ in range(20):
        assert run.step("interference", low_traffic=True).state == "calm"
    run.step("interference")
    assert run.step("interference").state == "interference"


def test_the_dwell_doubles_when_an_episode_reopens_soon_up_to_a_bound_and_resets_when_not() -> None:
    run = Run()
    took = []
    for _ in range(7):
        run.until("interference", "interference")
        took.append(run.until("calm"))
    assert took[1] >= 2 * DWELL_S - PERIOD_S / 2
    assert took[2] >= 4 * DWELL_S - PERIOD_S / 2
    assert took[2] <= MAX_DWELL_S + PERIOD_S
    assert abs(took[-1] - MAX_DWELL_S) <= PERIOD_S
    run.now_s += REOPENS_WITHIN_S + 1.0
    run.until("interference", "interference")
    assert run.until("calm") <= DWELL_S + 1.0


def test_a_state_may_turn_into_another_without_calm_between() -> None:
    run = Run()
    run.until("interference", "interference")
    run.until("all_slow", "all_slow")
    assert run.machines.episode[0] == 1, "it is still the same episode"


def test_longer_waits_are_for_interference_alone() -> None:
    run = Run()
    for _ in range(4):
        run.until("interference", "interference")
        run.until("calm")
    run.until("interference", "interference")
    run.until("all_slow", "all_slow")
    assert run.until("calm") <= DWELL_S + 1.0


def test_a_silent_node_is_unknown_and_comes_back_calm() -> None:
    run = Run()
    run.until("interference", "interference")
    assert run.machines.mark_unknown(0, run.now_s + 1, 2000.0)
    assert (run.state, run.machines.since_unix_s[0]) == ("unknown", 2000.0)
    assert not run.machines.mark_unknown(0, run.now_s + 2, 2001.0), "that is not new any more"
    assert run.machines.since_unix_s[0] == 2000.0
    assert run.step("calm").state == "calm"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from(STATES[:4])] * 3, st.booleans(), st.booleans()), max_size=60))
def test_nodes_stepped_together_go_the_way_that_each_would_go_alone(
    ticks: list[tuple[State, State, State, bool, bool]],
) -> None:
    together, alone = machines(3), [OneMachine(DWELL_S, 0.0, 1000.0) for _ in range(3)]
    nobody = np.zeros(3, dtype=bool)
    for number, (*seen, low_traffic, shows) in enumerate(ticks):
        now_s = number * 0.7
        steps = together.step(
            np.arange(3),
            now_s,
            np.full(3, 1000.0 + now_s),
            np.array([CODES[state] for state in seen]),
            says=np.array([EVIDENCE.ratios[QUIET if state == "calm" else STRONG] for state in seen]),
            quiet=np.full(3, EVIDENCE.ratios[QUIET]),
            threshold=np.full(3, THRESHOLD),
            low_traffic=nobody | low_traffic,
            residual=nobody | shows,
        )
        for slot, state in enumerate(seen):
            one = alone[slot].step(now_s, 1000.0 + now_s, state, low_traffic=low_traffic, residual="x" if shows else "")
            assert (STATES[steps.state[slot]], steps.episode[slot]) == (one.state, one.episode)
            assert steps.describe(slot, lambda _: "x") == one.why
