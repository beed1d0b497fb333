"""Heimdall's support vector regressor: gamma = 1e-4, C = 100, epsilon = 0.05 (section 4.1.7).

Its inputs were requests per second in the thousands, cores and frequency steps as they are, and milliseconds around 1
as output. Inputs are taken as they are here too, since gamma belongs to their scale: next to requests in the hundreds,
cores weigh little. The output is over the median p95 of the training rows, so that epsilon is 5% of a usual p95
whatever the application's scale is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from detector.features.columns import Floats
from detector.tail.data import Rows
from detector.tail.estimator import NotFitted

GAMMA, C, EPSILON = 1e-4, 100.0, 0.05


class Svm:
    """Support vector regressor with a radial kernel."""

    name = "SVM"

    def __init__(self) -> None:
        self._machine: Any = None
        self._unit_ms = 1.0

    def fit(self, rows: Rows) -> None:
        from sklearn.svm import SVR

        self._unit_ms = float(np.median(rows.p95_ms))
        self._machine = SVR(kernel="rbf", gamma=GAMMA, C=C, epsilon=EPSILON)
        self._machine.fit(rows.inputs, rows.p95_ms / self._unit_ms)

    def predict_ms(self, inputs: Floats) -> Floats:
        if self._machine is None:
            raise NotFitted("the support vector machine has learnt nothing yet")
        # The kernel fades far from all training rows; a response time is never below nothing.
        return np.maximum(0.0, np.asarray(self._machine.predict(inputs), dtype=np.float64) * self._unit_ms)
