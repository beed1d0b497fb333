"""One server of the request-level model: processor sharing, exact, from event to event.

All requests that it works on progress alike, so one number (`_done`, the work that each has had since the server began)
says when each is finished: the classic virtual time of processor sharing.

With a CPU quota it is a cgroup under the kernel's CPU bandwidth control (Documentation/scheduler/sched-bwc.rst): it
runs at the speed of whole cores until the quota of the period is spent, by the web server and its neighbour together,
and then not at all until the next period.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from lab.cgroups import PERIOD_US

PERIOD_S = PERIOD_US / 1e6
"""Of the quota: cpu.cfs_period_us of the lab's hosts."""
HOST_CORES = 2.0
"""Cores that a cgroup with a quota can run on at a time; web server and neighbour have equal shares of them."""
NEVER = math.inf
DUST = 1e-12


class Server:
    """Work is in seconds of the whole server when calm (without a quota), or in CPU seconds (with one)."""

    def __init__(self, children: int, quota_cores: float = 0.0, neighbour_cores: float = 2.0) -> None:
        self.taken = 0.0
        """Without a quota: share of the speed that is gone; with one: share of the time in which the neighbour runs."""
        self.cpu_s = 0.0
        self.runnable_s = 0.0
        """Time that requests wanted to run, all together."""
        self.at_s = 0.0
        self._children, self._quota, self._loud_cores = children, quota_cores, neighbour_cores
        self._active: list[tuple[float, int]] = []
        """Heap of (value of `_done` at which it is finished, request)."""
        self._waiting: deque[tuple[float, int]] = deque()
        self._done = 0.0
        self._left = quota_cores * PERIOD_S
        """CPU seconds of the quota that are left in this period."""
        self._refill_s = PERIOD_S

    @property
    def held(self) -> int:
        """Requests in it."""
        return len(self._active) + len(self._waiting)

    def _speeds(self) -> tuple[float, float]:
        """Work per second of each active request, and CPU seconds per second that the quota loses."""
        count = len(self._active)
        if not self._quota:
            return ((1.0 - self.taken) / count if count else 0.0), 0.0
        if self._left <= DUST:
            return 0.0, 0.0
        loud = self._loud_cores * self.taken
        web = min(float(count), max(HOST_CORES / 2.0, HOST_CORES - loud))
        neighbour = min(loud, HOST_CORES - web)
        return (web / count if count else 0.0), web + neighbour

    def advance(self, now_s: float) -> None:
        """Goes on to `now_s`, which is not later than `next_s`."""
        span = now_s - self.at_s
        if span > 0.0:
            speed, drain = self._speeds()
            count = len(self._active)
            self._done += speed * span
            self.cpu_s += speed * span * count
            self.runnable_s += span * count
            self._left -= drain * span
            self.at_s = now_s
        if self._quota and now_s >= self._refill_s - DUST:
            self._refill_s += PERIOD_S * (math.floor((now_s - self._refill_s) / PERIOD_S + 1e-9) + 1)
            self._left = self._quota * PERIOD_S

    def add(self, request: int, work: float) -> None:
        """Takes a request in, now."""
        if len(self._active) < self._children:
            heapq.heappush(self._active, (self._done + work, request))
        else:
            self._waiting.append((work, request))

    def finished(self) -> list[int]:
        """Requests that are done by now; others that waited begin in their place."""
        found = []
        while self._active and self._active[0][0] <= self._done + DUST:
            found.append(heapq.heappop(self._active)[1])
            if self._waiting:
                work, request = self._waiting.popleft()
                heapq.heappush(self._active, (self._done + work, request))
        return found

    def next_s(self) -> float:
        """When something changes by itself; infinity when nothing does."""
        speed, drain = self._speeds()
        ends_s = NEVER
        if self._active and speed > 0.0:
            ends_s = self.at_s + max(0.0, self._active[0][0] - self._done) / speed
        if self._quota and (self._active or self.taken > 0.0):
            spent_s = self.at_s + self._left / drain if drain > 0.0 else NEVER
            ends_s = min(ends_s, spent_s, self._refill_s)
        return ends_s
