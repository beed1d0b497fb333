"""Load that swings: a seeded sequence of rates, run back to back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand, Load

LOW, HIGH = 0.2, 0.7
"""Shares of the pool's capacity between which it swings."""
LASTS_S = (4.0, 12.0)
"""The shortest and longest time of a level."""


@dataclass(frozen=True)
class Level:
    """A rate for some seconds; `share` is of the pool's capacity."""

    share: float
    seconds: float


def levels(dice: random.Random, seconds: float, lasts_s: tuple[float, float] = LASTS_S) -> list[Level]:
    """Levels that together last `seconds`; the first at the middle, so that a run begins gently."""
    shortest_s, longest_s = lasts_s
    result = [Level((LOW + HIGH) / 2, min((shortest_s + longest_s) / 2, seconds))]
    while (left := seconds - sum(level.seconds for level in result)) > 0.001:
        length = dice.uniform(shortest_s, longest_s)
        result.append(
            Level(round(dice.uniform(LOW, HIGH), 3), left if left < length + shortest_s else round(length, 1))
        )
    return result


class Swing:
    """Runs levels one after the other; `tend` starts the next when it is time. The last requests of one level may
    overlap with the next: the load does not pause for a slow host."""

    def __init__(self, lab: Lab, capacity_rps: float, plan: Sequence[Level], url: str | None = None) -> None:
        """On the balancer, or on what answers at this URL."""
        self._lab = lab
        self._url = url
        self._capacity_rps = capacity_rps
        self._left = list(plan)
        self._begun: list[Load] = []
        self._next_s = time.monotonic()
        self.share = 0.0
        self.requests = self.errors = 0
        """Counts of the levels whose results are read."""

    def tend(self) -> None:
        if self._begun and self._left:
            self._begun[-1].check()
        while self._left and time.monotonic() >= self._next_s:
            level = self._left.pop(0)
            rate = max(1.0, round(level.share * self._capacity_rps, 1))
            self._begun.append(self._lab.load(Demand(rate_rps=rate), level.seconds, self._url))
            self._next_s += level.seconds
            self.share = level.share

        while len(self._begun) > 1 and not self._begun[0].running:
            self._count(self._begun.pop(0))

    @property
    def over(self) -> bool:
        return not self._left and time.monotonic() >= self._next_s

    def finish(self) -> tuple[int, int]:
        """Waits for the last requests; gives requests and errors of all levels."""
        for load in self._begun:
            self._count(load)
        self._begun = []
        return self.requests, self.errors

    def _count(self, load: Load) -> None:
        requests = load.finish()
        self.requests += len(requests.seconds) + requests.lost_count
        self.errors += int((requests.status >= 400).sum()) + requests.lost_count


def run(lab: Lab, capacity_rps: float, plan: Sequence[Level], each: Callable[[Swing], None]) -> tuple[int, int]:
    """Runs a plan to its end, calling `each` about 20 times a second; gives requests and errors."""
    swing = Swing(lab, capacity_rps, plan)
    while not swing.over:
        swing.tend()
        lab.check()
        each(swing)
        time.sleep(0.05)
    return swing.finish()
