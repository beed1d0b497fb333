"""A server of millions of requests per second, as a fluid: what comes and what is served in each interval.

Requests one by one would be 700 million in four minutes. Below full load the queue is that of M/M/c at rest, because
an interval of 0.1 s is tens of thousands of service times; above it the difference piles up and is worked off later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slackwater.governor.types import Configuration, Hardware
from slackwater_lab.governor.queues import erlang_c, mmc_wait_quantile_s, mmc_wait_s

NEARLY_FULL = 0.9999


@dataclass(frozen=True)
class FluidInterval:
    p95_ms: float
    p99_ms: float
    queue_delay_ms: float
    """Mean wait, with what has piled up."""
    oldest_ms: float
    busy_share: float
    """Busy share of each core in use."""
    answered: float
    least_ms: float
    """The shortest response time."""
    waits_share: float
    """Share of the requests that wait for longer than for what has piled up."""
    wait_ms: float
    """Their mean further wait."""

    def share_above(self, target_ms: float) -> float:
        """Share of the interval's requests that take longer."""
        further_ms = target_ms - self.least_ms
        return 1.0 if further_ms < 0.0 else self.waits_share * math.exp(-further_ms / self.wait_ms)


class FluidServer:
    """One configuration at a time; what has piled up stays when it changes."""

    def __init__(self, hardware: Hardware, rps_at_speed_1: float, base_ms: float) -> None:
        self._hardware, self._rps, self._base_ms = hardware, rps_at_speed_1, base_ms
        self._piled_up = 0.0

    def capacity_rps(self, configuration: Configuration) -> float:
        """Requests per second that it can serve."""
        return self._rps * self._hardware.speed(configuration)

    def at_rest_ms(self, configuration: Configuration, rps: float, quantile: float) -> float:
        """This quantile of the response time when the load stays; infinite from full load on."""
        capacity_rps = self.capacity_rps(configuration)
        servers = configuration.cores * (2 if configuration.smt else 1)
        service_s = servers / capacity_rps
        return self._base_ms + 1e3 * (mmc_wait_quantile_s(servers, rps, service_s, quantile) + service_s)

    def run(self, seconds: float, rps: float, configuration: Configuration, stalled: bool = False) -> FluidInterval:
        """The next interval, at this load; `stalled`: nothing is served in it."""
        capacity_rps = self.capacity_rps(configuration)
        before = self._piled_up
        wanted = before + rps * seconds
        answered = 0.0 if stalled else min(wanted, capacity_rps * seconds)
        self._piled_up = wanted - answered
        servers = configuration.cores * (2 if configuration.smt else 1)
        service_s = servers / capacity_rps
        steady_rps = min(rps, NEARLY_FULL * capacity_rps)
        piled_s = max(before, self._piled_up) / capacity_rps
        at_rest_s = mmc_wait_s(servers, steady_rps, service_s)
        tails = [mmc_wait_quantile_s(servers, steady_rps, service_s, quantile) + service_s for quantile in (0.95, 0.99)]
        return FluidInterval(
            self._base_ms + 1e3 * (piled_s + tails[0]),
            self._base_ms + 1e3 * (piled_s + tails[1]),
            1e3 * (piled_s + at_rest_s),
            1e3 * (self._piled_up / capacity_rps + at_rest_s),
            min(1.0, answered / (capacity_rps * seconds)),
            answered,
            self._base_ms + 1e3 * (piled_s + service_s),
            erlang_c(servers, steady_rps * service_s),
            1e3 / (capacity_rps - steady_rps),
        )
