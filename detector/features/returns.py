"""Returns of servers: what follows a time without answers. Pure.

A server that is restarted, reloaded or deployed to answers nothing for a while, and one that was taken out has no
requests. Then the requests that wait are answered late, and caches are cold. A neighbour slows a server, which goes on
answering. So the response times just after a time without answers say nothing, nor does what a request costs. A monitor
sees that the web server was replaced, so its node returns only then. The start itself may use all of a machine's CPU
time, so for a short while without answers its probe's times say nothing either.
"""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Bools, Floats, Ints
from slackwater.detector.slot_arrays import SlotArrays

USUAL_OVER_S = 10.0
"""Time over which the usual rate of answers is averaged."""
MISSING = 6.0
"""A server was away when this many answers are missing, by its usual rate. By chance none comes in such a time with
a probability of 1 in 400."""
AWAY_S = 0.15
"""It was away for at least this time."""
TIMES_AS_LONG = 3.0
"""The queue that was left, and cold caches, last for this many times the time away. At a load of 0.7 a queue lasts for
2.3 times as long."""
LEAST_S, MOST_S = 2.0, 10.0
"""A return lasts for at least and at most this time."""
START_S = 3.0
"""A start takes this time at most, until something is answered. A machine that answers nothing for longer is judged."""
FOUND_WITHIN_S = 2.5
"""A monitor finds new processes this long after the first answer at most: `SCAN_LATEST_AFTER_CHANGE_NS` in the
monitor, and a look more."""
REST_S = 5.0
"""For this long after a return, another time without answers excuses nothing, which is enough to be found slow: a
neighbour may make a server stand still again and again, and a pool of processes grow and shrink with it."""
ROUNDING_S = 1e-6
LONG_AGO_S = 1e9
"""Stands for the age of what never was."""


class Returns(SlotArrays):
    """The usual rate of answers of every slot, its time without any, and how long its return lasts yet."""

    _rps: Floats
    _away_s: Floats
    _missing: Floats
    """Answers that are missing since the last one, by the usual rate."""
    _was_away_s: Floats
    """Length of the last time without answers that was long enough."""
    _since_s: Floats
    """Time since that one was over."""
    _new_s: Floats
    """Time since the web server's processes were replaced."""
    _left_s: Floats
    """Time until the return is over. Below 0: the time since it was over; -infinity: there was no return."""
    _in_episode: Bools
    """Whether `end` was called since the last Sample."""

    def __init__(self) -> None:
        super().__init__(
            _rps=np.nan,
            _away_s=0.0,
            _missing=0.0,
            _was_away_s=0.0,
            _since_s=LONG_AGO_S,
            _new_s=LONG_AGO_S,
            _left_s=-np.inf,
            _in_episode=False,
        )

    def update(
        self, slots: Ints, answered_rps: Floats, period_s: Floats, monitored: Bools, is_replaced: Bools
    ) -> Bools:
        """(M,) whether these slots return, or are monitored and may be starting, after Samples of `period_s` with this
        rate of answers; NaN is not known."""
        usual = self._rps[slots]
        known = ~np.isnan(answered_rps)
        none = known & (answered_rps <= 0.0)
        away_s, missing = self._away_s[slots], self._missing[slots]
        left_s = self._left_s[slots] - period_s
        was_away = known & ~none & (missing >= MISSING) & (away_s >= AWAY_S)
        since_s = np.where(was_away, 0.0, self._since_s[slots] + period_s)
        was_away_s = np.where(was_away, away_s, self._was_away_s[slots])
        new_s = np.where(is_replaced, 0.0, self._new_s[slots] + period_s)
        rested = (left_s <= -REST_S) & ~self._in_episode[slots]
        left_s = np.where(monitored & was_away & rested, 0.0, left_s)
        # Below 0 and as old as the last time without answers: that one was excused.
        excused = (np.abs(left_s + since_s) <= ROUNDING_S) & ~self._in_episode[slots]
        started = (since_s <= FOUND_WITHIN_S) & (new_s <= since_s + was_away_s) & excused
        begins = np.where(monitored, started, was_away & rested)
        left_s = np.where(begins, np.clip(TIMES_AS_LONG * was_away_s, LEAST_S, MOST_S), left_s)
        self._since_s[slots], self._was_away_s[slots], self._new_s[slots] = since_s, was_away_s, new_s
        self._away_s[slots] = np.where(none, away_s + period_s, np.where(known, 0.0, away_s))
        self._missing[slots] = np.where(none, missing + np.nan_to_num(usual) * period_s, np.where(known, 0.0, missing))
        kept = np.exp(-period_s / USUAL_OVER_S)
        moved = np.where(np.isnan(usual), answered_rps, kept * usual + (1.0 - kept) * answered_rps)
        self._rps[slots] = np.where(known, moved, usual)
        away_s = self._away_s[slots]
        starts = monitored & (self._missing[slots] >= MISSING) & (away_s >= AWAY_S) & rested
        too_long = starts & (away_s > START_S)
        self._left_s[slots] = np.where(too_long, 0.0, left_s)
        self._in_episode[slots] = False
        return np.asarray((left_s > ROUNDING_S) | (starts & ~too_long))

    def end(self, slots: Ints) -> None:
        """Ends the returns of these slots, and lets none begin for `REST_S`: in an episode a server is relieved, so it
        answers little for that reason, and only its answers end the episode."""
        self._left_s[slots], self._in_episode[slots] = 0.0, True
