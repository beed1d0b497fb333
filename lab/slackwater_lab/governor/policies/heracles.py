"""`heracles`, as the thesis of Heimdall ran it: no batch jobs beside, cores and clock alone.

Source: Eggen and Eggen 2019, sections 4.1.8 and 4.2.3. Every 15 s: after a miss, or above 85% of the load, all cores at
the highest clock for a suspension (the text has 5 min, the results describe 2 min: 120 s). Every 2 s: one core more
from 0.8 of the target on, one core less in all other cases; one clock step down from 90% of the highest power on, else
up.
"""

from __future__ import annotations

from slackwater.governor.types import Action, Configuration, Hardware, Observation, whole

MAIN_S, LOOP_S = 15.0, 2.0
NEAR, FULL_LOAD, MUCH_POWER = 0.8, 0.85, 0.9


class Heracles:
    name = "heracles"
    period_s = 1.0

    def __init__(self, hardware: Hardware, target_ms: float, most_rps: float, suspension_s: float = 120.0) -> None:
        self._hardware, self._target_ms, self._most_rps = hardware, target_ms, most_rps
        self._suspension_s = suspension_s
        self._most_w = hardware.power_w(hardware.highest, 1.0)
        self._cores, self._step = hardware.cores, len(hardware.clocks_mhz) - 1
        self._main_s = self._loop_s = 0.0
        self._until_s = float("-inf")

    def start(self) -> Action:
        return whole(self._hardware.highest)

    def decide(self, seen: Observation) -> Action:
        late = (seen.p95_ms or 0.0) / self._target_ms
        if seen.time_s - self._main_s >= MAIN_S:
            self._main_s = seen.time_s
            if late > 1.0 or seen.rps > FULL_LOAD * self._most_rps:
                self._until_s = seen.time_s + self._suspension_s
        if seen.time_s < self._until_s:
            self._cores, self._step = self._hardware.cores, len(self._hardware.clocks_mhz) - 1
        elif seen.time_s - self._loop_s >= LOOP_S:
            self._loop_s = seen.time_s
            self._cores = min(self._hardware.cores, self._cores + 1) if late >= NEAR else max(1, self._cores - 1)
            down = seen.power_w >= MUCH_POWER * self._most_w
            self._step = max(0, min(len(self._hardware.clocks_mhz) - 1, self._step + (-1 if down else 1)))
        return whole(Configuration(self._cores, self._hardware.clocks_mhz[self._step], self._hardware.highest.smt))
