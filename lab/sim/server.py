"""One server of the request-level model: processor sharing, exact, from event to event.

All requests that it works on progress alike, so one number (`_done`, the work that each has had since the server began)
says when each is finished: the classic virtual time of processor sharing.

With a CPU quota it is a cgroup under the kernel's CPU bandwidth control (Documentation/scheduler/sched-bwc.rst): it
runs at the speed of whole cores until the quota of the period is spent, by the web server and its neighbour together,
and then not at all until the next period. Such servers may share one machine's cores (`Machine`), as the lab's do.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

from lab.cluster.cgroups import PERIOD_S

"""Of the quota: cpu.cfs_period_us of the lab's hosts."""
HOST_CORES = 2.0
"""Cores that a cgroup with a quota can run on at a time where it shares none with other servers."""
NEVER = math.inf
DUST = 1e-12


def fair(wanted: Sequence[float], cores: float) -> list[float]:
    """Cores for each of some groups of equal weight: none gets more than it wants; what it leaves is the others'."""
    found = [0.0] * len(wanted)
    left = cores
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for place, number in enumerate(order):
        found[number] = min(wanted[number], left / (len(order) - place))
        left -= found[number]
    return found


class Machine:
    """Cores that servers with quotas share, all with equal weights, and their neighbours with them."""

    def __init__(self, cores: float, busy_share: float = 0.0) -> None:
        self.cores = cores
        self._busy_share = busy_share
        self.taken_share = busy_share
        """Of the cores: those that neighbours or other programs have now."""

    def share(self, servers: Sequence[Server]) -> None:
        """Who gets what until something changes; all servers must have come to the present."""
        wanted = [server.wants() for server in servers]
        given = fair([web + loud for web, loud in wanted], self.cores)
        split = [fair(both, cores) for both, cores in zip(wanted, given, strict=True)]
        self.taken_share = min(1.0, self._busy_share + sum(loud for _, loud in split) / self.cores)
        for server, (web, loud) in zip(servers, split, strict=True):
            server.runs_on = web, loud


class Server:
    """Work is in seconds of the whole server when calm (without a quota), or in CPU seconds (with one)."""

    def __init__(self, children: int, quota_cores: float = 0.0, neighbour_cores: float = 2.0) -> None:
        self.taken = 0.0
        """Without a quota: share of the speed that is gone; with one: share of the time in which the neighbour runs."""
        self.cpu_s = 0.0
        self.runnable_s = 0.0
        """Time that requests wanted to run, all together."""
        self.at_s = 0.0
        self.runs_on: tuple[float, float] | None = None
        """Cores of the web server and of its neighbour; None: it shares no machine."""
        self._children, self._quota, self._loud_cores = children, quota_cores, neighbour_cores
        self._active: list[tuple[float, int]] = []
        """Heap of (value of `_done` at which it is finished, request)."""
        self._waiting: deque[tuple[float, int]] = deque()
        self._done = 0.0
        self._left = quota_cores * PERIOD_S
        """CPU seconds of the quota that are left in this period."""
        self._refill_s = PERIOD_S

    def wants(self) -> tuple[float, float]:
        """Cores that requests and neighbour would run on now if nobody else did."""
        if self._quota and self._left <= DUST:
            return 0.0, 0.0
        return float(len(self._active)), self._loud_cores * self.taken

    def _speeds(self) -> tuple[float, float, float]:
        """Work per second of each active request, CPU seconds per second of all of them, and of the neighbour."""
        count = len(self._active)
        if not self._quota:
            speed = 1.0 - self.taken
            return (speed / count, speed, 0.0) if count else (0.0, 0.0, 0.0)
        web, loud = self.runs_on or fair(self.wants(), HOST_CORES)
        return (web / count if count else 0.0), web, loud

    def advance(self, now_s: float) -> None:
        """Goes on to `now_s`, which is not later than `next_s`."""
        span = now_s - self.at_s
        if span > 0.0:
            speed, web, loud = self._speeds()
            self._done += speed * span
            self.cpu_s += web * span
            self.runnable_s += span * len(self._active)
            self._left -= (web + loud) * span
            self.at_s = now_s
        if self._quota and now_s >= self._refill_s - DUST:
            self._refill_s += PERIOD_S * (math.floor((now_s - self._refill_s) / PERIOD_S + 1e-9) + 1)
            self._left = self._quota * PERIOD_S

    @property
    def held(self) -> int:
        """Requests in it."""
        return len(self._active) + len(self._waiting)

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
        speed, web, loud = self._speeds()
        ends_s = NEVER
        if self._active and speed > 0.0:
            ends_s = self.at_s + max(0.0, self._active[0][0] - self._done) / speed
        if self._quota and (self._active or self.taken > 0.0):
            spent_s = self.at_s + self._left / (web + loud) if web + loud > 0.0 else NEVER
            ends_s = min(ends_s, spent_s, self._refill_s)
        return ends_s
