"""How well each tail estimator does, and how that depends on the share of the data that it was trained on.

As in Heimdall's figures 4.4 to 4.6: 70% of each configuration's rows at random to train and the rest to test; and
learning curves, in which the first rows of each configuration up to a share train, and all rows test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from detector.features.columns import Bools
from detector.tail.data import Rows
from detector.tail.estimator import TailEstimator, paae, r2
from detector.tail.regressors import Forest, Svm
from detector.tail.table import Table

TRAIN_SHARE = 0.7
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MIN_ROWS = 20
ESTIMATORS: tuple[Callable[[], TailEstimator], ...] = (Forest, Svm, Table)


class TooFewRows(ValueError):
    """Recordings with too few seconds of servers with requests."""


def compare(rows: Rows, shares: Sequence[float] = SHARES, seed: int = 0) -> dict[str, Any]:
    """Estimator -> its scores and learning curve, as for JSON. Raises TooFewRows."""
    if len(rows.p95_ms) < MIN_ROWS:
        raise TooFewRows(f"{len(rows.p95_ms)} seconds of servers with a p95 response time; expected {MIN_ROWS} or more")
    train = part_of(rows, TRAIN_SHARE, seed)
    found: dict[str, Any] = {}
    for make in ESTIMATORS:
        estimator = make()
        estimator.fit(rows.only(train))
        found[estimator.name] = {
            **scores(estimator, rows.only(~train)),
            "learning_curve": [[share, *_learnt(make, rows, share)] for share in shares],
        }
    return found


def scores(estimator: TailEstimator, rows: Rows) -> dict[str, Any]:
    """PAAE and R2 on rows; of the table also how often its bucket is right, and PAAE below its target alone."""
    predicted = estimator.predict_ms(rows.inputs)
    found: dict[str, Any] = {
        "paae": round(paae(predicted, rows.p95_ms), 4),
        "r2": round(r2(predicted, rows.p95_ms), 4),
        "rows": len(rows.p95_ms),
    }
    if isinstance(estimator, Table):
        kept = estimator.buckets(rows.p95_ms) < len(estimator.levels_ms) - 1
        found["correctness"] = round(estimator.correctness(rows), 4)
        found["paae_within_target"] = round(paae(predicted[kept], rows.p95_ms[kept]), 4) if kept.any() else None
    return found


def part_of(rows: Rows, share: float, seed: int | None = None) -> Bools:
    """(N,) marks this share of each configuration's rows: the first ones, or with a seed some at random."""
    random = None if seed is None else np.random.default_rng(seed)
    chosen = np.zeros(len(rows.p95_ms), dtype=bool)
    for number in np.unique(rows.configuration):
        mine = np.flatnonzero(rows.configuration == number)
        if random is not None:
            mine = random.permutation(mine)
        chosen[mine[: max(1, round(share * len(mine)))]] = True
    return chosen


def _learnt(make: Callable[[], TailEstimator], rows: Rows, share: float) -> tuple[float, float]:
    estimator = make()
    estimator.fit(rows.only(part_of(rows, share)))
    found = scores(estimator, rows)
    return found["paae"], found["r2"]
