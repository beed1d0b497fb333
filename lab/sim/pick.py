"""The balancers of the request-level model: which server gets the next request. As HAProxy's documentation and source
say of `roundrobin`, `leastconn` and `random(2)`."""

from __future__ import annotations

import bisect

import numpy as np

from detector.features.columns import Ints


class Picker:
    """One balancer: its weights and what it has in flight."""

    def __init__(self, balance: str, servers: int, weights: Ints, dice: np.random.Generator) -> None:
        self.in_flight = [0] * servers
        self.requests = [0] * servers
        """Since the start."""
        self._balance, self._dice = balance, dice
        self._used = [0] * servers
        """When each was last taken, to go round among equals."""
        self._turn = 0
        self.set_weights(weights)

    def set_weights(self, weights: Ints) -> None:
        """Takes effect with the next request."""
        self._weights = [int(one) for one in weights]
        self._credit = [0.0] * len(self._weights)
        self._total = sum(self._weights)
        self._open = [number for number, weight in enumerate(self._weights) if weight > 0]
        self._ends = np.cumsum(self._weights).tolist()

    def pick(self) -> int:
        """The server of the next request, which is counted."""
        chosen = {"roundrobin": self._roundrobin, "leastconn": self._leastconn, "random2": self._random2}[
            self._balance
        ]()
        self._turn += 1
        self._used[chosen] = self._turn
        self.in_flight[chosen] += 1
        self.requests[chosen] += 1
        return chosen

    def _roundrobin(self) -> int:
        """Smooth weighted round robin: each gains its weight, the one with most pays the sum."""
        credit = self._credit
        for number in self._open:
            credit[number] += self._weights[number]
        chosen = max(self._open, key=credit.__getitem__)
        credit[chosen] -= self._total
        return chosen

    def _leastconn(self) -> int:
        """(in flight + 1)/weight, but an idle server ranks first whatever its weight; equals take turns."""
        return min(self._open, key=lambda number: (self._rank(number), self._used[number]))

    def _rank(self, number: int) -> float:
        flying = self.in_flight[number]
        return (flying + 1) / self._weights[number] if flying else 0.0

    def _random2(self) -> int:
        """Two draws by weight, the less loaded for its weight of the two."""
        one, other = (self._drawn(value) for value in self._dice.random(2))
        ahead = self.in_flight[one] * self._weights[other] - self.in_flight[other] * self._weights[one]
        return one if ahead <= 0 else other

    def _drawn(self, value: float) -> int:
        return bisect.bisect_right(self._ends, value * self._total)
