"""`tail`: the law that makes the pool's 99th percentile least.

A request of size x waits x/(1 - r/μ) on average in a processor-sharing queue, whatever the sizes' distribution
(L. Kleinrock, Queueing Systems vol. 2, Wiley 1976, section 4.4). Taking that mean for the time itself and exponential
sizes, the response time is exponential with rate μ - r: the same as in an M/M/1 queue that serves in order, where it is
exact (vol. 1, 1975, section 3.2). A pool is a mixture of such servers: P(T > t) = Σ (r/R)·exp(-(μ - r)·t)
(`percentile_s` in `lbengine/laws/percentile.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, wrightomega

from lbengine.laws.laws import check_capacities, equalise

QUANTILE = 0.99
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
LEAST_LOAD = 1e-6
"""Below this utilisation of the pool the split stays the same."""


def tail(
    capacity_rps: Sequence[float], total_rps: float, u_threshold: float = 1.0, quantile: float = QUANTILE
) -> list[float]:
    """The split of `total_rps` with the least percentile of response time (by default the 99th), in requests/s.

    For a fixed time t the share of requests that take longer is a sum of convex functions r·exp(-(μ - r)·t), so
    Lagrange's condition (1 + r·t)·exp(-(μ - r)·t) = λ gives its least: with y = 1 + r·t it reads y + ln y =
    ln λ + 1 + μ·t, which is Wright's omega function. That least share falls with t, so the t where it is 1 - quantile
    is the least percentile. No server is filled above `u_threshold`; when the pool cannot carry `total_rps` below it,
    every server is filled alike (as in `law.optimal`). Raises ValueError when no server has any capacity.
    """
    full_rps = check_capacities(capacity_rps)
    if total_rps >= u_threshold * full_rps or total_rps <= 0.0:
        return equalise(capacity_rps, total_rps)
    unit_rps = max(capacity_rps)
    mu = np.asarray(capacity_rps) / unit_rps
    # With next to no load the split is that of `LEAST_LOAD`, scaled down.
    total, cap = max(total_rps, LEAST_LOAD * full_rps) / unit_rps, u_threshold * mu

    def split(time: float) -> Floats:
        def rates(log_price: float) -> Floats:
            clipped: Floats = np.clip((wrightomega(log_price + 1.0 + mu * time).real - 1.0) / time, 0.0, cap)
            return clipped

        full = np.log1p(cap * time) - (mu - cap) * time
        low, high = -float(mu.max()) * time, float(full.max())
        price = brentq(lambda price: float(rates(price).sum()) - total, low, high, xtol=1e-13, rtol=1e-12)
        return rates(price)

    def beyond(time: float) -> float:
        rates = split(time)
        return float(logsumexp(-(mu - rates) * time, b=rates)) - math.log(total * (1.0 - quantile))

    # No request can do better than on the fastest server alone, and the best split is not worse than filling alike.
    shortest = math.log(1.0 / (1.0 - quantile)) / float(mu.max())
    longest = shortest * float(mu.max() / mu[mu > 0.0].min()) / (1.0 - total * unit_rps / full_rps)
    time = brentq(beyond, shortest * (1 - 1e-9), longest * (1 + 1e-9), xtol=1e-12, rtol=1e-9)
    best = split(time)
    return [float(rate) * total_rps / float(best.sum()) for rate in best]
