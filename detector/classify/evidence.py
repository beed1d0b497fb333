"""How strongly a Sample speaks for a neighbour, and how much of that begins an episode. Pure.

A Sample falls into one of the tree's leaves, which are grouped into levels. What it says is its level's log-likelihood
ratio, ln P(level | neighbour) / P(level | calm), with the shares counted in recordings. The ratios are added up and
never fall below 0: Page's cumulative sum ("Continuous Inspection Schemes", Biometrika 41, 1954). No rule with as few
false alarms finds a change sooner (Lorden, "Procedures for Reacting to a Change in Distribution", Annals of
Mathematical Statistics 42, 1971).

An episode begins at a threshold that follows from a rate of false episodes: the sum that calm exceeds no more often,
with 95% confidence, by how often the recordings' calm exceeded it. Beyond what they hold, each unit of the sum makes it
rarer by e (Wald's identity), and so it is from the start where they hold too little: Lorden's bound, a mean of
exp(threshold) Samples until a false episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from detector.features.columns import Floats

QUIET = 0
"""The level that says most clearly that there is no neighbour."""
MOST_LEVELS = 64
REFERENCE_S = 0.2
"""The counts are of times this long. A Sample that covers less says less, in proportion."""
MOST_COVERED_S = 1.2
"""No Sample counts for more time than this, however long none came before it."""
DAY_S = 86_400.0
SMOOTHING = 0.5
"""Added to each count (Jeffreys' prior): what was never counted is rare, not impossible."""
ENOUGH_PEAKS = 10
"""So many times a sum was exceeded, and how often that happens is known."""
LIKELY_PEAKS = 16.96
"""With 95% confidence no more than so many are expected where `ENOUGH_PEAKS` were counted: the exact bound of a Poisson
mean (Garwood, "Fiducial Limits for the Poisson Distribution", Biometrika 28, 1936)."""
ENOUGH_DAYS = 0.1
"""Recordings with less calm hold too little."""


@dataclass(frozen=True)
class Evidence:
    """How often each level was counted in recordings, in times of `REFERENCE_S`; the levels in the order of what they
    say."""

    calm: tuple[float, ...]
    neighbour: tuple[float, ...]
    """Beside a neighbour that users felt."""

    @classmethod
    def none(cls, levels: int) -> Evidence:
        """Nothing counted yet."""
        return cls((0.0,) * levels, (0.0,) * levels)

    @classmethod
    def of(cls, counted: Mapping[str, Any]) -> Evidence:
        """From what `as_dict` gave. Raises KeyError, TypeError or ValueError for what is no such thing."""
        calm, neighbour = (tuple(float(value) for value in counted[name]) for name in ("calm", "neighbour"))
        if not 0 < len(calm) == len(neighbour) <= MOST_LEVELS:
            raise ValueError(f"expected counts of 1 to {MOST_LEVELS} levels, as many in calm as beside a neighbour")
        if not all(0 <= value < math.inf for value in (*calm, *neighbour)):
            raise ValueError("expected counts of at least 0")
        return cls(calm, neighbour)

    def as_dict(self) -> dict[str, Any]:
        """For a model file and JSON."""
        return {"calm": list(self.calm), "neighbour": list(self.neighbour)}

    @cached_property
    def ratios(self) -> Floats:
        """(levels,) log-likelihood ratio of each."""
        calm, neighbour = np.asarray(self.calm) + SMOOTHING, np.asarray(self.neighbour) + SMOOTHING
        return np.asarray(np.log(neighbour / neighbour.sum()) - np.log(calm / calm.sum()))


@dataclass(frozen=True)
class CalmSums:
    """How high the sum rose in the recordings where no neighbour was."""

    days: float = 0.0
    """Node-days."""
    peaks: tuple[float, ...] = ()
    """The highest values before it fell to 0 again, the highest first; `ENOUGH_PEAKS` at most."""

    @classmethod
    def of(cls, counted: Mapping[str, Any]) -> CalmSums:
        """From what `as_dict` gave. Raises KeyError, TypeError or ValueError for what is no such thing."""
        peaks, days = tuple(float(value) for value in counted["peaks"]), float(counted["days"])
        if not all(0 <= value < math.inf for value in (*peaks, days)):
            raise ValueError("expected days and sums of at least 0")
        if list(peaks) != sorted(peaks, reverse=True) or (peaks and not days):
            raise ValueError("expected the highest sum first, and the days that they are of")
        return cls(days, peaks)

    def as_dict(self) -> dict[str, Any]:
        """For a model file and JSON."""
        return {"days": self.days, "peaks": list(self.peaks)}

    def threshold(self, false_episodes_per_day: float) -> float:
        """The lowest sum at which no more false episodes begin on a node in a day, with 95% confidence.
        `false_episodes_per_day` is above 0."""
        if len(self.peaks) < ENOUGH_PEAKS or self.days < ENOUGH_DAYS:
            return math.log(DAY_S / REFERENCE_S / false_episodes_per_day)
        allowed = false_episodes_per_day * self.days
        return self.peaks[-1] + max(0.0, math.log(LIKELY_PEAKS / allowed))


def counts(covered_s: Floats) -> Floats:
    """(M,) how many times of `REFERENCE_S` Samples cover, however long none came before."""
    return np.minimum(covered_s, MOST_COVERED_S) / REFERENCE_S


def weight(covered_s: Floats) -> Floats:
    """(M,) how much what Samples show counts, by the time that they cover."""
    return np.minimum(covered_s / REFERENCE_S, 1.0)
