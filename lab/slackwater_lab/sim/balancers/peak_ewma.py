"""Peak-EWMA, over all servers and over two drawn ones.

A server's cost is its expected response time, which follows a slower answer at once and a faster one with a time
constant, times the requests that would then be in flight (Twitter, Finagle's `PeakEwma`, for its `p2c` and `aperture`
balancers; Linkerd uses it too). Without an answer yet, a server with requests in flight is the last choice.

Tuned: a time constant of 1 s; Finagle's is 10 s, in which a server is avoided long after its neighbour has gone.
"""

from __future__ import annotations

import math

import numpy as np

from slackwater.detector.features.columns import Ints
from slackwater_lab.sim.balancers.base import Balancer

DECAY_S = 1.0
PENALTY_S = 1e6


class PeakEwma(Balancer):
    """The least cost of all; equals take turns."""

    def __init__(self, servers: int, weights: Ints, dice: np.random.Generator) -> None:
        super().__init__(servers, weights, dice)
        self._cost_s = [0.0] * servers
        self._at_s = [0.0] * servers
        self._used = [0] * servers
        self._turn = 0

    def choose(self, now_s: float) -> int:
        return self.cheapest(range(self.servers), now_s)

    def cheapest(self, among: range | list[int], now_s: float) -> int:
        """The least cost of these."""
        chosen = min(among, key=lambda number: (self._cost(number, now_s), self._used[number]))
        self._turn += 1
        self._used[chosen] = self._turn
        return chosen

    def _cost(self, server: int, now_s: float) -> float:
        self.learn(server, now_s, 0.0)  # it fades while nothing comes
        flying, cost_s = self.in_flight[server], self._cost_s[server]
        return PENALTY_S + flying if cost_s == 0.0 and flying else cost_s * (flying + 1)

    def learn(self, server: int, now_s: float, took_s: float) -> None:
        kept = math.exp(-(now_s - self._at_s[server]) / DECAY_S)
        self._at_s[server] = now_s
        before_s = self._cost_s[server]
        self._cost_s[server] = took_s if took_s > before_s else before_s * kept + took_s * (1.0 - kept)


class PeakEwma2(PeakEwma):
    """The less of two drawn at random."""

    def choose(self, now_s: float) -> int:
        return self.cheapest(self.dice.permutation(self.servers)[:2].tolist(), now_s)
