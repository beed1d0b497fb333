"""The interface of tail estimators, and Heimdall's measures of their errors."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from slackwater.detector.features.columns import Floats
from slackwater.detector.tail.data import Rows


class TailEstimator(Protocol):
    """Predicts p95 response time in ms from (N, len(COLUMNS)) inputs."""

    name: str

    def fit(self, rows: Rows) -> None:
        """Learns from these rows alone; earlier ones are forgotten."""

    def predict_ms(self, inputs: Floats) -> Floats:
        """(N,) p95 in ms. Raises NotFitted before the first `fit`."""


class NotFitted(Exception):
    """A prediction was requested before the first fit."""


def paae(predicted: Floats, actual: Floats) -> float:
    """Percentage absolute average error of (N,), Heimdall's equation 4.2: mean |predicted - actual| / actual."""
    return float(np.mean(np.abs(predicted - actual) / actual))


def r2(predicted: Floats, actual: Floats) -> float:
    """Heimdall's equation 4.1: 1 - residual over total sum of squares of (N,); NaN if the actual values do not vary."""
    total = float(((actual - actual.mean()) ** 2).sum())
    return 1.0 - float(((actual - predicted) ** 2).sum()) / total if total > 0 else float("nan")
