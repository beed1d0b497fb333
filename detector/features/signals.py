"""The signals that the detector reads, and all that it knows about each: a row each in one table.

A value that a Sample lacks is NaN, never zero. It was measured which signals show a neighbour: see the notes beside
`SIGNALS` and docs/how-it-works/detector.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np

from slackwater.core.messages import Resource
from slackwater.detector.features.columns import Bools, Columns, Floats, Ints

WINDOW_S = 1.0
"""Time that the Samples of windowed signals cover."""
HOLE = 5
"""A window has a hole where this number of Samples or more are missing."""

Group = Literal["run queue", "core", "cost", "disk", "network", "memory", "users", "load"]
"""The resource or work for which a signal is evidence. Signals of a group move together, so they count once as
evidence: a neighbour on the probe's core takes its cache away too."""
Growth = Literal["", "wait", "response"]
"""How a signal grows with the node's own load under processor sharing (Kleinrock, "Queueing Systems" II, 1976). `wait`,
as load / (1 - load): the time that work waits for each second that it runs, and the amount of work at a time.
`response`, as 1 / (1 - load): wait and run together. Empty: not at all."""
Read = Callable[[Columns], Floats]


@dataclass(frozen=True)
class Signal:
    """One measured quantity of a node."""

    key: str
    words: str
    unit: str
    floor: float
    """A baseline counts as at least this: a ratio to next to nothing means nothing."""
    group: Group
    grows: Growth
    """How the signal grows with the node's own load."""
    read: Read | None
    """The tick's columns -> values, (M,). None: it needs several Samples, see
    `slackwater.detector.features.history`."""
    dotted: tuple[str, ...]
    """The signal's names in `Sample.absent`."""
    scale: float = math.inf
    """Multiple of its calm value at which it is as remarkable as any other signal at its own; infinite: it is no
    evidence."""
    resource: Resource | None = None
    """The resource that a neighbour takes where this signal is beyond `resource_limit`: times the calm baseline, and
    times the peers'."""
    resource_limit: float = math.inf
    idle: bool = False
    """It shows a neighbour of a server without requests too. Signals of the web server's idle processes are noise."""
    cgroups_only: bool = False
    """It shows neighbours of cgroups only: a machine's own run queue holds only its own work."""
    instead_of: str = ""
    """The signal for which it stands in where that is not known."""
    plain: str = ""
    """What a higher value means, for people: `{times}` is `18 times`, `{usual}` is `as usual` or what else it is
    compared with, `{value}` the value with its unit. Every signal that is evidence or a response time has it."""


Source = tuple[Read | None, tuple[str, ...]]
"""A signal's `read` and `dotted`."""


def _field(name: str) -> Source:
    """The source of a signal that is a field of Samples."""
    return lambda columns: columns[name], (name, name.partition(".")[0])


def _either(first: str, other: str, *absent: str) -> Source:
    """The source of a signal that is a field, or where that is absent another field with the same meaning."""
    return lambda columns: np.where(np.isnan(columns[first]), columns[other], columns[first]), (first, other, *absent)


def _highest(*names: str) -> Source:
    """The source of a signal that is the highest of the fields that are present."""
    return lambda columns: reduce(np.fmax, map(columns.__getitem__, names)), (*names, names[0].partition(".")[0])


def _period_ms(columns: Columns) -> Floats:
    period_s = columns["period_s"]
    return np.where(period_s > 0, period_s * 1e3, np.nan)


def _kept_waiting(columns: Columns) -> Floats:
    """(M,) share of random moments at which the machine did not run at all, or ran another program than the monitor."""
    shares = np.array([columns["gaps.lost_share"], columns["gaps.queued_share"]])
    return np.where(np.isnan(shares).all(axis=0), np.nan, np.nansum(shares, axis=0))


def leave_out_idle(columns: Columns) -> None:
    """Removes the run delay per CPU second where hardly any CPU time was used: an idle server's is a ratio of noise."""
    idle = columns["sched.cpu_s_per_s"] < MIN_CPU_S
    columns["sched.run_delay_per_cpu_s"] = np.where(idle, np.nan, columns["sched.run_delay_per_cpu_s"])


def _involuntary_per_cpu(columns: Columns) -> Floats:
    """(M,) involuntary switches per CPU second, NaN below `MIN_CPU_S`. Per second they would only count requests."""
    cpu_s = columns["sched.cpu_s_per_s"]
    per_s = columns["sched.involuntary_switches_per_s"]
    return np.where(cpu_s >= MIN_CPU_S, per_s / np.maximum(cpu_s, MIN_CPU_S), np.nan)


MIN_CPU_S = 0.01
"""Below this CPU time of the web server, in s per second, a rate per CPU second is a ratio of noise."""

# Measured beside a memory-walking neighbour in a cgroup of 0.4 core: run delay per CPU second rises from below 1 to
# 6..15 in the first tick. The probe's wall/CPU ratio is 2..34 in about a third of the ticks and 1.0 in the others: the
# neighbour is not always on the probe's core. So its maximum over a second is a signal of its own. Without traffic the
# run delay has nothing to count. Then only the probe is left, and the monitor's own late wake-ups (80 ms late in about
# one tick of eight), which show as a long period.
#
# The probe's late begin is better evidence: it waits for a core while a neighbour has used up the quota. In calm it
# is 0.07 ms late (0.6 ms in one tick of 20, on a busy machine). Beside a neighbour it is 1 to 18 ms late at the median,
# and more than 1 ms in 50% to 85% of the ticks. A server that uses up its own quota is late too, so it counts as a
# queue.
#
# Random moments are the best evidence where the web server has no requests. On drained servers at least a third of the
# moments wait in nine of ten Samples beside a neighbour. Without a neighbour at most a tenth does in nine of ten. (AUC
# 0.98; of the canary's wait 0.76, of its wall/CPU ratio 0.74: docs/decisions/0025.) The length of a period says nothing
# where Samples follow events.
#
# Pressure of the server's own cgroup is preferred to that of the whole machine, which other programs change too.
#
# Hardware counters and the probe have signals of their own: `cpi` and `cache_miss_rate` are hardware's, `probe_*` the
# probe's. So a VM that gains or loses its counters does not compare one with the other's baseline.
_PERIOD: Source = (_period_ms, ("period_s",))
_RUN_DELAY_PER_CPU = _field("sched.run_delay_per_cpu_s")
_RUN_DELAY = _field("sched.run_delay_s_per_s")
_RATIO = _either("canary.wall_cpu_ratio", "counters.wall_cpu_ratio", "canary", "counters")
_RATIO_MAX: Source = (None, _RATIO[1])
_LATE = _field("canary.late_ms")
_LATE_MAX: Source = (None, _LATE[1])
_KEPT_WAITING: Source = (_kept_waiting, ("gaps.lost_share", "gaps"))
_PRESSURE = _either("pressure.cgroup_cpu_some", "pressure.cpu_some", "pressure")
_SWITCHES: Source = (_involuntary_per_cpu, ("sched.involuntary_switches_per_s", "sched.cpu_s_per_s", "sched"))
_CPI: Source = (_field("pmu.cpi")[0], ("pmu", "counters.cpi", "counters"))
_MISSES: Source = (_field("pmu.cache_miss_rate")[0], ("pmu", "counters.cache_miss_rate", "counters"))
_PROBE = _either("canary.llc_cycles_per_load", "probe.cpi", "canary", "counters")
_PROBE_MISSES = _either("canary.slow_share", "probe.cache_miss_rate", "canary", "counters")
_COST: Source = (None, ("traffic.rps", "traffic", "sched.cpu_s_per_s", "sched", "cpu.utilisation", "cpu"))
_IO_PRESSURE = _highest("pressure.cgroup_io_some", "pressure.io_some")
_MEMORY_PRESSURE = _highest("pressure.cgroup_memory_some", "pressure.memory_some")
_MAJOR_FAULTS = _field("memory.major_faults_per_s")
_ROUTES: Source = (None, ("traffic.routes", "traffic"))
_RT_MEAN = _field("traffic.rt_mean_ms")
_RT_BALANCER: Source = (_field("balancer.rt_mean_ms")[0], ("traffic",))
_LONGEST = f"the canary's longest wait for a core in {WINDOW_S:g} s"
_MOMENTS = "share of moments at which the machine did not run the monitor"
_OF_PERIODS = "throttled share of the quota's periods"
_AT_BALANCER = "mean response time at the balancer"
_BY_ROUTE = "response time by route over its calm one"

# fmt: off
SIGNALS: tuple[Signal, ...] = (
    Signal("run_delay_per_cpu", "run delay per CPU second", "", 0.5, "run queue", "wait", *_RUN_DELAY_PER_CPU,
           scale=2.5, resource="cpu", resource_limit=2.5, cgroups_only=True,
           plain="its programs wait {times} as long for a CPU {usual}"),
    Signal("run_delay", "run delay per second", "", 0.02, "run queue", "wait", *_RUN_DELAY),
    Signal("cpu_pressure", "CPU pressure", "", 0.05, "run queue", "wait", *_PRESSURE,
           scale=2.0, resource="cpu", resource_limit=2.0, cgroups_only=True, instead_of="run_delay_per_cpu",
           plain="its programs wait {times} as long for a CPU {usual}"),
    Signal("steal", "steal", "", 0.02, "run queue", "", *_field("cpu.steal"),
           scale=2.5, resource="cpu", resource_limit=2.5, idle=True,
           plain="the hypervisor takes {times} as much CPU time from it {usual}"),
    # Without a scale: it shows only neighbours that share their server's quota, as the lab's.
    Signal("throttled", _OF_PERIODS, "", 0.1, "run queue", "wait", *_field("cpu.throttled")),
    Signal("switches", "involuntary switches per CPU second", "", 100.0, "run queue", "", *_SWITCHES),
    Signal("canary_ratio", "canary wall/CPU ratio", "", 1.0, "core", "", *_RATIO,
           scale=1.5, resource="cpu", resource_limit=1.5, idle=True,
           plain="a short computation takes {times} as long {usual}"),
    Signal("canary_ratio_max", f"highest canary wall/CPU ratio of {WINDOW_S:g} s", "", 1.0, "core", "", *_RATIO_MAX,
           resource="cpu", resource_limit=2.0),
    Signal("period", "time since the sample before", " ms", 1.0, "core", "", *_PERIOD),
    Signal("late", "the canary's wait for a core", " ms", 0.5, "core", "wait", *_field("canary.late_ms"),
           scale=3.0, resource="cpu", resource_limit=3.0, idle=True,
           plain="a program that wants a CPU waits {times} as long for it {usual}"),
    Signal("late_max", _LONGEST, " ms", 1.0, "core", "wait", *_LATE_MAX, resource="cpu", resource_limit=3.0),
    Signal("kept_waiting", _MOMENTS, "", 0.1, "core", "wait", *_KEPT_WAITING),
    Signal("cpi", "cycles per instruction (PMU)", "", 1e-3, "core", "", *_CPI,
           scale=1.3, resource="memory bandwidth", resource_limit=1.4,
           plain="its instructions take {times} as long {usual}"),
    Signal("cache_miss_rate", "cache miss rate (PMU)", "", 0.02, "core", "", *_MISSES,
           scale=1.4, resource="cache", resource_limit=1.5,
           plain="what it reads is missing from the CPU cache {times} as often {usual}"),
    Signal("probe_cycles", "cycles per load (canary)", "", 1e-3, "core", "", *_PROBE,
           scale=1.4, resource="memory bandwidth", resource_limit=1.4, idle=True,
           plain="reading its memory takes {times} as long {usual}"),
    Signal("probe_misses", "cache miss rate (canary)", "", 0.02, "core", "", *_PROBE_MISSES,
           scale=1.5, resource="cache", resource_limit=1.5, idle=True,
           plain="what it reads is missing from the CPU cache {times} as often {usual}"),
    Signal("probe_alu", "cycles per operation (canary)", "", 1e-3, "core", "", *_field("canary.alu_cycles_per_op"),
           scale=1.4, resource="cpu", resource_limit=1.3, idle=True,
           plain="a computation takes {times} as long {usual}"),
    Signal("cpu_per_request", "CPU time per request", " ms", 0.05, "cost", "", *_COST, scale=1.5,
           plain="a request takes {times} as much CPU time {usual}"),
    Signal("io_pressure", "I/O pressure", "", 0.05, "disk", "", *_IO_PRESSURE,
           scale=3.0, resource="disk", resource_limit=2.0, idle=True,
           plain="its programs wait {times} as long for a disk {usual}"),
    Signal("disk_wait", "disk's time per request", " ms", 1.0, "disk", "", *_field("disk.wait_ms"),
           scale=4.0, resource="disk", resource_limit=2.5, idle=True,
           plain="its disk takes {times} as long for a read or a write {usual}"),
    Signal("disk_busy", "disk's busy share", "", 0.1, "disk", "", *_field("disk.busy")),
    Signal("memory_pressure", "memory pressure", "", 0.05, "memory", "", *_MEMORY_PRESSURE, scale=3.0, idle=True,
           plain="its programs wait {times} as long for memory {usual}"),
    Signal("major_faults", "page faults that wait for a disk", "/s", 10.0, "memory", "", *_MAJOR_FAULTS,
           scale=4.0, resource="disk", resource_limit=3.0, idle=True,
           plain="its programs wait for memory that is on disk {times} as often {usual}"),
    Signal("net_saturation", "network saturation", "", 0.1, "network", "", *_field("network.saturation"),
           scale=3.0, resource="network", resource_limit=2.0, idle=True,
           plain="its network is {times} as full {usual}"),
    Signal("retransmits", "TCP segments sent again", "/s", 10.0, "network", "", *_field("network.retransmits_per_s"),
           scale=4.0, resource="network", resource_limit=3.0, idle=True,
           plain="its packets are lost {times} as often {usual}"),
    Signal("net_drops", "packets dropped", "/s", 10.0, "network", "", *_field("network.drops_per_s"),
           scale=4.0, resource="network", resource_limit=3.0, idle=True,
           plain="its packets are dropped {times} as often {usual}"),
    # The first of the response times that is known is what users feel. Routes come first, since the others change with
    # the mix of requests too.
    Signal("rt_routes", _BY_ROUTE, "", 1.0, "users", "response", *_ROUTES, scale=2.5,
           plain="its requests take {times} as long {usual}, each compared with its own kind"),
    Signal("rt_p95", "p95 response time", " ms", 2.0, "users", "response", *_field("traffic.rt_p95_ms"), scale=3.0,
           plain="its p95 is {value}, {times} as long {usual}"),
    Signal("rt_mean", "mean response time", " ms", 1.0, "users", "response", *_RT_MEAN, scale=2.5,
           plain="its requests take {value} on average, {times} as long {usual}"),
    Signal("rt_balancer", _AT_BALANCER, " ms", 1.0, "users", "response", *_RT_BALANCER, scale=2.5,
           plain="its requests take {value} on average, {times} as long {usual}"),
    # Without a scale: it is no evidence. Without a monitor it tells whether more than a few requests are slow.
    Signal("rt_p50", "median response time", " ms", 1.0, "users", "response", *_field("traffic.rt_p50_ms")),
    Signal("in_flight", "requests in flight", "", 1.0, "users", "wait", *_field("traffic.in_flight")),
    Signal("utilisation", "CPU utilisation", "", 0.05, "load", "", *_field("cpu.utilisation")),
)
# fmt: on
INDEX: dict[str, int] = {signal.key: number for number, signal in enumerate(SIGNALS)}
FLOORS: Floats = np.array([signal.floor for signal in SIGNALS])
WAITS: Bools = np.array([signal.grows == "wait" for signal in SIGNALS])
RESPONDS: Bools = np.array([signal.grows == "response" for signal in SIGNALS])
QUEUES: Bools = WAITS | RESPONDS
"""Signals that the node's own load raises."""
OF_REQUESTS: Bools = np.array([signal.group in ("users", "cost") for signal in SIGNALS])
"""Signals of requests themselves: how long they take, and what each costs."""
SCALES: Floats = np.array([signal.scale for signal in SIGNALS])
RESPONSES: Ints = np.flatnonzero(RESPONDS)
"""Columns of the response times; the first one that is known is what users feel."""
IDLE: Ints = np.flatnonzero([signal.idle for signal in SIGNALS])
"""Columns of the signals that show a neighbour without requests."""


def reason(signal: Signal, absent: Mapping[str, str]) -> str:
    """Why a Sample has no value for this signal, in its monitor's words (`Sample.absent`) where it gave any."""
    for name in signal.dotted:
        if name in absent:
            return absent[name]
    return "no value in this period"
