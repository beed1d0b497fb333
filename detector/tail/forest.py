"""Heimdall's random forest: 20 trees (section 4.1.7)."""

from __future__ import annotations

from typing import Any

import numpy as np

from detector.features.columns import Floats
from detector.tail.data import Rows
from detector.tail.estimator import NotFitted

TREES = 20


class Forest:
    """Random forest regressor."""

    name = "random forest"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._forest: Any = None

    def fit(self, rows: Rows) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self._forest = RandomForestRegressor(n_estimators=TREES, random_state=self._seed)
        self._forest.fit(rows.inputs, rows.p95_ms)

    def predict_ms(self, inputs: Floats) -> Floats:
        if self._forest is None:
            raise NotFitted("the random forest has learnt nothing yet")
        return np.asarray(self._forest.predict(inputs), dtype=np.float64)
