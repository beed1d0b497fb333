"""From ticks to episodes: into a state with 2 of the last 3 Samples, out of it after a calm dwell. Pure.

Ticks that show a neighbour weakly are needed three times of four: on a busy machine one tick in 150 does so in calm,
and two of three would meet by chance many times a day.

The dwell grows when episodes follow each other closely. A drained server can look calm although its neighbour is not:
each time that sending it requests again proves so, the next wait is twice as long, up to `MAX_DWELL_S`.

All nodes of a pool are stepped in one pass over arrays; `Steps.said` puts a single node's step in words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np

from detector.columns import Bools, Floats, Ints
from slackwater.messages import State

OF = 3
NEEDED = 2
WEAK_OF = 4
WEAK_NEEDED = 3
WEAK, STRONG, ENOUGH = range(3)
"""How clearly a tick says its state: needed `WEAK_NEEDED` times; `NEEDED` times, once so; enough by itself."""
REOPENS_WITHIN_S = 10.0
"""An episode that begins this soon after the end of the one before doubles the dwell; a later one resets it."""
MAX_DWELL_S = 30.0
RESIDUAL_OF = 10
RESIDUAL_NEEDED = 2
"""So many of the last ticks must show something on a server without requests to hold its episode: measured, a neighbour
shows in about a third of them; the machine's own little jobs show in one of twenty."""
THIN_FACTOR = 2.0
"""On a server without requests fewer signals live, so it must look calm for this many times the dwell."""

STATES: tuple[State, ...] = get_args(State)
CODES: dict[State, int] = {state: code for code, state in enumerate(STATES)}
CALM, INTERFERENCE, UNKNOWN = CODES["calm"], CODES["interference"], CODES["unknown"]
_NONE = -1
_QUIET, _BEGAN, _GOES_ON, _HELD, _WAITS, _ENDED = range(6)


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
    _what: Ints
    _seconds: Floats
    _of: Floats
    _thin: Bools

    @property
    def silent(self) -> Bools:
        """(M,) has nothing to say: calm without history."""
        return np.asarray(self._what == _QUIET)

    def said(self, row: int, residual: Callable[[int], str] = lambda _: "") -> str:
        """The state machine's say in words; empty in a calm without history. `residual` tells what still shows."""
        what, seconds, of = int(self._what[row]), float(self._seconds[row]), float(self._of[row])
        if what == _BEGAN:
            return f"{seconds:.0f} of the last {of:.0f} ticks"
        if what == _GOES_ON:
            return f"episode {self.episode[row]}, for {seconds:.1f} s"
        if what == _HELD:
            return f"held: {residual(row)}"
        if what == _WAITS:
            why = ", longer since it has no requests" if self._thin[row] else ""
            return f"held: looks calm for {seconds:.1f} of {of:.1f} s{why}"
        return f"episode {self.episode[row]} ended: calm for {seconds:.1f} s" if what == _ENDED else ""


class StateMachines:
    """Every slot's state. `now_s` is monotonic; `label_unix_s` is the wall time that goes into `since`."""

    def __init__(self, calm_dwell_s: float) -> None:
        self.calm_dwell_s = calm_dwell_s
        self.state: Ints = np.zeros(0, dtype=np.int64)
        self.since_s: Floats = np.zeros(0)
        self.since_unix_s: Floats = np.zeros(0)
        self.episode: Ints = np.zeros(0, dtype=np.int64)
        self._dwell_s: Floats = np.zeros(0)
        self._last: Ints = np.zeros((0, WEAK_OF), dtype=np.int64)
        self._strength: Ints = np.zeros((0, WEAK_OF), dtype=np.int64)
        self._residual: Bools = np.zeros((0, RESIDUAL_OF), dtype=bool)
        self._ended_s: Floats = np.zeros(0)
        self._calm_from_s: Floats = np.zeros(0)

    def resize(self, slots: int) -> None:
        more = slots - len(self.state)
        if more <= 0:
            return
        for name in (
            "state",
            "since_s",
            "since_unix_s",
            "episode",
            "_dwell_s",
            "_last",
            "_strength",
            "_residual",
            "_ended_s",
        ):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros((more, *array.shape[1:]), dtype=array.dtype)]))
        self._calm_from_s = np.concatenate([self._calm_from_s, np.full(more, np.nan)])

    def welcome(self, slot: int, now_s: float, label_unix_s: float) -> None:
        """A new node in a slot: calm, without history."""
        self.state[slot], self.episode[slot], self._dwell_s[slot] = CALM, 0, self.calm_dwell_s
        self._ended_s[slot] = np.nan
        self._clear(np.array([slot]), now_s, np.array([label_unix_s]))

    def step(
        self,
        slots: Ints,
        now_s: float,
        label_unix_s: Floats,
        seen: Ints,
        *,
        strength: Ints | None = None,
        wary: Bools,
        thin: Bools,
        residual: Bools,
        repeated: Bools | None = None,
    ) -> Steps:
        """Takes one tick of each of these slots in; all are (M,).

        `seen` is what the tick looks like by itself (index in `STATES`), `strength` how clearly (`WEAK`, `STRONG`,
        `ENOUGH`; without it all are strong); `thin` says that only little can show, since
        the server has no requests; `residual` that something shows of a neighbour even so. With requests they tell,
        and it is not asked; nor where `repeated` says that the tick has the figures of one before (without requests for
        a minute the canary runs once a second). `wary` asks for 3 of 3 ticks: a node without a baseline of
        its own may just be starting.
        """
        back = self.state[slots] == UNKNOWN
        self._change(slots[back], np.full(int(back.sum()), CALM), now_s, label_unix_s[back])
        state = self.state[slots]
        last = np.concatenate([self._last[slots][:, 1:], seen[:, None]], axis=1)
        self._last[slots] = last
        strength = np.full(len(slots), STRONG) if strength is None else strength
        strengths = np.concatenate([self._strength[slots][:, 1:], strength[:, None]], axis=1)
        self._strength[slots] = strengths
        same = last == seen[:, None]
        soon = same[:, -OF:].sum(axis=1)
        clear = (same & (strengths >= STRONG))[:, -OF:].any(axis=1)
        # Said by the shorter look back where that is enough.
        by_few = (soon >= NEEDED) & clear
        alike = np.where(by_few | wary, soon, same.sum(axis=1))
        ticks = np.minimum((last != _NONE).sum(axis=1), np.where(by_few | wary, OF, WEAK_OF))
        enough = np.where(wary, soon >= OF, by_few | (alike >= WEAK_NEEDED) | (strength >= ENOUGH))
        begins = (seen != CALM) & (seen != state) & enough
        what = np.full(len(slots), _QUIET)
        seconds, of = np.zeros(len(slots)), np.zeros(len(slots))

        if begins.any():
            self._begin(slots[begins], seen[begins], now_s, label_unix_s[begins])
            what[begins], seconds[begins], of[begins] = _BEGAN, alike[begins], ticks[begins]
        going = ~begins & (state != CALM)
        began = begins.copy()
        thin = thin & (state == INTERFERENCE)
        if going.any():
            loud = going & (seen != CALM)
            what[loud], seconds[loud] = _GOES_ON, now_s - self.since_s[slots[loud]]
            self._calm_from_s[slots[loud]] = np.nan
            quiet = going & ~loud
            asked = quiet & thin if repeated is None else quiet & thin & ~repeated
            self._residual[slots[asked]] = np.concatenate(
                [self._residual[slots[asked]][:, 1:], residual[asked][:, None]], axis=1
            )
            held = asked & residual & (self._residual[slots].sum(axis=1) >= RESIDUAL_NEEDED)
            what[held] = _HELD
            self._calm_from_s[slots[held]] = np.nan
            waits = quiet & ~held
            calm_from_s = self._calm_from_s[slots]
            calm_from_s = np.where(waits & np.isnan(calm_from_s), now_s, calm_from_s)
            self._calm_from_s[slots[waits]] = calm_from_s[waits]
            grown_s = np.minimum(MAX_DWELL_S, self._dwell_s[slots] * np.where(thin, THIN_FACTOR, 1.0))
            # Only an interfered server is drained: what the others look like, they are.
            dwell_s = np.where(state == INTERFERENCE, grown_s, self.calm_dwell_s)
            calm_s = now_s - calm_from_s
            ends = waits & (calm_s >= dwell_s)
            what[waits], seconds[waits], of[waits] = _WAITS, calm_s[waits], dwell_s[waits]
            what[ends] = _ENDED
            began |= ends
            self._ended_s[slots[ends]] = now_s
            self._change(slots[ends], np.full(int(ends.sum()), CALM), now_s, label_unix_s[ends])
        return Steps(
            state=self.state[slots],
            since_unix_s=self.since_unix_s[slots],
            episode=self.episode[slots],
            began=began,
            _what=what,
            _seconds=seconds,
            _of=of,
            _thin=thin,
        )

    def lost(self, slot: int, now_s: float, label_unix_s: float) -> bool:
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
        self._dwell_s[new] = np.where(soon, np.minimum(MAX_DWELL_S, self._dwell_s[new] * 2), self.calm_dwell_s)
        self._change(slots, states, now_s, label_unix_s)

    def _change(self, slots: Ints, states: Ints, now_s: float, label_unix_s: Floats) -> None:
        self.state[slots] = states
        self._clear(slots, now_s, label_unix_s)

    def _clear(self, slots: Ints, now_s: float, label_unix_s: Floats) -> None:
        self.since_s[slots], self.since_unix_s[slots] = now_s, label_unix_s
        self._calm_from_s[slots] = np.nan
        self._last[slots], self._strength[slots] = _NONE, WEAK
        self._residual[slots] = False
