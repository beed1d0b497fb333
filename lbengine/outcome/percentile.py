"""Response time percentiles of a pool whose servers' response times are exponential.

A request of size x waits x/(1 - r/μ) on average in a processor-sharing queue, whatever the sizes' distribution
(L. Kleinrock, Queueing Systems vol. 2, Wiley 1976, section 4.4). Taking that mean for the time itself and exponential
sizes, the response time is exponential with rate μ - r. A pool is a mixture of such servers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_STEPS = 100
CLOSE = 1e-12
"""The search ends at a step that is smaller than this share of the time."""


def percentile_s(shares: Sequence[float], rates: Sequence[float], quantile: float) -> float:
    """The response time in seconds below which the share `quantile` of the pool's requests stays.

    `shares`: each server's share of the requests, with the sum 1; `rates`: its rate μ - r in 1/s. A server with
    requests and a rate of 0 or less never answers. The result is infinite if such servers get a share of 1 - quantile
    or more.
    """
    over = 1.0 - quantile
    served = [(share, rate) for share, rate in zip(shares, rates, strict=True) if share > 0.0]
    lost = math.fsum(share for share, rate in served if rate <= 0.0)
    if lost >= over:
        return math.inf
    served = [(share, rate) for share, rate in served if rate > 0.0]
    if not served:
        return 0.0

    # Newton's method on ln P(T > t), which is convex and falls (it is a log-sum-exp): from 0 it climbs to the root and
    # never passes it.
    wanted, time_s = math.log(over - lost), 0.0
    for _ in range(MOST_STEPS):
        tails = [share * math.exp(-rate * time_s) for share, rate in served]
        whole = math.fsum(tails)
        falling = math.fsum(part * rate for part, (_, rate) in zip(tails, served, strict=True)) / whole
        step_s = (math.log(whole) - wanted) / falling
        if step_s <= CLOSE * time_s:
            break
        time_s += step_s
    return time_s
