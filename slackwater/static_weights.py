"""What users would have felt with the baseline weights left as they were: an estimate, and said to be one.

Each server's capacity in calm is its requests over its CPU share before the episode; the neighbour takes `severity` of
it. A server's response times move like the slack that its load leaves, as in M/M/1: (capacity - rate) before over the
same then. It holds where weights set shares of the requests (`Cycle.weights_mean`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.percentile import pooled_ms

LEAST_SLACK = 0.02
"""Share of its capacity that a full server's slack counts as: at 0 it would never answer."""
LEAST_CPU = 0.02
"""Below this CPU share requests over CPU says nothing."""


@dataclass(frozen=True)
class Server:
    """One server: before the episode in calm, and what the static split would have sent to it in the episode."""

    rps: float | None
    cpu: float | None
    rt_p50_ms: float | None
    rt_p95_ms: float | None
    rt_p99_ms: float | None
    static_rps: float
    severity: float
    """Share of its calm capacity that was lost in the episode; 0 for the others."""


def estimate_ms(servers: Sequence[Server], q: float) -> float | None:
    """The `q`-quantile of response time in ms over all requests; None when too little is known of a server."""
    mixed = []
    for server in servers:
        if server.static_rps <= 0.0:
            continue
        if not server.rps or server.cpu is None or server.cpu < LEAST_CPU or server.rt_p95_ms is None:
            return None
        calm = server.rps / server.cpu
        slower = _slack(calm, server.rps) / _slack(calm * (1.0 - server.severity), server.static_rps)
        marks = (server.rt_p50_ms, server.rt_p95_ms, server.rt_p99_ms)
        p50, p95, p99 = (None if mark is None else mark * slower for mark in marks)
        mixed.append((server.static_rps, p50, p95, p99))
    found = pooled_ms(mixed, q)
    return found if found is not None and math.isfinite(found) else None


def _slack(capacity_rps: float, rate_rps: float) -> float:
    return max(capacity_rps - rate_rps, LEAST_SLACK * capacity_rps, 1e-9)
