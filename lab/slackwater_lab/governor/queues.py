"""Pinned threads with first-in-first-out queues, request by request, many at a time.

Each core has one thread and one queue. Requests come in a Poisson stream, and each goes to a queue by chance, or they
are dealt out in turn, which comes near a load generator that spreads its connections evenly. When each is answered
follows from Lindley's recursion, which for a whole interval is a cumulative sum and a running maximum (`numpy`). Clocks
and the number of cores may change between intervals; a request that is being worked on then keeps the rest of its work.

A closed loop has so many connections per queue, each with one request at a time: a request that finds no connection
free is sent when one is, and one that still waits for that at the end of an interval is never sent (the load generator
does not catch up).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
NOBODY = np.zeros(0)


@dataclass(frozen=True)
class Interval:
    """The results of an interval."""

    answered_s: Floats
    """(N,) response times of the requests that were answered in it, in seconds, in no order."""
    waited_s: Floats
    """(N,) the part of each that was waiting."""
    busy_shares: tuple[float, ...]
    """Busy share of each core."""
    oldest_s: float
    """Age of the oldest unanswered request at the end; 0 if there is none."""


class PinnedQueues:
    """Work is in seconds of a core at speed 1: gamma with this variance over squared mean, exponential for 1."""

    def __init__(
        self,
        work_s: float,
        *,
        cv2: float = 1.0,
        in_turn: bool = False,
        connections: int | None = None,
        random: np.random.Generator,
    ) -> None:
        self._work_s, self._cv2, self._in_turn = work_s, cv2, in_turn
        self._connections, self._random = connections, random
        self._now_s = 0.0
        self._turn = 0
        """Queue of the next request, where they are dealt out in turn."""
        self._waiting: list[tuple[Floats, Floats]] = []
        """When the requests of each queue were sent, and the work that is left of each."""

    def run(self, seconds: float, rps: float, speeds: Sequence[float]) -> Interval:
        """The next interval: requests at this rate, to as many queues as there are speeds, evenly."""
        end_s = self._now_s + seconds
        self._deal(len(speeds))
        answered, waited, busy, oldest_s = [], [], [], 0.0
        for number, (speed, times_s) in enumerate(zip(speeds, self._arrivals(seconds, rps, len(speeds)), strict=True)):
            sent_s, work_s = self._with_waiting(number, times_s)
            took_s = work_s / speed
            total_s = np.cumsum(took_s)
            begins_s = np.maximum.accumulate(np.maximum(sent_s, self._now_s) - (total_s - took_s)) + total_s - took_s
            ends_s = begins_s + took_s
            limit = len(sent_s) if self._connections is None else max(1, self._connections // len(speeds))
            sent_s[limit:] = np.maximum(sent_s[limit:], ends_s[: max(0, len(ends_s) - limit)])
            done = int(np.searchsorted(ends_s, end_s, side="right"))
            answered.append(ends_s[:done] - sent_s[:done])
            waited.append(np.maximum(0.0, begins_s[:done] - sent_s[:done]))
            used_s = float(took_s[:done].sum())
            left_s = work_s[done : done + limit].copy()
            if done < len(sent_s):
                part_s = max(0.0, end_s - float(begins_s[done]))
                left_s[0] -= part_s * speed
                used_s += part_s
                oldest_s = max(oldest_s, end_s - float(sent_s[done]))
            self._waiting[number] = (sent_s[done : done + limit], left_s)
            busy.append(min(1.0, used_s / seconds))
        self._now_s = end_s
        return Interval(np.concatenate(answered), np.concatenate(waited), tuple(busy), oldest_s)

    def _arrivals(self, seconds: float, rps: float, queues: int) -> list[Floats]:
        """When the new requests of each queue are sent, ascending."""
        if not self._in_turn:
            return [self._poisson(seconds, rps / queues) for _ in range(queues)]
        times_s = self._poisson(seconds, rps)
        first, self._turn = self._turn % queues, self._turn + len(times_s)
        return [times_s[(number - first) % queues :: queues] for number in range(queues)]

    def _poisson(self, seconds: float, rps: float) -> Floats:
        count = int(self._random.poisson(rps * seconds))
        return self._now_s + np.sort(self._random.random(count)) * seconds

    def _with_waiting(self, number: int, times_s: Floats) -> tuple[Floats, Floats]:
        """Waiting and new requests together: when they were sent, and their work."""
        count = len(times_s)
        if self._cv2 == 1.0:
            work_s = self._random.standard_exponential(count) * self._work_s
        elif self._cv2:
            work_s = self._random.gamma(1.0 / self._cv2, self._cv2 * self._work_s, count)
        else:
            work_s = np.full(count, self._work_s)
        sent_s, left_s = self._waiting[number]
        return np.concatenate([sent_s, times_s]), np.concatenate([left_s, work_s])

    def _deal(self, queues: int) -> None:
        """Where the number of cores changed, waiting requests are dealt out anew, oldest first."""
        if len(self._waiting) == queues:
            return
        sent_s = np.concatenate([sent for sent, _ in self._waiting] or [NOBODY])
        work_s = np.concatenate([work for _, work in self._waiting] or [NOBODY])
        order = np.argsort(sent_s, kind="stable")
        self._waiting = [(sent_s[order[first::queues]], work_s[order[first::queues]]) for first in range(queues)]


def erlang_c(servers: int, offered: float) -> float:
    """Probability that a request of an M/M/c queue has to wait; `offered` is load over the service rate of one."""
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1.0 - offered / servers * (1.0 - blocked))


def mmc_wait_s(servers: int, rate: float, service_s: float) -> float:
    """Mean wait in an M/M/c queue that is not full."""
    offered = rate * service_s
    return erlang_c(servers, offered) * service_s / (servers - offered)


def mmc_wait_quantile_s(servers: int, rate: float, service_s: float, quantile: float) -> float:
    """The wait that this share of an M/M/c queue's requests stays below, in seconds; infinite from full load on."""
    offered = rate * service_s
    if offered >= servers:
        return float("inf")
    waits = erlang_c(servers, offered)
    left = 1.0 - quantile
    return float(np.log(waits / left)) * service_s / (servers - offered) if waits > left else 0.0
