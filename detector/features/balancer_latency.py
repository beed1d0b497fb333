"""Each node's response time as the balancer sees it, for nodes whose own traffic cannot be read.

Where packets are encrypted a monitor sees no requests. The balancer does, and Cycles carry each server's mean response
time. It is the mean of the last 1024 requests and follows slowly, so it can confirm a cause, but is none by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slackwater.core.messages import Cycle
from slackwater.detector.features.columns import Columns, Floats, Ints
from slackwater.detector.slot_arrays import SlotArrays

COLUMN = "balancer.rt_mean_ms"
FRESH_S = 2.0
"""Older reports are not used."""
LEAST_RPS = 1.0
"""Below this rate of requests a server's mean at the balancer is too old."""


def response_times_ms(cycle: Cycle, node_of: Mapping[str, str]) -> dict[str, float]:
    """Node -> mean response time at the balancer (ms), for nodes with requests.

    `node_of`: server -> node, for servers that have another name than their node.
    """
    return {
        node_of.get(server.server, server.server): server.balancer_rt_mean_ms
        for server in cycle.servers
        if server.balancer_rt_mean_ms is not None and (server.rps or 0.0) >= LEAST_RPS
    }


class BalancerLatency(SlotArrays):
    """The last mean response time that the balancer reported for each slot."""

    _rt_ms: Floats
    _reported_s: Floats

    def __init__(self) -> None:
        super().__init__(_rt_ms=np.nan, _reported_s=-np.inf)

    def report(self, now_s: float, slot: int, rt_ms: float) -> None:
        """Sets a slot's response time, in ms."""
        self._rt_ms[slot], self._reported_s[slot] = rt_ms, now_s

    def column(self, now_s: float, slots: Ints, columns: Columns) -> Floats:
        """(M,) response time in ms for nodes that know none themselves; else NaN."""
        blind = np.isnan(columns["traffic.rt_mean_ms"]) & np.isnan(columns["traffic.rt_p95_ms"])
        return np.where(blind & (now_s - self._reported_s[slots] <= FRESH_S), self._rt_ms[slots], np.nan)
