//! The collectors: one file each, and one line in the table.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater_messages::{Ask, Sample, Traffic};
use slackwater_node::system::System;
use slackwater_sniffer::Buckets;

pub(crate) use crate::absence::{absent, put};
use crate::bell::Bell;
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

/// All collectors in the order in which they run. `sched` reads the traffic's section. The canary is last, because it
/// reads other sections, and fills in for missing hardware counters.
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

/// A collector's entry in the table.
pub struct CollectorKind {
    /// The name of its section of the Sample, also in settings and metrics.
    pub name: &'static str,
    /// Opens the collector and takes its first reading. Opening never fails: anything missing becomes a reason.
    pub open: fn(&Settings, &System) -> Box<dyn Collector>,
    /// Its metrics on the page for Prometheus.
    pub metrics: &'static [Metric],
}

/// Measures one section of the Sample.
pub trait Collector {
    /// Called before the first collector measures.
    fn begin(&mut self) {}

    /// Fills its section with the values since the last call (at first: since it was opened). A value that is not
    /// available goes to `sample.absent` with the reason.
    ///
    /// # Errors
    /// Why there is no section.
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason>;

    /// Takes data that would overflow before the end of the period.
    fn drain(&mut self) {}

    /// The time within which `drain` is to be called again; `None`: not before the end of the period.
    fn drain_within(&self) -> Option<Duration> {
        None
    }

    /// While `drain` would find nothing: the descriptor that becomes readable when it would.
    fn next_packet(&self) -> Option<RawFd> {
        None
    }

    /// Fills in the signals that it knows between two Samples without a new reading.
    fn watch(&mut self, _watch: &mut Watch) {}

    /// Response times since the collector was opened.
    fn response_times(&self) -> Option<Buckets> {
        None
    }

    /// Takes an ask of the controller that has traffic in it.
    fn hear(&mut self, _ask: &Ask) {}

    /// Called once, when privileges are given up: periods begin at `start` and have this length. Who measures in a thread
    /// tells the bell of it.
    fn start(&mut self, _start: Instant, _period: Duration, _bell: &Arc<Bell>) {}
}

/// A collector that is switched on.
pub struct ActiveCollector {
    /// The name of its section.
    pub name: &'static str,
    /// The collector.
    pub collector: Box<dyn Collector>,
    /// Its last run.
    pub last: CollectorRun,
}

/// One run of a collector.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CollectorRun {
    /// Wall time that the run took.
    pub duration: Duration,
    /// Whether it filled its section.
    pub success: bool,
}

impl CollectorKind {
    /// Opens the collector.
    pub fn open(&self, settings: &Settings, system: &System) -> ActiveCollector {
        ActiveCollector { name: self.name, collector: (self.open)(settings, system), last: CollectorRun::default() }
    }
}

impl ActiveCollector {
    /// Fills the section of the Sample, or notes why there is none.
    pub fn collect(&mut self, sample: &mut Sample) {
        let start = Instant::now();
        let collected = self.collector.collect(sample);
        self.last = CollectorRun { duration: start.elapsed(), success: collected.is_ok() };
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

/// Lets a collector take its first reading.
pub(crate) fn first_read(mut collector: impl Collector + 'static) -> Box<dyn Collector> {
    // Anything missing is reported with the first Sample.
    let _ = collector.collect(&mut Sample::default());
    Box::new(collector)
}

/// Whether the web server got no request in this period, as far as the sniffer sees.
pub(crate) fn is_quiet(sample: &Sample) -> bool {
    let is_none =
        |traffic: &Traffic| (traffic.rps, traffic.in_flight, traffic.unmatched) == (Some(0.0), Some(0), Some(0));
    sample.traffic.as_ref().is_some_and(is_none)
}
