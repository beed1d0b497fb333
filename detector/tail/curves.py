"""Scores of the tail estimators, and how they depend on the share of the data that they were trained on.

As in Heimdall's figures 4.4 to 4.6, estimators are trained on 70% of each configuration's rows, at random, and tested
on the rest. For learning curves they are trained on the first rows of each configuration, up to a share, and tested on
all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from slackwater.detector.features.columns import Bools
from slackwater.detector.tail.data import Rows
from slackwater.detector.tail.estimator import TailEstimator, paae, r2
from slackwater.detector.tail.regressors import Forest, Svm
from slackwater.detector.tail.table import TabularLearner

TRAIN_SHARE = 0.7
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MIN_ROWS = 20
ESTIMATORS: tuple[Callable[[], TailEstimator], ...] = (Forest, Svm, TabularLearner)


class TooFewRows(ValueError):
    """The recordings have too few seconds of servers with requests."""


def compare(rows: Rows, shares: Sequence[float] = SHARES, seed: int = 0) -> dict[str, Any]:
    """Estimator -> its scores and learning curve, ready for JSON. Raises TooFewRows."""
    if len(rows.p95_ms) < MIN_ROWS:
        raise TooFewRows(f"{len(rows.p95_ms)} seconds of servers with a p95 response time; expected {MIN_ROWS} or more")
    train = part_of(rows, TRAIN_SHARE, seed)
    results: dict[str, Any] = {}
    for make in ESTIMATORS:
        estimator = make()
        estimator.fit(rows.only(train))
        results[estimator.name] = {
            **scores(estimator, rows.only(~train)),
            "learning_curve": [[share, *_learnt(make, rows, share)] for share in shares],
        }
    return results


def scores(estimator: TailEstimator, rows: Rows) -> dict[str, Any]:
    """PAAE and R2 on rows; for the table also how often its bucket is right, and PAAE below its target alone."""
    predicted = estimator.predict_ms(rows.inputs)
    figures: dict[str, Any] = {
        "paae": round(paae(predicted, rows.p95_ms), 4),
        "r2": round(r2(predicted, rows.p95_ms), 4),
        "rows": len(rows.p95_ms),
    }
    if isinstance(estimator, TabularLearner):
        kept = estimator.buckets(rows.p95_ms) < len(estimator.levels_ms) - 1
        figures["correctness"] = round(estimator.correctness(rows), 4)
        figures["paae_within_target"] = round(paae(predicted[kept], rows.p95_ms[kept]), 4) if kept.any() else None
    return figures


def part_of(rows: Rows, share: float, seed: int | None = None) -> Bools:
    """(N,) True for this share of each configuration's rows: the first rows, or with a seed random ones."""
    random = None if seed is None else np.random.default_rng(seed)
    chosen = np.zeros(len(rows.p95_ms), dtype=bool)
    for number in np.unique(rows.configuration):
        rows_of_configuration = np.flatnonzero(rows.configuration == number)
        if random is not None:
            rows_of_configuration = random.permutation(rows_of_configuration)
        chosen[rows_of_configuration[: max(1, round(share * len(rows_of_configuration)))]] = True
    return chosen


def _learnt(make: Callable[[], TailEstimator], rows: Rows, share: float) -> tuple[float, float]:
    estimator = make()
    estimator.fit(rows.only(part_of(rows, share)))
    figures = scores(estimator, rows)
    return figures["paae"], figures["r2"]
