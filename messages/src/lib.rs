//! The messages on the bus that run on a node: `Sample` (sent), `Order` (received), `Change` (sent), and `Verdict`.
//!
//! Their written form is `schema/*.json`; the golden examples in `schema/examples/` are read by the tests of both
//! languages. Unknown fields are tolerated, a wrong type is refused with the field's name.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the messages that this code writes.
pub const VERSION: u32 = 1;

/// A message that does not follow its schema.
#[derive(Debug)]
pub struct MessageError(String);

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MessageError {}

/// CPU of the whole VM (`scope` "system") or of a cgroup (`scope` "cgroup").
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// What the figures are of: `system` or `cgroup`.
    pub scope: String,
    /// CPU time over what the scope may use (its cores or its quota), stolen time included; 1.0 is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
    /// Share of the VM's CPU time that the hypervisor gave to others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal: Option<f64>,
    /// What 100% means, in cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<f64>,
}

/// Scheduling of the web server's processes, summed over their threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sched {
    /// Number of processes that matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Number of their threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// CPU seconds that they used, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_s: Option<f64>,
    /// Seconds that they were runnable but not running, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_delay_s_per_s: Option<f64>,
    /// Run delay per CPU second used; absent while they used next to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_delay_per_cpu_s: Option<f64>,
}

/// Pressure stall information over the period: share of time in which some task waited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    /// For a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_some: Option<f64>,
    /// For memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_some: Option<f64>,
    /// For a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_some: Option<f64>,
}

/// Cycles per instruction and cache misses, from hardware (`pmu`) or from the probe (`canary`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// `pmu` or `canary`.
    pub source: String,
    /// `pmu`: cycles per instruction. `canary`: TSC cycles of CPU time per load of the probe's pointer chase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpi: Option<f64>,
    /// `pmu`: misses over references. `canary`: share of the probe's loads slower than a cache hit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_miss_rate: Option<f64>,
    /// `canary` only: wall time over CPU time of the probe; 1.0 means that nobody took its core away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_cpu_ratio: Option<f64>,
    /// `pmu` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions_per_s: Option<f64>,
}

/// What the sniffer saw end in the period. Response time is last request byte to last response byte.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Exchanges that ended, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rps: Option<f64>,
    /// Mean response time; absent when nothing ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rt_mean_ms: Option<f64>,
    /// Median response time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rt_p50_ms: Option<f64>,
    /// 95th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rt_p95_ms: Option<f64>,
    /// 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rt_p99_ms: Option<f64>,
    /// Requests seen whose response has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Responses of status 500 and above, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors_per_s: Option<f64>,
    /// Packets that the kernel dropped before the sniffer saw them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drops: Option<u64>,
}

/// What a monitor measured over one period. Subject: `slackwater.sample.<pool>.<node>`.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// The web server's processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sched: Option<Sched>,
    /// Pressure stall information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure: Option<Pressure>,
    /// Hardware counters or the probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
    /// Requests and responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// Dotted name of each absent value or section (`counters`, `cpu.steal`) and the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, String>,
}

/// What the detector thinks of one node after a Sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Version of the message.
    pub v: u32,
    /// The node's name.
    pub node: String,
    /// The pool that it serves in.
    pub pool: String,
    /// Wall time of the decision.
    pub time_unix_s: f64,
    /// `calm`, `interference`, `overload`, `all_slow` or `unknown`.
    pub state: String,
    /// When this state began.
    pub since_unix_s: f64,
    /// Share of the node's calm capacity that is lost.
    pub severity: f64,
    /// Why, in words with values.
    pub path: Vec<String>,
    /// Which model said so.
    pub model: String,
    /// The Sample that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_seq: Option<u64>,
    /// CPU utilisation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// What the regression predicts it to become.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_predicted: Option<f64>,
    /// Requests per second at which the CPU would be full, now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_rps: Option<f64>,
    /// Standard error of `capacity_rps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_stderr_rps: Option<f64>,
    /// Requests per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rps: Option<f64>,
    /// Mean response time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rt_mean_ms: Option<f64>,
    /// 95th percentile of response time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rt_p95_ms: Option<f64>,
}

/// A number or a word: the value of a knob.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
    /// A word.
    Word(String),
}

/// Asks a node's wsengine to set a knob for a while. Subject: `slackwater.order.<pool>.<node>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Version of the message.
    pub v: u32,
    /// Unique.
    pub id: String,
    /// The node that it is for.
    pub node: String,
    /// The pool that the node serves in.
    pub pool: String,
    /// Wall time at which it was given.
    pub time_unix_s: f64,
    /// Name of the knob.
    pub knob: String,
    /// What to set it to.
    pub value: Value,
    /// An Order that is not renewed within this time undoes itself.
    pub lease_s: f64,
    /// Why.
    pub reason: String,
    /// Who gave it.
    pub by: String,
}

/// Something was changed, or would have been in observe mode. Subject: `slackwater.change.<pool>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Version of the message.
    pub v: u32,
    /// Unique.
    pub id: String,
    /// The pool.
    pub pool: String,
    /// Wall time.
    pub time_unix_s: f64,
    /// `weight`, `maxconn`, `outcome`, `pause`, a knob, ...
    pub what: String,
    /// The server or node, or the pool itself.
    pub target: String,
    /// The value before.
    pub before: Option<Value>,
    /// The value after.
    pub after: Option<Value>,
    /// Why.
    pub why: String,
    /// Who.
    pub by: String,
    /// False: observe mode, this is what would have been done.
    pub applied: bool,
    /// The pool's 95th percentile of response time when this was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rt_p95_ms: Option<f64>,
    /// What it was predicted to become by this change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rt_p95_predicted_ms: Option<f64>,
    /// Id of the Change whose outcome this tells; empty for others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub follows: String,
}

/// Reads a message from JSON; the error names the field that is wrong and what was expected.
pub fn decode<T: for<'de> Deserialize<'de>>(data: &[u8]) -> Result<T, MessageError> {
    let mut reader = serde_json::Deserializer::from_slice(data);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        MessageError(format!("{}: {}", path, error.into_inner()))
    })
}

/// The message as JSON; absent values are left out.
///
/// # Panics
/// Never for the messages of this crate: their maps have string keys.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages are plain data")
}

/// True for a name that is safe in the bus's subjects and in HAProxy's command language.
pub fn is_name(text: &str) -> bool {
    let part_is_safe = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b':' | b'-'))
    };
    text.len() <= 128 && !text.starts_with(':') && text.split('.').all(part_is_safe)
}
