//! What a monitor measured: the Sample and its sections. `slackwater/messages.py` says the same in Python.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// CPU of the whole VM (`scope` "system") or of a cgroup (`scope` "cgroup").
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// What the figures are of.
    pub scope: String,
    /// CPU time over what the scope may use (its cores or its quota), stolen time included; 1.0 is full.
    pub utilisation: Option<f64>,
    /// Share of the VM's CPU time that the hypervisor gave to others.
    pub steal: Option<f64>,
    /// What 100% means, in cores.
    pub cores: Option<f64>,
    /// Share of the VM's CPU time in user mode, nice included. The kinds are the whole VM's in either scope.
    pub user: Option<f64>,
    /// In the kernel, interrupts left out.
    pub system: Option<f64>,
    /// In hard and soft interrupts.
    pub irq: Option<f64>,
    /// Idle while a disk was waited for.
    pub iowait: Option<f64>,
    /// Share of the quota's periods in which the cgroup was throttled; absent without a quota.
    pub throttled: Option<f64>,
    /// Seconds that the cgroup was throttled, per second, summed over its cores.
    pub throttled_s_per_s: Option<f64>,
}

/// Scheduling of the web server's processes, summed over their threads.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sched {
    /// Number of processes that matched.
    pub processes: Option<u64>,
    /// Number of their threads.
    pub threads: Option<u64>,
    /// CPU seconds that they used, per second.
    pub cpu_s_per_s: Option<f64>,
    /// Seconds that they were runnable but not running, per second.
    pub run_delay_s_per_s: Option<f64>,
    /// Run delay per CPU second used; absent while they used next to none.
    pub run_delay_per_cpu_s: Option<f64>,
    /// Times that they waited for something.
    pub voluntary_switches_per_s: Option<f64>,
    /// Times that their core was taken away.
    pub involuntary_switches_per_s: Option<f64>,
}

/// Pressure stall information over this period: share of time in which some task (`some`) or all of them (`full`)
/// waited. `cgroup_*` are of the cgroup that `cpu.cgroup` names, the others of the whole VM.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    /// For a CPU, some task.
    pub cpu_some: Option<f64>,
    /// For memory, some task.
    pub memory_some: Option<f64>,
    /// For memory, all tasks.
    pub memory_full: Option<f64>,
    /// For a disk, some task.
    pub io_some: Option<f64>,
    /// For a disk, all tasks.
    pub io_full: Option<f64>,
    /// In the cgroup, for a CPU, some task.
    pub cgroup_cpu_some: Option<f64>,
    /// In the cgroup, for a CPU, all tasks.
    pub cgroup_cpu_full: Option<f64>,
    /// In the cgroup, for memory.
    pub cgroup_memory_some: Option<f64>,
    /// In the cgroup, for a disk.
    pub cgroup_io_some: Option<f64>,
}

/// Memory of the whole VM.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Share of memory that is free or can be freed without swapping.
    pub available: Option<f64>,
    /// Faults that memory answered.
    pub minor_faults_per_s: Option<f64>,
    /// Faults that waited for a disk.
    pub major_faults_per_s: Option<f64>,
    /// In and out.
    pub swapped_pages_per_s: Option<f64>,
    /// Times that a task had to free memory itself before it got some.
    pub direct_reclaims_per_s: Option<f64>,
    /// In this period.
    pub oom_kills: Option<u64>,
}

/// The VM's busiest disk of this period.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// Its name.
    pub device: String,
    /// Share of time in which it had requests.
    pub busy: Option<f64>,
    /// Mean number of requests waiting or served.
    pub queue: Option<f64>,
    /// Bytes read.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes written.
    pub written_bytes_per_s: Option<f64>,
    /// Mean time of a request, queueing included; absent when none ended.
    pub wait_ms: Option<f64>,
}

/// The interface that requests come in by, and TCP of the whole VM.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// Its name.
    pub interface: String,
    /// Bytes in.
    pub received_bytes_per_s: Option<f64>,
    /// Bytes out.
    pub sent_bytes_per_s: Option<f64>,
    /// Received and sent.
    pub packets_per_s: Option<f64>,
    /// The busier direction over the link's speed; absent where the driver names none.
    pub saturation: Option<f64>,
    /// Packets that the interface or the VM's receive queues dropped, and errors.
    pub drops_per_s: Option<f64>,
    /// TCP segments sent again.
    pub retransmits_per_s: Option<f64>,
    /// Connections turned away because a listener's queue was full.
    pub listen_overflows_per_s: Option<f64>,
}

/// Clock of the cores.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Frequency {
    /// Mean of the cores.
    pub mean_mhz: Option<f64>,
    /// Of the slowest core.
    pub lowest_mhz: Option<f64>,
    /// Thermal throttling events of all cores.
    pub throttles_per_s: Option<f64>,
}

/// Hardware counters of one scope: all CPUs of the VM, a cgroup, or the web server's processes.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ScopeCounters {
    /// What the figures are of.
    pub scope: String,
    /// Cycles per instruction.
    pub cpi: Option<f64>,
    /// Instructions per cycle.
    pub ipc: Option<f64>,
    /// Cache misses over cache references.
    pub cache_miss_rate: Option<f64>,
    /// Cache misses per 1000 instructions.
    pub cache_mpki: Option<f64>,
    /// Last-level cache load misses per 1000 instructions.
    pub llc_load_mpki: Option<f64>,
    /// Stalled cycles over cycles.
    pub stalled: Option<f64>,
    /// Instructions per second.
    pub instructions_per_s: Option<f64>,
    /// Cycles per second of the time that CPUs were not idle, by the scope's CPU clock.
    pub frequency_mhz: Option<f64>,
    /// Share of the time in which the group was on the hardware; below 1 the counts are scaled (multiplexing).
    pub running: Option<f64>,
}

/// Cycles per instruction and cache misses: from hardware (`pmu`, the narrowest scope) or from the probe (`canary`).
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// `pmu` or `canary`.
    pub source: String,
    /// `pmu`: cycles per instruction. `canary`: TSC cycles of CPU time per load of the probe's pointer chase.
    pub cpi: Option<f64>,
    /// `pmu`: misses over references. `canary`: share of the probe's loads slower than a cache hit.
    pub cache_miss_rate: Option<f64>,
    /// `canary` only: as in the section of that name.
    pub wall_cpu_ratio: Option<f64>,
    /// `pmu` only.
    pub instructions_per_s: Option<f64>,
}

/// What the bounded probe of known code felt. Cycles are those of the time stamp counter.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    /// Pointer chase through a set that fits the L2 cache, per load, CPU time only.
    pub l2_cycles_per_load: Option<f64>,
    /// Pointer chase through a set that only the last-level cache holds.
    pub llc_cycles_per_load: Option<f64>,
    /// Fixed arithmetic: moves with the clock and with a sibling thread, not with caches.
    pub alu_cycles_per_op: Option<f64>,
    /// Share of the last-level chase's loads slower than a cache hit: the probe's miss rate.
    pub slow_share: Option<f64>,
    /// Wall time over CPU time of all that the monitor did in this period; 1.0 means that nobody took its core away.
    pub wall_cpu_ratio: Option<f64>,
    /// Share of one core that the probe itself took in this period.
    pub cpu_share: Option<f64>,
    /// How long after it was due the probe started.
    pub late_ms: Option<f64>,
}

/// Exchanges of one route class that ended in this period.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteTraffic {
    /// Name of the class.
    pub route: String,
    /// Exchanges that ended, per second.
    pub rps: Option<f64>,
    /// Mean response time; absent when nothing ended.
    pub rt_mean_ms: Option<f64>,
    /// 95th percentile.
    pub rt_p95_ms: Option<f64>,
    /// Responses of status 500 and above, per second.
    pub errors_per_s: Option<f64>,
}

/// What the sniffer saw end in this period. Response time is last request byte to last response byte.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Exchanges that ended, per second.
    pub rps: Option<f64>,
    /// Mean response time; absent when nothing ended.
    pub rt_mean_ms: Option<f64>,
    /// Median response time.
    pub rt_p50_ms: Option<f64>,
    /// 95th percentile.
    pub rt_p95_ms: Option<f64>,
    /// 99th percentile.
    pub rt_p99_ms: Option<f64>,
    /// Requests seen whose response has not ended.
    pub in_flight: Option<u64>,
    /// Responses of status 500 and above.
    pub errors_per_s: Option<f64>,
    /// Packets that the kernel dropped before the sniffer saw them.
    pub drops: Option<u64>,
    /// Requests given up in this period: never answered, evicted, or lost in a hole.
    pub unmatched: Option<u64>,
    /// Places where bytes were not captured.
    pub holes: Option<u64>,
    /// By route class, where classes are configured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteTraffic>,
}

/// What the web server's status pages say.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WebServer {
    /// Apache workers at work.
    pub apache_busy_workers: Option<u64>,
    /// Apache workers that wait.
    pub apache_idle_workers: Option<u64>,
    /// php-fpm processes at work.
    pub php_active_processes: Option<u64>,
    /// php-fpm processes that wait.
    pub php_idle_processes: Option<u64>,
    /// Requests that wait for a php-fpm process.
    pub php_listen_queue: Option<u64>,
    /// Times since php-fpm started.
    pub php_max_children_reached: Option<u64>,
}

/// Why something is absent, for programs, where something can be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AbsenceCause {
    /// The configuration switches it off.
    SwitchedOff,
    /// No interface is configured.
    NoInterface,
    /// The interface cannot be captured on.
    NoCapture,
    /// This process lacks a capability, CAP_NET_RAW as a rule.
    LacksCapability,
    /// libpfm4 is not there.
    NoLibpfm,
    /// The machine or its hypervisor offers none.
    NoHardwareCounters,
    /// The kernel has no perf_event.
    NoPerfEvent,
    /// The kernel forbids counting; the reason has what allows it.
    MayNotCount,
    /// A container's seccomp profile forbids it.
    ContainerForbids,
    /// There is no process of the web server.
    NoProcess,
    /// The kernel tells no pressure.
    NoPsi,
    /// The cgroup is not there.
    NoCgroup,
    /// A file may not be read.
    PermissionDenied,
}

/// What a monitor measured over one period. Subject: `slackwater.sample.<pool>.<node>`.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Version of the message.
    pub v: u32,
    /// The node's name.
    pub node: String,
    /// The pool that it serves in.
    pub pool: String,
    /// Wall time at the end of the period: a label, never used for durations.
    pub time_unix_s: f64,
    /// Of the running kernel.
    pub boot_id: String,
    /// Counts up from 0 in each run of the monitor.
    pub seq: u64,
    /// The period's real length.
    pub period_s: f64,
    /// CPU time.
    pub cpu: Option<Cpu>,
    /// The web server's processes.
    pub sched: Option<Sched>,
    /// Pressure stall information.
    pub pressure: Option<Pressure>,
    /// Hardware counters or the probe.
    pub counters: Option<Counters>,
    /// Requests and responses.
    pub traffic: Option<Traffic>,
    /// Hardware counters by scope; `counters` repeats the narrowest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pmu: Vec<ScopeCounters>,
    /// The probe.
    pub canary: Option<Canary>,
    /// Memory of the VM.
    pub memory: Option<Memory>,
    /// Its busiest disk.
    pub disk: Option<Disk>,
    /// Its interface and TCP.
    pub network: Option<Network>,
    /// Clock of the cores.
    pub frequency: Option<Frequency>,
    /// The web server's own status.
    pub server: Option<WebServer>,
    /// Samples before this one that never left the node because the bus was away.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub samples_dropped: u64,
    /// Periods before this one that were left out because the one before took too long.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub periods_missed: u64,
    /// Dotted name of each absent value or section (`counters`, `cpu.steal`) and the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, String>,
    /// The causes of those that have one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absence_causes: BTreeMap<String, AbsenceCause>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
