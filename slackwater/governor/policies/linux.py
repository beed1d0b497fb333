"""`linux`: the kernel's governors for the clock, with all cores; the scheduler chooses which cores run.

Source: drivers/cpufreq/cpufreq_ondemand.c (sampling_down_factor 1) and kernel/sched/cpufreq_schedutil.c. Where all
cores have one clock, the busiest core decides.
"""

from __future__ import annotations

from typing import Literal

from slackwater.governor.types import Action, Hardware, Observation, whole

UP_THRESHOLD = 0.95
"""ondemand's threshold with micro-accounting; without it: 0.80."""
HEADROOM = 1.25
"""schedutil's: the clock has a quarter more than the load needs."""


class Linux:
    def __init__(
        self,
        hardware: Hardware,
        kind: Literal["ondemand", "schedutil"] = "ondemand",
        period_s: float = 0.05,
        *,
        per_core: bool = False,
    ) -> None:
        """`per_core`: each core has a clock of its own."""
        self.name, self.period_s = f"linux {kind}", period_s
        self._hardware, self._kind, self._per_core = hardware, kind, per_core
        self._clocks_mhz = [hardware.max_mhz] * hardware.cores

    def start(self) -> Action:
        return whole(self._hardware.highest)

    def decide(self, seen: Observation) -> Action:
        if seen.in_force is not None:
            self._clocks_mhz = [seen.in_force.clock_mhz] * len(self._clocks_mhz)
        loads = seen.busy_shares or (0.0,) * len(self._clocks_mhz)
        if not self._per_core:
            loads = (max(loads),) * len(self._clocks_mhz)
        self._clocks_mhz = [self._clock_mhz(load, mhz) for load, mhz in zip(loads, self._clocks_mhz, strict=True)]
        return Action(tuple(range(len(self._clocks_mhz))), tuple(self._clocks_mhz), self._hardware.highest.smt)

    def _clock_mhz(self, load: float, now_mhz: float) -> float:
        low, high = self._hardware.clocks_mhz[0], self._hardware.max_mhz
        if self._kind == "schedutil":
            wanted = HEADROOM * load * now_mhz
        else:
            wanted = high if load > UP_THRESHOLD else low + load * (high - low)
        return self._hardware.clocks_mhz[self._hardware.step_of(min(high, wanted))]
