"""A search server with pinned threads, and clients that wait for their answers; event by event.

Each core has one search thread. A request becomes one task for each shard; all tasks wait in one queue, first come,
first served, and the request is answered when its last task is done. A thread is in the application's hot function as
long as it has a task. A core without a task sleeps and uses no power; what the cores share is awake while any core is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from slackwater.governor.types import Action, Hardware, HotEvent, Observation, Policy
from slackwater_lab.governor.queues import Floats

Request = tuple[float, float]
"""When the client sends its next request at the earliest, and the work of each task of this one; both in s, the work at
the highest clock."""


@dataclass
class _Open:
    """A request that is not answered yet."""

    client: int
    sent_s: float
    work_s: float
    next_s: float
    tasks: int


@dataclass
class _Core:
    speed: float = 1.0
    request: _Open | None = None
    """The request whose task the core works on."""
    left_s: float = 0.0
    """Work that is left of the task, in seconds at the highest clock."""
    busy_s: float = 0.0
    """Busy time in this interval."""


@dataclass
class Interval:
    """The results of an interval."""

    answered_s: list[float] = field(default_factory=list)
    """Response times, in the order of the answers."""
    events: list[HotEvent] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    """Busy time of each core."""
    awake_s: float = 0.0
    """Time in which any core was busy."""
    oldest_s: float = 0.0
    """Age of the oldest unanswered request at the end; 0 if there is none."""


class SearchServer:
    """A client sends its next request at the time that is drawn, or when it has its answer if that is later."""

    def __init__(self, cores: int, clients: int, shards: int, draw: Callable[[int, float], Request]) -> None:
        """`draw`: client, time in s -> a Request that is sent then."""
        self._cores = [_Core() for _ in range(cores)]
        self._shards, self._draw = shards, draw
        self._now_s = 0.0
        self._sends = [(draw(client, 0.0)[0], client) for client in range(clients)]
        heapq.heapify(self._sends)
        self._waiting: deque[_Open] = deque()
        """One entry for each task."""
        self._open: dict[int, _Open] = {}
        """Client -> its request."""

    def run(self, seconds: float, speeds: Sequence[float]) -> Interval:
        """The next interval, with each core at this share of the highest clock."""
        end_s = self._now_s + seconds
        interval = Interval()
        for core, speed in zip(self._cores, speeds, strict=True):
            core.speed, core.busy_s = speed, 0.0
        while True:
            send_s = self._sends[0][0] if self._sends else float("inf")
            done_s, number = self._next_done()
            self._advance(min(send_s, done_s, end_s), interval)
            if min(send_s, done_s) >= end_s:
                break
            if done_s <= send_s:
                self._finish(number, interval)
            else:
                self._send()
            self._start(interval)
        interval.busy_s = [core.busy_s for core in self._cores]
        interval.oldest_s = max((end_s - request.sent_s for request in self._open.values()), default=0.0)
        return interval

    def _next_done(self) -> tuple[float, int]:
        """When the next task will be done, and on which core."""
        working = (
            (self._now_s + core.left_s / core.speed, number) for number, core in enumerate(self._cores) if core.request
        )
        return min(working, default=(float("inf"), -1))

    def _advance(self, to_s: float, interval: Interval) -> None:
        passed_s = to_s - self._now_s
        self._now_s = to_s
        awake = False
        for core in self._cores:
            if core.request:
                core.left_s = max(0.0, core.left_s - passed_s * core.speed)
                core.busy_s += passed_s
                awake = True
        interval.awake_s += passed_s * awake

    def _send(self) -> None:
        _, client = heapq.heappop(self._sends)
        next_s, work_s = self._draw(client, self._now_s)
        request = _Open(client, self._now_s, work_s, next_s, self._shards)
        self._open[client] = request
        self._waiting.extend([request] * self._shards)

    def _start(self, interval: Interval) -> None:
        for number, core in enumerate(self._cores):
            if not self._waiting:
                return
            if core.request is None:
                core.request = self._waiting.popleft()
                core.left_s = core.request.work_s
                interval.events.append(HotEvent(number, self._now_s, True))

    def _finish(self, number: int, interval: Interval) -> None:
        core = self._cores[number]
        request, core.request = core.request, None
        assert request is not None
        interval.events.append(HotEvent(number, self._now_s, False))
        request.tasks -= 1
        if not request.tasks:
            interval.answered_s.append(self._now_s - request.sent_s)
            del self._open[request.client]
            heapq.heappush(self._sends, (max(self._now_s, request.next_s), request.client))


@dataclass(frozen=True)
class SearchResult:
    """One policy through one load."""

    answered_s: Floats
    joules: float

    @property
    def p99_s(self) -> float:
        return float(np.percentile(self.answered_s, 99.0))

    def within_percent(self, target_s: float) -> float:
        """Share of the requests that were answered in time."""
        return 100.0 * float(np.mean(self.answered_s <= target_s))


def run(policy: Policy, processor: Hardware, server: SearchServer, seconds: float, awake_w: float) -> SearchResult:
    """`awake_w`: what the shared parts use while any core is busy, beside the hardware's `base_w`."""
    action = policy.start()
    answered: list[float] = []
    joules = 0.0
    for number in range(1, round(seconds / policy.period_s) + 1):
        done = server.run(policy.period_s, [clock_mhz / processor.max_mhz for clock_mhz in action.clocks_mhz])
        used = joules_of(processor, action, done, policy.period_s, awake_w)
        joules += used
        answered += done.answered_s
        action = policy.decide(seen(number * policy.period_s, done, used / policy.period_s, policy.period_s))
    return SearchResult(np.array(answered), joules)


def joules_of(processor: Hardware, action: Action, done: Interval, seconds: float, awake_w: float) -> float:
    """Energy of an interval."""
    cores = sum(
        busy_s * processor.core_w(clock_mhz, 1.0)
        for clock_mhz, busy_s in zip(action.clocks_mhz, done.busy_s, strict=True)
    )
    return processor.base_w * seconds + awake_w * done.awake_s + cores


def seen(time_s: float, done: Interval, watts: float, seconds: float) -> Observation:
    tails_ms = np.percentile(done.answered_s, (95.0, 99.0)) * 1e3 if done.answered_s else (None, None)
    return Observation(
        time_s,
        len(done.answered_s) / seconds,
        tails_ms[0],
        tails_ms[1],
        oldest_ms=done.oldest_s * 1e3,
        busy_shares=tuple(min(1.0, busy_s / seconds) for busy_s in done.busy_s),
        power_w=watts,
        events=tuple(done.events),
    )
