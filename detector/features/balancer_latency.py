"""Each node's response time as the balancer sees it, for nodes whose own traffic cannot be read.

Where packets are encrypted a monitor sees no requests. The balancer does, and Cycles carry each server's mean response
time. It is the mean of the last 1024 requests and follows slowly, so it can confirm a cause, but is none by itself. It
is of before where a server gets less than its usual share: it tells nothing about the few requests of a trial.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slackwater.core.messages import Cycle
from slackwater.detector.features.columns import Columns, Floats, Ints
from slackwater.detector.slot_arrays import SlotArrays

COLUMN = "balancer.rt_mean_ms"
FRESH_S = 2.0
"""An older Cycle's times are not used."""
LEAST_RPS = 1.0
"""Below this rate of requests a server's mean at the balancer is too old."""


def response_times_ms(cycle: Cycle, node_of: Mapping[str, str]) -> dict[str, float]:
    """Node -> mean response time at the balancer (ms), for nodes with requests whose servers are not lowered.

    `node_of`: server -> node, for servers that have another name than their node.
    """
    return {
        node_of.get(server.server, server.server): server.balancer_rt_mean_ms
        for server in cycle.servers
        if server.balancer_rt_mean_ms is not None
        and (server.rps or 0.0) >= LEAST_RPS
        and server.weight >= server.baseline
    }


class BalancerLatency(SlotArrays):
    """The last mean response time that the balancer reported for each slot."""

    _rt_ms: Floats
    _reported_s: Floats

    def __init__(self) -> None:
        super().__init__(_rt_ms=np.nan, _reported_s=-np.inf)

    def report(self, now_s: float, rt_ms: Mapping[int, float]) -> None:
        """Sets the response times of a Cycle: slot -> ms. What was known of the other slots is of before, and goes."""
        self._reported_s[:] = -np.inf
        for slot, mean_ms in rt_ms.items():
            self._rt_ms[slot], self._reported_s[slot] = mean_ms, now_s

    def column(self, now_s: float, slots: Ints, columns: Columns) -> Floats:
        """(M,) response time in ms of nodes whose traffic is not known; else NaN. Where it is known, a Sample without
        an answer has no response time."""
        blind = np.isnan(columns["traffic.rps"])
        return np.where(blind & (now_s - self._reported_s[slots] <= FRESH_S), self._rt_ms[slots], np.nan)
