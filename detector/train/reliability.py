"""How often the stated probability of Verdicts was right: was a neighbour there in 80% of those with 0.8?

The expected calibration error is the mean distance of the two shares over bins of stated probability (Naeini, Cooper
and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015). The Brier score is the
mean square of probability minus truth ("Verification of Forecasts Expressed in Terms of Probability", Monthly Weather
Review 78, 1950). Both are 0 at best. Every Verdict counts once, however much time its Sample covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slackwater.detector.features.columns import Floats, Ints

EDGES = (0.0, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0)
"""Edges of the bins. Each bin holds its lower edge, and the last its upper edge too."""


def _zeros() -> Floats:
    return np.zeros(len(EDGES) - 1)


@dataclass
class Reliability:
    """Stated probabilities against the truth, in bins; `merge` adds up. All arrays are (bins,)."""

    verdicts: Ints = field(default_factory=lambda: np.zeros(len(EDGES) - 1, dtype=np.int64))
    """Number of Verdicts."""
    beside: Ints = field(default_factory=lambda: np.zeros(len(EDGES) - 1, dtype=np.int64))
    """Number of Verdicts on nodes with a neighbour that users felt."""
    stated: Floats = field(default_factory=_zeros)
    """Sum of the stated probabilities."""
    squares: Floats = field(default_factory=_zeros)
    """Sum of the squares of stated probability minus truth."""

    def count(self, stated: Sequence[float], beside: Sequence[bool]) -> None:
        """Adds Verdicts' probabilities, and whether a neighbour was there. Raises ValueError outside of 0 to 1."""
        probability, truth = np.asarray(stated, dtype=np.float64), np.asarray(beside, dtype=np.float64)
        wrong = probability[~((probability >= 0.0) & (probability <= 1.0))]
        if len(wrong):
            raise ValueError(f"probability {wrong[0]:g}: expected 0 to 1")
        bins = np.clip(np.searchsorted(EDGES, probability, side="right") - 1, 0, len(EDGES) - 2)
        size = len(EDGES) - 1
        self.verdicts += np.bincount(bins, minlength=size)
        self.beside += np.bincount(bins, weights=truth, minlength=size).astype(np.int64)
        self.stated += np.bincount(bins, weights=probability, minlength=size)
        self.squares += np.bincount(bins, weights=(probability - truth) ** 2, minlength=size)

    def merge(self, other: Reliability) -> None:
        self.verdicts += other.verdicts
        self.beside += other.beside
        self.stated += other.stated
        self.squares += other.squares

    def as_dict(self) -> dict[str, Any] | None:
        """The bins with Verdicts, and both errors, for `--json` and a model's metadata; None without any Verdict."""
        total = int(self.verdicts.sum())
        if not total:
            return None
        used = np.flatnonzero(self.verdicts)
        counts = self.verdicts[used]
        means, shares = self.stated[used] / counts, self.beside[used] / counts
        bins = [
            {
                "from": EDGES[number],
                "to": EDGES[number + 1],
                "verdicts": int(count),
                "beside": int(self.beside[number]),
                "stated": round(float(mean), 4),
                "share": round(float(share), 4),
            }
            for number, count, mean, share in zip(used.tolist(), counts, means, shares, strict=True)
        ]
        return {
            "verdicts": total,
            "beside": int(self.beside.sum()),
            "bins": bins,
            "expected_calibration_error": round(float(np.sum(counts * np.abs(means - shares)) / total), 4),
            "brier_score": round(float(self.squares.sum()) / total, 4),
        }


def lines(scores: Mapping[str, Any]) -> list[str]:
    """A result of `as_dict` as a table for people."""
    table = [f"    {'probability':<14}{'mean':>7}{'Verdicts':>10}{'beside a neighbour':>20}"]
    for bin_ in scores["bins"]:
        between = f"{bin_['from']:g} to {bin_['to']:g}"
        beside = f"{bin_['beside']} ({bin_['share']:.3f})"
        table.append(f"    {between:<14}{bin_['stated']:>7.3f}{bin_['verdicts']:>10}{beside:>20}")
    return [
        f"  stated probability of a neighbour, {scores['verdicts']} Verdicts: expected calibration error "
        f"{scores['expected_calibration_error']:g}, Brier score {scores['brier_score']:g}",
        *table,
    ]
