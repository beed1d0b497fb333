"""The pool's 95th percentile of response time: its present value from the nodes' p95s, and its value after a change.

A server's response times are taken as exponential (see `lbengine/outcome/percentile.py`): its p95 gives the rate
ln(20)/p95, and the pool is the mixture. When the server's load moves from r to r', that rate changes like its slack, by
the factor (μ - r')/(μ - r).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping

from slackwater.core.messages import Verdict
from slackwater.lbengine.outcome.percentile import percentile_s

WINDOW_S = 1.0
LEAST_SLACK = 0.02
"""Least slack of a server, as a share of its capacity: with 0 it would never answer."""
Q = 0.95


class Percentiles:
    """Each node's p95 over about the last second, from its Verdicts, weighted with their requests."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, float, float]]] = {}
        self._last: dict[str, float] = {}

    def add(self, now_s: float, verdicts: Mapping[str, Verdict]) -> None:
        """Adds the newest Verdict of each node, by node. A Verdict that was added before counts once."""
        for node, verdict in verdicts.items():
            seen = self._seen.setdefault(node, deque())
            if verdict.rt_p95_ms and verdict.rps and self._last.get(node) != verdict.time_unix_s:
                seen.append((now_s, verdict.rps, verdict.rt_p95_ms))
            self._last[node] = verdict.time_unix_s
        for seen in self._seen.values():
            while seen and seen[0][0] <= now_s - WINDOW_S:
                seen.popleft()

    def p95_ms(self) -> dict[str, float]:
        """Each node's p95; nodes without requests in the last second are left out."""
        return {
            node: math.fsum(rps * p95 for _, rps, p95 in seen) / math.fsum(rps for _, rps, _ in seen)
            for node, seen in self._seen.items()
            if seen
        }


def now_ms(p95_ms: Mapping[str, float], rates: Mapping[str, float]) -> float | None:
    """The pool's p95 from its servers' p95s and rates in requests/s; None when no server with requests has a p95."""
    total = math.fsum(rate for server, rate in rates.items() if server in p95_ms)
    if total <= 0.0:
        return None
    known = [server for server in rates if server in p95_ms]
    pool_p95_ms = percentile_s(
        [rates[server] / total for server in known], [_speed(p95_ms[server]) for server in known], Q
    )
    return pool_p95_ms if math.isfinite(pool_p95_ms) else None


def after_ms(
    p95_ms: Mapping[str, float],
    capacity_rps: Mapping[str, float],
    rates: Mapping[str, float],
    weights: Mapping[str, int],
    by_concurrency: bool,
) -> float | None:
    """The pool's p95 as it is predicted with these `weights`.

    None where no p95, no rate or some server's capacity is not known. Under least connections all servers with a weight
    above 0 are taken to be filled alike.
    """
    total = math.fsum(rates.values())
    usable = [server for server in weights if server in capacity_rps]
    if total <= 0.0 or not p95_ms or len(usable) < len(weights):
        return None
    load_shares = {
        server: (capacity_rps[server] * (weights[server] > 0) if by_concurrency else weights[server])
        for server in usable
    }
    whole = math.fsum(load_shares.values())
    if whole <= 0.0:
        return None
    usual = statistics.median(p95_ms.values())
    shares, speeds = [], []
    for server in usable:
        mu, rate = capacity_rps[server], total * load_shares[server] / whole
        before = rates.get(server, 0.0) if server in p95_ms else rate
        shares.append(rate / total)
        speeds.append(_speed(p95_ms.get(server, usual)) * _slack(mu, rate) / _slack(mu, before))
    pool_p95_ms = percentile_s(shares, speeds, Q)
    return pool_p95_ms if math.isfinite(pool_p95_ms) else None


def _speed(p95_ms: float) -> float:
    """Rate of the exponential distribution with this percentile, in 1/ms."""
    return math.log(1.0 / (1.0 - Q)) / max(p95_ms, 1e-3)


def _slack(mu: float, rate: float) -> float:
    return max(mu - rate, LEAST_SLACK * mu, 1e-9)
