"""What shows weakly but lasts: in most of the last ticks, for about a second. One tick of it says nothing."""

from __future__ import annotations

import numpy as np

from detector.features.columns import Bools, Ints

OF = 7
NEEDED = 4


class Lasting:
    """Which of each slot's last `OF` ticks showed it."""

    def __init__(self) -> None:
        self._shown: Bools = np.zeros((0, OF), dtype=bool)

    def resize(self, slots: int) -> None:
        more = slots - len(self._shown)
        if more > 0:
            self._shown = np.concatenate([self._shown, np.zeros((more, OF), dtype=bool)])

    def forget(self, slot: int) -> None:
        """Empties a slot for a new node, or one that has gone quiet."""
        self._shown[slot] = False

    def step(self, slots: Ints, shown: Bools) -> Ints:
        """Takes a tick of these slots in; (M,) in how many of the last `OF` it showed, 0 where not in this one."""
        now = np.concatenate([self._shown[slots][:, 1:], shown[:, None]], axis=1)
        self._shown[slots] = now
        return np.where(shown, now.sum(axis=1), 0)
