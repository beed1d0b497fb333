//! One collector, one file, one line in the table.

use std::time::{Duration, Instant};

use slackwater_messages::{Sample, Traffic};
use slackwater_node::system::System;
use slackwater_sniffer::Buckets;

use crate::config::Settings;
use crate::pace::Watch;
use crate::reason::Reason;
use metric::Metric;

pub mod canary;
pub mod cpu;
pub mod disk;
pub mod frequency;
pub mod gaps;
pub mod memory;
pub mod metric;
pub mod network;
pub mod pmu;
pub mod pressure;
pub mod sched;
pub mod server;
pub mod slow;
pub mod traffic;

/// All collectors in the order in which they run. `sched` looks at the traffic. The canary is last: it looks at what the
/// others found, and stands in where there are no hardware counters.
pub const COLLECTORS: &[CollectorKind] = &[
    cpu::COLLECTOR,
    traffic::COLLECTOR,
    sched::COLLECTOR,
    pressure::COLLECTOR,
    memory::COLLECTOR,
    disk::COLLECTOR,
    network::COLLECTOR,
    frequency::COLLECTOR,
    server::COLLECTOR,
    pmu::COLLECTOR,
    gaps::COLLECTOR,
    canary::COLLECTOR,
];

/// What a collector is.
pub struct CollectorKind {
    /// Its section of the Sample; settings and metrics call it so too.
    pub name: &'static str,
    /// Opens it and takes its first reading. Opening never fails: what is missing becomes a reason.
    pub open: fn(&Settings, &System) -> Box<dyn Collector>,
    /// What the page for Prometheus shows of it.
    pub metrics: &'static [Metric],
}

/// Measures one section of the Sample.
pub trait Collector {
    /// Called before the first collector measures.
    fn begin(&mut self) {}

    /// Puts what happened since the last call (at first: since it was opened) into its section. A value that cannot be
    /// had goes to `sample.absent` with the reason.
    ///
    /// # Errors
    /// Why there is no section.
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason>;

    /// Takes what would overflow until the end of the period.
    fn drain(&mut self) {}

    /// Within what time `drain` is to be called again; `None`: not before the end of the period.
    fn drain_within(&self) -> Option<Duration> {
        None
    }

    /// Puts in what it knows without reading anything anew, between two Samples.
    fn watch(&mut self, _watch: &mut Watch) {}

    /// Response times since the collector was opened.
    fn response_times(&self) -> Option<Buckets> {
        None
    }

    /// Called once, when privileges are given up: periods begin at `start` and take so long.
    fn start(&mut self, _start: Instant, _period: Duration) {}
}

/// A collector that is switched on.
pub struct Active {
    /// As in its kind.
    pub name: &'static str,
    /// The collector.
    pub collector: Box<dyn Collector>,
    /// How its last run went.
    pub last: Outcome,
}

/// How one run of a collector went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// Wall time that it took.
    pub duration: Duration,
    /// Whether there is a section.
    pub success: bool,
}

impl CollectorKind {
    /// Switches it on.
    pub fn open(&self, settings: &Settings, system: &System) -> Active {
        Active { name: self.name, collector: (self.open)(settings, system), last: Outcome::default() }
    }
}

impl Active {
    /// Puts the section into the Sample, or why there is none.
    pub fn collect(&mut self, sample: &mut Sample) {
        let start = Instant::now();
        let collected = self.collector.collect(sample);
        self.last = Outcome { duration: start.elapsed(), success: collected.is_ok() };
        if let Err(reason) = collected {
            absent(sample, self.name, reason);
        }
    }

    /// A Sample of this collector alone.
    #[cfg(test)]
    pub(crate) fn sample(&mut self) -> Sample {
        let mut sample = Sample::default();
        self.collect(&mut sample);
        sample
    }
}

/// A collector that has taken its first reading.
pub(crate) fn first_read(mut collector: impl Collector + 'static) -> Box<dyn Collector> {
    // What is missing is reported with the first Sample.
    let _ = collector.collect(&mut Sample::default());
    Box::new(collector)
}

/// Notes that a value or a section is not there, and why.
pub(crate) fn absent(sample: &mut Sample, name: &str, reason: impl Into<Reason>) {
    let Reason { cause, text } = reason.into();
    sample.absent.insert(name.to_owned(), text);
    match cause {
        Some(cause) => sample.absence_causes.insert(name.to_owned(), cause),
        None => sample.absence_causes.remove(name),
    };
}

/// `put!(sample, SECTION.FIELD, VALUE)` puts a value into a variable of the section's name, or notes why it is not there.
macro_rules! put {
    ($sample:expr, $section:ident.$field:ident, $value:expr $(,)?) => {
        match $value {
            Ok(value) => $section.$field = Some(value),
            Err(reason) => {
                $crate::collectors::absent($sample, concat!(stringify!($section), ".", stringify!($field)), reason)
            }
        }
    };
}
pub(crate) use put;

/// Nobody sent the web server a request in this period, as far as the sniffer sees.
pub(crate) fn is_quiet(sample: &Sample) -> bool {
    let is_none =
        |traffic: &Traffic| (traffic.rps, traffic.in_flight, traffic.unmatched) == (Some(0.0), Some(0), Some(0));
    sample.traffic.as_ref().is_some_and(is_none)
}
