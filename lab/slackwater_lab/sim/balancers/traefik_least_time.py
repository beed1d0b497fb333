"""Traefik's `leasttime` (pkg/server/service/loadbalancer/leasttime/leasttime.go, Traefik 3.7): the mean of the last 100
response times in whole milliseconds, times one more than the requests in flight; the least wins, equals take turns by
earliest deadline. A server without an answer, or with answers below a millisecond only, has score 0.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from slackwater.detector.features.columns import Ints
from slackwater_lab.sim.balancers.base import Balancer

REMEMBERED = 100


class TraefikLeastTime(Balancer):
    """All servers of weight 1."""

    def __init__(self, servers: int, weights: Ints, dice: np.random.Generator) -> None:
        super().__init__(servers, weights, dice)
        self._times_ms: list[deque[int]] = [deque(maxlen=REMEMBERED) for _ in range(servers)]
        self._sum_ms = [0] * servers
        self._deadline = [float(number + 1) for number in range(servers)]

    def choose(self, _now_s: float) -> int:
        scores = [self._score(number) for number in range(self.servers)]
        least = min(scores)
        equal = [number for number, score in enumerate(scores) if score == least]
        if len(equal) == 1:
            return equal[0]
        chosen = min(equal, key=self._deadline.__getitem__)
        self._deadline[chosen] += 1.0
        return chosen

    def _score(self, server: int) -> float:
        count = len(self._times_ms[server])
        return self._sum_ms[server] / count * (1 + self.in_flight[server]) if count else 0.0

    def learn(self, server: int, _now_s: float, took_s: float) -> None:
        times = self._times_ms[server]
        if len(times) == REMEMBERED:
            self._sum_ms[server] -= times[0]
        times.append(int(1e3 * took_s))
        self._sum_ms[server] += times[-1]
