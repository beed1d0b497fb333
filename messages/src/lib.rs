//! The messages on the bus that run on a node: `Sample`, `Change` and `Knobs` (sent), `Order` and `Weight` (received),
//! and `Verdict`.
//!
//! Their written form is `schema/*.json`; the golden examples in `schema/examples/` are read by the tests of both
//! languages. Unknown fields are tolerated, a wrong type is refused with the field's name.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod sample;

pub use sample::*;

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

/// What the detector thinks of one node after a Sample.
#[skip_serializing_none]
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
    /// `cpu`, `cache`, `memory bandwidth`, `network`, `disk` or `unclear`: what the neighbour takes away.
    pub resource: Option<String>,
    /// False in an episode that only waits for its end; absent: true.
    pub shown: Option<bool>,
    /// The Sample that it is about.
    pub sample_seq: Option<u64>,
    /// CPU utilisation.
    pub cpu: Option<f64>,
    /// What the regression predicts it to become.
    pub cpu_predicted: Option<f64>,
    /// Requests per second at which the CPU would be full, now.
    pub capacity_rps: Option<f64>,
    /// Standard error of `capacity_rps`.
    pub capacity_stderr_rps: Option<f64>,
    /// Requests per second.
    pub rps: Option<f64>,
    /// Mean response time.
    pub rt_mean_ms: Option<f64>,
    /// 95th percentile of response time.
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

/// What a node's monitor answers to HAProxy's agent-check. Subject: `slackwater.weight.<pool>.<node>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    /// Version of the message.
    pub v: u32,
    /// The node that it is for.
    pub node: String,
    /// The pool that the node serves in.
    pub pool: String,
    /// Wall time at which it was said.
    pub time_unix_s: f64,
    /// Of the weight that the node's server has in HAProxy's configuration.
    pub percent: u32,
    /// One that is not renewed within this time is void.
    pub lease_s: f64,
}

/// Why something was changed, for programs; `slackwater/messages.py` says it of lbengine's and the second stage's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeCause {
    /// Its Verdict.
    Calm,
    /// Its Verdict.
    Interference,
    /// Its Verdict.
    Overload,
    /// Its Verdict.
    AllSlow,
    /// Its Verdict.
    Unknown,
    /// An episode that nothing shows any more.
    NotShown,
    /// Interference, but enough of the pool is reduced.
    EnoughReduced,
    /// No Verdict is believed.
    Panic,
    /// There is no fresh Verdict.
    NoVerdict,
    /// For the first Verdict.
    Waiting,
    /// It keeps its baseline weight while its values are searched.
    Measured,
    /// The second stage asked for fewer requests at a time.
    Limited,
    /// The second stage asked for no requests.
    Drained,
    /// It did, and the guard does not allow it.
    NotDrained,
    /// By a person.
    Pinned,
    /// The guard's last word.
    Bounded,
    /// The balancer did not take it.
    NotSet,
    /// lbengine set the baseline again.
    PutBack,
    /// Somebody else changed it.
    SomeoneElse,
    /// An Order for an episode.
    SecondStage,
    /// An Order that renews a lease.
    Renewed,
    /// The first Order after a search.
    SearchOver,
    /// An Order was carried out.
    Ordered,
    /// An Order was not carried out.
    Refused,
    /// Put back: the controller asked for it.
    GivenBack,
    /// Put back: no renewal came.
    LeaseEnded,
    /// Put back: the Order did not come to what it should.
    NotAsOrdered,
    /// Put back: a person asked for it.
    ByHand,
    /// Put back: the wsengine ends.
    EngineEnded,
    /// Put back: the run before did not end well.
    EngineDied,
    /// It could not be put back yet and is tried again.
    NotPutBack,
}

impl ChangeCause {
    /// Whether a wsengine's Change of this cause puts a knob back.
    pub fn is_put_back(self) -> bool {
        use ChangeCause::{ByHand, EngineDied, EngineEnded, GivenBack, LeaseEnded, NotAsOrdered, SomeoneElse};
        matches!(self, GivenBack | LeaseEnded | NotAsOrdered | ByHand | EngineEnded | EngineDied | SomeoneElse)
    }
}

/// Why a knob cannot be turned, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnobCause {
    /// It was not read yet.
    NotRead,
    /// What it needs is not there.
    Unreadable,
    /// It is being put back.
    Ending,
    /// Somebody else changed it in this episode.
    SomeoneElse,
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
    /// `why` for programs; absent where `what` says it, and in Changes of before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<ChangeCause>,
}

/// What one knob of a node is.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KnobState {
    /// The knob's name.
    pub name: String,
    /// The value in effect.
    pub value: Option<Value>,
    /// What it is put back to; the value where nothing is turned.
    pub baseline: Option<Value>,
    /// The lowest whole number that Orders may ask for.
    pub lowest: Option<i64>,
    /// The highest.
    pub highest: Option<i64>,
    /// The words that Orders may ask for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// Whether turning it makes the web server reload.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reloads: bool,
    /// The Order in force; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub order: String,
    /// Who gave it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// What is left of its lease.
    pub left_s: Option<f64>,
    /// Why it cannot be turned here; empty: it can.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The same for programs; absent: it can be turned.
    pub cause: Option<KnobCause>,
}

/// What a node's wsengine can turn, and what it has turned. Subject: `slackwater.knobs.<pool>.<node>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Knobs {
    /// Version of the message.
    pub v: u32,
    /// The node's name.
    pub node: String,
    /// The pool that it serves in.
    pub pool: String,
    /// Wall time.
    pub time_unix_s: f64,
    /// Nodes of one kind are alike: what was good for one is good for the other.
    pub kind: String,
    /// One for each knob that the node's configuration lists.
    pub knobs: Vec<KnobState>,
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
