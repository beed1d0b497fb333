"""`core-switch`: memcached on one core or two, by CPU use alone; batch jobs have the others.

Source: Wang, Steiner and Jenny, "Cloud Computing Architecture, semester project report" (ETH 2022), question 4.2. From
one core to two when its use is above 95%; back when the sum of both is below 140% and 4 s have passed. The decision is
on the largest of several samples in "a short period": five of 0.1 s here.
"""

from __future__ import annotations

from slackwater.governor.types import Action, Configuration, Hardware, Observation, whole

UP, DOWN_SUM, DOWN_AFTER_S, SAMPLES = 0.95, 1.40, 4.0, 5


class CoreSwitch:
    name = "core-switch"
    period_s = 0.1

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._cores, self._most = 1, min(2, hardware.cores)
        self._up_s = float("-inf")
        self._sums: list[float] = []

    def start(self) -> Action:
        return self._action()

    def decide(self, seen: Observation) -> Action:
        self._sums.append(sum(seen.busy_shares))
        if len(self._sums) == SAMPLES:
            most, self._sums = max(self._sums), []
            if self._cores == 1 and most > UP:
                self._cores, self._up_s = self._most, seen.time_s
            elif self._cores == 2 and most < DOWN_SUM and seen.time_s - self._up_s >= DOWN_AFTER_S:
                self._cores = 1
        return self._action()

    def _action(self) -> Action:
        return whole(Configuration(self._cores, self._hardware.max_mhz))
