"""Servers without a monitor that answer nothing while requests wait for them, or are refused. Pure.

Such a server has no response times, so by these alone it would look like one without requests. Yet a request that was
not answered for a time takes at least so long. A restart or a deploy is over sooner than `LEAST_S`.
"""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Bools, Floats, Ints, filled
from slackwater.detector.slot_arrays import SlotArrays

LEAST_S = 3.0
"""Time in which requests waited and none was answered, after which that time counts as a response time."""
MISSING = 6.0
"""By its usual rate so many answers are missing by then: a quiet server has one slow request now and then."""
SEVERAL = 3.0
"""Requests that wait at a time; fewer may be those of a single client."""
USUAL_OVER_S = 10.0
"""Time over which the usual rate of answers is averaged."""


class Unanswered(SlotArrays):
    """How long requests waited at each slot since its last answer, and its usual rate of answers."""

    _rps: Floats
    _waited_s: Floats
    _in_episode: Bools

    def __init__(self) -> None:
        super().__init__(_rps=np.nan, _waited_s=0.0, _in_episode=False)

    def note_episodes(self, slots: Ints, in_episode: Bools) -> None:
        """Notes which of these slots, (M,), are in an episode."""
        self._in_episode[slots] = in_episode

    def update(
        self,
        slots: Ints,
        answered_rps: Floats,
        period_s: Floats,
        *,
        in_flight: Floats,
        oldest_ms: Floats,
        failed: Floats,
    ) -> Floats:
        """(M,) time in seconds for which these slots' requests wait; 0 where they are answered, or it says nothing yet.

        Of Samples of `period_s`: rate of answers, requests in flight, age of the oldest one without any answer, number
        of failed requests; NaN is not known. In an episode a server has few requests, so a single one counts, and its
        rate is no usual one.
        """
        usual, in_episode = self._rps[slots], self._in_episode[slots]
        answers = answered_rps > 0.0
        fails = filled(failed, 0.0) > 0.0
        waits = (answered_rps <= 0.0) & (fails | (np.where(np.isnan(oldest_ms), in_flight, oldest_ms) > 0.0))
        waited_s = np.where(answers, 0.0, self._waited_s[slots] + np.where(waits, period_s, 0.0))
        self._waited_s[slots] = waited_s
        kept = np.exp(-period_s / USUAL_OVER_S)
        moved = np.where(np.isnan(usual), answered_rps, kept * usual + (1.0 - kept) * answered_rps)
        self._rps[slots] = np.where(np.isnan(answered_rps) | (waited_s > 0.0) | in_episode, usual, moved)
        several = (fails | (in_flight >= SEVERAL)) & (usual * waited_s >= MISSING)
        single = in_episode & (fails | (oldest_ms >= 1000.0 * LEAST_S))
        counts = waits & (waited_s >= LEAST_S) & (several | single)
        return np.where(counts, np.fmax(waited_s, oldest_ms / 1000.0), 0.0)
