"""Whether a single client can be why a server without a monitor looks slow. Pure.

A client whose requests take long, as it reads slowly or asks for a dear page, has one after the other on a connection.
So in a time it has no more of them than fit into it, and holds one place among the requests in flight.
"""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Bools, Floats, Ints, filled
from slackwater.detector.slot_arrays import SlotArrays

FEW = 2.5
"""Slow requests, or requests in flight, of which one client may be the cause."""
LONG_S = 0.1
"""A slow client's requests take at least so long: it would raise the rate of requests with shorter ones."""
HALF_SLOWER = 1.1
"""Half of the requests are slow where the median of the response times is at least this multiple of calm's."""
HIGH = 2.0
"""A p95 below this multiple of calm's shows that at most `TAIL` of the requests are slow."""
TAIL = 0.05
ANSWERS = 16.0
"""Slow requests are counted among about so many answers: those of a Sample at 80 requests/s, of 0.8 s at 20."""
HELD_S = 1.0
"""Time over which the most requests in flight are remembered."""
BESIDE, MOST_SHARE = 10.0, 0.1
"""In an episode a client is told from the server only beside so many answers, of which at most this share are slow."""


class SingleClients(SlotArrays):
    """Slow requests of each slot among its last answers, these answers, their time, and the most requests in flight."""

    _slow: Floats
    _answers: Floats
    _covered_s: Floats
    _held: Floats

    def __init__(self) -> None:
        super().__init__(_slow=0.0, _answers=0.0, _covered_s=0.0, _held=0.0)

    def update(
        self,
        slots: Ints,
        period_s: Floats,
        *,
        answers: Floats,
        mean_ms: Floats,
        p95_ms: Floats,
        own_mean: Floats,
        own_p95: Floats,
        own_median: Floats,
        in_flight: Floats,
        in_episode: Bools,
    ) -> Bools:
        """(M,) whether a single client can be the cause, by Samples of `period_s`.

        `own_*`: over the slot's calm. What the mean adds to calm's is counted in requests that take as long as the p95.
        Where no percentiles are known the requests in flight decide: many at a time are no single client's. In an
        episode that decides nothing, since a server that was relieved holds few.
        """
        added_ms = filled(mean_ms * (1.0 - 1.0 / own_mean), 0.0)
        most = answers * np.where(own_p95 < HIGH, TAIL, 1.0)
        slow = np.maximum(filled(np.fmin(answers * added_ms / p95_ms, most), 0.0), 0.0)
        answers = filled(answers, 0.0)
        kept = np.exp(-answers / ANSWERS)
        self._slow[slots] = slow = kept * self._slow[slots] + slow
        self._answers[slots] = among = kept * self._answers[slots] + answers
        self._covered_s[slots] = covered_s = kept * self._covered_s[slots] + period_s
        self._held[slots] = held = np.fmax(np.exp(-period_s / HELD_S) * self._held[slots], in_flight)
        takes_s = p95_ms / 1000.0
        fit = np.where(takes_s < LONG_S, FEW, np.maximum(FEW, 0.5 + covered_s / np.maximum(takes_s, LONG_S)))
        few = (slow < fit) & (own_median < HALF_SLOWER)
        beside = (takes_s >= LONG_S) & (among >= BESIDE) & (slow <= MOST_SHARE * among)
        return np.where(np.isnan(p95_ms), ~in_episode & (held < FEW), few & (beside | ~in_episode))
