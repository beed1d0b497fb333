"""Plausible Samples of a small cluster: calm, with a neighbour, with swinging load, all slow, drained. For tests only.

The figures are those measured on hosts of 0.4 core with pages of 1.4 ms CPU; what a tick shows is drawn from a seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from slackwater.core.messages import (
    Canary,
    Counters,
    Cpu,
    Disk,
    Memory,
    Network,
    Pressure,
    RouteTraffic,
    Sample,
    Sched,
    Traffic,
)

START_UNIX_S = 1_795_000_000.0
PERIOD_S = 0.2
CORES = 0.4
COST_S = 0.0014
CAPACITY_RPS = CORES / COST_S


@dataclass
class Host:
    """What one host is going through; change it between ticks."""

    rps: float = 83.0
    neighbour: float = 0.0
    """Intensity of a neighbour, 0 to 1."""
    cores: float = CORES
    """What its quota or virtual machine has."""
    backup: float = 0.0
    """Share that other programs of its own take of what the web server leaves."""
    slow_database_ms: float = 0.0
    dearer: float = 1.0
    """Times the usual CPU per request."""
    searches: float = 0.1
    """Share of requests of the route class that is six times as dear as the others; seen where `Cluster.routes`."""
    takes: str = "cpu"
    """What the neighbour takes: `cpu`, or (on a cluster with `rich` Samples) another resource of a Verdict."""
    threads: int = 84
    """Threads of the web server."""
    seq: int = 0
    boot_id: str = "boot-1"


@dataclass
class Cluster:
    """Hosts whose monitors send at different offsets within the period."""

    names: tuple[str, ...] = ("host1", "host2", "host3")
    seed: int = 1
    pool: str = "web"
    traffic: bool = True
    canary: bool = True
    sched: bool = True
    steal: bool = False
    rich: bool = False
    """Whether there are hardware counters, the canary's parts, memory, disk and network too."""
    routes: bool = False
    clock_off_s: float = 0.0
    """How wrong the hosts' wall clock is."""
    now_s: float = 0.0
    hosts: dict[str, Host] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hosts = {name: Host() for name in self.names}
        self._random = np.random.default_rng(self.seed)

    def run(self, seconds: float, each: Callable[[float], None] | None = None) -> Iterator[tuple[float, list[Sample]]]:
        """Ticks for a detector: (now_s, Samples that came), one tick a host and period."""
        for _ in range(round(seconds / PERIOD_S)):
            if each is not None:
                each(self.now_s)
            for number, name in enumerate(self.names):
                at_s = self.now_s + PERIOD_S * (number + 1) / (len(self.names) + 1)
                yield at_s, [self.sample(name, at_s)]
            self.now_s += PERIOD_S

    def shared(self, total_rps: float, weights: Mapping[str, int], loud: Collection[str]) -> Iterator[Sample]:
        """Each host's Sample of now, with its share of `total_rps` by weight; those in `loud` have a neighbour."""
        whole = sum(weights.values()) or 1
        for name, weight in weights.items():
            host = self.hosts[name]
            host.rps = total_rps * weight / whole
            host.neighbour = 0.9 if name in loud else 0.0
            sample = self.sample(name, 0.0)
            sample.time_unix_s = time.time()
            yield sample

    def sample(self, name: str, at_s: float) -> Sample:
        """One Sample of a host; counts up its sequence number."""
        host, draw = self.hosts[name], self._random
        requests = draw.poisson(host.rps * PERIOD_S) if host.rps > 0 else 0
        dearer = host.dearer * ((1 + 5 * host.searches) / 1.5 if self.routes else 1.0)
        wanted_s = requests * COST_S * dearer * draw.normal(1.0, 0.04)
        loud = host.neighbour if host.takes == "cpu" else 0.0
        other = host.neighbour if host.takes != "cpu" else 0.0
        room_s = host.cores * PERIOD_S * (1.0 - 0.8 * loud)
        cpu_s = min(wanted_s, room_s)
        used = cpu_s / (host.cores * PERIOD_S)
        load = min(0.97, used)
        own_wait = load / (1 - load) * draw.exponential(0.06)
        stolen = loud > 0 and draw.random() < 0.35
        wait_per_cpu = own_wait + (loud * draw.uniform(8.0, 25.0) if loud else 0.0)
        ratio = 1.0 + draw.exponential(0.01) + (draw.uniform(1.0, 30.0) * loud if stolen else 0.0)
        late_s = 0.08 * loud if loud and draw.random() < 0.12 else draw.exponential(0.0003)
        service_ms = COST_S * 1e3 * dearer
        rt_ms = service_ms * (1 + wait_per_cpu) * draw.normal(1.0, 0.05) + host.slow_database_ms + 40.0 * other
        served = min(requests, int(room_s / (COST_S * dearer)))
        busy = requests > 0
        sample = Sample(
            v=1,
            node=name,
            pool=self.pool,
            time_unix_s=START_UNIX_S + at_s + self.clock_off_s,
            boot_id=host.boot_id,
            seq=host.seq,
            period_s=PERIOD_S + late_s,
            cpu=Cpu(
                scope="cgroup",
                utilisation=used + host.backup * (1.0 - used) + 0.01,
                cores=host.cores,
                steal=min(1.0, 0.4 * loud + draw.exponential(0.003)) if self.steal else None,
            ),
            pressure=Pressure(cpu_some=min(1.0, 0.1 * load + draw.exponential(0.02))),
            absent={"counters.instructions_per_s": "perf_event_open: ENOENT, this VM has no PMU"},
        )
        if self.sched:
            sample.sched = Sched(
                processes=9,
                threads=host.threads,
                cpu_s_per_s=cpu_s / PERIOD_S,
                run_delay_s_per_s=wait_per_cpu * cpu_s / PERIOD_S if busy else (0.2 if stolen else 0.0005),
                run_delay_per_cpu_s=wait_per_cpu if busy and cpu_s > 0.0005 else None,
            )
        else:
            sample.absent["sched"] = "no process is named apache2 or php-fpm8.2"
        if self.canary:
            sample.counters = Counters(
                source="canary",
                cpi=abs(draw.normal(110.0, 6.0)) * (1 + 0.15 * loud),
                cache_miss_rate=min(1.0, abs(draw.normal(0.12, 0.02)) * (1 + 0.3 * loud)),
                wall_cpu_ratio=ratio,
            )
        else:
            sample.absent["counters"] = "the canary is switched off in the configuration"
        if self.traffic:
            sample.traffic = Traffic(
                rps=served / PERIOD_S,
                in_flight=int(min(500, wait_per_cpu * load)),
                errors_per_s=0.0,
                drops=0,
                rt_mean_ms=rt_ms if busy else None,
                rt_p50_ms=rt_ms * 0.8 if busy else None,
                rt_p95_ms=rt_ms * draw.uniform(2.0, 3.2) if busy else None,
                rt_p99_ms=rt_ms * 3.5 if busy else None,
                routes=self._by_route(host, wait_per_cpu, served) if self.routes and busy else [],
            )
        else:
            sample.absent["traffic"] = "no capture: CAP_NET_RAW is missing"
        if self.rich:
            self._enrich(sample, host, loud, other)
        host.seq += 1
        return sample

    def _by_route(self, host: Host, wait_per_cpu: float, served: int) -> list[RouteTraffic]:
        page_ms = COST_S * 1e3 / 1.5 * host.dearer * (1 + wait_per_cpu) + host.slow_database_ms
        routes = []
        for name, share, rt_ms in (("page", 1 - host.searches, page_ms), ("search", host.searches, 6 * page_ms)):
            rt_ms *= self._random.normal(1.0, 0.05)
            routes.append(RouteTraffic(name, served * share / PERIOD_S, rt_ms if served * share >= 1 else None))
        return routes

    def _enrich(self, sample: Sample, host: Host, loud: float, other: float) -> None:
        """The Sample's further sections; `loud` is how much CPU a neighbour takes, `other` how much of others."""
        draw = self._random
        takes = {name: other * (host.takes == name) for name in ("cache", "memory bandwidth", "network", "disk")}
        cycles = 1 + 2.5 * takes["memory bandwidth"] + 1.0 * takes["cache"]
        sample.counters = Counters(
            source="pmu",
            cpi=abs(draw.normal(1.2, 0.05)) * cycles,
            cache_miss_rate=min(1.0, abs(draw.normal(0.15, 0.01)) * (1 + 4 * takes["cache"])),
            instructions_per_s=8e8,
        )
        sample.canary = Canary(
            l2_cycles_per_load=abs(draw.normal(14.0, 0.3)),
            llc_cycles_per_load=abs(draw.normal(60.0, 2.0)) * cycles,
            alu_cycles_per_op=abs(draw.normal(0.5, 0.01)),
            slow_share=min(1.0, abs(draw.normal(0.1, 0.01)) * (1 + 4 * takes["cache"])),
            wall_cpu_ratio=1.0 + draw.exponential(0.01),
            late_ms=draw.exponential(0.1) + (draw.uniform(0.0, 30.0) * loud if draw.random() < 0.8 else 0.0),
        )
        if sample.pressure is not None:
            sample.pressure.cgroup_cpu_some = sample.pressure.cpu_some
            sample.pressure.io_some = min(1.0, draw.exponential(0.005) + 0.6 * takes["disk"])
            sample.pressure.cgroup_io_some = sample.pressure.io_some
            sample.pressure.memory_some = draw.exponential(0.001)
        sample.memory = Memory(available=0.6, minor_faults_per_s=900.0, major_faults_per_s=0.0)
        sample.disk = Disk(
            "vda", busy=0.02 + 0.9 * takes["disk"], wait_ms=abs(draw.normal(0.8, 0.1)) + 60 * takes["disk"]
        )
        sample.network = Network(
            "eth0",
            saturation=min(1.0, abs(draw.normal(0.02, 0.002)) + 0.9 * takes["network"]),
            drops_per_s=400.0 * takes["network"],
            retransmits_per_s=200.0 * takes["network"],
        )


def swing(cluster: Cluster, low: float, high: float, every_s: float) -> Callable[[float], None]:
    """Moves all hosts' load between two shares of their capacity, `every_s` seconds up and down."""

    def each(now_s: float) -> None:
        share = low + (high - low) * (0.5 - 0.5 * math.cos(2 * math.pi * now_s / every_s))
        for host in cluster.hosts.values():
            host.rps = share * CAPACITY_RPS

    return each
