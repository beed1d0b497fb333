"""What all balancers of the simulator have."""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Ints


class Balancer:
    """One balancer: its weights, what it has in flight, and what it learnt from answers. Times are in seconds."""

    takes_weights = False
    """Whether Slackwater and the oracle can drive it; the others decide everything by themselves."""
    shown_as = ""
    """The name in HAProxy's `show stat`, for HAProxy's algorithms."""

    def __init__(self, servers: int, weights: Ints, dice: np.random.Generator) -> None:
        self.servers = servers
        self.in_flight = [0] * servers
        self.requests = [0] * servers
        """Since the start."""
        self.dice = dice
        self._open: dict[int, tuple[int, float]] = {}
        self.set_weights(weights)

    def set_weights(self, weights: Ints) -> None:
        """(servers,) not below 0, one at least above; in force with the next request."""
        self.weights = [int(weight) for weight in weights]

    def pick(self, request: int, now_s: float) -> int:
        """The server of this request, which is counted until it is `answered`."""
        chosen = self.choose(now_s)
        self.in_flight[chosen] += 1
        self.requests[chosen] += 1
        self._open[request] = chosen, now_s
        return chosen

    def answered(self, request: int, now_s: float) -> None:
        """A request that was picked has its answer now."""
        server, began_s = self._open.pop(request)
        self.in_flight[server] -= 1
        self.learn(server, now_s, now_s - began_s)

    def choose(self, now_s: float) -> int:
        """The server that the next request is for."""
        raise NotImplementedError

    def learn(self, server: int, now_s: float, took_s: float) -> None:
        """Learns from an answer, which is no longer in flight, and its time."""
