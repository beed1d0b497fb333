//! One collector, one file, one line in the table.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use slackwater_messages::{Sample, Traffic};
use slackwater_sniffer::Buckets;

use crate::config::Settings;
use crate::inputs::Inputs;
use crate::reason::Reason;

pub mod canary;
pub mod cpu;
pub mod disk;
pub mod frequency;
pub mod memory;
pub mod network;
pub mod pmu;
pub mod pressure;
pub mod sched;
pub mod server;
pub mod slow;
pub mod traffic;

/// Measures one section of the Sample.
pub trait Collector {
    /// Called before the first collector measures.
    fn begin(&mut self) {}

    /// Puts what happened since the last call (at first: since it was opened) into its section. A value that cannot be
    /// had goes to `sample.absent` with the reason.
    fn collect(&mut self, sample: &mut Sample);

    /// Becomes readable when something would overflow if it waited for the end of the period.
    fn wakes_on(&self) -> Option<Rc<OwnedFd>> {
        None
    }

    /// Called when `wakes_on` is readable.
    fn drain(&mut self) {}

    /// Response times since the collector was opened.
    fn response_times(&self) -> Option<Buckets> {
        None
    }

    /// Called once, when privileges are given up: periods begin at `start` and take so long.
    fn start(&mut self, _start: Instant, _period: Duration) {}
}

/// Opens a collector and takes its first reading. Opening never fails: what is missing becomes a reason.
pub type Open = fn(&Settings, &Inputs) -> Box<dyn Collector>;

/// All collectors in the order in which they are asked. `sched` looks at the traffic. The canary is last: it looks at what
/// the others found, and stands in where there are no hardware counters.
pub const COLLECTORS: &[(&str, Open)] = &[
    ("cpu", cpu::open),
    ("traffic", traffic::open),
    ("sched", sched::open),
    ("pressure", pressure::open),
    ("memory", memory::open),
    ("disk", disk::open),
    ("network", network::open),
    ("frequency", frequency::open),
    ("server", server::open),
    ("pmu", pmu::open),
    ("canary", canary::open),
];

/// Notes that a value or a section is not there, and why.
pub(crate) fn absent(sample: &mut Sample, name: &str, reason: impl Into<Reason>) {
    let Reason { cause, text } = reason.into();
    sample.absent.insert(name.to_owned(), text);
    match cause {
        Some(cause) => sample.absence_causes.insert(name.to_owned(), cause),
        None => sample.absence_causes.remove(name),
    };
}

/// Puts a value into its place, or notes why it is not there.
pub(crate) fn put<T>(sample: &mut Sample, name: &str, place: &mut Option<T>, value: Result<T, impl Into<Reason>>) {
    match value {
        Ok(value) => *place = Some(value),
        Err(reason) => absent(sample, name, reason),
    }
}

/// Nobody asked the web server anything in this period, as far as the sniffer sees.
pub(crate) fn is_quiet(sample: &Sample) -> bool {
    let is_none =
        |traffic: &Traffic| (traffic.rps, traffic.in_flight, traffic.unmatched) == (Some(0.0), Some(0), Some(0));
    sample.traffic.as_ref().is_some_and(is_none)
}

/// The time between two readings.
pub(crate) fn seconds_between(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}

/// Why a rate cannot be given when no time passed between two readings.
pub(crate) const NO_TIME: &str = "no time passed since the last reading";
