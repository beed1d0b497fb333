"""The second vantage: each node's response time as the balancer sees it, for nodes whose own traffic cannot be read.

Where packets are encrypted a monitor sees no requests. The balancer does: its Cycles tell each server's mean response
time. That is over its last 1024 requests, so it follows slowly: it bears a cause out, and never stands for one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from detector.features.columns import Columns, Floats, Ints
from slackwater.messages import Cycle

COLUMN = "balancer.rt_mean_ms"
FRESH_S = 2.0
"""What was told longer ago is not true of now."""
LEAST_RPS = 1.0
"""A server with fewer requests per second than this: the balancer's mean is of long ago."""


def response_times_ms(cycle: Cycle, node_of: Mapping[str, str]) -> dict[str, float]:
    """Node -> mean response time at the balancer (ms), where it has requests. `node_of` maps other names of servers."""
    return {
        node_of.get(server.server, server.server): server.balancer_rt_mean_ms
        for server in cycle.servers
        if server.balancer_rt_mean_ms is not None and (server.rps or 0.0) >= LEAST_RPS
    }


class Vantage:
    """What was told last of each slot."""

    def __init__(self) -> None:
        self._rt_ms: Floats = np.zeros(0)
        self._told_s: Floats = np.zeros(0)

    def resize(self, slots: int) -> None:
        more = max(0, slots - len(self._told_s))
        self._rt_ms = np.concatenate([self._rt_ms, np.full(more, np.nan)])
        self._told_s = np.concatenate([self._told_s, np.full(more, -np.inf)])

    def forget(self, slot: int) -> None:
        """Empties a slot for a new node."""
        self._told_s[slot] = -np.inf

    def hear(self, now_s: float, slot: int, rt_ms: float) -> None:
        """Takes in what was told of a slot."""
        self._rt_ms[slot], self._told_s[slot] = rt_ms, now_s

    def column(self, now_s: float, slots: Ints, columns: Columns) -> Floats:
        """(M,) for nodes that know no response time of their own; else NaN."""
        blind = np.isnan(columns["traffic.rt_mean_ms"]) & np.isnan(columns["traffic.rt_p95_ms"])
        return np.where(blind & (now_s - self._told_s[slots] <= FRESH_S), self._rt_ms[slots], np.nan)
