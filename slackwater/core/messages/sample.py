"""Monitor -> detector: what was measured on a node."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from slackwater.core.messages.causes import AbsenceCause
from slackwater.core.messages.fields import Count, Name, NonNegative, Share, Text, UnixTime, Version, Word
from slackwater.core.response_times import LAST_BUCKET

MOST_ROUTES = 32
MOST_ABSENT = 256
MOST_SCOPES = 16


class Cpu(msgspec.Struct, omit_defaults=True):
    """CPU of the whole VM (`scope` "system") or of a cgroup (`scope` "cgroup")."""

    scope: Literal["system", "cgroup"]
    utilisation: NonNegative | None = None
    """CPU time over what the scope may use (its cores or its quota), stolen time included; 1.0 is full."""
    steal: Share | None = None
    """Share of the VM's CPU time that the hypervisor gave to others."""
    cores: NonNegative | None = None
    """What 100% means, in cores."""
    user: Share | None = None
    """Share of the VM's CPU time in user mode, nice included. The kinds are the whole VM's in either scope."""
    system: Share | None = None
    """Share in the kernel, interrupts left out."""
    irq: Share | None = None
    """Share in hard and soft interrupts."""
    iowait: Share | None = None
    """Idle while a disk was waited for."""
    throttled: Share | None = None
    """Share of the quota's periods in which the cgroup was throttled; absent without a quota."""
    throttled_s_per_s: NonNegative | None = None
    """Seconds that the cgroup was throttled, per second, summed over its cores."""


class Sched(msgspec.Struct, omit_defaults=True):
    """Scheduling of the web server's processes, summed over their threads."""

    processes: Count | None = None
    """Number of processes that matched."""
    threads: Count | None = None
    cpus: Count | None = None
    """CPUs that the first of them may run on, by its affinity and its cpuset."""
    cpu_s_per_s: NonNegative | None = None
    """CPU seconds that they used, per second."""
    run_delay_s_per_s: NonNegative | None = None
    """Seconds that they were runnable but not running, per second."""
    run_delay_per_cpu_s: NonNegative | None = None
    """Run delay per CPU second used; absent while they used next to none."""
    voluntary_switches_per_s: NonNegative | None = None
    """Times that they waited for something."""
    involuntary_switches_per_s: NonNegative | None = None
    """Times that their core was taken away."""


class Pressure(msgspec.Struct, omit_defaults=True):
    """Pressure stall information over this period: share of time in which some task (`some`) or all of them (`full`)
    waited. `cgroup_*` are of the cgroup that `cpu.cgroup` names, the others of the whole VM."""

    cpu_some: Share | None = None
    memory_some: Share | None = None
    memory_full: Share | None = None
    io_some: Share | None = None
    io_full: Share | None = None
    cgroup_cpu_some: Share | None = None
    cgroup_cpu_full: Share | None = None
    cgroup_memory_some: Share | None = None
    cgroup_io_some: Share | None = None


class Memory(msgspec.Struct, omit_defaults=True):
    """Memory of the whole VM."""

    available: Share | None = None
    """Share of memory that is free or can be freed without swapping."""
    minor_faults_per_s: NonNegative | None = None
    """Faults that memory answered."""
    major_faults_per_s: NonNegative | None = None
    """Faults that waited for a disk."""
    swapped_pages_per_s: NonNegative | None = None
    """Pages that were swapped in and out."""
    direct_reclaims_per_s: NonNegative | None = None
    """Times that a task had to free memory itself before it got some."""
    oom_kills: Count | None = None
    """Tasks that the kernel killed for memory in this period."""


class Disk(msgspec.Struct, omit_defaults=True):
    """The VM's busiest disk of this period."""

    device: Word
    busy: Share | None = None
    """Share of time in which it had requests."""
    queue: NonNegative | None = None
    """Mean number of requests waiting or served."""
    read_bytes_per_s: NonNegative | None = None
    written_bytes_per_s: NonNegative | None = None
    wait_ms: NonNegative | None = None
    """Mean time of a request, queueing included; absent when none ended."""


class Network(msgspec.Struct, omit_defaults=True):
    """The interface that requests come in by, and TCP of the whole VM."""

    interface: Word
    received_bytes_per_s: NonNegative | None = None
    sent_bytes_per_s: NonNegative | None = None
    packets_per_s: NonNegative | None = None
    """Received and sent."""
    saturation: Share | None = None
    """The busier direction over the link's speed; absent where the driver names none."""
    drops_per_s: NonNegative | None = None
    """Packets that the interface or the VM's receive queues dropped, and errors."""
    retransmits_per_s: NonNegative | None = None
    """TCP segments sent again."""
    listen_overflows_per_s: NonNegative | None = None
    """Connections turned away because a listener's queue was full."""


class Frequency(msgspec.Struct, omit_defaults=True):
    """Clock of the cores."""

    mean_mhz: NonNegative | None = None
    lowest_mhz: NonNegative | None = None
    """Clock of the slowest core."""
    throttles_per_s: NonNegative | None = None
    """Thermal throttling events of all cores."""


class ScopeCounters(msgspec.Struct, omit_defaults=True):
    """Hardware counters of one scope: all CPUs of the VM, a cgroup, or the web server's processes."""

    scope: Literal["system", "cgroup", "pid"]
    cpi: NonNegative | None = None
    """Cycles per instruction."""
    ipc: NonNegative | None = None
    """Instructions per cycle."""
    cache_miss_rate: Share | None = None
    """Cache misses over cache references."""
    cache_mpki: NonNegative | None = None
    """Cache misses per 1000 instructions."""
    llc_load_mpki: NonNegative | None = None
    """Last-level cache load misses per 1000 instructions."""
    stalled: NonNegative | None = None
    """Stalled cycles over cycles."""
    instructions_per_s: NonNegative | None = None
    frequency_mhz: NonNegative | None = None
    """Cycles per second of the time that CPUs were not idle, by the scope's CPU clock."""
    running: Share | None = None
    """Share of the time in which the group was on the hardware; below 1 the counts are scaled (multiplexing)."""


class Canary(msgspec.Struct, omit_defaults=True):
    """Measurements of the bounded probe of known code. Cycles are those of the time stamp counter."""

    l2_cycles_per_load: NonNegative | None = None
    """Pointer chase through a set that fits the L2 cache, per load, CPU time only."""
    llc_cycles_per_load: NonNegative | None = None
    """Pointer chase through a set that only the last-level cache holds."""
    alu_cycles_per_op: NonNegative | None = None
    """Fixed arithmetic: moves with the clock and with a sibling thread, not with caches."""
    slow_share: Share | None = None
    """Share of the last-level chase's loads slower than a cache hit: the probe's miss rate."""
    wall_cpu_ratio: NonNegative | None = None
    """Wall time over CPU time of all that the monitor did in this period; 1.0 means that it always had its core."""
    cpu_share: NonNegative | None = None
    """Share of one core that the probe itself took in this period."""
    late_ms: NonNegative | None = None
    """How long after it was due the probe started."""
    timer_late_ms: NonNegative | None = None
    """Of these: before the kernel had put the probe into its run queue. So the timer itself was late, as when the
    machine did not run; the queue of the machine's own work is not in it."""


class Gaps(msgspec.Struct, omit_defaults=True):
    """Time in which the machine itself did not run, from a thread that wakes at random moments."""

    moments: Count | None = None
    """Random moments of this period. A share of them has a standard error of at most
    sqrt(share (1 - share) / moments)."""
    lost_share: Share | None = None
    """Share of the moments at which the machine did not run: the timer came late, and not for its own run queue."""
    queued_share: Share | None = None
    """Share of the moments at which the machine ran, but its own run queue kept the thread."""
    longest_ms: NonNegative | None = None
    """The longest time that the machine was seen not to run; 0 when it always did."""
    cpu_share: NonNegative | None = None
    """Share of one core that the thread took."""


class RouteTraffic(msgspec.Struct, omit_defaults=True):
    """Exchanges of one route class that ended in this period."""

    route: Word
    rps: NonNegative | None = None
    """Exchanges that ended, per second."""
    rt_mean_ms: NonNegative | None = None
    """Absent when nothing ended."""
    rt_p95_ms: NonNegative | None = None
    errors_per_s: NonNegative | None = None
    """Responses of status 500 and above."""


class WebServer(msgspec.Struct, omit_defaults=True):
    """Figures of the web server's status pages."""

    apache_busy_workers: Count | None = None
    apache_idle_workers: Count | None = None
    php_active_processes: Count | None = None
    php_idle_processes: Count | None = None
    """Processes that wait for a request."""
    php_listen_queue: Count | None = None
    """Requests that wait for a php-fpm process."""
    php_max_children_reached: Count | None = None
    """Times since php-fpm started."""


class Counters(msgspec.Struct, omit_defaults=True):
    """Cycles per instruction and cache misses, from hardware (`pmu`, narrowest scope) or from the probe (`canary`)."""

    source: Literal["pmu", "canary"]
    cpi: NonNegative | None = None
    """`pmu`: cycles per instruction. `canary`: TSC cycles of CPU time per load of the probe's pointer chase."""
    cache_miss_rate: Share | None = None
    """`pmu`: misses over references. `canary`: share of the probe's loads slower than a cache hit."""
    wall_cpu_ratio: NonNegative | None = None
    """`canary` only: as in the section of that name."""
    instructions_per_s: NonNegative | None = None
    """`pmu` only."""


class ResponseTimes(msgspec.Struct, omit_defaults=True):
    """The response times of exchanges that ended in this period, counted in buckets that add up over periods."""

    server: Word
    """The balancer's name of the server."""
    sum_s: NonNegative
    """Sum of the response times."""
    counts: Annotated[list[tuple[Annotated[int, Meta(ge=0, le=LAST_BUCKET)], Count]], Meta(max_length=LAST_BUCKET + 1)]
    """Number and count of each bucket that is not empty. Every 16th bucket ends at 0.25, 0.5, 1, 2.5, 5 ms and so on to
    10 s; those between are a geometric series, and evenly spaced below 0.25 ms; bucket 240 takes what is longer."""


class Traffic(msgspec.Struct, omit_defaults=True):
    """What the sniffer saw end in this period. Response time is last request byte to last response byte."""

    rps: NonNegative | None = None
    """Exchanges that ended, per second."""
    rt_mean_ms: NonNegative | None = None
    """Absent when nothing ended."""
    rt_p50_ms: NonNegative | None = None
    rt_p95_ms: NonNegative | None = None
    rt_p99_ms: NonNegative | None = None
    in_flight: Count | None = None
    """Requests seen whose response has not ended."""
    oldest_unanswered_ms: NonNegative | None = None
    """Age, at the period's end, of the oldest request of whose response nothing has come; 0 while there is none."""
    errors_per_s: NonNegative | None = None
    """Responses of status 500 and above; as the balancer sees it also refused connections, responses that were cut off,
    and requests that it sent again."""
    drops: Count | None = None
    """Packets that the kernel dropped before the sniffer saw them."""
    unmatched: Count | None = None
    """Requests given up in this period: never answered, evicted, or lost in a hole."""
    holes: Count | None = None
    """Places where bytes were not captured."""
    sampled_share: Share | None = None
    """Share of the connections that was looked at when the period ended; 1 is all. Below 1, rates, `in_flight` and
    `unmatched` are estimates for all connections, and response times those of the sample."""
    rps_error: NonNegative | None = None
    """Standard error of `rps`, from the sample; 0 where all connections were looked at."""
    cpu_share: NonNegative | None = None
    """Share of one core that the sniffer took in this period."""
    routes: Annotated[list[RouteTraffic], Meta(max_length=MOST_ROUTES)] = []
    """One for each route class, where classes are configured."""
    times: ResponseTimes | None = None
    """Only the balancer's view sends them."""


class Sample(msgspec.Struct, omit_defaults=True):
    """What a monitor measured over one period. Subject: `slackwater.sample.<pool>.<node>`."""

    v: Version
    node: Name
    pool: Name
    time_unix_s: UnixTime
    """Wall time at the end of the period: a label, never used for durations."""
    boot_id: Word
    """Id of the running kernel's boot."""
    seq: Count
    """Counts up from 0 in each run of the monitor."""
    period_s: NonNegative
    """The period's real length."""
    next_within_s: NonNegative | None = None
    """The next Sample comes within this time after this one, as the node itself intends."""
    cpu: Cpu | None = None
    sched: Sched | None = None
    pressure: Pressure | None = None
    counters: Counters | None = None
    traffic: Traffic | None = None
    pmu: Annotated[list[ScopeCounters], Meta(max_length=MOST_SCOPES)] = []
    """Hardware counters by scope; `counters` repeats the narrowest."""
    canary: Canary | None = None
    gaps: Gaps | None = None
    memory: Memory | None = None
    disk: Disk | None = None
    network: Network | None = None
    frequency: Frequency | None = None
    server: WebServer | None = None
    samples_dropped: Count = 0
    """Samples before this one that never left the node because the bus was away."""
    periods_missed: Count = 0
    """Periods before this one that were left out because the one before took too long."""
    absent: Annotated[dict[Word, Text], Meta(max_length=MOST_ABSENT)] = {}
    """Dotted name of each absent value or section (`counters`, `cpu.steal`) and the reason."""
    absence_causes: Annotated[dict[Word, AbsenceCause], Meta(max_length=MOST_ABSENT)] = {}
    """The same names with the causes of those that have one, for programs."""
    source: Literal["monitor", "balancer"] = "monitor"
    """`balancer`: what the controller sees of a node without a monitor from the balancer beside it; `boot_id` is of the
    balancer's kernel then, and `traffic` is the only section."""
