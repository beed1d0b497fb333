"""`pegasus`: the clock follows the distance from the target.

Source: Lo and others, "Towards energy proportionality for large-scale latency-critical workloads" (ISCA 2014), with the
steps of a third party's simulator of it: 30-s mean above the target: all there is for 5 minutes; else, by the latest
sample over the target: above 1.35 all there is, above 1 7% more, below 0.85 1% less, below 0.60 3% less.
"""

from __future__ import annotations

from collections import deque

from slackwater.governor.types import Action, Configuration, Hardware, Observation, mean, whole

MEAN_S, REST_S = 30.0, 300.0
STEPS = ((1.35, 10.0), (1.0, 1.07), (0.85, 1.0), (0.60, 0.99), (0.0, 0.97))
"""Above this share of the target, the clock is multiplied by this."""


class Pegasus:
    name = "pegasus"
    period_s = 1.0

    def __init__(self, hardware: Hardware, target_ms: float) -> None:
        self._hardware, self._target_ms = hardware, target_ms
        self._wanted_mhz = hardware.max_mhz
        self._seen: deque[float] = deque(maxlen=round(MEAN_S / self.period_s))
        self._until_s = float("-inf")

    def start(self) -> Action:
        return whole(self._hardware.highest)

    def decide(self, seen: Observation) -> Action:
        late = (seen.p95_ms or 0.0) / self._target_ms
        self._seen.append(late)
        if mean(self._seen) > 1.0:
            self._until_s = seen.time_s + REST_S
        factor = 10.0 if seen.time_s < self._until_s else next(factor for above, factor in STEPS if late >= above)
        low, high = self._hardware.clocks_mhz[0], self._hardware.max_mhz
        self._wanted_mhz = min(high, max(low, self._wanted_mhz * factor))
        clock_mhz = self._hardware.clocks_mhz[self._hardware.step_of(self._wanted_mhz)]
        return whole(Configuration(self._hardware.cores, clock_mhz, self._hardware.highest.smt))
