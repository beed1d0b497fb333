"""A percentile of response time over all requests of a pool, from each server's own percentiles.

Between the percentiles that are known a server's survival function is taken as exponential (ln S is linear in t), which
is exact for exponential response times; beyond the last one it goes on like that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Known = tuple[float, float | None, float | None, float | None]
"""Requests per second, p50, p95 and p99 in ms."""
_LOGS = (math.log(0.5), math.log(0.05), math.log(0.01))
STEPS = 18
"""Halvings: one in 100,000 of the value."""


def pooled_ms(servers: Iterable[Known], q: float) -> float | None:
    """The `q`-quantile in ms of the mixture; None if no server has both requests and a response time."""
    curves = [(rps, _points(marks)) for rps, *marks in servers if rps > 0.0]
    curves = [(rps, points) for rps, points in curves if len(points) > 1]
    total = math.fsum(rps for rps, _ in curves)
    if total <= 0.0:
        return None
    low, high = 0.0, 1.0
    while _survival(curves, high) > (1.0 - q) * total:
        low, high = high, 2.0 * high
        if high > 1e9:
            return None
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if _survival(curves, middle) > (1.0 - q) * total:
            low = middle
        else:
            high = middle
    return high


def share_above(servers: Iterable[Known], limit_ms: float) -> float | None:
    """The share of all requests that take longer than `limit_ms`; None if no server has both requests and a time."""
    curves = [(rps, _points(marks)) for rps, *marks in servers if rps > 0.0]
    curves = [(rps, points) for rps, points in curves if len(points) > 1]
    total = math.fsum(rps for rps, _ in curves)
    return _survival(curves, limit_ms) / total if total > 0.0 else None


def _points(marks: Sequence[float | None]) -> list[tuple[float, float]]:
    """(t, ln S) from 0 on, strictly rising in t."""
    points = [(0.0, 0.0)]
    for mark, log in zip(marks, _LOGS, strict=True):
        if mark is not None and mark > points[-1][0]:
            points.append((mark, log))
    return points


def _survival(curves: Sequence[tuple[float, list[tuple[float, float]]]], t_ms: float) -> float:
    """Requests per second slower than `t_ms`."""
    slower = 0.0
    for rps, points in curves:
        index = 1
        while index < len(points) - 1 and points[index][0] < t_ms:
            index += 1
        (t0, log0), (t1, log1) = points[index - 1], points[index]
        slower += rps * math.exp(log0 + (log1 - log0) * (t_ms - t0) / (t1 - t0))
    return slower
