"""From ticks to episodes: into a state when there is enough evidence, out of it when calm is proven. Pure.

The way in is a cumulative sum for each state (`slackwater.detector.classify.evidence`). A tick that looks like a state
adds its log-likelihood ratio to that state's sum. Any other tick subtracts as much as the quietest level of the tree.

The way out is a sequential test of calm against the signs of this episode (`slackwater.detector.classify.proof`). A
server with requests is judged by the looks of its ticks. A server that was relieved has no requests, or a much smaller
share of them than when the episode began, and looks calm for that reason alone. It is judged by the signs that mean
something then, as they were seen since it was relieved: only a sign that showed this neighbour can prove that it is
gone. Where no sign did, the episode goes on, at most for `NO_REQUESTS_TIMEOUT_S`, and the Verdict says so: whoever
relieved the server must bring it requests. Once an episode has ended without requests, no tick without an answered
request begins another.

An episode that follows another closely shows that the last proof was wrong. So the new one needs twice as much evidence
that its neighbour is gone, up to `MOST_CAUTION` times as much.

All nodes of a pool are stepped in one pass over arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import get_args

import numpy as np

from slackwater.core.messages import State
from slackwater.detector.classify.evidence import DAY_S, REFERENCE_S, counts, weight
from slackwater.detector.classify.proof import ANSWERS, LOOKS, MOMENTS, PROOF, CalmProof, Proof, Trials
from slackwater.detector.features.columns import Bools, Floats, Ints
from slackwater.detector.slot_arrays import SlotArrays

REOPENS_WITHIN_S = 10.0
"""An episode that begins this soon after the end of the last one needs twice its evidence; a later one the usual."""
MOST_CAUTION = 4.0
MOST_DWELL_S = 2.4
"""The proof of calm takes up to `MOST_CAUTION` times the usual evidence in such an episode. The time that a node must
look calm grows likewise up to `MOST_DWELL_S`; a longer one that is set does not grow."""
ONSETS_PER_NODE_DAY, MEAN_EPISODE_S = 20.0, 60.0
"""The prior: the expected number of neighbours on a node in a day, and how long each stays."""
MOST_CERTAIN = 1.0 - 1e-6
MOST_RATIO = 4.0
"""Limit, both ways, of the log-likelihood ratio of a tick without requests."""
TAKEN_UP = 0.9
"""Probability of a neighbour in an episode that began before our start, until there is evidence."""
RELIEVED = 0.5
"""A server is judged as one without requests when its share of the pool's requests is below this part of its share when
the episode began."""
RATE_S = 1.0
"""A rate of requests is averaged over this time."""
NO_REQUESTS_TIMEOUT_S = 300.0
"""An episode ends after this time without requests: only requests could show its end then."""

STATES: tuple[State, ...] = get_args(State)
CODES: dict[State, int] = {state: code for code, state in enumerate(STATES)}
CALM, INTERFERENCE, UNKNOWN = CODES["calm"], CODES["interference"], CODES["unknown"]
ALL_SLOW, OVERLOAD = CODES["all_slow"], CODES["overload"]
SIGNS = (MOMENTS, LOOKS, ANSWERS)
_LOOKS = SIGNS.index(LOOKS)


def word_of(state: int, unnamed: bool) -> State:
    """The word for a state (index in `STATES`). `unnamed`: only requests show that the server is slow by itself, and no
    monitor has seen why."""
    return "slow" if unnamed and state == INTERFERENCE else STATES[state]


class TickEffect(IntEnum):
    """What a tick did to its node's state."""

    QUIET = 0
    """The node was calm, and is."""
    BEGAN = 1
    GOES_ON = 2
    """The tick is evidence for the state that the node is in."""
    BLIND = 3
    """The episode goes on since no sign would show that the neighbour is gone."""
    WAITS = 4
    """The episode goes on until calm is proven."""
    ENDED = 5
    TIMED_OUT = 6
    """The episode ended since no requests came for `NO_REQUESTS_TIMEOUT_S`."""


@dataclass(frozen=True)
class Signs:
    """Signs of a neighbour in a tick of M nodes, for nodes without requests."""

    rps: Floats
    """(M,) requests per second; 0 where not known."""
    moments: Floats
    waited: Floats
    """(M,) number of random moments, and of those at which the machine did not run the monitor."""
    loud: Bools
    known: Bools
    """(M, signals) whether the signal is beyond its scale; whether it has a value."""
    answered: Bools
    slow: Bools
    """(M,) whether a request was answered; whether users waited longer than in calm."""
    excused: Bools
    """(M,) as `slackwater.detector.classify.rules.Outcome.excused`: the look of the tick says nothing."""


@dataclass(frozen=True)
class TickStates:
    """The results of a tick of M nodes, (M,) each."""

    state: Ints
    """Index in `STATES`."""
    since_unix_s: Floats
    episode: Ints
    """Number of the node's episode, from 1; 0 before the first. In `calm` it is that of the last episode."""
    began: Bools
    """True on the tick on which the state changed."""
    waits: Bools
    """The node is in a neighbour's episode, but its neighbour is more likely gone than there."""
    probability: Floats
    """Probability of a neighbour beside the node now."""
    calm_shows_within_s: Floats
    """Mean time in which calm is proven after the neighbour's end: infinite where no sign would prove it, 0 in calm."""
    proof: Proof
    event: Ints
    """A `TickEffect` for each node."""
    amount: Floats
    """The sum of evidence at `TickEffect.BEGAN`, otherwise seconds."""
    threshold: Floats
    """The sum at which an episode begins, at `TickEffect.BEGAN`; otherwise 0."""


class StateMachines(SlotArrays):
    """Every slot's state. `now_s` is monotonic seconds, `label_unix_s` the wall time for `since_unix_s`."""

    state: Ints
    since_s: Floats
    since_unix_s: Floats
    episode: Ints
    _caution: Floats
    """The slot's episode needs this many times the usual evidence for its end."""
    _sums: Floats
    """(slots, states) evidence for each state, in nats."""
    _probability: Floats
    _ended_s: Floats
    _heard_s: Floats
    """Time of the last tick."""
    _requests_s: Floats
    """Time of the last tick with requests."""
    _awaits_requests: Bools
    """The last episode ended without requests, and none have come since."""
    _rps: Floats
    """Requests per second over about `RATE_S`."""
    _began_share: Floats
    """Share of the pool's requests when the episode began."""
    _relieved: Bools
    _left: Ints
    _left_since_s: Floats
    _left_since_unix_s: Floats
    """The state before `unknown`, and the time when it began."""

    def __init__(self, calm_dwell_s: float, signals: tuple[str, ...] = ()) -> None:
        """`calm_dwell_s`: least time of calm that ends an episode; `signals`: the names of `Signs.loud`'s columns."""
        self.calm_dwell_s = calm_dwell_s
        self._proof = CalmProof((*SIGNS, *signals))
        super().__init__(
            self._proof,
            state=CALM,
            since_s=0.0,
            since_unix_s=0.0,
            episode=0,
            _caution=1.0,
            _sums=np.zeros(len(STATES)),
            _probability=0.0,
            _ended_s=np.nan,
            _heard_s=0.0,
            _requests_s=0.0,
            _awaits_requests=False,
            _rps=0.0,
            _began_share=0.0,
            _relieved=False,
            _left=CALM,
            _left_since_s=0.0,
            _left_since_unix_s=0.0,
        )

    def add_node(self, slot: int, now_s: float, label_unix_s: float) -> None:
        """Puts a new node into a slot: calm, without history."""
        self.forget(slot)
        self.since_s[slot], self.since_unix_s[slot] = now_s, label_unix_s
        self._heard_s[slot] = self._requests_s[slot] = now_s

    def take_up(self, slot: int, now_s: float, label_unix_s: float) -> None:
        """Puts a new node into an episode that began before our start. Its server is lowered, so looking calm proves
        nothing. The signs that show its neighbour are learnt from now on."""
        self._begin(np.array([slot]), np.array([INTERFERENCE]), now_s, np.array([label_unix_s]))
        self._probability[slot] = TAKEN_UP

    def step(
        self,
        slots: Ints,
        now_s: float,
        label_unix_s: Floats,
        classification: Ints,
        *,
        says: Floats,
        quiet: Floats,
        threshold: Floats,
        period_s: Floats | float = REFERENCE_S,
        low_traffic: Bools,
        signs: Signs,
    ) -> TickStates:
        """Steps these slots by one tick each; all arrays are (M,).

        `classification`: the tick's looks by itself (index in `STATES`). `says`: its log-likelihood ratio (of a
        neighbour where it looks calm). `quiet`: the lowest ratio of that kind of node. `threshold`: the sum at which an
        episode begins. `period_s`: the time that the tick's Sample covers. `low_traffic`: the server has hardly any
        requests, so `signs` decide whether its neighbour is gone.
        """
        back = self.state[slots] == UNKNOWN
        if back.any():
            self._return(slots[back], now_s, label_unix_s[back], low_traffic[back])
        state = self.state[slots]
        self._requests_s[slots[~low_traffic]] = now_s
        self._awaits_requests[slots[~low_traffic]] = False
        held_calm = self._awaits_requests[slots] & low_traffic & ~signs.answered
        classification = np.where(held_calm, CALM, classification)
        rows = np.arange(len(slots))
        says = np.where(held_calm, quiet, says)
        of_neighbour = np.where((classification == INTERFERENCE) | (classification == CALM), says, quiet)
        gains = np.repeat(quiet[:, None], len(STATES), axis=1)
        gains[rows, classification] = says
        gains[:, INTERFERENCE] = of_neighbour
        weights = np.broadcast_to(weight(period_s), len(slots))
        sums = np.maximum(self._sums[slots] + gains * weights[:, None], 0.0)
        self._sums[slots] = sums
        covered = counts(now_s - self._heard_s[slots])
        shown = sums[rows, classification]
        begins = (classification != CALM) & (classification != state) & (shown >= threshold)
        event = np.full(len(slots), TickEffect.QUIET)
        amounts, thresholds = np.zeros(len(slots)), np.zeros(len(slots))

        idle = self._is_relieved(slots, low_traffic, signs.rps, REFERENCE_S * covered, now_s)
        calm = state == CALM
        shared = low_traffic & ~idle & ~calm
        trials = self._trials(signs, classification, weights, covered, idle=idle, calm=calm, shared=shared)
        self._proof.learn(slots[calm], trials.only(calm), REFERENCE_S * covered[calm])
        began = begins.copy()
        if begins.any():
            self._begin(slots[begins], classification[begins], now_s, label_unix_s[begins])
            event[begins], amounts[begins], thresholds[begins] = TickEffect.BEGAN, shown[begins], threshold[begins]
        going = ~begins & (state != CALM)
        proof = self._take(slots, going, now_s, trials, covered, idle)
        within_s = np.where(going, proof.within_s, 0.0)
        unanswered = low_traffic | ((classification == CALM) & ~signs.answered)
        probability = self._filter(slots, of_neighbour, weights, unanswered, np.where(idle, proof.ratio, 0.0))
        if going.any():
            without_s = now_s - self._requests_s[slots]
            timed_out = going & idle & (without_s >= NO_REQUESTS_TIMEOUT_S)
            ends = timed_out | (proof.proven & ~signs.excused)
            event[going] = TickEffect.WAITS
            event[going & idle & np.isinf(proof.within_s)] = TickEffect.BLIND
            event[going & ~idle & (classification != CALM)] = TickEffect.GOES_ON
            amounts[going] = now_s - self.since_s[slots[going]]
            event[ends] = np.where(timed_out, TickEffect.TIMED_OUT, TickEffect.ENDED)[ends]
            amounts[timed_out] = without_s[timed_out]
            began |= ends
            within_s[ends] = probability[ends] = self._probability[slots[ends]] = 0.0
            self._ended_s[slots[ends]] = now_s
            self._awaits_requests[slots[ends & idle]] = True
            self._change(slots[ends], np.full(int(ends.sum()), CALM), now_s, label_unix_s[ends])
        self._heard_s[slots] = now_s
        return TickStates(
            state=self.state[slots],
            since_unix_s=self.since_unix_s[slots],
            episode=self.episode[slots],
            began=began,
            waits=(self.state[slots] == INTERFERENCE) & (probability < 0.5),
            probability=probability,
            calm_shows_within_s=within_s,
            proof=proof,
            event=event,
            amount=amounts,
            threshold=thresholds,
        )

    def _is_relieved(self, slots: Ints, low_traffic: Bools, rps: Floats, covered_s: Floats, now_s: float) -> Bools:
        """(M,) is beside a neighbour, with far fewer requests than before. Then its signs' counts begin anew."""
        kept = np.exp(-covered_s / RATE_S)
        self._rps[slots] = kept * self._rps[slots] + (1.0 - kept) * rps
        beside = self.state[slots] == INTERFERENCE
        few = self._share(slots) < RELIEVED * self._began_share[slots]
        relieved: Bools = np.asarray(beside & (low_traffic | few))
        self._proof.forget_neighbour(slots[relieved & ~self._relieved[slots]], now_s)
        self._relieved[slots] = relieved
        return relieved

    def _share(self, slots: Ints) -> Floats:
        """(M,) share of the requests of all nodes that are heard of."""
        return np.asarray(self._rps[slots] / max(float(self._rps[self.state != UNKNOWN].sum()), 1e-9))

    def _trials(
        self,
        signs: Signs,
        classification: Ints,
        weights: Floats,
        covered: Floats,
        *,
        idle: Bools,
        calm: Bools,
        shared: Bools,
    ) -> Trials:
        """The trials that the tick adds to each sign.

        A loud tick is a single observation, however seldom Samples come. A quiet tick stands for all the time that it
        covers, since the monitor speaks at once when a signal leaves its range. In an episode of a server with requests
        only the looks of its ticks count. Of ticks without an answer only the loud ones do, since without requests a
        server looks calm. In an episode of a server without requests everything but the looks counts. In an episode of
        another state (`shared`) each tick counts: without requests no server is slow with the others, nor overloaded.
        """
        loud = np.column_stack([classification != CALM, signs.slow, signs.loud])
        looks = (calm | signs.answered | loud[:, 0] | shared) & ~signs.excused
        known = np.column_stack([looks, signs.answered, signs.known])
        hits = np.where(loud & known, weights[:, None], 0.0)
        count = np.where(known, np.where(loud, weights[:, None], covered[:, None]), 0.0)
        count[:, 1] = np.where(signs.answered, 1.0, 0.0)
        hits[:, 1] = np.where(signs.answered & signs.slow, 1.0, 0.0)
        hits = np.column_stack([signs.waited, hits])
        count = np.column_stack([signs.moments, count])
        without = (calm | idle)[:, None] & (np.arange(count.shape[1]) != _LOOKS)
        without[:, _LOOKS] = calm | ~idle
        return Trials(np.where(without, hits, 0.0), np.where(without, count, 0.0))

    def _take(self, slots: Ints, going: Bools, now_s: float, trials: Trials, covered: Floats, idle: Bools) -> Proof:
        """(M,) the proof of calm for the slots whose episode goes on (`going`); none for the others."""
        caution = np.where(self.state[slots] == INTERFERENCE, self._caution[slots], 1.0)
        whole = Proof.none(len(slots))
        if not going.any():
            return whole
        proofs = self._proof.take(
            slots[going],
            now_s,
            trials.only(going),
            REFERENCE_S * covered[going],
            peers=self.state == CALM,
            idle=idle[going],
            needed=PROOF * caution[going],
            dwell_s=np.maximum(self.calm_dwell_s, np.minimum(self.calm_dwell_s * caution[going], MOST_DWELL_S)),
        )
        whole.put(going, proofs)
        return whole

    def _filter(self, slots: Ints, says: Floats, weights: Floats, unanswered: Bools, calm: Floats) -> Floats:
        """(M,) the probabilities of a neighbour after one tick of these slots: the forward recursion of a hidden Markov
        chain of two states (L. R. Rabiner, "A tutorial on hidden Markov models", Proc. IEEE 77(2), 1989). Its odds are
        those of Shiryaev's stopping rule. For ever rarer neighbours they become the cumulative sum.

        `says`: each tick's log-likelihood ratio of a neighbour; `weights`: as in `step`. In an episode the looks of an
        `unanswered` tick say nothing; `calm` is its log-likelihood ratio of calm by other signs.
        """
        in_episode = self.state[slots] == INTERFERENCE
        without = np.clip(-calm, -MOST_RATIO, MOST_RATIO) * in_episode
        once_s = weights * REFERENCE_S
        before = self._probability[slots]
        before = before * np.exp(-once_s / MEAN_EPISODE_S) + (1.0 - before) * once_s * ONSETS_PER_NODE_DAY / DAY_S
        odds = before / (1.0 - before) * np.exp(np.where(unanswered & in_episode, without, says * weights))
        after = np.minimum(odds / (1.0 + odds), MOST_CERTAIN)
        self._probability[slots] = after
        return np.asarray(after)

    def mark_unknown(self, slot: int, now_s: float, label_unix_s: float) -> bool:
        """Notes that the node sends no Samples any more; returns whether that is new."""
        began = bool(self.state[slot] != UNKNOWN)
        if began:
            if self.state[slot] != CALM:
                self._ended_s[slot] = now_s
            self._left[slot] = self.state[slot]
            self._left_since_s[slot], self._left_since_unix_s[slot] = self.since_s[slot], self.since_unix_s[slot]
            self._change(np.array([slot]), np.array([UNKNOWN]), now_s, np.array([label_unix_s]))
        return began

    def _return(self, slots: Ints, now_s: float, label_unix_s: Floats, low_traffic: Bools) -> None:
        """These nodes are heard of again. A node that left in a neighbour's episode and has no requests is still in it,
        since looking calm proves nothing. The others are calm, until their requests show more."""
        stays = low_traffic & (self._left[slots] == INTERFERENCE)
        self._change(slots, np.where(stays, INTERFERENCE, CALM), now_s, label_unix_s)
        kept = slots[stays]
        self.since_s[kept], self.since_unix_s[kept] = self._left_since_s[kept], self._left_since_unix_s[kept]

    def _begin(self, slots: Ints, states: Ints, now_s: float, label_unix_s: Floats) -> None:
        new = slots[self.state[slots] == CALM]
        self.episode[new] += 1
        soon = now_s - self._ended_s[new] <= REOPENS_WITHIN_S
        self._caution[new] = np.where(soon, np.minimum(MOST_CAUTION, self._caution[new] * 2), 1.0)
        self._proof.begin(slots, now_s)
        self._began_share[slots], self._relieved[slots] = self._share(slots), False
        self._change(slots, states, now_s, label_unix_s)

    def _change(self, slots: Ints, states: Ints, now_s: float, label_unix_s: Floats) -> None:
        self.state[slots] = states
        self.since_s[slots], self.since_unix_s[slots] = now_s, label_unix_s
        self._sums[slots] = 0.0
