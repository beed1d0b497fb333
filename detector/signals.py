"""The signals that the detector looks at: one line each in one table. A value that a Sample lacks is NaN, never zero.

Which of them show a neighbour was measured: see the notes beside `SIGNALS` and docs/architecture.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slackwater.messages import Sample

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

WINDOW = 5
"""Samples over which the windowed signals look back: about a second."""

Group = Literal["run queue", "core", "cost", "users", "load"]
"""What a signal speaks of. Signals of one group move together, so they count once as evidence: who takes the probe's
core away takes its cache away too."""


@dataclass(frozen=True)
class Signal:
    """One measured quantity of a node."""

    key: str
    words: str
    unit: str
    floor: float
    """Baselines below this count as this: a ratio to next to nothing means nothing."""
    group: Group
    queues: bool
    """Grows with the node's own load as a queue does (load / (1 - load))."""
    read: Callable[[Sample], float | None] | None
    """None: computed from the last `WINDOW` Samples, see `detector.history`."""
    dotted: tuple[str, ...]
    """Its names in `Sample.absent`."""
    evidence: bool = True
    """False: not offered to the tree. What users feel is the harm and not its cause (a slow database does it too), and
    on a lab's recordings a tree would look at nothing else; the others are moved by the node's own load."""


def _run_delay_per_cpu(sample: Sample) -> float | None:
    return sample.sched.run_delay_per_cpu_s if sample.sched else None


def _run_delay(sample: Sample) -> float | None:
    return sample.sched.run_delay_s_per_s if sample.sched else None


def wall_cpu_ratio(sample: Sample) -> float | None:
    """The probe's, which is in `counters` only where no hardware counter is."""
    if sample.canary and sample.canary.wall_cpu_ratio is not None:
        return sample.canary.wall_cpu_ratio
    return sample.counters.wall_cpu_ratio if sample.counters else None  # of monitors that know no `canary`


def _cpi(sample: Sample) -> float | None:
    return sample.counters.cpi if sample.counters else None


def _cache_miss_rate(sample: Sample) -> float | None:
    return sample.counters.cache_miss_rate if sample.counters else None


def _utilisation(sample: Sample) -> float | None:
    return sample.cpu.utilisation if sample.cpu else None


def _steal(sample: Sample) -> float | None:
    return sample.cpu.steal if sample.cpu else None


def _cpu_pressure(sample: Sample) -> float | None:
    return sample.pressure.cpu_some if sample.pressure else None


def _rt_mean_ms(sample: Sample) -> float | None:
    return sample.traffic.rt_mean_ms if sample.traffic else None


def _rt_p95_ms(sample: Sample) -> float | None:
    return sample.traffic.rt_p95_ms if sample.traffic else None


def _in_flight(sample: Sample) -> float | None:
    return sample.traffic.in_flight if sample.traffic else None


def _period_ms(sample: Sample) -> float | None:
    return sample.period_s * 1e3 if sample.period_s > 0 else None


# Measured beside a memory-walking neighbour in a cgroup of 0.4 core: run delay per CPU second rises from below 1 to
# 6..15 in the first tick. The probe's wall/CPU ratio is 2..34 in about a third of the ticks and 1.0 in the others (the
# neighbour is not always on the core when the probe is), so its maximum over a second is a signal of its own. Without
# traffic the run delay has nothing to count; what is left are the probe and the monitor's own late wake-ups (80 ms late
# in about one tick of eight), which show as a long period.
_CANARY_RATIO = ("canary.wall_cpu_ratio", "canary", "counters.wall_cpu_ratio", "counters")
_COST = ("traffic.rps", "traffic", "sched.cpu_s_per_s", "sched", "cpu.utilisation", "cpu")
_RUN_DELAY = ("sched.run_delay_per_cpu_s", "sched")
_PRESSURE = ("pressure.cpu_some", "pressure")
_RT_MEAN = ("traffic.rt_mean_ms", "traffic")
_RT_P95 = ("traffic.rt_p95_ms", "traffic")
_IN_FLIGHT = ("traffic.in_flight", "traffic")
_MISSES = ("counters.cache_miss_rate", "counters")
_HIGHEST = f"highest canary wall/CPU ratio of {WINDOW} ticks"

# fmt: off
SIGNALS: tuple[Signal, ...] = (
    Signal("run_delay_per_cpu", "run delay per CPU second", "", 0.5, "run queue", True, _run_delay_per_cpu, _RUN_DELAY),
    Signal("run_delay", "run delay per second", "", 0.02, "run queue", True, _run_delay, _RUN_DELAY, False),
    Signal("canary_ratio", "canary wall/CPU ratio", "", 1.0, "core", False, wall_cpu_ratio, _CANARY_RATIO),
    Signal("canary_ratio_max", _HIGHEST, "", 1.0, "core", False, None, _CANARY_RATIO),
    Signal("period", "time since the sample before", " ms", 1.0, "core", False, _period_ms, ("period_s",)),
    Signal("steal", "steal", "", 0.02, "run queue", False, _steal, ("cpu.steal", "cpu")),
    Signal("cpu_pressure", "CPU pressure", "", 0.05, "run queue", True, _cpu_pressure, _PRESSURE),
    Signal("cpi", "cycles per instruction", "", 1e-3, "core", False, _cpi, ("counters.cpi", "counters")),
    Signal("cache_miss_rate", "cache miss rate", "", 0.02, "core", False, _cache_miss_rate, _MISSES),
    Signal("cpu_per_request", "CPU time per request", " ms", 0.05, "cost", False, None, _COST),
    Signal("rt_mean", "mean response time", " ms", 1.0, "users", True, _rt_mean_ms, _RT_MEAN, False),
    Signal("rt_p95", "p95 response time", " ms", 2.0, "users", True, _rt_p95_ms, _RT_P95, False),
    Signal("in_flight", "requests in flight", "", 1.0, "users", True, _in_flight, _IN_FLIGHT, False),
    Signal("utilisation", "CPU utilisation", "", 0.05, "load", False, _utilisation, ("cpu.utilisation", "cpu"), False),
)
# fmt: on
INDEX: dict[str, int] = {signal.key: number for number, signal in enumerate(SIGNALS)}
FLOORS: Floats = np.array([signal.floor for signal in SIGNALS])
QUEUES: Bools = np.array([signal.queues for signal in SIGNALS])


def reason(signal: Signal, sample: Sample) -> str:
    """Why a Sample has no value for this signal, in its monitor's words where it gave any."""
    for name in signal.dotted:
        if name in sample.absent:
            return sample.absent[name]
    return "no value in this period"


def number(value: float | None) -> float:
    """NaN for an absent or an infinite value."""
    return math.nan if value is None or not math.isfinite(value) else float(value)
