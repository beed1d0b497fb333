"""From ticks to episodes: into a state when enough evidence has come together, out of it when calm has lasted. Pure.

The way in is a cumulative sum for each state (`detector.classify.evidence`). A tick that looks like a state adds its
log-likelihood ratio to that state's sum, any other tick takes away what the quietest one is worth.

The way out is a sequential test (Wald, "Sequential Tests of Statistical Hypotheses", Annals of Mathematical Statistics
16(2), 1945), reset at 0 as Page's (Biometrika 41, 1954): each quiet tick adds the time that it covers, each loud one
takes `LOUD_WEIGHT` times `REFERENCE_S` back, and the episode ends when the sum reaches the dwell. So glitches in a
fifth of the ticks delay the end a little, and a neighbour that shows in half of them holds the episode. A quiet tick
stands for all the time that it covers, since the monitor speaks at once when a signal leaves its range; a loud one is a
single observation, however seldom Samples come.

A server without requests is judged by the few signals that mean something then. Only requests can prove it calm: its
episode lasts at most `NO_REQUESTS_TIMEOUT_S`, and after its end no tick without an answered request begins another.

When episodes follow each other closely, the wait since the sum last was 0 doubles, up to `MAX_DWELL_S`. The sum itself
does not grow beyond the dwell, so that what it takes to call a longer calm broken stays the same.

All nodes of a pool are stepped in one pass over arrays; `Steps.describe` puts a single node's step in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np

from detector.classify.evidence import DAY_S, REFERENCE_S, counts
from detector.features.columns import Bools, Floats, Ints
from detector.slot_arrays import SlotArrays
from slackwater.messages import State

REOPENS_WITHIN_S = 10.0
"""An episode that begins this soon after the end of the one before doubles the wait; a later one resets it."""
MAX_DWELL_S = 8.0
LOUD_IDLE, QUIET_IDLE = math.log(0.5 / 0.2), math.log(0.5 / 0.8)
"""Log-likelihood ratio of a loud and of a quiet tick without requests, where calm shows in a fifth of the ticks and a
neighbour in half of them. On drained servers of the lab it was a tenth and seven tenths."""
LOUD_WEIGHT = 2.0
"""`LOUD_IDLE` over -`QUIET_IDLE`, rounded."""
ONSETS_PER_NODE_DAY, MEAN_EPISODE_S = 20.0, 60.0
"""Neighbours that are expected before anything is seen: so many a day, each for so long."""
MOST_CERTAIN = 1.0 - 1e-6
ROUNDING_S = 1e-6
"""Of sums of periods."""
NO_REQUESTS_TIMEOUT_S = 55.0
"""So long without requests in an episode, and it ends: with the ramp's first step they are back within a minute."""

STATES: tuple[State, ...] = get_args(State)
CODES: dict[State, int] = {state: code for code, state in enumerate(STATES)}
CALM, INTERFERENCE, UNKNOWN = CODES["calm"], CODES["interference"], CODES["unknown"]
ALL_SLOW, OVERLOAD = CODES["all_slow"], CODES["overload"]
_QUIET, _BEGAN, _GOES_ON, _HELD, _WAITS, _ENDED, _TIMED_OUT = range(7)


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
    _what: Ints
    _seconds: Floats
    _of: Floats

    @property
    def uneventful(self) -> Bools:
        """(M,) calm without history: there is nothing to describe."""
        return np.asarray(self._what == _QUIET)

    @property
    def shows(self) -> Bools:
        """(M,) this tick is evidence for the state that the node is in."""
        return np.asarray((self._what == _BEGAN) | (self._what == _GOES_ON))

    def describe(self, row: int, residual: Callable[[int], str] = lambda _: "") -> str:
        """The state machine's reason in words, empty if uneventful. `residual` describes a row's residual signals."""
        what, seconds, of = int(self._what[row]), float(self._seconds[row]), float(self._of[row])
        if what == _BEGAN:
            return f"evidence {seconds:.1f} of {of:.1f} needed"
        if what == _GOES_ON:
            return f"episode {self.episode[row]}, for {seconds:.1f} s"
        if what == _HELD:
            return f"held: {residual(row)}"
        if what == _WAITS:
            return f"held: looks calm for {seconds:.1f} of {of:.1f} s"
        if what == _TIMED_OUT:
            return f"episode {self.episode[row]} ended: {seconds:.0f} s without requests, and only requests can tell"
        return f"episode {self.episode[row]} ended: calm for {seconds:.1f} s" if what == _ENDED else ""


class StateMachines(SlotArrays):
    """Every slot's state. `now_s` is monotonic seconds; `label_unix_s` is the wall time that goes into `since`."""

    state: Ints
    since_s: Floats
    since_unix_s: Floats
    episode: Ints
    _wait_s: Floats
    """The dwell, doubled with each episode that follows another closely."""
    _sums: Floats
    """(slots, states) evidence for each state, in nats."""
    _probability: Floats
    _ended_s: Floats
    _calm_s: Floats
    """The test's sum."""
    _broken_s: Floats
    """When it last was 0."""
    _heard_s: Floats
    """When its last tick came."""
    _requests_s: Floats
    """When a tick last had requests."""
    _awaits_requests: Bools
    """Its last episode ended without requests, and none came since."""

    def __init__(self, calm_dwell_s: float) -> None:
        self.calm_dwell_s = calm_dwell_s
        super().__init__(
            state=CALM,
            since_s=0.0,
            since_unix_s=0.0,
            episode=0,
            _wait_s=float(calm_dwell_s),
            _sums=np.zeros(len(STATES)),
            _probability=0.0,
            _ended_s=np.nan,
            _calm_s=0.0,
            _broken_s=0.0,
            _heard_s=0.0,
            _requests_s=0.0,
            _awaits_requests=False,
        )

    def add_node(self, slot: int, now_s: float, label_unix_s: float) -> None:
        """Puts a new node into a slot: calm, without history."""
        self.forget(slot)
        self.since_s[slot], self.since_unix_s[slot] = now_s, label_unix_s
        self._broken_s[slot] = self._heard_s[slot] = self._requests_s[slot] = now_s

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
        residual: Bools,
        answered: Bools | None = None,
    ) -> Steps:
        """Takes one tick of each of these slots in; all are (M,).

        `classification` is what the tick looks like by itself (index in `STATES`), `says` its log-likelihood ratio (of
        a neighbour where it looks calm); `quiet` is the lowest one of that kind of node, `threshold` the sum at which
        an episode begins, `weight` the evidence's weight. `low_traffic`: the server has hardly any requests,
        so `residual`, the signs of a neighbour that show without requests too, decides whether the tick is loud.
        `answered`: a request was answered in this tick all the same.
        """
        back = self.state[slots] == UNKNOWN
        if back.any():
            self._change(slots[back], np.full(int(back.sum()), CALM), now_s, label_unix_s[back])
        state = self.state[slots]
        self._requests_s[slots[~low_traffic]] = now_s
        self._awaits_requests[slots[~low_traffic]] = False
        untested = low_traffic if answered is None else low_traffic & ~answered
        held_calm = self._awaits_requests[slots] & untested
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
        probability = self._filter(
            slots,
            of_neighbour,
            weights,
            covered,
            idle=low_traffic & (classification == CALM),
            residual=residual,
        )
        shown = sums[rows, classification]
        begins = (classification != CALM) & (classification != state) & (shown >= threshold)
        what = np.full(len(slots), _QUIET)
        seconds, of = np.zeros(len(slots)), np.zeros(len(slots))

        if begins.any():
            self._begin(slots[begins], classification[begins], now_s, label_unix_s[begins])
            what[begins], seconds[begins], of[begins] = _BEGAN, shown[begins], threshold[begins]
        going = ~begins & (state != CALM)
        began = begins.copy()
        if going.any():
            drained = low_traffic & (state == INTERFERENCE)
            loud = going & np.where(drained, residual, classification != CALM)
            sums = self._calm_s[slots] + np.where(loud, -LOUD_WEIGHT * weights, covered) * REFERENCE_S
            self._calm_s[slots[going]] = np.clip(sums, 0.0, self.calm_dwell_s)[going]
            self._broken_s[slots[going & (sums <= 0.0)]] = now_s
            # Only an interfered server is drained: what the others look like, they are.
            wait_s = np.where(state == INTERFERENCE, self._wait_s[slots], self.calm_dwell_s)
            calm_s = np.minimum(now_s - self._broken_s[slots], wait_s - self.calm_dwell_s + self._calm_s[slots])
            without_s = now_s - self._requests_s[slots]
            timed_out = going & drained & (without_s >= NO_REQUESTS_TIMEOUT_S)
            ends = timed_out | (going & ~loud & (calm_s >= wait_s - ROUNDING_S))
            what[going], seconds[going], of[going] = _WAITS, calm_s[going], wait_s[going]
            what[loud] = np.where(drained, _HELD, _GOES_ON)[loud]
            seconds[loud] = now_s - self.since_s[slots[loud]]
            what[ends] = np.where(timed_out, _TIMED_OUT, _ENDED)[ends]
            seconds[timed_out] = without_s[timed_out]
            began |= ends
            self._ended_s[slots[ends]] = now_s
            self._awaits_requests[slots[ends & drained]] = True
            self._change(slots[ends], np.full(int(ends.sum()), CALM), now_s, label_unix_s[ends])
        self._heard_s[slots] = now_s
        return Steps(
            state=self.state[slots],
            since_unix_s=self.since_unix_s[slots],
            episode=self.episode[slots],
            began=began,
            waits=(self.state[slots] == INTERFERENCE) & (probability < 0.5),
            probability=probability,
            _what=what,
            _seconds=seconds,
            _of=of,
        )

    def _filter(
        self, slots: Ints, says: Floats, weights: Floats, covered: Floats, *, idle: Bools, residual: Bools
    ) -> Floats:
        """(M,) the probabilities after one tick of these slots: the forward recursion of a hidden Markov chain of two
        states (L. R. Rabiner, "A tutorial on hidden Markov models", Proc. IEEE 77(2), 1989). Its odds are what Shiryaev
        stops on; with neighbours ever rarer they become the cumulative sum.

        `says` is each tick's log-likelihood ratio, `weights` as in `step`, `covered` how many times of `REFERENCE_S` it
        covers. Of an `idle` server only what shows without requests counts, and only in an episode (`residual`).
        """
        in_episode = self.state[slots] == INTERFERENCE
        without = np.where(residual, LOUD_IDLE * weights, QUIET_IDLE * covered) * in_episode
        once_s = weights * REFERENCE_S
        before = self._probability[slots]
        before = before * np.exp(-once_s / MEAN_EPISODE_S) + (1.0 - before) * once_s * ONSETS_PER_NODE_DAY / DAY_S
        odds = before / (1.0 - before) * np.exp(np.where(idle, without, says * weights))
        found = np.minimum(odds / (1.0 + odds), MOST_CERTAIN)
        self._probability[slots] = found
        return np.asarray(found)

    def mark_unknown(self, slot: int, now_s: float, label_unix_s: float) -> bool:
        """The node has gone quiet; True when that is new."""
        began = bool(self.state[slot] != UNKNOWN)
        if began:
            if self.state[slot] != CALM:
                self._ended_s[slot] = now_s
            self._change(np.array([slot]), np.array([UNKNOWN]), now_s, np.array([label_unix_s]))
        return began

    def _begin(self, slots: Ints, states: Ints, now_s: float, label_unix_s: Floats) -> None:
        new = slots[self.state[slots] == CALM]
        self.episode[new] += 1
        soon = now_s - self._ended_s[new] <= REOPENS_WITHIN_S
        self._wait_s[new] = np.where(soon, np.minimum(MAX_DWELL_S, self._wait_s[new] * 2), self.calm_dwell_s)
        self._change(slots, states, now_s, label_unix_s)

    def _change(self, slots: Ints, states: Ints, now_s: float, label_unix_s: Floats) -> None:
        self.state[slots] = states
        self.since_s[slots], self.since_unix_s[slots] = now_s, label_unix_s
        self._calm_s[slots], self._broken_s[slots] = 0.0, now_s
        self._sums[slots] = 0.0
