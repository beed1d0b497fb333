"""`pareto`: a ladder along the Pareto frontier of static configurations, one rung up or down at a time.

Source: Prekas, Primorac, Belay, Kozyrakis and Bugnion, "Energy Proportionality and Workload Consolidation for
Latency-Critical Applications" (slides 16 to 19), with the timing and the thresholds of its open code (ix-project/ix,
cp/ixcp.py). One rung up when the queueing delay is above 300 us, at least 0.2 s after the last step up and 2 s after
the last step down. One rung down when queues are short, the cores are idle for more than 1.2 times what the rung is
worth, and 4 s have passed since either. The code counts packets in the dataplane's queues (32 up, 8 down); here it is
the delay, and "short" is the same quarter of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.governor.types import Action, Configuration, Hardware, Observation, mean, whole

UP_DELAY_MS = 0.3
SHORT = 8 / 32
"""Queues are short below this share of it."""
UP_AFTER_UP_S, UP_AFTER_DOWN_S, DOWN_AFTER_S = 0.2, 2.0, 4.0
MARGIN = 1.2
SMT_WORTH, TURBO_WORTH = 1.0 - 1.0 / 1.3, 0.1
LOADS = 50
"""Number of loads that are compared."""


def energy_ladder(hardware: Hardware) -> list[Configuration]:
    """For energy: cores at the lowest clock, then both hardware threads of all, then clocks, the turbo last."""
    low = hardware.clocks_mhz[0]
    ladder = [Configuration(cores, low) for cores in range(1, hardware.cores + 1)]
    smt = hardware.smt_gain > 1.0
    if smt:
        ladder.append(Configuration(hardware.cores, low, smt=True))
    return ladder + [Configuration(hardware.cores, clock_mhz, smt) for clock_mhz in hardware.clocks_mhz[1:]]


def batch_ladder(hardware: Hardware) -> list[Configuration]:
    """For batch jobs: cores with both hardware threads at the nominal clock, then the turbo."""
    nominal = hardware.clocks_mhz[-2] if hardware.turbo else hardware.max_mhz
    smt = hardware.smt_gain > 1.0
    ladder = [Configuration(cores, nominal, smt) for cores in range(1, hardware.cores + 1)]
    return [*ladder, Configuration(hardware.cores, hardware.max_mhz, smt)] if hardware.turbo else ladder


def inferred_ladder(hardware: Hardware) -> list[Configuration]:
    """Of the two, the one that uses less power over all loads: the order of resources is inferred from the static
    configurations of the machine (slide 16)."""
    return min(energy_ladder(hardware), batch_ladder(hardware), key=lambda ladder: _mean_w(hardware, ladder))


def _mean_w(hardware: Hardware, ladder: Sequence[Configuration]) -> float:
    """Over all loads up to the highest, each on the lowest rung that carries it."""
    watts = []
    for number in range(1, LOADS + 1):
        load = number / LOADS * hardware.speed(ladder[-1])
        rung = next(step for step in ladder if hardware.speed(step) >= load)
        watts.append(hardware.power_w(rung, load / hardware.speed(rung)))
    return mean(watts)


class Pareto:
    name = "pareto"
    period_s = 0.1

    def __init__(self, hardware: Hardware, ladder: Sequence[Configuration], up_delay_ms: float = UP_DELAY_MS) -> None:
        """`up_delay_ms`: a longer queueing delay takes it one rung up."""
        self._hardware = hardware
        self._up_delay_ms, self._down_delay_ms = up_delay_ms, up_delay_ms * SHORT
        self._ladder = list(ladder)
        self._rung = len(self._ladder) - 1
        self._up_s = self._down_s = float("-inf")

    def start(self) -> Action:
        return whole(self._ladder[self._rung])

    def decide(self, seen: Observation) -> Action:
        now_s = seen.time_s
        rested = now_s - self._up_s >= UP_AFTER_UP_S and now_s - self._down_s >= UP_AFTER_DOWN_S
        if seen.queue_delay_ms > self._up_delay_ms:
            if rested and self._rung + 1 < len(self._ladder):
                self._rung, self._up_s = self._rung + 1, now_s
        elif (
            self._rung
            and seen.queue_delay_ms < self._down_delay_ms
            and now_s - max(self._up_s, self._down_s) >= DOWN_AFTER_S
            and 1.0 - mean(seen.busy_shares) > MARGIN * self._worth()
        ):
            self._rung, self._down_s = self._rung - 1, now_s
        return whole(self._ladder[self._rung])

    def _worth(self) -> float:
        """Share of the present throughput that the step down gives away."""
        below, now = self._ladder[self._rung - 1], self._ladder[self._rung]
        if below.cores != now.cores:
            return 1.0 / now.cores
        if below.smt != now.smt:
            return SMT_WORTH
        if self._hardware.turbo and now.clock_mhz == self._hardware.max_mhz:
            return TURBO_WORTH
        return (now.clock_mhz - below.clock_mhz) / now.clock_mhz
