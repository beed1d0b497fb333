"""The load of servers that are seen from the balancer only: their rate of requests over the highest rate of their calm.

Nothing measures how busy such a server is. At the highest rate at which it was calm it counts as half full, so half as
much again is the most that its calm response times are taken for, and twice as much is an overload where users wait.
"""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Floats, Ints
from slackwater.detector.slot_arrays import SlotArrays

AT_HIGHEST = 0.5
"""Load of a server at the highest rate of its calm."""
OVER_S = 10.0
"""Time over which a rate is averaged before it counts as calm's: the highest of many single seconds is chance."""
HALVES_IN_S = 7 * 86400.0
"""A highest rate that does not come again is halved in this time."""


class CalmRates(SlotArrays):
    """The rates of every slot, in requests per second."""

    _rps: Floats
    """Mean over about `OVER_S`."""
    _highest: Floats

    def __init__(self) -> None:
        super().__init__(_rps=np.nan, _highest=np.nan)

    def load(self, slots: Ints, rps: Floats, period_s: Floats) -> Floats:
        """(M,) loads of these slots at these rates. Their means move by `period_s`. Before any calm the mean stands in
        for the highest rate of calm: a server whose monitor fell silent in an episode has requests all the same."""
        before = np.where(np.isnan(self._rps[slots]), rps, self._rps[slots])
        kept = np.exp(-period_s / OVER_S)
        self._rps[slots] = np.where(np.isnan(rps), before, kept * before + (1.0 - kept) * rps)
        highest = np.where(np.isnan(self._highest[slots]), self._rps[slots], self._highest[slots])
        return np.asarray(AT_HIGHEST * rps / np.maximum(highest, 1e-3))

    def learn(self, slots: Ints, period_s: Floats) -> None:
        """Learns that these slots are calm at their rates."""
        faded = self._highest[slots] * 0.5 ** (period_s / HALVES_IN_S)
        self._highest[slots] = np.fmax(faded, self._rps[slots])

    def highest(self, slots: Ints) -> Floats:
        """(M,) highest rates of calm of these slots; NaN before any calm."""
        return self._highest[slots]

    def export(self, slot: int) -> float | None:
        """A slot's highest rate of calm as JSON; None: not known."""
        highest = float(self._highest[slot])
        return float(f"{highest:.4g}") if highest > 0.0 else None

    def restore(self, slot: int, highest_rps: float) -> None:
        """Restores a slot from a result of `export`. Raises ValueError for anything else."""
        if not 0.0 < float(highest_rps) < np.inf:
            raise ValueError(f"highest calm rate: expected requests per second, got {highest_rps}")
        self._highest[slot] = float(highest_rps)
