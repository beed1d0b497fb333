//! One collector, one file, one line in the table.

use slackwater_messages::Sample;

use crate::config::Settings;
use crate::inputs::Inputs;

pub mod canary;
pub mod cpu;
pub mod pmu;
pub mod pressure;
pub mod sched;
pub mod traffic;

/// Measures one section of the Sample.
pub trait Collector {
    /// Puts what happened since the last call (at first: since it was opened) into its section. A value that cannot be
    /// had goes to `sample.absent` with the reason.
    fn collect(&mut self, sample: &mut Sample);

    /// True while something would overflow if it waited for the end of the period.
    fn must_drain(&self) -> bool {
        false
    }

    /// Called several times a period while `must_drain`.
    fn drain(&mut self) {}
}

/// Opens a collector and takes its first reading. Opening never fails: what is missing becomes a reason.
pub type Open = fn(&Settings, &Inputs) -> Box<dyn Collector>;

/// All collectors in the order in which they are asked. The canary takes longest and may lose its core: it is last, so
/// that the others read at the same moment, and fills `counters` where no hardware does.
pub const COLLECTORS: &[(&str, Open)] = &[
    ("cpu", cpu::open),
    ("sched", sched::open),
    ("pressure", pressure::open),
    ("traffic", traffic::open),
    ("pmu", pmu::open),
    ("counters", canary::open),
];

/// Notes that a value or a section is not there, and why.
pub(crate) fn absent(sample: &mut Sample, name: &str, reason: impl Into<String>) {
    sample.absent.insert(name.to_owned(), reason.into());
}

/// The time between two readings.
pub(crate) fn seconds_between(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}

/// Why a rate cannot be given when no time passed between two readings.
pub(crate) const NO_TIME: &str = "no time passed since the last reading";
