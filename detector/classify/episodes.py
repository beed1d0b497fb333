"""From ticks to episodes: into a state when enough evidence has come together, out of it when calm is proven. Pure.

The way in is a cumulative sum for each state (`detector.classify.evidence`). A tick that looks like a state adds its
log-likelihood ratio to that state's sum, any other tick takes away what the quietest one is worth.

The way out is a sequential test of calm against what was seen in this episode (`detector.classify.proof`). A server
with requests is judged by what its ticks look like. One that was relieved, so that it has no requests or a much smaller
share of them than when the episode began, looks calm for that reason alone. It is judged by the signs that mean
something then, as they were seen since it was relieved: only a sign that showed this neighbour can prove that it is
gone. Where none did, the episode goes on, at most for `NO_REQUESTS_TIMEOUT_S`, and the Verdict says so: whoever
relieved the server must bring it requests. Once an episode has ended without requests, no tick without an answered
request begins another.

An episode that follows another closely shows that the proof before was wrong, so the next one needs twice as much
evidence that its neighbour is gone, up to `MOST_CAUTION` times as much.

All nodes of a pool are stepped in one pass over arrays; `Steps.describe` puts a single node's step in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from detector.classify.evidence import DAY_S, REFERENCE_S, counts
from detector.classify.proof import ANSWERS, LOOKS, MOMENTS, PROOF, CalmProof, Proof, Trials
from detector.features.columns import Bools, Floats, Ints
from detector.slot_arrays import SlotArrays
from slackwater.messages import State

REOPENS_WITHIN_S = 10.0
"""An episode that begins this soon after the end of the one before doubles the evidence; a later one resets it."""
MOST_CAUTION = 4.0
MOST_DWELL_S = 4.0
ONSETS_PER_NODE_DAY, MEAN_EPISODE_S = 20.0, 60.0
"""Neighbours that are expected before anything is seen: so many a day, each for so long."""
MOST_CERTAIN = 1.0 - 1e-6
MOST_RATIO = 4.0
"""No tick without requests counts for more than this, either way."""
RELIEVED = 0.5
"""A server with less than this part of the share of the pool's requests that it had when the episode began is judged
as one without requests."""
RATE_S = 1.0
"""A rate of requests is averaged over this time."""
NO_REQUESTS_TIMEOUT_S = 300.0
"""So long without requests in an episode, and it ends: only requests can tell then."""

STATES: tuple[State, ...] = get_args(State)
CODES: dict[State, int] = {state: code for code, state in enumerate(STATES)}
CALM, INTERFERENCE, UNKNOWN = CODES["calm"], CODES["interference"], CODES["unknown"]
ALL_SLOW, OVERLOAD = CODES["all_slow"], CODES["overload"]
SIGNS = (MOMENTS, LOOKS, ANSWERS)
_LOOKS = SIGNS.index(LOOKS)
_QUIET, _BEGAN, _GOES_ON, _BLIND, _WAITS, _ENDED, _TIMED_OUT = range(7)


@dataclass(frozen=True)
class Signs:
    """What a tick of M nodes shows of a neighbour where there are no requests."""

    rps: Floats
    """(M,) requests per second; 0 where not known."""
    moments: Floats
    waited: Floats
    """(M,) random moments, and those at which the machine did not run the monitor."""
    loud: Bools
    known: Bools
    """(M, signals) beyond its scale; has a value."""
    answered: Bools
    slow: Bools
    """(M,) a request was answered; and users waited longer than in calm."""


@dataclass(frozen=True)
class Steps:
    """What a tick made of M nodes, (M,) each."""

    state: Ints
    """Index in `STATES`."""
    since_unix_s: Floats
    episode: Ints
    """Number of the node's episode, from 1; 0 before the first. In `calm` that of the last one."""
    began: Bools
    """True on the tick on which the state changed."""
    waits: Bools
    """In a neighbour's episode that only waits for its end: by now the neighbour is gone rather than there."""
    probability: Floats
    """Of a neighbour beside the node now."""
    calm_shows_within_s: Floats
    """So long after its neighbour's end calm is proven on average: infinite where nothing that shows would prove it,
    0 in calm."""
    proof: Proof
    _what: Ints
    _seconds: Floats
    _of: Floats
    _signs: tuple[str, ...]

    @property
    def uneventful(self) -> Bools:
        """(M,) calm without history: there is nothing to describe."""
        return np.asarray(self._what == _QUIET)

    @property
    def shows(self) -> Bools:
        """(M,) this tick is evidence for the state that the node is in."""
        return np.asarray((self._what == _BEGAN) | (self._what == _GOES_ON))

    def describe(self, row: int) -> str:
        """The state machine's reason in words, empty if uneventful."""
        what, seconds, of = int(self._what[row]), float(self._seconds[row]), float(self._of[row])
        proof = self.proof
        if what == _BEGAN:
            return f"the evidence is {seconds:.1f}, and an episode begins at {of:.1f}"
        if what == _GOES_ON:
            return f"episode {self.episode[row]}, for {seconds:.1f} s"
        if what == _BLIND:
            return "the episode goes on: nothing that shows without requests would show that the neighbour is gone"
        if what == _WAITS:
            sign, calm, beside = self._signs[proof.sign[row]], proof.calm_share[row], proof.beside_share[row]
            return (
                f"the episode goes on: {proof.evidence[row] / proof.needed[row]:.0%} of the proof that it is over has"
                f" come, by the share of {sign} ({beside:.0%} in this episode, {calm:.0%} in calm)"
            )
        if what == _TIMED_OUT:
            return f"episode {self.episode[row]} ended: {seconds:.0f} s without requests, and only requests can tell"
        return f"episode {self.episode[row]} ended: calm is proven after {seconds:.1f} s" if what == _ENDED else ""


class StateMachines(SlotArrays):
    """Every slot's state. `now_s` is monotonic seconds; `label_unix_s` is the wall time that goes into `since`."""

    state: Ints
    since_s: Floats
    since_unix_s: Floats
    episode: Ints
    _caution: Floats
    """How much more evidence than usual the slot's episode needs for its end."""
    _sums: Floats
    """(slots, states) evidence for each state, in nats."""
    _probability: Floats
    _ended_s: Floats
    _heard_s: Floats
    """When its last tick came."""
    _requests_s: Floats
    """When a tick last had requests."""
    _awaits_requests: Bools
    """Its last episode ended without requests, and none came since."""
    _rps: Floats
    """Its requests per second over about `RATE_S`."""
    _began_share: Floats
    """Its share of the pool's requests when its episode began."""
    _relieved: Bools
    _left: Ints
    _left_since_s: Floats
    _left_since_unix_s: Floats
    """The state from which it went `unknown`, and since when it was in that."""

    def __init__(self, calm_dwell_s: float, signals: tuple[str, ...] = ()) -> None:
        """`signals`: the names of `Signs.loud`'s columns."""
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
        """A new node is in an episode that began before us: that it looks calm proves nothing, as its server is
        lowered. What shows its neighbour is learnt from now on."""
        self._begin(np.array([slot]), np.array([INTERFERENCE]), now_s, np.array([label_unix_s]))

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
        weight: Floats | float = 1.0,
        low_traffic: Bools,
        signs: Signs,
    ) -> Steps:
        """Takes one tick of each of these slots in; all are (M,).

        `classification` is what the tick looks like by itself (index in `STATES`), `says` its log-likelihood ratio (of
        a neighbour where it looks calm); `quiet` is the lowest one of that kind of node, `threshold` the sum at which
        an episode begins, `weight` the evidence's weight. `low_traffic`: the server has hardly any requests, so `signs`
        decide whether its neighbour is gone.
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
        weights = np.broadcast_to(weight, len(slots))
        sums = np.maximum(self._sums[slots] + gains * weights[:, None], 0.0)
        self._sums[slots] = sums
        covered = counts(now_s - self._heard_s[slots])
        shown = sums[rows, classification]
        begins = (classification != CALM) & (classification != state) & (shown >= threshold)
        what = np.full(len(slots), _QUIET)
        seconds, of = np.zeros(len(slots)), np.zeros(len(slots))

        idle = self._is_relieved(slots, low_traffic, signs.rps, REFERENCE_S * covered, now_s)
        calm = state == CALM
        shared = low_traffic & ~idle & ~calm
        trials = self._trials(signs, classification, weights, covered, idle=idle, calm=calm, shared=shared)
        self._proof.learn(slots[calm], trials.only(calm), REFERENCE_S * covered[calm])
        began = begins.copy()
        if begins.any():
            self._begin(slots[begins], classification[begins], now_s, label_unix_s[begins])
            what[begins], seconds[begins], of[begins] = _BEGAN, shown[begins], threshold[begins]
        going = ~begins & (state != CALM)
        proof = self._take(slots, going, now_s, trials, covered, idle)
        within_s = np.where(going, proof.within_s, 0.0)
        unanswered = low_traffic | ((classification == CALM) & ~signs.answered)
        probability = self._filter(slots, of_neighbour, weights, unanswered, np.where(idle, proof.ratio, 0.0))
        if going.any():
            without_s = now_s - self._requests_s[slots]
            timed_out = going & idle & (without_s >= NO_REQUESTS_TIMEOUT_S)
            ends = timed_out | proof.proven
            what[going] = _WAITS
            what[going & idle & np.isinf(proof.within_s)] = _BLIND
            what[going & ~idle & (classification != CALM)] = _GOES_ON
            seconds[going] = now_s - self.since_s[slots[going]]
            what[ends] = np.where(timed_out, _TIMED_OUT, _ENDED)[ends]
            seconds[timed_out] = without_s[timed_out]
            began |= ends
            within_s[ends] = probability[ends] = self._probability[slots[ends]] = 0.0
            self._ended_s[slots[ends]] = now_s
            self._awaits_requests[slots[ends & idle]] = True
            self._change(slots[ends], np.full(int(ends.sum()), CALM), now_s, label_unix_s[ends])
        self._heard_s[slots] = now_s
        return Steps(
            state=self.state[slots],
            since_unix_s=self.since_unix_s[slots],
            episode=self.episode[slots],
            began=began,
            waits=(self.state[slots] == INTERFERENCE) & (probability < 0.5),
            probability=probability,
            calm_shows_within_s=within_s,
            _what=what,
            _seconds=seconds,
            _of=of,
            proof=proof,
            _signs=self._proof.signs,
        )

    def _is_relieved(self, slots: Ints, low_traffic: Bools, rps: Floats, covered_s: Floats, now_s: float) -> Bools:
        """(M,) is beside a neighbour with far fewer requests than before. What its signs showed is forgotten."""
        kept = np.exp(-covered_s / RATE_S)
        self._rps[slots] = kept * self._rps[slots] + (1.0 - kept) * rps
        beside = self.state[slots] == INTERFERENCE
        few = self._share(slots) < RELIEVED * self._began_share[slots]
        relieved: Bools = np.asarray(beside & (low_traffic | few))
        self._proof.forget_neighbour(slots[relieved & ~self._relieved[slots]], now_s)
        self._relieved[slots] = relieved
        return relieved

    def _share(self, slots: Ints) -> Floats:
        """(M,) of the requests of all nodes that are heard of."""
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
        """What the tick adds to each sign of a neighbour's absence.

        A loud tick is a single observation, however seldom Samples come; a quiet one stands for all the time that it
        covers, since the monitor speaks at once when a signal leaves its range. In an episode of a server with requests
        only what its ticks look like counts, and of those without an answer only the loud ones: without requests a
        server looks calm. In an episode of one without requests everything else counts. Without requests no server is
        slow with the others, nor overloaded (`shared`), so there each tick counts.
        """
        loud = np.column_stack([classification != CALM, signs.slow, signs.loud])
        looks = calm | signs.answered | loud[:, 0] | shared
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
        """The proof of calm of those whose episode goes on; of the others nothing is proven."""
        caution = np.where(self.state[slots] == INTERFERENCE, self._caution[slots], 1.0)
        found = Proof.none(len(slots))
        if not going.any():
            return found
        took = self._proof.take(
            slots[going],
            now_s,
            trials.only(going),
            REFERENCE_S * covered[going],
            peers=self.state == CALM,
            idle=idle[going],
            needed=PROOF * caution[going],
            dwell_s=np.minimum(self.calm_dwell_s * caution[going], MOST_DWELL_S),
        )
        found.put(going, took)
        return found

    def _filter(self, slots: Ints, says: Floats, weights: Floats, unanswered: Bools, calm: Floats) -> Floats:
        """(M,) the probabilities after one tick of these slots: the forward recursion of a hidden Markov chain of two
        states (L. R. Rabiner, "A tutorial on hidden Markov models", Proc. IEEE 77(2), 1989). Its odds are what Shiryaev
        stops on; with neighbours ever rarer they become the cumulative sum.

        `says` is each tick's log-likelihood ratio of a neighbour, `weights` as in `step`. In an episode a tick that is
        `unanswered` says nothing by what it looks like; `calm` is its log-likelihood ratio of calm by other signs.
        """
        in_episode = self.state[slots] == INTERFERENCE
        without = np.clip(-calm, -MOST_RATIO, MOST_RATIO) * in_episode
        once_s = weights * REFERENCE_S
        before = self._probability[slots]
        before = before * np.exp(-once_s / MEAN_EPISODE_S) + (1.0 - before) * once_s * ONSETS_PER_NODE_DAY / DAY_S
        odds = before / (1.0 - before) * np.exp(np.where(unanswered & in_episode, without, says * weights))
        found = np.minimum(odds / (1.0 + odds), MOST_CERTAIN)
        self._probability[slots] = found
        return np.asarray(found)

    def mark_unknown(self, slot: int, now_s: float, label_unix_s: float) -> bool:
        """The node has gone quiet; True when that is new."""
        began = bool(self.state[slot] != UNKNOWN)
        if began:
            if self.state[slot] != CALM:
                self._ended_s[slot] = now_s
            self._left[slot] = self.state[slot]
            self._left_since_s[slot], self._left_since_unix_s[slot] = self.since_s[slot], self.since_unix_s[slot]
            self._change(np.array([slot]), np.array([UNKNOWN]), now_s, np.array([label_unix_s]))
        return began

    def _return(self, slots: Ints, now_s: float, label_unix_s: Floats, low_traffic: Bools) -> None:
        """These are heard of again. One that left in a neighbour's episode and has no requests is in it still: that it
        looks calm proves nothing. The others are calm, until their requests show more."""
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
