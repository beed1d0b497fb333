"""`parties`: one resource at a time, up when the target is near and down when it is far.

Source: Chen, Delimitrou and Martinez, "PARTIES: QoS-aware resource partitioning for multiple interactive services"
(ASPLOS 2019), with the constants of its open code (sc2682cornell/PARTIES), every 0.5 s as in the paper; for one
service, with cores and clock as its resources (no cache partitions). Slack below 0.05 now and in the mean of the last
second: more of a resource; above 0.20 in both: less of one. A useless step up is kept and the next resource tried; a
step down that brings the target near is undone, and that resource rests for 100 intervals.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from slackwater.governor.types import Action, Configuration, Hardware, Observation, mean, whole

NEAR, FAR = 0.05, 0.20
REST = 100
RESOURCES = 2


class Parties:
    name = "parties"
    period_s = 0.5

    def __init__(self, hardware: Hardware, target_ms: float, seed: int = 0) -> None:
        self._hardware, self._target_ms = hardware, target_ms
        self._highest = [hardware.cores - 1, len(hardware.clocks_mhz) - 1]
        self._steps = list(self._highest)
        """Number of cores less one, number of the clock."""
        self._next = int(np.random.default_rng(seed).integers(RESOURCES))
        self._rest = [0] * RESOURCES
        self._lowered: int | None = None
        """The resource that the last interval lowered."""
        self._slacks: deque[float] = deque(maxlen=round(1.0 / self.period_s))

    def start(self) -> Action:
        return whole(self._hardware.highest)

    def decide(self, seen: Observation) -> Action:
        slack = 1.0 - (seen.p95_ms or 0.0) / self._target_ms
        self._slacks.append(slack)
        self._rest = [max(0, intervals - 1) for intervals in self._rest]
        lowered, self._lowered = self._lowered, None
        if lowered is not None and slack < NEAR:
            self._steps[lowered] += 1
            self._rest[lowered] = REST
        elif max(slack, mean(self._slacks)) < NEAR:
            self._move(1)
        elif min(slack, mean(self._slacks)) > FAR:
            self._lowered = self._move(-1)
        cores, step = self._steps
        return whole(Configuration(cores + 1, self._hardware.clocks_mhz[step], self._hardware.highest.smt))

    def _move(self, by: int) -> int | None:
        """Moves the next resource in turn that can be moved; its number, or None."""
        for turn in range(RESOURCES):
            number = (self._next + turn) % RESOURCES
            if 0 <= self._steps[number] + by <= self._highest[number] and (by > 0 or not self._rest[number]):
                self._steps[number] += by
                self._next = (number + 1) % RESOURCES if by > 0 else number
                return number
        return None
