"""How strongly a Sample speaks for a neighbour, and at which sum an episode begins. Pure.

A Sample falls into one of the tree's leaves, which are grouped into levels. Its evidence is the level's log-likelihood
ratio, ln P(level | neighbour) / P(level | calm), with the shares counted in recordings. The ratios are added up and
the sum never falls below 0: Page's cumulative sum ("Continuous Inspection Schemes", Biometrika 41, 1954). No rule with
as few false alarms finds a change sooner (Lorden, "Procedures for Reacting to a Change in Distribution", Annals of
Mathematical Statistics 42, 1971).

An episode begins at a threshold that follows from a stated rate of false episodes. With 95% confidence calm exceeds it
no more often than that, by how often calm exceeded such sums in recordings. Beyond the highest sums of the recordings
each unit makes a false episode rarer by the factor e (Wald's identity). Where the recordings hold too little, that
holds from the start: Lorden's bound, a mean of exp(threshold) Samples until a false episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from slackwater.detector.features.columns import Floats

QUIET = 0
"""The level that speaks most clearly against a neighbour."""
MOST_LEVELS = 64
REFERENCE_S = 0.2
"""The unit of time of the counts. A Sample that covers less time counts less, in proportion."""
MOST_COVERED_S = 1.2
"""A Sample counts for no more time than this, however long none came before it."""
DAY_S = 86_400.0
SMOOTHING = 0.5
"""Added to each count (Jeffreys' prior): a level that was never counted is rare, not impossible."""
ENOUGH_PEAKS = 10
"""The rate at which a sum is exceeded is known once it was exceeded this often."""
LIKELY_PEAKS = 16.96
"""Upper bound, with 95% confidence, of the mean of a Poisson distribution of which `ENOUGH_PEAKS` were counted (exact:
Garwood, "Fiducial Limits for the Poisson Distribution", Biometrika 28, 1936)."""
ENOUGH_DAYS = 0.1
"""Recordings with less calm than this, in node-days, hold too little."""


@dataclass(frozen=True)
class Evidence:
    """Counts of each level in recordings, in units of `REFERENCE_S`. The levels are in the order of their ratios."""

    calm: tuple[float, ...]
    neighbour: tuple[float, ...]
    """Counts beside a neighbour that users felt."""

    @classmethod
    def none(cls, levels: int) -> Evidence:
        """The counts before anything was counted."""
        return cls((0.0,) * levels, (0.0,) * levels)

    @classmethod
    def of(cls, counted: Mapping[str, Any]) -> Evidence:
        """The counts in a result of `as_dict`. Raises KeyError, TypeError or ValueError for anything else."""
        calm, neighbour = (tuple(float(value) for value in counted[name]) for name in ("calm", "neighbour"))
        if not 0 < len(calm) == len(neighbour) <= MOST_LEVELS:
            raise ValueError(f"expected counts of 1 to {MOST_LEVELS} levels, as many in calm as beside a neighbour")
        if not all(0 <= value < math.inf for value in (*calm, *neighbour)):
            raise ValueError("expected counts of at least 0")
        return cls(calm, neighbour)

    def as_dict(self) -> dict[str, Any]:
        """The counts for a model file and JSON."""
        return {"calm": list(self.calm), "neighbour": list(self.neighbour)}

    @cached_property
    def ratios(self) -> Floats:
        """(levels,) log-likelihood ratio of each level."""
        calm, neighbour = np.asarray(self.calm) + SMOOTHING, np.asarray(self.neighbour) + SMOOTHING
        return np.asarray(np.log(neighbour / neighbour.sum()) - np.log(calm / calm.sum()))


@dataclass(frozen=True)
class CalmSums:
    """How high the sum rose in recordings of calm."""

    days: float = 0.0
    """Node-days of calm."""
    peaks: tuple[float, ...] = ()
    """The highest values that the sum reached before it fell to 0 again, in falling order; at most `ENOUGH_PEAKS`."""

    @classmethod
    def of(cls, counted: Mapping[str, Any]) -> CalmSums:
        """The sums in a result of `as_dict`. Raises KeyError, TypeError or ValueError for anything else."""
        peaks, days = tuple(float(value) for value in counted["peaks"]), float(counted["days"])
        if not all(0 <= value < math.inf for value in (*peaks, days)):
            raise ValueError("expected days and sums of at least 0")
        if list(peaks) != sorted(peaks, reverse=True) or (peaks and not days):
            raise ValueError("expected the highest sum first, and the days that they are of")
        return cls(days, peaks)

    def as_dict(self) -> dict[str, Any]:
        """The sums for a model file and JSON."""
        return {"days": self.days, "peaks": list(self.peaks)}

    def threshold(self, false_episodes_per_day: float) -> float:
        """The lowest sum at which no more than these false episodes begin on a node in a day, with 95% confidence.

        `false_episodes_per_day` must be above 0.
        """
        if len(self.peaks) < ENOUGH_PEAKS or self.days < ENOUGH_DAYS:
            return math.log(DAY_S / REFERENCE_S / false_episodes_per_day)
        allowed = false_episodes_per_day * self.days
        return self.peaks[-1] + max(0.0, math.log(LIKELY_PEAKS / allowed))


def counts(covered_s: Floats) -> Floats:
    """(M,) the time that Samples cover, in units of `REFERENCE_S` and limited to `MOST_COVERED_S`."""
    return np.minimum(covered_s, MOST_COVERED_S) / REFERENCE_S


def weight(covered_s: Floats | float) -> Floats:
    """(M,) the weight of Samples' evidence, 0 to 1, by the time that they cover."""
    return np.asarray(np.minimum(covered_s / REFERENCE_S, 1.0))
