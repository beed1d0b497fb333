"""The state machine: into a state by evidence that adds up, out when calm is proven by what showed this neighbour."""

from __future__ import annotations

import math
import random
import re
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.core.messages import State
from slackwater.detector.classify.episodes import (
    CODES,
    MOST_CAUTION,
    MOST_DWELL_S,
    NO_REQUESTS_TIMEOUT_S,
    REOPENS_WITHIN_S,
    SIGNS,
    STATES,
    StateMachines,
)
from slackwater.detector.classify.evidence import QUIET
from slackwater.detector.classify.proof import MOST_PROOF_S, CalmProof
from slackwater.detector.explain import episode_reason, proof_numbers
from slackwater.detector.features.columns import Bools, Floats, Ints
from tests.support.one_machine import (
    ANSWERED,
    ANSWERED_SLOWLY,
    EVIDENCE,
    FAINT,
    LOUD,
    NOTHING,
    QUIET_SIGNAL,
    SIGNAL,
    STRONG,
    THRESHOLD,
    WEAK,
    OneMachine,
    Shows,
    Status,
    signs,
)

PERIOD_S = 0.2
DWELL_S = 2.0
SHOWN = [NOTHING, LOUD, QUIET_SIGNAL, ANSWERED, ANSWERED_SLOWLY, Shows(moments=4), Shows(moments=4, waited=3)]


def machines(count: int) -> StateMachines:
    made = StateMachines(DWELL_S, (SIGNAL,))
    made.resize(count)
    for slot in range(count):
        made.add_node(slot, 0.0, 1000.0)
    return made


class Run:
    """Steps a machine tick by tick."""

    def __init__(self, calm_dwell_s: float = DWELL_S) -> None:
        self.single = OneMachine(calm_dwell_s, 0.0, 1000.0)
        self.machines = self.single.machines
        self.now_s = 0.0

    @property
    def state(self) -> State:
        return self.single.state

    def step(
        self,
        seen: State,
        *,
        low_traffic: bool = False,
        shows: Shows | None = None,
        covers_s: float = PERIOD_S,
    ) -> Status:
        self.now_s += covers_s
        return self.single.step(self.now_s, 1000.0 + self.now_s, seen, low_traffic=low_traffic, shows=shows)

    def until(
        self,
        state: State,
        seen: State = "calm",
        limit_s: float = 120.0,
        *,
        low_traffic: bool = False,
        shows: Shows | None = None,
    ) -> float:
        begin = self.now_s
        while self.state != state:
            assert self.now_s - begin < limit_s, f"still {self.state} after {limit_s} s"
            self.step(seen, low_traffic=low_traffic, shows=shows)
        return self.now_s - begin

    def drained(self, seconds: float = 5.0, shows: Shows = LOUD) -> None:
        """Into an episode, and then without requests beside a neighbour that shows like this."""
        self.until("interference", "interference")
        for _ in range(round(seconds / PERIOD_S)):
            self.step("calm", low_traffic=True, shows=shows)


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
    assert status.why == (
        f"an episode begins: the evidence for a neighbour is {2 * ratios[STRONG] + ratios[0]:.1f}, and 12.0 is enough"
    )
    assert status.since_unix_s == 1000.0 + run.now_s


def levels(run: Run, *ticks: int | None, weight: float = 1.0) -> list[State]:
    """States after ticks of interference of these levels; None is a calm tick."""
    states: list[State] = []
    for level in ticks:
        run.now_s += PERIOD_S
        seen: State = "calm" if level is None else "interference"
        status = run.single.step(run.now_s, 1000.0 + run.now_s, seen, level=level or 0, weight=weight)
        states.append(status.state)
    return states


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
    undisturbed, disturbed = Run(), Run()
    for run in (undisturbed, disturbed):
        run.until("interference", "interference")
        for _ in range(8):
            run.step("calm")
    disturbed.step("interference")
    assert disturbed.until("calm") > undisturbed.until("calm") + 2 * PERIOD_S


def test_a_loud_tick_is_one_observation_and_a_quiet_one_all_that_it_covers() -> None:
    """A drained server whose Samples are a second apart, since nothing happens there."""
    seldom, often = Run(), Run()
    for run in (seldom, often):
        run.drained()
    seldom_status = seldom.step("calm", low_traffic=True, shows=QUIET_SIGNAL, covers_s=1.0)
    five = [often.step("calm", low_traffic=True, shows=QUIET_SIGNAL) for _ in range(5)][-1]
    assert seldom_status.why == five.why
    assert seldom_status.why.startswith("it looks quiet, but not yet for long enough to be sure; calm is ")


@pytest.mark.parametrize("low_traffic", [True, False])
def test_an_episode_ends_within_ten_seconds_though_one_tick_in_five_is_loud(low_traffic: bool) -> None:
    took_s = []
    for seed in range(100):
        run, dice = Run(), random.Random(seed)
        run.until("interference", "interference")
        for _ in range(25):
            run.step("interference", low_traffic=low_traffic, shows=LOUD if low_traffic else ANSWERED_SLOWLY)
        begin_s = run.now_s
        while run.state != "calm":
            loud = dice.random() < 0.2
            without = LOUD if loud else QUIET_SIGNAL
            run.step(
                "interference" if loud else "calm", low_traffic=low_traffic, shows=without if low_traffic else None
            )
        took_s.append(run.now_s - begin_s)
    assert np.median(took_s) <= 6.0
    assert np.quantile(took_s, 0.9) <= 10.0, "glitches come in a row now and then, not often"


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 1.0])
def test_a_drained_servers_episode_lasts_as_long_as_its_neighbour(share: float) -> None:
    """Two minutes of a signal that shows in a share of the ticks."""
    early = 0
    for seed in range(20):
        run, dice = Run(), random.Random(seed)
        run.until("interference", "interference")
        for _ in range(round(120.0 / PERIOD_S)):
            run.step("calm", low_traffic=True, shows=LOUD if dice.random() < share else QUIET_SIGNAL)
        early += run.state == "calm"
    assert early <= 1, "of 20"


def test_how_far_calm_is_proven_is_told_and_by_what() -> None:
    run = Run()
    run.drained()
    status = run.step("calm", low_traffic=True, shows=QUIET_SIGNAL)
    assert re.fullmatch(
        rf"it looks quiet, but not yet for long enough to be sure; calm is \d+% proven: by the share of {SIGNAL}"
        r" \(\d+% in this episode, \d+% in calm\)",
        status.why,
    )
    assert 0.0 < status.calm_shows_within_s <= MOST_PROOF_S


def test_what_the_next_end_needs_to_show_is_known_while_the_neighbour_is_there() -> None:
    run = Run()
    run.drained(20.0)
    within_s = run.step("calm", low_traffic=True, shows=LOUD).calm_shows_within_s
    took_s = run.until("calm", low_traffic=True, shows=QUIET_SIGNAL)
    assert took_s == pytest.approx(within_s, abs=2 * PERIOD_S)


@pytest.mark.parametrize("shows", [NOTHING, QUIET_SIGNAL, Shows(moments=4)], ids=["absent", "quiet", "moments"])
def test_a_server_on_which_nothing_showed_its_neighbour_is_not_proven_calm_however_quiet_it_is(shows: Shows) -> None:
    run = Run()
    run.drained(shows=shows)
    for _ in range(round(60.0 / PERIOD_S)):
        status = run.step("calm", low_traffic=True, shows=shows)
    assert status.state == "interference"
    assert status.why == "the episode goes on: without requests no sign would show that it is over"
    assert math.isinf(status.calm_shows_within_s)


def test_what_it_looks_like_is_no_sign_where_there_are_no_requests() -> None:
    run = Run()
    run.drained(shows=NOTHING)
    for seen in ("interference", "calm"):
        for _ in range(round(30.0 / PERIOD_S)):
            assert run.step(seen, low_traffic=True).state == "interference"


def test_a_tick_with_few_requests_and_no_answer_proves_nothing() -> None:
    """Between the slow answers of a server that has its requests a tick looks calm."""
    run = Run()
    run.until("interference", "interference")
    for _ in range(round(30.0 / PERIOD_S)):
        assert run.step("calm", shows=NOTHING).state == "interference"
    assert run.until("calm", shows=ANSWERED) <= 2 * DWELL_S


def test_a_slow_trickle_of_answers_proves_calm_where_they_were_slow_before() -> None:
    """Two requests a second, in an episode in which nothing else shows."""

    def trickle(run: Run, answer: Shows, seconds: float) -> Status:
        for number in range(round(seconds / PERIOD_S)):
            answered = number % 3 == 0
            status = run.step("calm", low_traffic=True, shows=answer if answered else NOTHING)
            if status.state == "calm":
                break
        return status

    run = Run()
    run.until("interference", "interference")
    assert trickle(run, ANSWERED_SLOWLY, 10.0).state == "interference"
    begin_s = run.now_s
    assert trickle(run, ANSWERED, 10.0).state == "calm"
    assert run.now_s - begin_s <= 6.0


def test_calm_is_proven_and_nothing_is_held_any_more() -> None:
    run = Run()
    run.drained()
    begin_s = run.now_s
    run.until("calm", low_traffic=True, shows=QUIET_SIGNAL)
    assert run.now_s - begin_s <= 2 * DWELL_S
    status = run.step("calm", low_traffic=True, shows=QUIET_SIGNAL)
    assert (status.why, status.probability < 0.01, status.calm_shows_within_s) == ("", True, 0.0)


def test_without_requests_an_episode_of_which_nothing_shows_the_end_ends_at_last() -> None:
    run = Run()
    run.until("interference", "interference")
    run.step("interference")
    begin_s = run.now_s
    while (status := run.step("interference", low_traffic=True, shows=NOTHING)).state != "calm":
        assert run.now_s - begin_s <= NO_REQUESTS_TIMEOUT_S + 1.0
    assert status.why == f"episode 1 ended: {NO_REQUESTS_TIMEOUT_S:.0f} s without requests, and only requests can tell"
    for _ in range(100):
        assert run.step("interference", low_traffic=True, shows=LOUD).state == "calm", "nothing was asked of it yet"
    assert run.step("interference", low_traffic=True, shows=ANSWERED_SLOWLY).state == "calm"
    assert run.step("interference", low_traffic=True, shows=ANSWERED_SLOWLY).state == "interference"


def test_after_an_end_without_requests_only_requests_begin_another() -> None:
    run = Run()
    run.drained()
    run.until("calm", low_traffic=True, shows=QUIET_SIGNAL)
    for _ in range(20):
        assert run.step("interference", low_traffic=True).state == "calm"
    run.step("interference")
    assert run.step("interference").state == "interference"


@pytest.mark.parametrize("calm_dwell_s", [2.0, 5.0, 30.0])
def test_an_episode_goes_on_until_the_node_looked_calm_for_as_long_as_is_set(calm_dwell_s: float) -> None:
    run = Run(calm_dwell_s)
    run.until("interference", "interference")
    assert calm_dwell_s - PERIOD_S <= run.until("calm") <= calm_dwell_s + 1.0
    run.until("interference", "interference")
    again_s = max(calm_dwell_s, MOST_DWELL_S)
    assert again_s - PERIOD_S <= run.until("calm") <= again_s + 3.0, "it needs twice the evidence too"


def test_an_episode_that_reopens_soon_needs_more_evidence_up_to_a_bound_and_a_later_one_does_not() -> None:
    run = Run()
    for _ in range(20):
        run.step("calm")
    took, needed = [], []
    for _ in range(7):
        run.until("interference", "interference")
        needed.append(run.step("calm").needed)
        took.append(PERIOD_S + run.until("calm"))
    assert took[0] <= DWELL_S + 1.0
    assert took[1] >= 2 * DWELL_S - PERIOD_S / 2
    assert took[1:] == sorted(took[1:])
    assert took[-1] <= MOST_DWELL_S * MOST_CAUTION
    assert needed == [10.0, 20.0, *[40.0] * 5]
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


def silent(run: Run, seconds: float) -> None:
    run.machines.mark_unknown(0, run.now_s + 1.0, 2000.0)
    run.now_s += seconds


def test_a_drained_server_that_was_silent_for_a_while_is_in_its_episode_still() -> None:
    """It has no requests, so that it looks calm proves nothing; nor does a silent monitor."""
    run = Run()
    run.until("interference", "interference")
    since_unix_s = float(run.machines.since_unix_s[0])
    silent(run, 5.0)
    back = run.step("calm", low_traffic=True)
    assert (back.state, back.since_unix_s, back.episode) == ("interference", since_unix_s, 1)
    silent(run, 5.0)
    assert run.step("calm").state == "calm", "with requests it is judged by them"


def test_after_a_long_silence_without_requests_the_episode_ends_by_its_time_limit() -> None:
    run = Run()
    run.until("interference", "interference")
    silent(run, NO_REQUESTS_TIMEOUT_S + 1.0)
    assert run.step("calm", low_traffic=True).state == "calm"


@pytest.mark.parametrize("state", ["all_slow", "overload"])
def test_what_is_no_neighbour_ends_where_the_requests_end(state: State) -> None:
    """At night nobody asks: no server is slow or overloaded then."""
    run = Run()
    run.until(state, state)
    for _ in range(round(20.0 / PERIOD_S)):
        status = run.step("calm", low_traffic=True)
    assert status.state == "calm"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from(STATES[:4])] * 3, st.booleans(), st.sampled_from(SHOWN)), max_size=60))
def test_nodes_stepped_together_go_the_way_that_each_would_go_alone(
    ticks: list[tuple[State, State, State, bool, Shows]],
) -> None:
    """As if they were no peers: what those show raises the share of calm."""
    shares = CalmProof._shares

    def without_peers(proof: CalmProof, slots: Ints, peers: Bools) -> tuple[Floats, Floats]:
        return shares(proof, slots, np.zeros_like(peers))

    with mock.patch.object(CalmProof, "_shares", without_peers):
        step_together_and_alone(ticks)


def step_together_and_alone(ticks: list[tuple[State, State, State, bool, Shows]]) -> None:
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
            signs=signs(shows, shows, shows),
        )
        for slot, state in enumerate(seen):
            status = alone[slot].step(now_s, 1000.0 + now_s, state, low_traffic=low_traffic, shows=shows)
            assert (STATES[steps.state[slot]], steps.episode[slot]) == (status.state, status.episode)
            assert "; ".join([episode_reason(steps, slot), *proof_numbers(steps, slot, (*SIGNS, SIGNAL))]) == status.why


# --- a server that was relieved


def test_a_server_with_a_part_of_its_requests_looks_calm_for_that_reason_and_with_all_of_them_it_counts() -> None:
    """Its neighbour is felt at 20 requests a second only; it gets 4."""
    three = machines(3)
    now_s = 0.0

    def tick(rps: float, seen: State) -> tuple[State, float]:
        nonlocal now_s
        now_s += PERIOD_S
        slow, fast = Shows(answered=True, slow=True, rps=rps), Shows(answered=True, rps=rps)
        rows = [slow if seen == "interference" else fast, *[Shows(answered=True, rps=20.0)] * 2]
        classified = np.array([CODES[seen], CODES["calm"], CODES["calm"]])
        steps = three.step(
            np.arange(3),
            now_s,
            np.full(3, 1000.0 + now_s),
            classified,
            says=np.where(classified == CODES["calm"], EVIDENCE.ratios[QUIET], EVIDENCE.ratios[STRONG]),
            quiet=np.full(3, EVIDENCE.ratios[QUIET]),
            threshold=np.full(3, THRESHOLD),
            low_traffic=np.zeros(3, dtype=bool),
            signs=signs(*rows),
        )
        return STATES[int(steps.state[0])], float(steps.calm_shows_within_s[0])

    for _ in range(50):
        tick(20.0, "calm")
    for _ in range(10):
        state, _ = tick(20.0, "interference")
    assert state == "interference"
    for _ in range(100):
        state, within_s = tick(4.0, "calm")
        assert state == "interference"
    assert math.isinf(within_s)
    for _ in range(50):
        state, _ = tick(20.0, "calm")
    assert state == "calm"


def test_a_look_that_an_overloaded_peer_excuses_ends_no_episode() -> None:
    machine = OneMachine(DWELL_S, 0.0, 1000.0)

    def tick(number: int, seen: State, *, excused: bool = False) -> Status:
        at_s = number * PERIOD_S
        return machine.step(at_s, 1000.0 + at_s, seen, shows=Shows(answered=True, slow=excused, excused=excused))

    for number in range(50):
        tick(number, "interference")
    for number in range(50, 54):
        tick(number, "calm")
    for number in range(54, 200):
        assert tick(number, "calm", excused=True).state == "interference"
    assert "calm" in {tick(number, "calm").state for number in range(200, 230)}
