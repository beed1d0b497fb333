"""Predicts a percentile of the response time of a configuration, and how sure that is.

A configuration at clock share v and utilisation u stretches a request by `x = 1 / (v (1 - u))`: it is served more
slowly and waits longer. In an M/M/1 queue each percentile of the response time is `a + b x` with a, b >= 0, whatever
they are. So from what was seen at `x0` two things follow for every other `x`: it is no slower than that below `x0`, and
no slower than `x / x0` times that above it. That is the prediction: safe from the first second on, and closer the
nearer to `x` something was seen.

What was seen at `x` is kept in bins of log x: mean and deviation of the logarithm of the percentile. All of it counts
for less with time, whether its bin is seen again or not (discounting as in D-UCB, Garivier and Moulines 2011, "On
upper-confidence bound policies for switching bandit problems"). What a bin lacks in seconds, the bound from the bin
below makes up for. So old evidence, good or bad, gives way to that bound, and a configuration that was once slow is
tried again.

The margin is `z` deviations. `z` follows adaptive conformal inference (Gibbs and Candes 2021, "Adaptive conformal
inference under distribution shift"): a miss raises it, time without one lowers it, so that in the long run at most
`miss_share` of the seconds miss, whatever the distribution of the errors is.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FULL = 0.985
"""From this utilisation on nothing is predicted: the queue grows."""
BIN = 0.1
"""Width of a bin in log x."""
BINS = 100
HALF_LIFE_S = 300.0
"""After so long a second counts for half."""
LEAST = 0.01
"""A bin with less than this of a second left is empty."""
STEP = 1.0
Z_LEAST, Z_START, Z_MOST = 0.0, 1.5, 6.0
FEW, DEVIATION = 3.0, 0.1
"""In each bin as if so many more seconds had been seen, at the bound from the bin below, with this deviation of the
logarithm."""


class TailModel:
    """Response times are in units of the target."""

    def __init__(self, miss_share: float = 0.01) -> None:
        self._miss_share = miss_share
        self._count, self._sum, self._squares = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS)
        self._stretch = np.zeros(BINS)
        """Sum of log x in each bin."""
        self.z = Z_START

    def learn(self, clock_share: float, utilisation: float, tail: float) -> None:
        """One second: what the configuration was, and the percentile over the target."""
        stretch = math.log(1.0 / (clock_share * (1.0 - min(utilisation, FULL))))
        number = min(BINS - 1, max(0, int(stretch / BIN)))
        for sums, value in (
            (self._count, 1.0),
            (self._sum, math.log(tail)),
            (self._squares, math.log(tail) ** 2),
            (self._stretch, stretch),
        ):
            sums[number] += value

    def forget(self, passed_s: float) -> None:
        """So much time went by, with or without a second to learn from."""
        weight = 0.5 ** (passed_s / HALF_LIFE_S)
        weights = np.where(self._count * weight < LEAST, 0.0, weight)
        for sums in (self._count, self._sum, self._squares, self._stretch):
            sums *= weights

    def missed(self, miss: bool) -> None:
        """A second that was planned with a margin met its target or missed it."""
        self.z = min(Z_MOST, max(Z_LEAST, self.z + STEP * (float(miss) - self._miss_share)))

    def upper(self, clock_shares: Floats, utilisations: Floats) -> Floats:
        """(N,) the percentile over the target, with the margin; infinite where nothing can be predicted."""
        full = utilisations >= FULL
        seen = np.flatnonzero(self._count)
        if not len(seen):
            return np.full(len(clock_shares), np.inf)
        count = self._count[seen]
        means = self._sum[seen] / count
        spread = np.maximum(0.0, self._squares[seen] / count - means**2)
        deviations = np.sqrt((spread * count + FEW * DEVIATION**2) / (count + FEW))
        at = self._stretch[seen] / count
        for one in range(1, len(seen)):
            bound = means[one - 1] + at[one] - at[one - 1]
            means[one] = (means[one] * count[one] + bound * FEW) / (count[one] + FEW)
        levels = np.exp(means + self.z * deviations)
        stretches = np.log(1.0 / (clock_shares * (1.0 - np.where(full, 0.0, utilisations))))
        beyond = np.exp(np.maximum(0.0, stretches[:, None] - at[None, :]))
        # Nearer evidence is better, also where it is worse news: what is below `x` is believed from the last bin on.
        below = at[None, :] <= stretches[:, None]
        last = np.where(below.any(axis=1), below.sum(axis=1) - 1, 0)
        upper = levels[last] * beyond[np.arange(len(stretches)), last]
        return np.where(full, np.inf, upper)
