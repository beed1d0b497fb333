"""Heimdall's estimators that scikit-learn has: a random forest and a support vector machine (section 4.1.7).

Heimdall's support vector machine had requests per second in the thousands, cores and frequency steps as inputs, and
milliseconds around 1 as output. Here the inputs are not scaled either, since gamma belongs to their scale: beside
requests in the hundreds cores weigh little. The output is divided by the median p95 of the training rows, so epsilon is
5% of a usual p95 whatever the application's scale is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slackwater.detector.features.columns import Floats
from slackwater.detector.tail.data import Rows
from slackwater.detector.tail.estimator import NotFitted

TREES = 20
GAMMA, C, EPSILON = 1e-4, 100.0, 0.05


class _Regressor:
    """The common part of both; see `slackwater.detector.tail.estimator.TailEstimator`."""

    name: str

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._unit_ms = 1.0
        self._fitted: Any = None

    def predict_ms(self, inputs: Floats) -> Floats:
        if self._fitted is None:
            raise NotFitted(f"the {self.name} has learnt nothing yet")
        # Far from all training rows a support vector machine's kernel fades, but a response time is never below 0.
        return np.maximum(0.0, np.asarray(self._fitted.predict(inputs), dtype=np.float64) * self._unit_ms)


class Forest(_Regressor):
    """Random forest regressor."""

    name = "random forest"

    def fit(self, rows: Rows) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self._fitted = RandomForestRegressor(n_estimators=TREES, random_state=self._seed)
        self._fitted.fit(rows.inputs, rows.p95_ms)


class Svm(_Regressor):
    """Support vector regressor with a radial kernel."""

    name = "SVM"

    def fit(self, rows: Rows) -> None:
        from sklearn.svm import SVR

        self._unit_ms = float(np.median(rows.p95_ms))
        self._fitted = SVR(kernel="rbf", gamma=GAMMA, C=C, epsilon=EPSILON)
        self._fitted.fit(rows.inputs, rows.p95_ms / self._unit_ms)
