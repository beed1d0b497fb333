//! One Sample, made by all collectors together.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater_messages::{AbsenceCause, Ask, Sample, VERSION};
use slackwater_node::system::System;
use slackwater_sniffer::Buckets;

use crate::bell::Bell;
use crate::collectors::{ActiveCollector, COLLECTORS, absent};
use crate::config::Settings;
use crate::counter_delta::seconds_between;
use crate::kernel_file::line;
use crate::pace::Watch;
use crate::reason::Reason;

/// Takes one Sample after another.
pub struct Sampler {
    system: System,
    collectors: Vec<ActiveCollector>,
    /// The names of those that are switched off.
    off: Vec<&'static str>,
    node: String,
    pool: String,
    boot_id: String,
    seq: u64,
    last_ns: u64,
}

impl Sampler {
    /// Opens all collectors that are switched on, which take their first readings now.
    ///
    /// # Errors
    /// When the kernel has no id of this boot.
    pub fn open(settings: &Settings, system: &System) -> Result<Sampler, Reason> {
        let boot_id = line(&system.proc.join("sys/kernel/random/boot_id"))?;
        let (on, off): (Vec<_>, Vec<_>) = COLLECTORS.iter().partition(|kind| settings.is_on(kind.name));
        Ok(Sampler {
            collectors: on.into_iter().map(|kind| kind.open(settings, system)).collect(),
            off: off.into_iter().map(|kind| kind.name).collect(),
            system: system.clone(),
            node: settings.node.clone(),
            pool: settings.pool.clone(),
            boot_id,
            seq: 0,
            last_ns: (system.monotonic_ns)(),
        })
    }

    /// The Sample of the period since the last call, or since the sampler was opened.
    pub fn take(&mut self) -> Sample {
        for active in &mut self.collectors {
            active.collector.begin();
        }
        let now_ns = (self.system.monotonic_ns)();
        let mut sample = Sample {
            v: VERSION,
            node: self.node.clone(),
            pool: self.pool.clone(),
            time_unix_s: (self.system.wall_ns)() as f64 / 1e9,
            boot_id: self.boot_id.clone(),
            seq: self.seq,
            period_s: seconds_between(std::mem::replace(&mut self.last_ns, now_ns), now_ns),
            ..Sample::default()
        };
        self.seq += 1;
        for name in &self.off {
            absent(&mut sample, name, switched_off(name));
        }
        for active in &mut self.collectors {
            active.collect(&mut sample);
        }
        // The canary stands in for hardware counters.
        if sample.counters.is_none() && self.off.contains(&"canary") {
            absent(&mut sample, "counters", switched_off("canary"));
        }
        sample
    }

    /// The collectors that are switched on, with how the last run of each went.
    pub fn collectors(&self) -> &[ActiveCollector] {
        &self.collectors
    }

    /// Waits for a period, drains meanwhile, and takes its Sample.
    pub fn take_after(&mut self, period: Duration) -> Sample {
        let end = Instant::now() + period;
        loop {
            self.drain();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.take();
            }
            std::thread::sleep(self.drain_within().map_or(left, |within| within.min(left)));
        }
    }

    /// Within what time `drain` must be called again, however long the period is; `None`: not before its end.
    pub fn drain_within(&self) -> Option<Duration> {
        self.collectors.iter().filter_map(|active| active.collector.drain_within()).min()
    }

    /// While `drain` would find nothing: the descriptor that becomes readable when it would.
    pub fn next_packet(&self) -> Option<RawFd> {
        self.collectors.iter().find_map(|active| active.collector.next_packet())
    }

    /// Response times since the start.
    pub fn response_times(&self) -> Option<Buckets> {
        self.collectors.iter().find_map(|active| active.collector.response_times())
    }

    /// Fetches the packets and readings whose buffers would overflow.
    pub fn drain(&mut self) {
        for active in &mut self.collectors {
            active.collector.drain();
        }
    }

    /// The signals that are known between two Samples without reading anything but the packets that wait.
    pub fn watch(&mut self) -> Watch {
        self.drain();
        let mut watch = Watch::default();
        for active in &mut self.collectors {
            active.collector.watch(&mut watch);
        }
        watch
    }

    /// Tells the collectors that measure at moments of their own when the first period starts, and how long a period
    /// is, and gives them the loop's bell.
    pub fn start(&mut self, start: Instant, period: Duration, bell: &Arc<Bell>) {
        for active in &mut self.collectors {
            active.collector.start(start, period, bell);
        }
    }

    /// Tells the collectors of an ask with traffic.
    pub fn hear(&mut self, ask: &Ask) {
        for active in &mut self.collectors {
            active.collector.hear(ask);
        }
    }
}

fn switched_off(collector: &str) -> Reason {
    Reason::new(AbsenceCause::SwitchedOff, format!("the collector `{collector}` is switched off in the configuration"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn settings() -> Settings {
        let mut settings = Settings { node: "n1".to_owned(), ..Settings::default() };
        settings.canary.enabled = false;
        settings.sniffer.interface = String::new();
        settings
    }

    #[test]
    fn samples_count_up_and_carry_the_real_length_of_their_period() {
        let fixture = Fixture::new(&[("proc/sys/kernel/random/boot_id", "b-1\n")]);
        let mut sampler = Sampler::open(&settings(), &fixture.system()).expect("a sampler");
        for (seq, length_s) in [(0, 0.2), (1, 0.75)] {
            fixture.advance_s(length_s);
            let sample = sampler.take();
            assert_eq!((sample.v, sample.seq, sample.node.as_str(), sample.boot_id.as_str()), (1, seq, "n1", "b-1"));
            assert!((sample.period_s - length_s).abs() < 1e-6);
            assert!(sample.time_unix_s > 1.7e9);
        }
    }

    #[test]
    fn on_a_machine_with_nothing_to_see_each_section_has_its_reason() {
        let fixture = Fixture::new(&[("proc/sys/kernel/random/boot_id", "b-1\n")]);
        let mut sampler = Sampler::open(&settings(), &fixture.system()).expect("a sampler");
        let sample = sampler.take();
        let names: Vec<&str> = sample.absent.keys().map(String::as_str).collect();
        for section in COLLECTORS.iter().map(|kind| kind.name).chain(["counters"]) {
            assert!(names.contains(&section), "{section}: {names:?}");
        }
        assert!(sampler.collectors().iter().all(|active| !active.last.success), "each has nothing to see");
        assert_eq!(sampler.drain_within(), None, "without packets there is nothing to fetch within a period");
    }

    #[test]
    fn a_collector_that_is_switched_off_does_not_run_and_the_others_do() {
        let fixture =
            Fixture::new(&[("proc/sys/kernel/random/boot_id", "b-1\n"), ("proc/meminfo", "MemTotal: 4 kB\n")]);
        fixture.write("proc/vmstat", "pgfault 1\npgmajfault 0\n");
        let mut settings = settings();
        settings.collectors.off = vec!["disk".to_owned(), "pmu".to_owned()];
        let mut sampler = Sampler::open(&settings, &fixture.system()).expect("a sampler");
        let sample = sampler.take();
        assert_eq!(sample.absent["disk"], "the collector `disk` is switched off in the configuration");
        for name in ["canary", "counters", "disk", "pmu"] {
            assert_eq!(sample.absence_causes[name], AbsenceCause::SwitchedOff, "{name}");
        }
        let ran: Vec<_> = sampler.collectors().iter().map(|active| (active.name, active.last.success)).collect();
        assert!(ran.contains(&("memory", true)) && ran.contains(&("network", false)), "{ran:?}");
        assert!(ran.iter().all(|(name, _)| !["canary", "disk", "pmu"].contains(name)), "{ran:?}");
    }

    #[test]
    fn without_a_boot_id_there_is_no_sampler() {
        let error = Sampler::open(&settings(), &Fixture::new(&[]).system()).err().expect("a refusal");
        assert!(error.ends_with("proc/sys/kernel/random/boot_id: is not there"), "{error}");
    }
}
