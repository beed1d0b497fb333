"""The pool's request rate, from HAProxy's own counters: what it really sent where, whatever the nodes say."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

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
