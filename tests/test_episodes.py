"""The state machine: into a state with 2 of the last 3 ticks, out after a calm dwell that grows with repetition."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from one_machine import OneMachine, Status

from detector.episodes import CODES, ENOUGH, MAX_DWELL_S, REOPENS_WITHIN_S, STATES, STRONG, WEAK, StateMachines
from slackwater.messages import State

PERIOD_S = 0.2
DWELL_S = 2.0


def machines(count: int) -> StateMachines:
    made = StateMachines(DWELL_S)
    made.resize(count)
    for slot in range(count):
        made.welcome(slot, 0.0, 1000.0)
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

    def step(self, seen: State, *, wary: bool = False, thin: bool = False, residual: str = "") -> Status:
        self.now_s += PERIOD_S
        return self.one.step(self.now_s, 1000.0 + self.now_s, seen, wary=wary, thin=thin, residual=residual)

    def until(self, state: State, seen: State = "calm", limit_s: float = 120.0, *, thin: bool = False) -> float:
        begin = self.now_s
        while self.state != state:
            assert self.now_s - begin < limit_s, f"still {self.state} after {limit_s} s"
            self.step(seen, thin=thin)
        return self.now_s - begin


def test_one_odd_tick_changes_nothing() -> None:
    run = Run()
    odd: list[State] = ["calm", "interference", "calm", "calm", "interference"]
    assert [run.step(seen).state for seen in odd] == ["calm"] * 5


def test_two_of_the_last_three_ticks_begin_an_episode() -> None:
    run = Run()
    run.step("interference")
    run.step("calm")
    status = run.step("interference")
    assert (status.state, status.began, status.episode) == ("interference", True, 1)
    assert status.said == "2 of the last 3 ticks"
    assert status.since_unix_s == 1000.0 + run.now_s


def weakly(run: Run, *ticks: int | None) -> list[State]:
    """States after ticks of interference of these strengths; None is a calm tick."""
    found: list[State] = []
    for strength in ticks:
        one = run.one
        run.now_s += PERIOD_S
        seen: State = "calm" if strength is None else "interference"
        found.append(
            one.step(run.now_s, 1000.0 + run.now_s, seen, strength=WEAK if strength is None else strength).state
        )
    return found


def test_weak_ticks_are_needed_three_times_of_four_unless_one_is_strong_or_enough() -> None:
    assert weakly(Run(), WEAK, WEAK, None, None, WEAK, None, WEAK)[-1] == "calm"
    assert weakly(Run(), WEAK, None, WEAK, WEAK) == ["calm"] * 3 + ["interference"]
    assert weakly(Run(), WEAK, STRONG) == ["calm", "interference"]
    assert weakly(Run(), STRONG, None, WEAK) == ["calm", "calm", "interference"]
    assert weakly(Run(), STRONG, None, None, WEAK)[-1] == "calm"
    assert weakly(Run(), ENOUGH) == ["interference"]


def test_three_weak_ticks_of_four_are_told_so() -> None:
    run = Run()
    weakly(run, WEAK, None, WEAK)
    run.now_s += PERIOD_S
    assert run.one.step(run.now_s, 1000.0, "interference", strength=WEAK).said == "3 of the last 4 ticks"


def test_a_node_without_a_baseline_needs_three_of_three() -> None:
    run = Run()
    said = [run.step("interference", wary=True).state for _ in range(3)]
    assert said == ["calm", "calm", "interference"]


def test_two_different_states_do_not_add_up() -> None:
    run = Run()
    different: list[State] = ["interference", "overload", "all_slow"]
    assert [run.step(seen).state for seen in different] == ["calm"] * 3


def test_an_episode_ends_after_the_dwell_and_not_before() -> None:
    run = Run()
    run.until("interference", "interference")
    took = run.until("calm")
    assert DWELL_S <= took <= DWELL_S + 2 * PERIOD_S


def test_any_bad_tick_starts_the_dwell_again() -> None:
    run = Run()
    run.until("interference", "interference")
    for _ in range(8):
        run.step("calm")
    run.step("interference")
    assert run.until("calm") >= DWELL_S


def test_the_episode_of_a_server_without_requests_is_held_while_something_still_shows_now_and_then() -> None:
    run = Run()
    run.until("interference", "interference")
    said = []
    for tick in range(200):
        shows = "canary wall/CPU ratio 9 is 9x its calm baseline" if tick % 4 == 0 else ""
        status = run.step("calm", thin=True, residual=shows)
        said.append(status.said)
    assert status.state == "interference"
    assert "held: canary wall/CPU ratio 9 is 9x its calm baseline" in said
    assert run.until("calm", thin=True) <= 2 * DWELL_S + 1.0


def test_a_rare_sign_does_not_hold_it_and_none_does_when_there_are_requests() -> None:
    run = Run()
    run.until("interference", "interference")
    for tick in range(200):
        status = run.step("calm", thin=True, residual="a glitch" if tick % 15 == 0 else "")
    assert status.state == "calm"
    run.until("interference", "interference")
    for _ in range(50):
        status = run.step("calm", residual="a glitch")
    assert status.state == "calm"


def test_a_server_without_requests_must_look_calm_for_longer() -> None:
    run = Run()
    run.until("interference", "interference")
    assert run.until("calm", thin=True) >= 2 * DWELL_S


def test_the_dwell_doubles_when_an_episode_reopens_soon_up_to_a_bound_and_resets_when_not() -> None:
    run = Run()
    took = []
    for _ in range(7):
        run.until("interference", "interference")
        took.append(run.until("calm"))
    assert took[1] >= 2 * DWELL_S
    assert took[2] >= 4 * DWELL_S
    assert MAX_DWELL_S <= took[-1] <= MAX_DWELL_S + 1.0
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
    assert run.machines.lost(0, run.now_s + 1, 2000.0)
    assert (run.state, run.machines.since_unix_s[0]) == ("unknown", 2000.0)
    assert not run.machines.lost(0, run.now_s + 2, 2001.0), "that is not new any more"
    assert run.machines.since_unix_s[0] == 2000.0
    assert run.step("calm").state == "calm"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from(STATES[:4])] * 3, st.booleans(), st.booleans()), max_size=60))
def test_nodes_stepped_together_go_the_way_that_each_would_go_alone(
    ticks: list[tuple[State, State, State, bool, bool]],
) -> None:
    together, alone = machines(3), [OneMachine(DWELL_S, 0.0, 1000.0) for _ in range(3)]
    nobody = np.zeros(3, dtype=bool)
    for number, (*seen, thin, shows) in enumerate(ticks):
        now_s = number * 0.7
        steps = together.step(
            np.arange(3),
            now_s,
            np.full(3, 1000.0 + now_s),
            np.array([CODES[state] for state in seen]),
            wary=nobody,
            thin=nobody | thin,
            residual=nobody | shows,
        )
        for slot, state in enumerate(seen):
            one = alone[slot].step(now_s, 1000.0 + now_s, state, thin=thin, residual="x" if shows else "")
            assert (STATES[steps.state[slot]], steps.episode[slot]) == (one.state, one.episode)
            assert steps.said(slot, lambda _: "x") == one.said
