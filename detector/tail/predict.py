"""What would p95 be at another request rate: what stands behind the forecast beside each change of a weight."""

from __future__ import annotations

import numpy as np

from detector.features.columns import Floats
from detector.tail.estimator import TailEstimator


def p95_at_rps_ms(estimator: TailEstimator, now: Floats, rps: Floats) -> Floats:
    """p95 of one server (ms) at these request rates, (N,), if all else stayed as it is.

    `now` is the server's row of inputs (`detector.tail.data.COLUMNS`); its request rate is replaced. Which rate a
    weight brings is the balancer's matter (`lbengine.outcome.forecast`). Without requests there is no response time: 0.
    """
    if (rps < 0).any():
        raise ValueError(f"{rps.min():g} requests/s: expected 0 or more")
    inputs = np.tile(np.asarray(now, dtype=np.float64), (len(rps), 1))
    inputs[:, 0] = rps
    return np.where(rps > 0, estimator.predict_ms(inputs), 0.0)
