"""The messages on the bus, as msgspec structs. Their written form is `schema/*.json`, with golden examples beside it.

Unknown fields are tolerated (an older part reads what a newer one sends); a wrong type is refused with the field's
name. A value that cannot be had is `None` and its dotted name stands in `Sample.absent` with the reason: never zero.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

VERSION = 1
NAME_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9_:-]*(\.[A-Za-z0-9_:-]+)*$(?!\n)"
"""Names of nodes, servers, backends and pools: safe as NATS subjects and in HAProxy's command language.

`$` alone would let a newline at the end through, which would end a command on HAProxy's socket.
"""

MAX_NAME = 128
Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_NAME)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Meta(ge=0.0)]
Count = Annotated[int, Meta(ge=0)]
Resource = Literal["cpu", "cache", "memory bandwidth", "network", "disk", "unclear"]
State = Literal["calm", "interference", "overload", "all_slow", "unknown"]
Mode = Literal["observe", "act"]
DecisionCause = Literal[
    "calm",
    "interference",
    "overload",
    "all_slow",
    "unknown",
    "not_shown",
    "enough_reduced",
    "panic",
    "no_verdict",
    "waiting",
    "measured",
    "limited",
    "drained",
    "not_drained",
    "pinned",
    "bounded",
]
"""What decided where a server should be. The states: its Verdict. not_shown: an episode that nothing shows any more.
enough_reduced: interference, but enough of the pool is reduced. panic: no Verdict is believed. no_verdict: there is no
fresh one. waiting: for the first one. measured: it keeps its baseline weight while its values are searched. limited,
drained, not_drained: the second stage asked for it. pinned: by a person. bounded: the guard's last word."""
ChangeCause = Literal[
    DecisionCause,
    "not_set",
    "put_back",
    "someone_else",
    "second_stage",
    "renewed",
    "search_over",
    "ordered",
    "refused",
    "given_back",
    "lease_ended",
    "not_as_ordered",
    "by_hand",
    "engine_ended",
    "engine_died",
    "not_put_back",
]
"""not_set: the balancer did not take it. put_back: lbengine set the baseline again. someone_else: somebody else changed
it. second_stage, renewed, search_over: an Order for an episode, one that renews a lease, the first one after a search.
ordered: an Order was carried out. refused: it was not. given_back, lease_ended, not_as_ordered, by_hand, engine_ended,
engine_died: why a wsengine put a knob back, as `someone_else`. not_put_back: it could not, and tries again."""
PUT_BACK: frozenset[ChangeCause] = frozenset(
    ("given_back", "lease_ended", "not_as_ordered", "by_hand", "engine_ended", "engine_died", "someone_else")
)
"""Causes of a wsengine's Changes that put a knob back."""
AbsenceCause = Literal[
    "switched_off",
    "no_interface",
    "no_capture",
    "lacks_capability",
    "no_libpfm",
    "no_hardware_counters",
    "no_perf_event",
    "may_not_count",
    "container_forbids",
    "no_process",
    "no_psi",
    "no_cgroup",
    "permission_denied",
]
"""What is missing where a monitor cannot measure something, and something can be done about it: lacks_capability,
CAP_NET_RAW as a rule; may_not_count: the kernel forbids hardware counters; container_forbids: a container's seccomp
profile; permission_denied: a file may not be read."""
KnobCause = Literal["not_read", "unreadable", "ending", "someone_else"]
"""not_read: not yet. unreadable: what it needs is not there. ending: it is being put back. someone_else: somebody else
changed it in this episode."""
WeightsMean = Literal["share", "concurrency", "keys", "none"]
"""share: of the requests. concurrency: of the requests in flight. keys: of the keys that are hashed. none: nothing."""


class MessageError(ValueError):
    """A message that does not follow its schema; the text names the message, the field and what was expected."""


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
    """In the kernel, interrupts left out."""
    irq: Share | None = None
    """In hard and soft interrupts."""
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
    """In and out."""
    direct_reclaims_per_s: NonNegative | None = None
    """Times that a task had to free memory itself before it got some."""
    oom_kills: Count | None = None
    """In this period."""


class Disk(msgspec.Struct, omit_defaults=True):
    """The VM's busiest disk of this period."""

    device: str
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

    interface: str
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
    """Of the slowest core."""
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
    """What the bounded probe of known code felt. Cycles are those of the time stamp counter."""

    l2_cycles_per_load: NonNegative | None = None
    """Pointer chase through a set that fits the L2 cache, per load, CPU time only."""
    llc_cycles_per_load: NonNegative | None = None
    """Pointer chase through a set that only the last-level cache holds."""
    alu_cycles_per_op: NonNegative | None = None
    """Fixed arithmetic: moves with the clock and with a sibling thread, not with caches."""
    slow_share: Share | None = None
    """Share of the last-level chase's loads slower than a cache hit: the probe's miss rate."""
    wall_cpu_ratio: NonNegative | None = None
    """Wall time over CPU time of all that the monitor did in this period; 1.0 means that nobody took its core away."""
    cpu_share: NonNegative | None = None
    """Share of one core that the probe itself took in this period."""
    late_ms: NonNegative | None = None
    """How long after it was due the probe started."""


class RouteTraffic(msgspec.Struct, omit_defaults=True):
    """Exchanges of one route class that ended in this period."""

    route: str
    rps: NonNegative | None = None
    """Exchanges that ended, per second."""
    rt_mean_ms: NonNegative | None = None
    """Absent when nothing ended."""
    rt_p95_ms: NonNegative | None = None
    errors_per_s: NonNegative | None = None
    """Responses of status 500 and above."""


class WebServer(msgspec.Struct, omit_defaults=True):
    """What the web server's status pages say."""

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
    errors_per_s: NonNegative | None = None
    """Responses of status 500 and above."""
    drops: Count | None = None
    """Packets that the kernel dropped before the sniffer saw them."""
    unmatched: Count | None = None
    """Requests given up in this period: never answered, evicted, or lost in a hole."""
    holes: Count | None = None
    """Places where bytes were not captured."""
    routes: list[RouteTraffic] = []
    """By route class, where classes are configured."""


class Sample(msgspec.Struct, omit_defaults=True):
    """What a monitor measured over one period. Subject: `slackwater.sample.<pool>.<node>`."""

    v: int
    node: Name
    pool: Name
    time_unix_s: NonNegative
    """Wall time at the end of the period: a label, never used for durations."""
    boot_id: str
    """Of the running kernel."""
    seq: Count
    """Counts up from 0 in each run of the monitor."""
    period_s: NonNegative
    """The period's real length."""
    cpu: Cpu | None = None
    sched: Sched | None = None
    pressure: Pressure | None = None
    counters: Counters | None = None
    traffic: Traffic | None = None
    pmu: list[ScopeCounters] = []
    """Hardware counters by scope; `counters` repeats the narrowest."""
    canary: Canary | None = None
    memory: Memory | None = None
    disk: Disk | None = None
    network: Network | None = None
    frequency: Frequency | None = None
    server: WebServer | None = None
    samples_dropped: Count = 0
    """Samples before this one that never left the node because the bus was away."""
    periods_missed: Count = 0
    """Periods before this one that were left out because the one before took too long."""
    absent: dict[str, str] = {}
    """Dotted name of each absent value or section (`counters`, `cpu.steal`) and the reason."""
    absence_causes: dict[str, AbsenceCause] = {}
    """The same names with the causes of those that have one, for programs."""


class Verdict(msgspec.Struct, omit_defaults=True):
    """What the detector thinks of one node after a Sample. Subject: `slackwater.verdict.<pool>.<node>`."""

    v: int
    node: Name
    pool: Name
    time_unix_s: NonNegative
    state: State
    since_unix_s: NonNegative
    """When this state began."""
    severity: Share
    """Share of the node's calm capacity that is lost; 0 in `calm`."""
    path: list[str]
    """Why, in words with values: the tree's path (or the thresholds crossed), then the state machine's say."""
    model: str
    """Which model said so: its name and training date, or `thresholds`."""
    resource: Resource | None = None
    """What the neighbour takes away, where it can be told; only in `interference`."""
    shown: bool = True
    """False in an episode that only waits for its end: its last Samples look calm."""
    sample_seq: Count | None = None
    """The Sample that it is about."""
    cpu: NonNegative | None = None
    """CPU utilisation."""
    cpu_predicted: NonNegative | None = None
    """What the regression predicts it to become."""
    capacity_rps: NonNegative | None = None
    """Requests per second at which this node's CPU would be full, now."""
    capacity_stderr_rps: NonNegative | None = None
    """Standard error of `capacity_rps`: how far off it may well be."""
    rps: NonNegative | None = None
    rt_mean_ms: NonNegative | None = None
    rt_p95_ms: NonNegative | None = None


class Order(msgspec.Struct, omit_defaults=True):
    """Asks a node's wsengine to set a knob for a while. Subject: `slackwater.order.<pool>.<node>`.

    The value `baseline` ends the knob's lease at once.
    """

    v: int
    id: str
    node: Name
    pool: Name
    time_unix_s: NonNegative
    knob: str
    value: int | float | str
    lease_s: Annotated[float, Meta(gt=0.0)]
    """An Order that is not renewed within this time undoes itself."""
    reason: str
    by: str
    """Who gave it."""


class Weight(msgspec.Struct, omit_defaults=True):
    """What a node's monitor answers to HAProxy's agent-check. Subject: `slackwater.weight.<pool>.<node>`."""

    v: int
    node: Name
    pool: Name
    time_unix_s: NonNegative
    percent: Annotated[int, Meta(ge=0, le=25600)]
    """Of the weight that the node's server has in HAProxy's configuration."""
    lease_s: Annotated[float, Meta(gt=0.0)]
    """One that is not renewed within this time is void: the monitor answers 100% then."""


class Change(msgspec.Struct, omit_defaults=True):
    """Something was changed, or would have been in observe mode. Subject: `slackwater.change.<pool>`."""

    v: int
    id: str
    pool: Name
    time_unix_s: NonNegative
    what: str
    """`weight`, `maxconn`, `outcome`, `pause`, `resume`, `restore`, a wsengine knob, `order KNOB`, ..."""
    target: str
    """The server or node, or the pool itself."""
    before: int | float | str | None
    after: int | float | str | None
    why: str
    by: str
    applied: bool
    """False: observe mode, this is what would have been done."""
    rt_p95_ms: NonNegative | None = None
    """The pool's 95th percentile of response time when this was decided."""
    rt_p95_predicted_ms: NonNegative | None = None
    """What it was predicted to become by this change."""
    follows: str = ""
    """Id of the Change whose outcome this tells; of a wsengine's Change the Order's, whose Change has the same id."""
    cause: ChangeCause | None = None
    """`why` for programs; absent where `what` says it, and in Changes of before."""


class KnobState(msgspec.Struct, omit_defaults=True):
    """What one knob of a node is."""

    name: str
    value: int | float | str | None = None
    """The value in effect."""
    baseline: int | float | str | None = None
    """What it is put back to; the value where nothing is turned."""
    lowest: int | None = None
    """The lowest whole number that Orders may ask for."""
    highest: int | None = None
    words: list[str] = []
    """The words that Orders may ask for."""
    reloads: bool = False
    """Turning it makes the web server reload."""
    order: str = ""
    """The Order in force; empty: none."""
    by: str = ""
    """Who gave it."""
    left_s: float | None = None
    """What is left of its lease."""
    why: str = ""
    """Why it cannot be turned here; empty: it can."""
    cause: KnobCause | None = None
    """The same for programs; absent: it can be turned, or a wsengine of before says why not."""


class Knobs(msgspec.Struct, omit_defaults=True):
    """What a node's wsengine can turn, and what it has turned. Subject: `slackwater.knobs.<pool>.<node>`."""

    v: int
    node: Name
    pool: Name
    time_unix_s: NonNegative
    kind: str
    """Nodes of one kind are alike: what was good for one is good for the other."""
    knobs: list[KnobState]
    """One for each knob that the node's configuration lists."""


class ServerState(msgspec.Struct, omit_defaults=True):
    """One server as the balancer showed it in a cycle, and what lbengine wants of it."""

    server: Name
    status: str
    """The balancer's word: UP, DOWN, MAINT, DRAIN, ..."""
    weight: Count
    baseline: Count
    wanted: Count
    """The weight that the law, the ramp and the guard agreed on; in observe mode it is not applied."""
    rps: NonNegative | None = None
    in_flight: Count | None = None
    rt_mean_ms: NonNegative | None = None
    """As the node measured it; where it did not, as the balancer did."""
    share: Share | None = None
    """Share of the pool's requests in the last second."""
    queue: Count | None = None
    """Requests that wait in the balancer for this server."""
    queue_mean_ms: NonNegative | None = None
    """Mean time in that queue over the balancer's last 1024 requests to this server."""
    balancer_rt_mean_ms: NonNegative | None = None
    """Mean response time as the balancer saw it, over its last 1024 requests: also where packets are encrypted."""
    errors_per_s: NonNegative | None = None
    """Failed connections, failed responses and responses of status 500 and above, as the balancer saw them."""
    maxconn: Count | None = None
    """Most requests that the balancer lets into this server at a time; absent: no limit."""
    why: str = ""
    cause: DecisionCause | None = None
    """`why` for programs; absent where nothing is decided."""


class Cycle(msgspec.Struct, omit_defaults=True):
    """One turn of lbengine's loop over one pool. Subject: `slackwater.cycle.<pool>`."""

    v: int
    pool: Name
    time_unix_s: NonNegative
    mode: Mode
    paused: bool
    balance: str
    """The balance algorithm: `roundrobin`, `leastconn`."""
    law: str
    sentence: str
    """What this cycle did, in a line."""
    servers: list[ServerState]
    weights_mean: WeightsMean | None = None
    """What weights set under `balance`; absent: it is not known."""


Message = Sample | Verdict | Order | Weight | Change | Cycle | Knobs
KINDS: dict[str, type[Message]] = {
    "sample": Sample,
    "verdict": Verdict,
    "order": Order,
    "weight": Weight,
    "change": Change,
    "cycle": Cycle,
    "knobs": Knobs,
}
_DECODERS = {kind: msgspec.json.Decoder(struct) for kind, struct in KINDS.items()}
_ENCODER = msgspec.json.Encoder()


def encode(message: Message) -> bytes:
    """The message as JSON; absent values are left out."""
    return _ENCODER.encode(message)


def decode(kind: str, data: bytes | str) -> Message:
    """Reads a message of this kind (a key of `KINDS`); raises MessageError naming the field that is wrong."""
    try:
        return _DECODERS[kind].decode(data)
    except msgspec.ValidationError as error:
        raise MessageError(f"{kind}: {error}") from None
    except msgspec.DecodeError as error:
        raise MessageError(f"{kind}: not JSON: {error}") from None


def is_name(text: str) -> bool:
    """True for a name that is safe in subjects and in HAProxy's command language (no `;`, space or newline)."""
    return len(text) <= 128 and re.search(NAME_PATTERN, text) is not None
