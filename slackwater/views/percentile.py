"""A percentile of response time over all requests of a pool, from each server's own percentiles.

Between the percentiles that are known a server's survival function S is between two shapes: exponential (ln S is linear
in t), and evenly spread (S is linear in t), as where requests wait for the end of a pause. How far the p99 is beyond
the p95 decides between them. Beyond the last percentile it is exponential.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slackwater.core.journal.pool_totals import Requests

_LOGS = (math.log(0.5), math.log(0.05), math.log(0.01))
_EVENLY, _EXPONENTIALLY = 0.04 / 0.45, math.log(5.0) / math.log(10.0)
"""(p99 - p95) / (p95 - p50) of each shape."""
STEPS = 18
"""Halvings: one in 100,000 of the value."""


class Curve(NamedTuple):
    """The response times of a server with requests."""

    rps: float
    points: list[tuple[float, float]]
    """(t in ms, ln S) from 0 on, strictly rising in t; at least two."""
    even: float
    """0: exponential; 1: evenly spread."""

    def survival(self, t_ms: float) -> float:
        """The share of its requests that take longer."""
        index = 1
        while index < len(self.points) - 1 and self.points[index][0] < t_ms:
            index += 1
        (t0, log0), (t1, log1) = self.points[index - 1], self.points[index]
        passed = (t_ms - t0) / (t1 - t0)
        exponential = math.exp(log0 + (log1 - log0) * passed)
        if passed >= 1.0:
            return exponential
        evenly = math.exp(log0) + (math.exp(log1) - math.exp(log0)) * passed
        return self.even * evenly + (1.0 - self.even) * exponential


def pooled_ms(servers: Iterable[Requests], q: float) -> float | None:
    """The `q`-quantile in ms of the mixture; None if no server has both requests and a response time."""
    curves = _curves(servers)
    total = math.fsum(curve.rps for curve in curves)
    if total <= 0.0:
        return None
    low, high = 0.0, 1.0
    while _slower(curves, high) > (1.0 - q) * total:
        low, high = high, 2.0 * high
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if _slower(curves, middle) > (1.0 - q) * total:
            low = middle
        else:
            high = middle
    return high


def share_above(servers: Iterable[Requests], limit_ms: float) -> float | None:
    """The share of all requests that take longer than `limit_ms`; None if no server has both requests and a time."""
    curves = _curves(servers)
    total = math.fsum(curve.rps for curve in curves)
    return _slower(curves, limit_ms) / total if total > 0.0 else None


def _curves(servers: Iterable[Requests]) -> list[Curve]:
    """Of the servers with requests and a percentile."""
    return [
        Curve(rps, points, _evenness(*marks))
        for rps, *marks in servers
        if rps > 0.0 and len(points := _points(marks)) > 1
    ]


def _points(marks: Sequence[float | None]) -> list[tuple[float, float]]:
    points = [(0.0, 0.0)]
    for mark, log in zip(marks, _LOGS, strict=True):
        if mark is not None and mark > points[-1][0]:
            points.append((mark, log))
    return points


def _evenness(p50_ms: float | None, p95_ms: float | None, p99_ms: float | None) -> float:
    """Of few requests the p95 and the p99 are the slowest one: these count as evenly spread."""
    if p50_ms is None or p95_ms is None or p99_ms is None or p95_ms <= p50_ms:
        return 0.0
    ratio = (p99_ms - p95_ms) / (p95_ms - p50_ms)
    return min(1.0, max(0.0, (_EXPONENTIALLY - ratio) / (_EXPONENTIALLY - _EVENLY)))


def _slower(curves: Iterable[Curve], t_ms: float) -> float:
    """Requests per second that take longer."""
    return math.fsum(curve.rps * curve.survival(t_ms) for curve in curves)
