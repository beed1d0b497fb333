"""Weak signals that persist: in most of the last ticks, for about a second. In one tick they mean nothing."""

from __future__ import annotations

import numpy as np

from detector.features.columns import Bools, Ints
from detector.slot_arrays import SlotArrays

OF = 7
NEEDED = 4


class Persistence(SlotArrays):
    """Which of each slot's last `OF` ticks showed a weak signal."""

    _shown: Bools
    """(slots, OF), the newest last."""

    def __init__(self) -> None:
        super().__init__(_shown=np.zeros(OF, dtype=bool))

    def step(self, slots: Ints, shown: Bools) -> Ints:
        """Takes a tick of these slots in, (M,) each; (M,) in how many of the last `OF` it showed, 0 if not in this."""
        now = np.concatenate([self._shown[slots][:, 1:], shown[:, None]], axis=1)
        self._shown[slots] = now
        return np.where(shown, now.sum(axis=1), 0)
