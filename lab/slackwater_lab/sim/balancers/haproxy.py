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


class Random2(Balancer):
    """Two draws by weight, the less loaded for its weight of the two."""

    takes_weights = True
    shown_as = "random"

    def set_weights(self, weights: Ints) -> None:
        super().set_weights(weights)
        self._ends = np.cumsum(self.weights).tolist()

    def choose(self, _now_s: float) -> int:
        first, second = self.draw(), self.draw()
        ahead = self.in_flight[first] * self.weights[second] - self.in_flight[second] * self.weights[first]
        return first if ahead <= 0 else second

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
