"""`roundrobin`, `leastconn`, `random(2)` and `random` with bounded load, as HAProxy's documentation and source have
them (HAProxy Configuration Manual, `balance` and `hash-balance-factor`; src/lb_fwrr.c, src/lb_fwlc.c, src/lb_chash.c).
"""

from __future__ import annotations

import bisect

import numpy as np

from slackwater.detector.features.columns import Ints
from slackwater_lab.sim.balancers.base import Balancer


class RoundRobin(Balancer):
    """Smooth weighted round robin: each gains its weight, the one with most pays the sum."""

    takes_weights = True
    shown_as = "roundrobin"

    def set_weights(self, weights: Ints) -> None:
        super().set_weights(weights)
        self._credit = [0.0] * self.servers
        self._total = sum(self.weights)
        self._usable = [number for number, weight in enumerate(self.weights) if weight > 0]

    def choose(self, _now_s: float) -> int:
        credit = self._credit
        for number in self._usable:
            credit[number] += self.weights[number]
        chosen = max(self._usable, key=credit.__getitem__)
        credit[chosen] -= self._total
        return chosen


class LeastConn(Balancer):
    """(in flight + 1)/weight, but an idle server ranks first whatever its weight; equals take turns."""

    takes_weights = True
    shown_as = "leastconn"

    def __init__(self, servers: int, weights: Ints, dice: np.random.Generator) -> None:
        super().__init__(servers, weights, dice)
        self._used = [0] * servers
        """Number of the draw at which each was last taken, to go round among equals."""
        self._turn = 0

    def set_weights(self, weights: Ints) -> None:
        super().set_weights(weights)
        self._usable = [number for number, weight in enumerate(self.weights) if weight > 0]

    def choose(self, _now_s: float) -> int:
        chosen = min(self._usable, key=lambda number: (self._rank(number), self._used[number]))
        self._turn += 1
        self._used[chosen] = self._turn
        return chosen

    def _rank(self, number: int) -> float:
        flying = self.in_flight[number]
        return (flying + 1) / self.weights[number] if flying else 0.0


class Rate:
    """HAProxy's sliding rate over a second: what this second has, and the part of the last one that is not yet over a
    second ago (include/haproxy/freq_ctr.h)."""

    def __init__(self) -> None:
        self._second, self._now, self._before = 0, 0, 0

    def add(self, now_s: float) -> None:
        self._turn(now_s)
        self._now += 1

    def read(self, now_s: float) -> float:
        """Events in the last second."""
        self._turn(now_s)
        return self._now + self._before * (1.0 - (now_s - self._second))

    def _turn(self, now_s: float) -> None:
        if (second := int(now_s)) != self._second:
            self._before = self._now if second == self._second + 1 else 0
            self._second, self._now = second, 0


class Random2(Balancer):
    """Two draws by weight, the less loaded for its weight of the two; of equals the one with the lower rate of requests
    for its weight, as from HAProxy 3.4 on (before, the second draw)."""

    takes_weights = True
    shown_as = "random"

    def __init__(self, servers: int, weights: Ints, dice: np.random.Generator) -> None:
        super().__init__(servers, weights, dice)
        self._rates = [Rate() for _ in range(servers)]

    def set_weights(self, weights: Ints) -> None:
        super().set_weights(weights)
        self._ends = np.cumsum(self.weights).tolist()

    def choose(self, now_s: float) -> int:
        first, second = self.draw(), self.draw()
        ahead: float = self.in_flight[first] * self.weights[second] - self.in_flight[second] * self.weights[first]
        if ahead == 0 and first != second:
            rates = [self._rates[number].read(now_s) for number in (first, second)]
            ahead = rates[0] * self.weights[second] - rates[1] * self.weights[first]
        chosen = second if ahead > 0 else first
        self._rates[chosen].add(now_s)
        return chosen

    def draw(self) -> int:
        """A server at random, by weight."""
        return bisect.bisect_right(self._ends, self.dice.random() * self._ends[-1])


class BoundedRandom(Random2):
    """`balance random` with `hash-balance-factor`: no server holds more than its share of `FACTOR` times all requests
    (V. Mirrokni, M. Thorup, M. Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018, arXiv 1608.01350).

    A draw that meets a full server goes on along the ring; where that leads is as random as the draw.
    """

    FACTOR = 125

    def choose(self, _now_s: float) -> int:
        slots = -(-(sum(self.in_flight) + 1) * self.FACTOR // 100)
        ends = np.cumsum(self.weights) * slots // self._ends[-1]
        room = np.maximum(np.diff(ends, prepend=0), 1)
        two = [self._eligible(room), self._eligible(room)]
        return min(two, key=lambda number: self.in_flight[number] / self.weights[number])

    def _eligible(self, room: Ints) -> int:
        while self.in_flight[server := self.draw()] >= room[server]:
            pass
        return server
