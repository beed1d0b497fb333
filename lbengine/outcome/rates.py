"""The pool's request rate, from the balancer's own counters: what it really sent where, whatever the nodes say.

Only where the balancer counts connections the nodes are believed: a connection may carry many requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from lbengine.balancer import Snapshot

WINDOW_S = 1.0
LEAST_S = 0.4
"""A rate over less time than this is no rate."""


class Meter:
    """Rates in requests per second over about the last `window_s`, from counters that only grow."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._seen: deque[tuple[float, dict[str, int]]] = deque()

    def add(self, now_s: float, requests: Mapping[str, int]) -> None:
        """Takes in each server's count of requests so far. Counters that fell (a reload) start the measure anew."""
        if self._seen and any(count < self._seen[-1][1].get(server, 0) for server, count in requests.items()):
            self.reset()
        self._seen.append((now_s, dict(requests)))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - self.window_s:
            self._seen.popleft()

    def reset(self) -> None:
        self._seen.clear()

    def rates(self) -> dict[str, float] | None:
        """Each server's rate; None while too little time was seen."""
        if not self._seen or self._seen[-1][0] - self._seen[0][0] < LEAST_S:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return {server: (last[server] - first.get(server, last[server])) / (last_s - first_s) for server in last}


class Rates:
    """What is known of a pool's rates, all per second. Call `see` in each turn."""

    def __init__(self) -> None:
        self.rps: dict[str, float] | None = None
        """Requests by server; None: not known of all that take requests."""
        self.errors: dict[str, float] | None = None
        """Failures by server; None: not known."""
        self.total_rps: float | None = None
        """Of the whole pool; None: not known."""
        self.counted_rps: float | None = None
        """The same when it was last known of all."""
        self._requests, self._failures = Meter(WINDOW_S), Meter(WINDOW_S)

    def see(self, now_s: float, snapshot: Snapshot, told: Mapping[str, float]) -> None:
        """Takes in a fresh look, and the requests per second that nodes told, by server."""
        if snapshot.counts == "connections":
            asked = {s.name for s in snapshot.servers if s.available and not s.backup and s.weight > 0}
            self.rps = dict(told) if asked and asked <= told.keys() else None
        else:
            self._requests.add(now_s, {server.name: server.requests for server in snapshot.servers})
            self._failures.add(now_s, {server.name: server.errors for server in snapshot.servers})
            self.rps, self.errors = self._requests.rates(), self._failures.rates()
        if self.rps is not None:
            self.counted_rps = sum(self.rps.values())
        self.total_rps = self.counted_rps
        if self.total_rps is None and told and snapshot.counts == "requests":  # until the balancer's are a rate
            self.total_rps = sum(told.values())

    def reset(self) -> None:
        """The balancer was made anew: its counters start again."""
        self._requests.reset()
        self._failures.reset()
