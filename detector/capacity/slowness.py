"""The lost capacity of servers that are seen from the balancer only, by how much longer their requests take. Pure.

A server that gets a share s of its calm CPU needs 1/s times as long for each request, and its queue makes that longer
still. So the loss by the response times is the most that was lost, and never too little.
"""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Bools, Floats, Ints, clipped
from slackwater.detector.slot_arrays import SlotArrays

OVER_S = 1.0
"""Time over which a loss is averaged."""
MOST_LOST = 0.98


class Slowness(SlotArrays):
    """The loss of every slot. It is kept while no answer shows another: a drained server has none."""

    _lost: Floats

    def __init__(self) -> None:
        super().__init__(_lost=np.nan)

    def update(self, slots: Ints, ratio: Floats, period_s: Floats, shows: Bools, episode: Bools) -> Floats:
        """(M,) share of the calm capacity that these slots lost; 0 for those in no episode.

        `ratio`: response time over calm at this load. `shows`: whether the tick looks slow, so that its ratio counts.
        """
        before = np.where(episode, self._lost[slots], np.nan)
        now = clipped(1.0 - 1.0 / np.maximum(ratio, 1.0), 0.0, MOST_LOST)
        kept = np.exp(-period_s / OVER_S)
        moved = np.where(np.isnan(before), now, kept * before + (1.0 - kept) * now)
        lost = np.where(episode & shows & ~np.isnan(ratio), moved, before)
        self._lost[slots] = lost
        return np.where(np.isnan(lost), 0.0, lost)
