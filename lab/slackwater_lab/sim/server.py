"""One simulated server: processor sharing, exact, from event to event.

All requests that it works on progress alike, so one number (`_done`, the work that each has had since the server began)
says when each is finished: the classic virtual time of processor sharing.

With a CPU quota it is a cgroup under the kernel's CPU bandwidth control (Documentation/scheduler/sched-bwc.rst): it
runs at the speed of whole processors until the quota of the period is spent, by the web server and its neighbour
together, and then not at all until the next period. It is kept on as many processors as its quota begins, its neighbour
with it, as the lab's hosts are (`slackwater_lab.cluster.hosts.Host.pin`); other servers may be kept on the same ones
(`Processors`).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

from slackwater_lab.cluster.cgroups import PERIOD_S

NEVER = math.inf
DUST = 1e-12


def processors_of(quota_cores: float) -> int:
    """On how many processors a server with this quota is kept."""
    return math.ceil(quota_cores)


def fair(wanted: Sequence[float], cores: float, weights: Sequence[float] | None = None) -> list[float]:
    """Cores for each of some groups by weight (equal ones without): none gets more than it wants; what it leaves is the
    others'."""
    shares = [1.0] * len(wanted) if weights is None else weights
    given = [0.0] * len(wanted)
    left, among = cores, math.fsum(shares)
    for number in sorted(range(len(wanted)), key=lambda group: wanted[group] / shares[group]):
        given[number] = min(wanted[number], left * shares[number] / among)
        left -= given[number]
        among -= shares[number]
    return given


class Processors:
    """Processors that some servers with quotas are kept on, all with equal weights, and their neighbours with them."""

    def __init__(self, count: int, servers: Sequence[Server]) -> None:
        self.count = count
        self._servers = servers
        self.taken_share = 0.0
        """Share of the processors that neighbours have now."""

    def share(self) -> None:
        """Divides the processors until something changes. All servers must have advanced to the present."""
        given = fair([min(self.count, sum(server.wants())) for server in self._servers], self.count)
        loud_cores = 0.0
        for server, cores in zip(self._servers, given, strict=True):
            server.runs_on = server.divided(cores)
            loud_cores += server.runs_on[1]
        self.taken_share = min(1.0, loud_cores / self.count)


class Server:
    """Work is in seconds of the whole server when calm (without a quota), or in CPU seconds (with one)."""

    def __init__(self, children: int, quota_cores: float = 0.0) -> None:
        self.taken = 0.0
        """Share of the speed that is gone; with a quota: the neighbour's share of the CPU while both want it."""
        self.cpu_s = 0.0
        self.runnable_s = 0.0
        """Time that requests wanted to run, all together."""
        self.at_s = 0.0
        self.runs_on: tuple[float, float] | None = None
        """Cores of the web server and of its neighbour; None: it shares its processors with no other server."""
        self._children, self._quota, self._processors = children, quota_cores, processors_of(quota_cores)
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
        web = float(min(len(self._active), self._processors))
        return web, float(self._processors) if self.taken > 0.0 else 0.0

    def divided(self, cores: float) -> tuple[float, float]:
        """The cores that requests and neighbour get of these cores: their cgroups share them by weight."""
        web, loud = fair(self.wants(), cores, (1.0 - self.taken, self.taken or 1.0))
        return web, loud

    def _speeds(self) -> tuple[float, float, float]:
        """Work per second of each active request, CPU seconds per second of all of them, and of the neighbour."""
        count = len(self._active)
        if not self._quota:
            speed = 1.0 - self.taken
            return (speed / count, speed, 0.0) if count else (0.0, 0.0, 0.0)
        web, loud = self.runs_on or self.divided(self._processors)
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
        requests = []
        while self._active and self._active[0][0] <= self._done + DUST:
            requests.append(heapq.heappop(self._active)[1])
            if self._waiting:
                work, request = self._waiting.popleft()
                heapq.heappush(self._active, (self._done + work, request))
        return requests

    def next_s(self) -> float:
        """The time of the next change by itself; infinity when there is none."""
        speed, web, loud = self._speeds()
        ends_s = NEVER
        if self._active and speed > 0.0:
            ends_s = self.at_s + max(0.0, self._active[0][0] - self._done) / speed
        if self._quota and (self._active or self.taken > 0.0):
            spent_s = self.at_s + self._left / (web + loud) if web + loud > 0.0 else NEVER
            ends_s = min(ends_s, spent_s, self._refill_s)
        return ends_s
