"""Samples as a virtual machine sends them, calm and beside a neighbour. For tests only.

Measured in a QEMU guest of one CPU that shared a core with busy loops. The guest's own run queue hardly tells of the
neighbour: the time that the hypervisor takes away is booked on whoever was running in the guest, so CPU time per
request and response times rise, and steal only where the hypervisor reports it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from slackwater.core.messages import Sample

START_UNIX_S = 1_795_000_000.0
PERIOD_S = 0.2
NODES = ("web1", "web2", "web3")
LOUD = "web1"

Steal = Literal["hidden", "reported"]


@dataclass(frozen=True)
class Shape:
    """What a guest measures in calm, and how many times that beside a neighbour."""

    rps: float
    cost_s: float
    cost_times: float
    run_delay_per_cpu: float
    run_delay_times: float
    pressure: float
    pressure_times: float
    rt_mean_ms: float
    rt_mean_times: float
    rt_p95_ms: float
    rt_p95_times: float
    wall_cpu_ratio: float
    wall_cpu_ratio_times: float
    cycles_times: float
    """Factor on the canary's cycles, in the ticks in which the neighbour meets it."""
    meets: float
    """Share of ticks in which it does."""


QUICK_PAGES = Shape(80, 0.0014, 2.5, 0.90, 1.95, 0.19, 3.1, 1.6, 6.0, 3.0, 11.0, 1.02, 1.0, 3.0, 0.4)
"""80 requests/s of 1.4 ms."""
APACHE_PHP_FPM = Shape(8, 0.025, 3.2, 0.90, 1.96, 0.19, 3.1, 20.0, 3.8, 23.0, 5.2, 1.25, 1.72, 2.0, 0.8)
"""8 requests/s of an Apache and php-fpm whose page takes 25 ms: medians of `slackwater-monitor once`, 0.9 core and two
busy loops."""


class Guests:
    """Three guests behind a balancer; `noisy` says whether `LOUD` has a neighbour."""

    def __init__(self, shape: Shape, steal: Steal, seed: int) -> None:
        self.shape = shape
        self.steal = steal
        self.noisy = False
        self._dice = random.Random(seed)
        self._seq = 0

    def ticks(self, count: int) -> Iterator[tuple[float, list[Sample]]]:
        """(monotonic seconds, one Sample of each node) for `count` periods."""
        for _ in range(count):
            yield self._seq * PERIOD_S, [self._sample(node) for node in NODES]
            self._seq += 1

    def _near(self, value: float, spread: float = 0.08) -> float:
        return abs(value * (1 + self._dice.gauss(0, spread)))

    def _sample(self, node: str) -> Sample:
        shape, near = self.shape, self._near
        noisy = self.noisy and node == LOUD
        reported = self.steal == "reported"
        met = noisy and self._dice.random() < shape.meets

        def times(factor: float) -> float:
            return factor if noisy else 1.0

        rps = near(shape.rps)
        # Where steal is reported, the kernel keeps it out of what it books on processes.
        cpu_s = rps * shape.cost_s * (1.0 if reported else times(shape.cost_times))
        steal = near(0.3 if noisy else 0.002, 0.3)
        cycles = shape.cycles_times if met else 1.0
        plain = {
            "v": 1,
            "node": node,
            "pool": "web",
            "time_unix_s": START_UNIX_S + self._seq * PERIOD_S,
            "boot_id": f"boot-{node}",
            "seq": self._seq,
            "period_s": PERIOD_S,
            "cpu": {
                "scope": "system",
                "cores": 1.0,
                "utilisation": near(min(1.0, cpu_s + (steal if reported else 0.0))),
                "steal": steal if reported else 0.0,
            },
            "sched": {
                "processes": 9,
                "threads": 84,
                "cpu_s_per_s": cpu_s,
                "run_delay_s_per_s": near(0.1 * times(shape.run_delay_times), 0.15),
                "run_delay_per_cpu_s": near(shape.run_delay_per_cpu * times(shape.run_delay_times), 0.15),
                "involuntary_switches_per_s": near(5, 0.4),
            },
            "pressure": {"cpu_some": near(shape.pressure * times(shape.pressure_times), 0.2)},
            "traffic": {
                "rps": rps,
                "rt_mean_ms": near(shape.rt_mean_ms * times(shape.rt_mean_times)),
                "rt_p50_ms": 0.9 * shape.rt_mean_ms * times(shape.rt_mean_times),
                "rt_p95_ms": near(shape.rt_p95_ms * times(shape.rt_p95_times)),
                "in_flight": int(self._dice.random() < 0.3) + (3 if noisy else 0),
                "errors_per_s": 0.0,
                "drops": 0,
            },
            "counters": {"source": "canary", "cpi": near(60 * cycles), "cache_miss_rate": 0.1},
            "canary": {
                "l2_cycles_per_load": near(14),
                "llc_cycles_per_load": near(60 * cycles),
                "alu_cycles_per_op": near(0.5 * cycles),
                "slow_share": 0.1,
                "wall_cpu_ratio": max(1.0, near(shape.wall_cpu_ratio * times(shape.wall_cpu_ratio_times))),
                "cpu_share": 0.001,
                "late_ms": near(2.4 if met else 0.08, 0.3),
            },
        }
        return msgspec.convert(plain, Sample)
