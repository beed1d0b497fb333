"""The table `heimdall`: Eggen and Eggen, "Estimating Tail-Latency of Latency-Sensitive Workloads", Table 4.1.

Nvidia Jetson TX1: three Cortex-A57 (the thesis leaves the fourth to the system), 17 clocks from 0.1 to 1.73 GHz for all
cores together. memcached under Mutilate: a closed loop of 128 connections, up to 31,350 requests/s, in steps of 20%
that last 50 s, up and down; target: a 95th percentile of 1.1 ms.

Requests need equal work and are dealt out to the threads in turn. So the machine handles hardly more than the knee, as
the thesis says (section 4.1.3); with exponential work and Poisson streams to each thread, fitted to the same knee, it
would handle 1.5 times as much. Left open by the thesis and fitted to its row `static` (99.8%) and the knee (33,000
requests/s at 1.1 ms; never below 0.6 ms): the work of a request, the time that is not the server's, and how a second
differs from the next. "0%" of the load is 1%: each of the thesis's seconds has a percentile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from slackwater.governor.power import STATIC_OF_PEAK, hardware
from slackwater.governor.types import Action, Configuration, Hardware, Observation, Policy
from slackwater_lab.governor.queues import Floats, PinnedQueues

TARGET_MS = 1.1
MOST_RPS = 31_350.0
LEAST_LOAD = 0.01
LEVELS = (LEAST_LOAD, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, LEAST_LOAD)
STEP_S = 50
CONNECTIONS = 128
CORES = 3
CLOCKS_MHZ = (*(100.0 * step for step in range(1, 17)), 1730.0)
WORK_S = 83.9e-6
"""CPU time of a request at the highest clock."""
BASE_MS = 0.52
"""Network and load generator."""
JITTER = 0.018
"""Deviation of the logarithm of a second's mean work."""
BUSY_W = 1.373
"""Power of a core at the highest clock (power curve `a72`)."""
STATIC_HALF_W = STATIC_OF_PEAK / (1.0 - STATIC_OF_PEAK) * 4 * BUSY_W / 2
"""Half of the static power of four cores: one half is the base's, one the enabled cores'."""
REST_S = 20.0
"""This length of a load without jitter shows whether a configuration meets the target."""


def machine(curve: str) -> Hardware:
    return hardware(curve, CORES, CLOCKS_MHZ, busy_w=BUSY_W, base_w=STATIC_HALF_W, idle_w=STATIC_HALF_W / 4)


def trace(step_s: int = STEP_S) -> Floats:
    """(N,) requests per second of each second: one iteration."""
    return np.repeat(np.array(LEVELS) * MOST_RPS, step_s)


def queues(random: np.random.Generator) -> PinnedQueues:
    return PinnedQueues(WORK_S, cv2=0.0, in_turn=True, connections=CONNECTIONS, random=random)


class Server:
    """memcached on the machine, in intervals of any length; `speed` is what a neighbour leaves of the cores."""

    def __init__(self, processor: Hardware, seed: int) -> None:
        self._of = processor
        self._random = np.random.default_rng([seed, 1])
        self._queues = queues(np.random.default_rng([seed, 2]))
        self._jitter = 1.0

    def new_second(self) -> None:
        self._jitter = float(np.exp(self._random.normal(0.0, JITTER)))

    def run(self, seconds: float, rps: float, action: Action, speed: float = 1.0) -> tuple[Floats, Observation]:
        """Response times in ms of the requests answered in the interval, and what can be observed of it (the time of
        the Observation is the interval's length)."""
        speeds = [clock_mhz / self._of.max_mhz * speed / self._jitter for clock_mhz in action.clocks_mhz]
        done = self._queues.run(seconds, rps, speeds)
        took_ms = done.answered_s * 1e3 + BASE_MS
        watts = self._of.base_w + sum(
            self._of.core_w(clock_mhz, busy)
            for clock_mhz, busy in zip(action.clocks_mhz, done.busy_shares, strict=True)
        )
        tail_ms = percentile(took_ms)
        return took_ms, Observation(
            seconds,
            len(took_ms) / seconds,
            tail_ms,
            None,
            float(done.waited_s.max(initial=0.0)) * 1e3,
            done.oldest_s * 1e3,
            done.busy_shares,
            watts,
        )


def percentile(values: Floats, percent: float = 95.0) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


@dataclass(frozen=True)
class PolicyTrace:
    """One policy through one trace, second by second."""

    p95_ms: Floats
    """NaN where nothing was answered."""
    watts: Floats
    cpu_s: float

    @property
    def guarantee_percent(self) -> float:
        """Share of seconds within the target; a second without requests met it."""
        return 100.0 * (1.0 - float(np.mean(self.p95_ms > TARGET_MS)))

    @property
    def tardiness(self) -> float:
        """Mean over the seconds that missed; NaN where none did."""
        late = self.p95_ms[self.p95_ms > TARGET_MS]
        return float(late.mean()) / TARGET_MS if len(late) else float("nan")


def run(
    policy: Policy,
    processor: Hardware,
    seed: int,
    load: Floats | None = None,
    neighbour: Callable[[float], tuple[float, bool]] = lambda _: (1.0, False),
) -> PolicyTrace:
    """`neighbour`: time -> the speed that is left of the cores, and whether the Verdict is `interference`."""
    began = time.thread_time()
    server = Server(processor, seed)
    action = policy.start()
    p95_ms, watts = [], []
    for second, rps in enumerate(trace() if load is None else load):
        server.new_second()
        parts = max(1, round(1.0 / policy.period_s))
        took, used = [], []
        for part in range(parts):
            now_s = second + part / parts
            speed, interference = neighbour(now_s)
            took_ms, seen = server.run(1.0 / parts, float(rps), action, speed)
            took.append(took_ms)
            used.append(seen.power_w)
            action = policy.decide(_at(seen, now_s + 1.0 / parts, interference))
        tail_ms = percentile(np.concatenate(took))
        p95_ms.append(np.nan if tail_ms is None else tail_ms)
        watts.append(float(np.mean(used)))
    return PolicyTrace(np.array(p95_ms), np.array(watts), time.thread_time() - began)


def _at(seen: Observation, time_s: float, interference: bool) -> Observation:
    return replace(seen, time_s=time_s, interference=interference)


def bound_w(processor: Hardware, load: Sequence[float] | Floats) -> float:
    """Mean power of the cheapest static configuration of each second, if one knew the load and no second differed from
    the next."""
    least_w = {rps: _least_w(processor, rps) for rps in {float(rps) for rps in load}}
    return float(np.mean([least_w[float(rps)] for rps in load]))


def _least_w(processor: Hardware, rps: float) -> float:
    """Power of the cheapest configuration that meets the target at this load; of the highest where none does."""

    def power_w(configuration: Configuration) -> float:
        return processor.power_w(configuration, min(1.0, rps * WORK_S / processor.speed(configuration)))

    for configuration in sorted(processor.configurations(), key=power_w):
        if (
            rps * WORK_S < processor.speed(configuration)
            and _tail_at_rest_ms(configuration.cores, configuration.clock_mhz / processor.max_mhz, rps) <= TARGET_MS
        ):
            return power_w(configuration)
    return power_w(processor.highest)


@lru_cache
def _tail_at_rest_ms(cores: int, speed: float, rps: float) -> float:
    done = queues(np.random.default_rng(0)).run(REST_S, rps, (speed,) * cores)
    tail_ms = percentile(done.answered_s * 1e3 + BASE_MS)
    return np.inf if tail_ms is None else tail_ms
