"""What would p95 be at weight w: the question that stands beside each change of a weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detector.columns import Floats
from detector.tail.estimator import TailEstimator


def p95_at_weight_ms(
    estimator: TailEstimator, now: Floats, weights: Sequence[int], server: int, weight: int, total_rps: float
) -> float:
    """p95 of one server (ms) if its weight were `weight` and the other `weights` stayed as they are.

    `now` is the server's row of inputs (`detector.tail.data.COLUMNS`) of this second; its request rate is replaced by
    what the balancer would send it: its share of the weights times `total_rps`, as under round robin. A server that
    gets no requests has no response time: 0.
    """
    if not 0 <= server < len(weights):
        raise ValueError(f"server {server}: expected 0 to {len(weights) - 1}")
    if weight < 0 or total_rps < 0:
        raise ValueError(f"weight {weight}, {total_rps:g} requests/s: expected 0 or more")
    others = sum(weights) - weights[server]
    if weight == 0 or total_rps == 0:
        return 0.0
    inputs = np.array(now, dtype=np.float64)
    inputs[0] = total_rps * weight / (weight + others)
    return float(estimator.predict_ms(inputs[None, :])[0])
