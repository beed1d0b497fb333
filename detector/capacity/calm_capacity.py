"""The calm capacity of servers that are seen from the balancer only, by their rates and response times. Pure.

Nothing measures how busy such a server is. A processor-sharing server of capacity μ that gets r requests a second
answers in W = 1/(μ - r) on average, so μ = r + 1/W. The capacity may be higher: part of W may be spent elsewhere, and a
server may have several processors. It may be lower: a server with a CPU quota works at a processor's full speed until
the quota is spent. In the laboratory it is lower by up to a third, in the simulator's pools with quotas by up to
two thirds, so the standard error is a half. What a server never carried it may not carry, so the capacity is within
`LEAST_OVER_HIGHEST` and `MOST_OVER_HIGHEST` times the highest rate of its calm.
"""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Bools, Floats, Ints, filled
from slackwater.detector.slot_arrays import SlotArrays

MEMORY_S = 30.0
"""After this much calm an observation counts for 1/e."""
ERROR = 0.5
"""Standard error, as a share of the capacity."""
LEAST_OVER_HIGHEST = 1.5
"""Of a capacity with such an error two thirds are counted on (`slackwater.lbengine.decision.loads`), so at least the
highest rate of calm is: that is sure."""
MOST_OVER_HIGHEST = 3.0
"""So at most twice the highest rate of calm is counted on: at that rate a server counts as half full
(`slackwater.detector.features.calm_rate`)."""


class CalmCapacity(SlotArrays):
    """Sums over every slot's calm; older time counts less."""

    _held: Floats
    """Requests in flight times time, in request-seconds."""
    _requests: Floats
    _seconds: Floats

    def __init__(self) -> None:
        super().__init__(_held=0.0, _requests=0.0, _seconds=0.0)

    def update(
        self, slots: Ints, rps: Floats, rt_ms: Floats, highest_rps: Floats, period_s: Floats, calm: Bools
    ) -> Floats:
        """(M,) capacity in requests/s of these slots when they are calm; NaN before any calm with requests.

        `rt_ms`: mean response time of the Sample; `highest_rps`: highest rate of calm; `calm`: the Sample is fit to
        learn from.
        """
        learns = calm & ~np.isnan(rps) & (~np.isnan(rt_ms) | (rps <= 0.0))
        here, time_s = slots[learns], period_s[learns]
        requests = rps[learns] * time_s
        kept = np.exp(-time_s / MEMORY_S)
        self._held[here] = kept * self._held[here] + requests * filled(rt_ms[learns], 0.0) / 1e3
        self._requests[here] = kept * self._requests[here] + requests
        self._seconds[here] = kept * self._seconds[here] + time_s
        held, count, seconds = self._held[slots], self._requests[slots], self._seconds[slots]
        by_times = np.where(held > 0.0, count / np.maximum(seconds, 1e-9) + count / np.maximum(held, 1e-9), np.nan)
        return np.fmin(np.fmax(by_times, LEAST_OVER_HIGHEST * highest_rps), MOST_OVER_HIGHEST * highest_rps)
