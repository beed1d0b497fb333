"""Calm is proven by a sign whose share of hits was seen to be another beside this neighbour, and only by such a one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.detector.classify.proof import (
    ANSWERS,
    LEARNT,
    LOOKS,
    MEMORY,
    MOMENTS,
    MOST_PROOF_S,
    PROOF,
    CalmProof,
    Proof,
    Trials,
)
from slackwater.detector.features.columns import Floats

TICK_S = 0.2
SIGNS = (MOMENTS, LOOKS, ANSWERS)
SLOT = np.array([0])
BESIDE_S, RUNS = 120.0, 400


class Neighbour:
    """Many servers with the same neighbour, in slots 0 to `runs`; one sign is seen, the next slots are their peers.

    The monitor takes 4 moments a tick.
    """

    def __init__(
        self, seed: int, calm: float, *, sign: str = MOMENTS, a_tick: float = 4, runs: int = 1, peers: int = 2
    ):
        self.dice = np.random.default_rng(seed)
        self.runs, self.peers, self.sign, self.a_tick = runs, peers, sign, a_tick
        self.proof = CalmProof(SIGNS)
        self.proof.resize(runs + peers)
        self.slots = np.arange(runs)
        self.now_s = 0.0
        self.peers_share = calm
        for _ in range(round(30.0 / TICK_S)):
            self.proof.learn(np.arange(runs + peers), self._trials(calm, runs + peers), self._covered(runs + peers))
        self.proof.begin(self.slots, self.now_s)

    def tick(self, share: float, dwell_s: float = 0.0) -> Proof:
        """One more, with a share of hits beside it."""
        self.now_s += TICK_S
        others = self.runs + np.arange(self.peers)
        self.proof.learn(others, self._trials(self.peers_share, self.peers), self._covered(self.peers))
        return self.proof.take(
            self.slots,
            self.now_s,
            self._trials(share, self.runs),
            self._covered(self.runs),
            peers=np.arange(self.runs + self.peers) >= self.runs,
            idle=np.full(self.runs, self.sign != LOOKS),
            needed=np.full(self.runs, PROOF),
            dwell_s=np.full(self.runs, dwell_s),
        )

    def proven_within(self, share: float, seconds: float) -> Floats:
        """When each server was first proven calm, infinite where it wasn't."""
        begin_s, proven_s = self.now_s, np.full(self.runs, np.inf)
        for _ in range(round(seconds / TICK_S)):
            proven = self.tick(share).proven
            proven_s[proven & np.isinf(proven_s)] = self.now_s - begin_s
        return proven_s

    def _trials(self, share: float, rows: int) -> Trials:
        count, hits = np.zeros((rows, len(SIGNS))), np.zeros((rows, len(SIGNS)))
        column = SIGNS.index(self.sign)
        count[:, column] = self.dice.poisson(self.a_tick, rows) if self.a_tick < 1 else self.a_tick
        hits[:, column] = self.dice.binomial(count[:, column].astype(int), share)
        return Trials(hits, count)

    @staticmethod
    def _covered(rows: int) -> Floats:
        return np.full(rows, TICK_S)


@pytest.mark.parametrize(("beside", "calm"), [(0.6, 0.1), (0.85, 0.5), (0.3, 0.05), (0.95, 0.1), (0.5, 0.3)])
def test_beside_a_steady_neighbour_calm_is_proven_in_at_most_one_of_twenty_runs(beside: float, calm: float) -> None:
    early = np.isfinite(Neighbour(1, calm, runs=RUNS).proven_within(beside, BESIDE_S))
    assert early.mean() <= 0.05


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 0.9), st.floats(0.0, 1.0))
def test_no_steady_neighbour_is_taken_for_calm(seed: int, calm: float, above: float) -> None:
    beside = calm + above * (1.0 - calm)
    early = np.isfinite(Neighbour(seed, calm, runs=200).proven_within(beside, BESIDE_S))
    assert early.mean() <= 0.1, "0.05 and three standard errors of 200 runs"


@pytest.mark.parametrize("weaker", [0.5, 0.55])
def test_a_neighbour_that_is_weaker_for_a_second_is_still_there(weaker: float) -> None:
    """Calm explains such a share badly, though better than the neighbour's usual one does."""
    beside_it = Neighbour(5, 0.15, a_tick=20, runs=RUNS)
    beside_it.proven_within(0.87, 10.0)
    for _ in range(5):
        early = beside_it.tick(weaker).proven
        assert early.mean() <= 0.1


@pytest.mark.parametrize(("beside", "calm"), [(0.6, 0.1), (0.85, 0.5), (0.95, 0.1)])
@pytest.mark.parametrize("lasted_s", [5.0, 30.0, 120.0])
def test_after_the_end_it_is_proven_within_three_seconds_at_the_median(
    beside: float, calm: float, lasted_s: float
) -> None:
    beside_it = Neighbour(2, calm, runs=RUNS)
    beside_it.proven_within(beside, lasted_s)
    took_s = beside_it.proven_within(calm, 20.0)
    assert np.median(took_s) <= 3.0
    assert np.quantile(took_s, 0.95) <= 8.0


def test_how_soon_the_end_would_show_is_known_before_it_comes() -> None:
    beside_it = Neighbour(3, 0.1, runs=RUNS)
    beside_it.proven_within(0.6, 30.0)
    within_s = np.median(beside_it.tick(0.6).within_s)
    took_s = np.median(beside_it.proven_within(0.1, 20.0))
    assert within_s == pytest.approx(took_s, rel=0.4)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_sign_that_is_as_in_calm_proves_nothing_however_long_it_is_quiet(share: float) -> None:
    beside_it = Neighbour(4, share, runs=RUNS)
    assert np.isfinite(beside_it.proven_within(share, BESIDE_S)).mean() <= 0.02
    shown = beside_it.tick(share)
    assert np.isinf(shown.within_s).mean() >= 0.95
    assert not shown.evidence[np.isinf(shown.within_s)].any()


def test_a_sign_that_was_never_seen_beside_this_neighbour_proves_nothing() -> None:
    """It ended before there was anything to learn."""
    assert np.isinf(Neighbour(5, 0.1, runs=RUNS).proven_within(0.1, BESIDE_S)).mean() >= 0.98


def test_of_two_signs_that_have_power_the_quicker_decides() -> None:
    proof = CalmProof(SIGNS)
    proof.resize(1)
    rare, often = np.array([[4.0, 0.0, 0.0]]), np.array([[4.0, 0.0, 1.0]])
    for _ in range(100):
        proof.learn(SLOT, Trials(np.zeros((1, 3)), often), np.array([TICK_S]))
    proof.begin(SLOT, 0.0)
    now_s = 0.0

    def take(hits: Floats, count: Floats) -> Proof:
        nonlocal now_s
        now_s += TICK_S
        needed, dwell_s = np.array([PROOF]), np.array([0.0])
        return proof.take(
            SLOT,
            now_s,
            Trials(hits, count),
            np.array([TICK_S]),
            peers=np.array([False]),
            idle=np.array([True]),
            needed=needed,
            dwell_s=dwell_s,
        )

    for _ in range(50):
        shown = take(np.array([[3.0, 0.0, 1.0]]), often)
    assert SIGNS[shown.sign[0]] == MOMENTS
    for _ in range(50):
        shown = take(np.zeros((1, 3)), rare)
        if shown.proven[0]:
            break
    assert shown.proven[0]
    assert (shown.calm_share[0], shown.beside_share[0]) == (
        pytest.approx(0.02, abs=0.01),
        pytest.approx(0.72, abs=0.05),
    )


def test_busy_peers_raise_the_share_that_is_calm() -> None:
    """The machine below wavers for all of them, so the end is proven against what they show now."""
    beside_it = Neighbour(6, 0.1, runs=RUNS, peers=3)
    beside_it.peers_share = 0.5
    beside_it.proven_within(0.85, 30.0)
    assert np.median(beside_it.tick(0.85).calm_share) == pytest.approx(0.5, abs=0.15)
    took_s = beside_it.proven_within(0.5, 20.0)
    assert np.median(took_s) <= 3.0
    alone = Neighbour(6, 0.1, runs=RUNS, peers=3)
    alone.proven_within(0.85, 30.0)
    assert np.median(alone.proven_within(0.5, 20.0)) > np.median(took_s), "its peers have few such moments"


def test_where_the_peers_are_as_busy_as_beside_the_neighbour_there_is_no_power() -> None:
    beside_it = Neighbour(7, 0.1, runs=RUNS, peers=3)
    beside_it.peers_share = 0.6
    assert np.isfinite(beside_it.proven_within(0.6, BESIDE_S)).mean() <= 0.05
    assert np.isinf(beside_it.tick(0.6).within_s).mean() >= 0.8


def test_a_slow_trickle_of_answers_proves_calm() -> None:
    """Two requests a second, all slow beside the neighbour."""
    beside_it = Neighbour(8, 0.0, sign=ANSWERS, a_tick=0.4, runs=RUNS)
    assert np.isfinite(beside_it.proven_within(1.0, BESIDE_S)).mean() <= 0.05
    took_s = beside_it.proven_within(0.0, 20.0)
    assert np.median(took_s) <= 3.0
    assert np.quantile(took_s, 0.95) <= 6.0


def test_a_sign_too_rare_to_prove_calm_in_time_has_no_power() -> None:
    beside_it = Neighbour(9, 0.0, sign=ANSWERS, a_tick=0.02, runs=RUNS)
    beside_it.proven_within(1.0, 60.0)
    within_s = beside_it.tick(1.0).within_s
    assert np.isinf(within_s).mean() >= 0.8
    assert within_s[np.isfinite(within_s)].max(initial=0.0) <= MOST_PROOF_S


def test_a_sign_that_cannot_show_now_has_no_power_and_no_pace() -> None:
    """Without requests what Samples look like shows nothing, however much of it there was a moment ago."""
    proof = CalmProof(SIGNS)
    proof.resize(1)
    looks, tick, nothing = np.array([[0.0, 1.0, 0.0]]), np.array([TICK_S]), np.zeros((1, 3))
    for _ in range(100):
        proof.learn(SLOT, Trials(nothing, looks), tick)
    proof.begin(SLOT, 0.0)

    def take(now_s: float, trials: Trials, idle: bool) -> Proof:
        needed, is_idle = np.array([PROOF]), np.array([idle])
        return proof.take(
            SLOT, now_s, trials, tick, peers=is_idle & False, idle=is_idle, needed=needed, dwell_s=np.zeros(1)
        )

    assert math.isfinite(take(0.2, Trials(looks, looks), False).within_s[0])
    assert math.isinf(take(0.4, Trials(nothing, nothing), True).within_s[0])
    assert math.isinf(take(0.6, Trials(nothing, nothing), False).within_s[0]), "its requests come back, but few"


def test_proof_must_last_for_the_dwell() -> None:
    beside_it = Neighbour(10, 0.05)
    beside_it.proven_within(0.95, 20.0)
    begin_s = beside_it.now_s
    while not beside_it.tick(0.0, dwell_s=2.0).proven[0]:
        pass
    assert 2.0 - TICK_S <= beside_it.now_s - begin_s <= 2.0 + TICK_S


def test_what_a_sign_showed_beside_another_neighbour_is_forgotten() -> None:
    beside_it = Neighbour(11, 0.1)
    beside_it.proven_within(0.9, 20.0)
    assert math.isfinite(beside_it.tick(0.9).within_s[0])
    beside_it.proof.begin(beside_it.slots, beside_it.now_s)
    assert math.isinf(beside_it.tick(0.9).within_s[0])


def test_the_ticks_that_began_an_episode_are_not_learnt_as_calm() -> None:
    proof = CalmProof(SIGNS)
    proof.resize(1)
    looks, tick = np.array([[0.0, 1.0, 0.0]]), np.array([TICK_S])
    for _ in range(100):
        proof.learn(SLOT, Trials(np.zeros((1, 3)), looks), tick)
    calm = proof._calm.copy()
    for _ in range(int(LEARNT[LOOKS])):
        proof.learn(SLOT, Trials(looks, looks), tick)
    proof.begin(SLOT, 0.0)
    assert proof._calm.tolist() == calm.tolist()


def test_no_more_of_calm_is_remembered_than_makes_sense() -> None:
    proof = CalmProof(SIGNS)
    proof.resize(1)
    for _ in range(2000):
        proof.learn(SLOT, Trials(np.zeros((1, 3)), np.full((1, 3), 4.0)), np.array([TICK_S]))
    assert proof._calm[0, :, 1].tolist() == [MEMORY] * 3


def test_a_sign_proves_nothing_while_another_shows_the_neighbour() -> None:
    proof = CalmProof((*SIGNS, "disk", "pressure"))
    proof.resize(1)

    def tick(now_s: float, hits: tuple[float, ...]) -> Proof:
        count = np.array([[0.0, 0.0, 0.0, 1.0, 1.0]])
        return proof.take(
            SLOT,
            now_s,
            Trials(np.array([hits]), count),
            np.array([TICK_S]),
            peers=np.zeros(1, dtype=bool),
            idle=np.ones(1, dtype=bool),
            needed=np.array([PROOF]),
            dwell_s=np.zeros(1),
        )

    proof.begin(SLOT, 0.0)
    for number in range(50):
        tick(TICK_S * number, (0.0, 0.0, 0.0, 1.0, 1.0))
    disk_is_quiet = [tick(10.0 + TICK_S * number, (0.0, 0.0, 0.0, 0.0, 1.0)) for number in range(30)]
    assert not any(shown.proven[0] for shown in disk_is_quiet)
    both_are = [tick(16.0 + TICK_S * number, (0.0, 0.0, 0.0, 0.0, 0.0)) for number in range(30)]
    assert both_are[-1].proven[0]
