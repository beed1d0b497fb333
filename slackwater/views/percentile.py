"""A percentile of response time over all requests of a pool, from each server's own mean and percentiles.

Between the percentiles that are known a server's survival function S is between two shapes: exponential (ln S is linear
in t), and evenly spread (S is linear in t), as where requests wait for the end of a pause. Its mean decides between
them; without a mean it is exponential. Beyond the last percentile it is exponential.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from slackwater.core.journal.pool_totals import Requests

_LOGS = (math.log(0.5), math.log(0.05), math.log(0.01))
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
        if high > 1e9:
            return None
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
    curves = []
    for rps, mean_ms, *marks in servers:
        points = _points(marks)
        if rps > 0.0 and len(points) > 1:
            curves.append(Curve(rps, points, 0.0 if mean_ms is None else _evenness(points, mean_ms)))
    return curves


def _points(marks: Sequence[float | None]) -> list[tuple[float, float]]:
    points = [(0.0, 0.0)]
    for mark, log in zip(marks, _LOGS, strict=True):
        if mark is not None and mark > points[-1][0]:
            points.append((mark, log))
    return points


def _evenness(points: Sequence[tuple[float, float]], mean_ms: float) -> float:
    """The mean of either shape is the integral of its S; the mean that was measured is between them, or beyond one."""
    exponential_ms = evenly_ms = 0.0
    for (t0, log0), (t1, log1) in pairwise(points):
        before, after = math.exp(log0), math.exp(log1)
        exponential_ms += (t1 - t0) * (before - after) / (log0 - log1)
        evenly_ms += (t1 - t0) * (before + after) / 2.0
    (t0, log0), (t1, log1) = points[-2:]
    beyond_ms = math.exp(log1) * (t1 - t0) / (log0 - log1)
    return min(1.0, max(0.0, (mean_ms - beyond_ms - exponential_ms) / (evenly_ms - exponential_ms)))


def _slower(curves: Iterable[Curve], t_ms: float) -> float:
    """Requests per second that take longer."""
    return math.fsum(curve.rps * curve.survival(t_ms) for curve in curves)
