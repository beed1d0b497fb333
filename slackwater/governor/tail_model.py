"""Predicts a percentile of the response time of a configuration, and how sure that is.

A configuration of n cores at clock share v and utilisation u serves a request `1 / v` as slowly, and stretches the
whole of its time by `x = 1 / (v (1 - u))`. More cores even out the arrivals, and that part of the wait falls with the
root of n (square-root staffing: Halfin and Whitt 1981, "Heavy-traffic limits for queues with many exponential
servers"). So a percentile of the response time is close to `a + b x + c x / sqrt(n) + d / v` with a, b, c, d >= 0,
whatever they are. A percentile that was measured with one configuration then bounds that of every other: the sum is
stretched no more than the term that is stretched most. That bound is the prediction. It is safe from the first second
on, and the closer, the nearer the measured configuration is.

Measurements are kept in bins of log x: mean and deviation of the logarithm of the percentile. They count for less with
time, whether their bin gets new ones or not (discounting as in D-UCB, Garivier and Moulines 2011, "On upper-confidence
bound policies for switching bandit problems"). A bin with few seconds is filled up with the bound from the bin below.
So old evidence, good or bad, gives way to that bound, and a configuration that was once slow is tried again.

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
"""Nothing is predicted at this utilisation or above: the queue grows."""
BIN = 0.1
"""Width of a bin in log x."""
BINS = 100
HALF_LIFE_S = 300.0
"""After this time a second counts for half."""
LEAST = 0.01
"""A bin with less than this of a second left is empty."""
STEP = 1.0
Z_LEAST, Z_START, Z_MOST = 0.0, 1.5, 6.0
FEW, DEVIATION = 3.0, 0.1
"""Each bin counts as if this many more seconds had been seen in it, at the bound from the bin below, with this
deviation of the logarithm."""


def _terms(cores: Floats, clock_shares: Floats, utilisations: Floats) -> Floats:
    """(3, N) the logarithms of x, x / sqrt(n) and 1 / v for N configurations."""
    stretches = -np.log(clock_shares * (1.0 - utilisations))
    return np.stack([stretches, stretches - 0.5 * np.log(cores), -np.log(clock_shares)])


class TailModel:
    """Response times are in units of the target."""

    def __init__(self, miss_share: float = 0.01) -> None:
        self._miss_share = miss_share
        self._count, self._sum, self._squares = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS)
        self._terms = np.zeros((3, BINS))
        """Sums of the logarithm of each term in each bin."""
        self.z = Z_START

    def learn(self, cores: int, clock_share: float, utilisation: float, tail: float) -> None:
        """Takes in a second: its configuration, and the percentile over the target."""
        terms = _terms(np.array([cores]), np.array([clock_share]), np.array([min(utilisation, FULL)]))[:, 0]
        number = min(BINS - 1, max(0, int(terms[0] / BIN)))
        self._count[number] += 1.0
        self._sum[number] += math.log(tail)
        self._squares[number] += math.log(tail) ** 2
        self._terms[:, number] += terms

    def forget(self, passed_s: float) -> None:
        """`passed_s` went by, with or without a second to learn from."""
        weight = 0.5 ** (passed_s / HALF_LIFE_S)
        weights = np.where(self._count * weight < LEAST, 0.0, weight)
        for sums in (self._count, self._sum, self._squares, self._terms):
            sums *= weights

    def missed(self, miss: bool) -> None:
        """A second that was planned with a margin met its target or missed it."""
        self.z = min(Z_MOST, max(Z_LEAST, self.z + STEP * (float(miss) - self._miss_share)))

    def upper(self, cores: Floats, clock_shares: Floats, utilisations: Floats) -> Floats:
        """(N,) the percentile over the target of N configurations, with the margin; infinite where nothing can be
        predicted."""
        full = utilisations >= FULL
        seen = np.flatnonzero(self._count)
        if not len(seen):
            return np.full(len(clock_shares), np.inf)
        count = self._count[seen]
        means = self._sum[seen] / count
        spread = np.maximum(0.0, self._squares[seen] / count - means**2)
        deviations = np.sqrt((spread * count + FEW * DEVIATION**2) / (count + FEW))
        centres = self._terms[:, seen] / count
        for number in range(1, len(seen)):
            bound = means[number - 1] + max(0.0, float((centres[:, number] - centres[:, number - 1]).max()))
            means[number] = (means[number] * count[number] + bound * FEW) / (count[number] + FEW)
        levels = np.exp(means + self.z * deviations)
        terms = _terms(cores, clock_shares, np.where(full, 0.0, utilisations))
        # The nearest evidence below `x` counts, also where it is worse news.
        last = np.maximum(0, np.searchsorted(centres[0], terms[0], side="right") - 1)
        upper = levels[last] * np.exp(np.maximum(0.0, (terms - centres[:, last]).max(axis=0)))
        return np.where(full, np.inf, upper)
