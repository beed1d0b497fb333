"""How strongly a Sample speaks for a neighbour, and how much of that begins an episode. Pure.

A Sample shows one of four levels. What it says is its log-likelihood ratio, ln P(level | neighbour) / P(level | calm),
with the shares counted in recordings. The ratios are added up and never fall below 0: Page's cumulative sum
("Continuous Inspection Schemes", Biometrika 41, 1954). No rule with as few false alarms finds a change sooner (Lorden,
"Procedures for Reacting to a Change in Distribution", Annals of Mathematical Statistics 42, 1971).

An episode begins at a threshold that follows from a rate of false episodes. In calm the sum, with the level before, is
a Markov chain, whose mean time to the threshold is exact but for the grid (Brook and Evans, "An Approach to the
Probability Distribution of CUSUM Run Length", Biometrika 59, 1972). The level before counts because what disturbs one
Sample often disturbs the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from detector.features.columns import Floats

LEVELS = ("quiet", "faint", "weak", "strong")
QUIET, FAINT, WEAK, STRONG = range(4)
"""What a Sample shows: nothing; a cause and users beyond `WEAK_LIMITS`; a neighbour; a neighbour strongly."""
REFERENCE_S = 0.2
"""The counts are of times this long. A Sample that covers less says less, in proportion."""
MOST_COVERED_S = 1.2
"""No Sample counts for more time than this, however long none came before it."""
DAY_S = 86_400.0
GRID = 0.25
"""Of sums: a step of the Markov chain's."""
HIGHEST = 30.0
"""No threshold is above this."""
SMOOTHING = 0.5
"""Added to each count (Jeffreys' prior): what was never counted is rare, not impossible."""


@dataclass(frozen=True)
class Evidence:
    """How often each level was counted, from recordings."""

    calm: tuple[tuple[float, ...], ...]
    """Row: the level before, column: the level, of nodes without a neighbour; in times of `REFERENCE_S`."""
    neighbour: tuple[float, ...]
    """Levels of nodes beside a neighbour that users felt; in times of `REFERENCE_S`."""

    @classmethod
    def of(cls, counted: Mapping[str, Any]) -> Evidence:
        """From what `as_dict` gave. Raises KeyError, TypeError or ValueError for what is no such thing."""
        calm = tuple(tuple(float(count) for count in row) for row in counted["calm"])
        neighbour = tuple(float(count) for count in counted["neighbour"])
        size = len(LEVELS)
        rows = (*calm, neighbour)
        are_counts = all(0 <= one < math.inf for row in rows for one in row)
        if [len(row) for row in rows] != [size] * (size + 1) or not are_counts:
            raise ValueError(f"expected {size} rows of {size} counts in calm, and {size} beside a neighbour")
        return cls(calm, neighbour)

    def as_dict(self) -> dict[str, Any]:
        """For a model's metadata and JSON."""
        return {"calm": [list(row) for row in self.calm], "neighbour": list(self.neighbour)}

    @cached_property
    def ratios(self) -> Floats:
        """(4,) log-likelihood ratio of each level."""
        calm = np.sum(self.calm, axis=0) + SMOOTHING
        neighbour = np.asarray(self.neighbour) + SMOOTHING
        return np.asarray(np.log(neighbour / neighbour.sum()) - np.log(calm / calm.sum()))

    def false_episodes_per_day(self, threshold: float) -> float:
        """So many episodes begin a node-day in calm, when one begins at this sum."""
        return DAY_S / (REFERENCE_S * self._mean_samples(threshold))

    def threshold(self, false_episodes_per_day: float) -> float:
        """The lowest sum, to the grid, at which no more false episodes begin; at most `HIGHEST`."""
        return _threshold(self, false_episodes_per_day)

    def _mean_samples(self, threshold: float) -> float:
        """Mean number of Samples in calm until the sum reaches the threshold, from 0."""
        counts = np.asarray(self.calm, dtype=float)
        overall = (counts.sum(axis=0) + SMOOTHING) / (counts.sum() + len(LEVELS) * SMOOTHING)
        # A row that was hardly ever counted leans on all of them, and none makes the next level rarer than it is.
        shares = counts + len(LEVELS) * SMOOTHING * overall
        shares = np.maximum(shares / shares.sum(axis=1, keepdims=True), overall)
        shares[:, QUIET] = 1.0 - shares[:, QUIET + 1 :].sum(axis=1)
        steps = np.round(self.ratios / GRID).astype(int)
        sums = max(1, round(threshold / GRID))
        size = len(LEVELS) * sums
        goes = np.zeros((size, size))
        at = np.arange(sums)
        for level, step in enumerate(steps):
            after = np.maximum(at + step, 0)
            stays = after < sums
            for before in range(len(LEVELS)):
                goes[before * sums + at[stays], level * sums + after[stays]] += shares[before, level]
        return float(np.linalg.solve(np.eye(size) - goes, np.ones(size))[0])


COUNTED = Evidence(
    calm=((6939, 6, 15, 5), (5, 0, 1, 0), (16, 0, 0, 0), (5, 0, 0, 0)),
    neighbour=(35, 8, 124, 424),
)
"""Of the shipped model on cgroup hosts: docs/results/evidence.md."""


def counts(covered_s: Floats) -> Floats:
    """(M,) how many times of `REFERENCE_S` Samples cover, however long none came before."""
    return np.minimum(covered_s, MOST_COVERED_S) / REFERENCE_S


def weight(covered_s: Floats) -> Floats:
    """(M,) how much what Samples show counts, by the time that they cover."""
    return np.minimum(covered_s / REFERENCE_S, 1.0)


@lru_cache(maxsize=16)
def _threshold(evidence: Evidence, false_episodes_per_day: float) -> float:
    low, high = 1, round(HIGHEST / GRID)
    while low < high:
        middle = (low + high) // 2
        if evidence.false_episodes_per_day(middle * GRID) <= false_episodes_per_day:
            high = middle
        else:
            low = middle + 1
    return low * GRID
