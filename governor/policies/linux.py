"""`linux`: the kernel's governors for the clock, with all cores; which of them run is the scheduler's choice.

Source: drivers/cpufreq/cpufreq_ondemand.c (sampling_down_factor 1) and kernel/sched/cpufreq_schedutil.c. All cores have
one clock here, so the busiest core decides.
"""

from __future__ import annotations

from typing import Literal

from governor.types import Action, Configuration, Hardware, Observation, whole

UP_THRESHOLD = 0.95
"""ondemand's with micro-accounting (without it: 0.80)."""
HEADROOM = 1.25
"""schedutil's."""


class Linux:
    def __init__(
        self, hardware: Hardware, kind: Literal["ondemand", "schedutil"] = "ondemand", period_s: float = 0.05
    ) -> None:
        self.name, self.period_s = f"linux {kind}", period_s
        self._hardware, self._kind = hardware, kind
        self._clock_mhz = hardware.max_mhz

    def start(self) -> Action:
        return whole(self._hardware.highest)

    def decide(self, seen: Observation) -> Action:
        low, high = self._hardware.clocks_mhz[0], self._hardware.max_mhz
        load = max(seen.busy_shares, default=0.0)
        if self._kind == "schedutil":
            wanted = HEADROOM * load * self._clock_mhz
        else:
            wanted = high if load > UP_THRESHOLD else low + load * (high - low)
        self._clock_mhz = self._hardware.clocks_mhz[self._hardware.step_of(min(high, wanted))]
        return whole(Configuration(self._hardware.cores, self._clock_mhz, self._hardware.highest.smt))
