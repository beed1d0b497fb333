//! The canary: a probe of our own that measures the effect of the neighbours, also where there are no hardware
//! counters.
//!
//! It runs at a random moment of each period, so that the monitors of a fleet do not run in step, and so that no
//! monitor always meets the same part of a quota's period. `collect` reports that run. A thread that just woke up is
//! seldom interrupted at once, so the ratio of wall to CPU time covers the run and all of the monitor's work for the
//! Sample, which takes longer and costs nothing more.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater_messages::{Canary as Section, Counters, Sample};
use slackwater_node::system::System;

use super::metric::metrics;
use super::{Collector, CollectorKind, absent, is_quiet, put};
use crate::bell::Bell;
use crate::config::Settings;
use crate::counter_delta::NO_TIME;
use crate::probe::{Lateness, Length, Moments, NextRun, Probe, ProbeRun, RunOrigin, Spent, Stopwatch};
use crate::reason::Reason;

/// Working sets that are chosen by the L2 cache stay within this, in KiB.
const CHOSEN_KIB: std::ops::RangeInclusive<u32> = 1024..=4096;
/// CPU utilisation from which the VM counts as busy.
const BUSY: f64 = 0.9;
/// Ratio of wall to CPU time from which the probe counts as interrupted.
const INTERRUPTED: f64 = 2.0;
/// After this time without requests the probe runs each `SELDOM_S`. It is long enough that the probe runs in every
/// period on a server that was drained because of a neighbour.
const SELDOM_AFTER_S: f64 = 60.0;
const SELDOM_S: f64 = 1.0;

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "canary",
    open,
    metrics: metrics! {
        Gauge "canary_cycles_per_load" ["cache" = "l2"] "The probe's chases of pointers, in cycles of the time stamp counter." => |s| s.canary.as_ref()?.l2_cycles_per_load;
        Gauge "canary_cycles_per_load" ["cache" = "llc"] "" => |s| s.canary.as_ref()?.llc_cycles_per_load;
        Gauge "canary_cycles_per_operation" "The probe's arithmetic." => |s| s.canary.as_ref()?.alu_cycles_per_op;
        Gauge "canary_slow_load_ratio" "Share of the probe's loads slower than a cache hit." => |s| s.canary.as_ref()?.slow_share;
        Gauge "canary_wall_cpu_ratio" "Wall time over CPU time of the probe; 1 means that nobody took its core away." => |s| s.canary.as_ref()?.wall_cpu_ratio;
        Gauge "canary_late_seconds" "How long after it was due the probe started." => |s| Some(s.canary.as_ref()?.late_ms? / 1e3);
        Gauge "canary_timer_late_seconds" "Of these: before the probe's thread was in the run queue." => |s| Some(s.canary.as_ref()?.timer_late_ms? / 1e3);
        Rate "canary_cpu_seconds" "CPU time that the probe took." => |s| s.canary.as_ref()?.cpu_share;
    },
};

/// Calibrates the probe.
fn open(settings: &Settings, system: &System) -> Box<dyn Collector> {
    let budget_ns = (settings.canary.max_cpu_share * settings.period_s * 1e9) as u64;
    let probe = Probe::new(match settings.canary.working_set_kib {
        0 => working_set_kib(l2_kib(&system.sys)),
        kib => kib,
    });
    let moments = Moments::new(probe, budget_ns, settings.canary.max_cpu_share);
    let why_no_slow_share = moments.why_no_slow_share();
    Box::new(Canary { proc: system.proc.clone(), moments, why_no_slow_share, sampling: None, quiet_s: 0.0, between: 0 })
}

fn between(period: Duration) -> u32 {
    (SELDOM_S / period.as_secs_f64()).round().max(1.0) as u32 - 1
}

/// Twice the L2 cache: more than fits into it, and little of a last-level cache.
fn working_set_kib(l2_kib: Option<u32>) -> u32 {
    l2_kib.map_or(*CHOSEN_KIB.start(), |l2| (2 * l2).clamp(*CHOSEN_KIB.start(), *CHOSEN_KIB.end()))
}

/// The first CPU's L2 cache, from /sys/devices/system/cpu/cpu0/cache.
fn l2_kib(sys: &Path) -> Option<u32> {
    let caches = fs::read_dir(sys.join("devices/system/cpu/cpu0/cache")).ok()?;
    let read = |cache: &Path, name: &str| fs::read_to_string(cache.join(name)).unwrap_or_default();
    let size = caches
        .flatten()
        .map(|entry| entry.path())
        .find(|cache| read(cache, "level").trim() == "2" && read(cache, "type").trim() != "Instruction")
        .map(|cache| read(&cache, "size"))?;
    size.trim().strip_suffix('K')?.parse().ok()
}

/// How much the next run does. A machine that is full, or that takes the core away from us, needs its caches itself, so
/// the chases become short. The runs are never left out, because each period needs their ratio of wall to CPU time.
fn next_length(utilisation: Option<f64>, wall_cpu_ratio: f64) -> Length {
    let is_busy = utilisation.is_some_and(|share| share >= BUSY) || wall_cpu_ratio >= INTERRUPTED;
    if is_busy { Length::Short } else { Length::Whole }
}

struct Canary {
    proc: PathBuf,
    moments: Moments,
    why_no_slow_share: Option<Reason>,
    /// Runs since the Sample's first reading.
    sampling: Option<Stopwatch>,
    quiet_s: f64,
    /// Periods between two runs that are `SELDOM_S` apart.
    between: u32,
}

impl Collector for Canary {
    fn start(&mut self, start: Instant, period: Duration, _: &Arc<Bell>) {
        self.between = between(period);
        if let Err(error) = self.moments.start(self.proc.clone(), start, period) {
            tracing::warn!("the canary has no thread of its own: {error}; it runs while Samples are taken");
        }
    }

    fn begin(&mut self) {
        self.sampling = Some(Stopwatch::start());
    }

    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        let sampling = self.sampling.take().map(Stopwatch::spent).unwrap_or_default();
        let utilisation = sample.cpu.as_ref().and_then(|cpu| cpu.utilisation);
        self.quiet_s = if is_quiet(sample) { self.quiet_s + sample.period_s } else { 0.0 };
        let left_out = if self.quiet_s >= SELDOM_AFTER_S { self.between } else { 0 };
        // The part that belongs to this period: an earlier run was counted in its own.
        let spent_by = |run: &ProbeRun, when| match when {
            RunOrigin::Before | RunOrigin::Recent => Spent::default(),
            RunOrigin::Lateness(_) | RunOrigin::Now => run.spent,
        };
        let (run, when) = self.moments.take(|run, when| NextRun {
            length: next_length(utilisation, (spent_by(run, when) + sampling).ratio()),
            left_out,
        });
        let late = match when {
            RunOrigin::Lateness(late) => Ok(late),
            RunOrigin::Now => Err("the probe ran with the Sample, not at a moment of its own"),
            RunOrigin::Before => Err("without requests the probe runs once a second"),
            RunOrigin::Recent => Err("the figures are those of the last run, which is too recent for another one"),
        };
        if let Some(reason) = &self.why_no_slow_share {
            absent(sample, "canary.slow_share", reason);
        }
        let spent = spent_by(&run, when);
        let wall_cpu_ratio = (spent + sampling).ratio();
        let cpu_share = (sample.period_s > 0.0).then(|| spent.cpu_ns as f64 / 1e9 / sample.period_s);
        if cpu_share.is_none() {
            absent(sample, "canary.cpu_share", NO_TIME);
        }
        let mut canary = Section {
            l2_cycles_per_load: Some(run.l2_cycles_per_load),
            llc_cycles_per_load: Some(run.llc_cycles_per_load),
            alu_cycles_per_op: Some(run.alu_cycles_per_op),
            slow_share: run.slow_share,
            wall_cpu_ratio: Some(wall_cpu_ratio),
            cpu_share,
            late_ms: None,
            timer_late_ms: None,
        };
        put!(sample, canary.late_ms, late.map(|late| late.ns as f64 / 1e6));
        put!(sample, canary.timer_late_ms, late.and_then(timer_late_ms));
        sample.canary = Some(canary);
        if sample.counters.is_none() {
            stand_in(sample, &run, wall_cpu_ratio);
        }
        Ok(())
    }
}

fn timer_late_ms(late: Lateness) -> Result<f64, &'static str> {
    late.timer_ns
        .map(|ns| ns as f64 / 1e6)
        .ok_or("the kernel does not count how long the probe waited in the run queue")
}

/// Where there are no hardware counters, the probe's figures stand in their place.
fn stand_in(sample: &mut Sample, run: &ProbeRun, wall_cpu_ratio: f64) {
    sample.absent.remove("counters");
    sample.absence_causes.remove("counters");
    if let Some(reason) = sample.absent.get("canary.slow_share").cloned() {
        absent(sample, "counters.cache_miss_rate", reason);
    }
    absent(sample, "counters.instructions_per_s", "only hardware counters tell it");
    sample.counters = Some(Counters {
        source: "canary".to_owned(),
        cpi: Some(run.llc_cycles_per_load),
        cache_miss_rate: run.slow_share,
        wall_cpu_ratio: Some(wall_cpu_ratio),
        instructions_per_s: None,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_messages::{Cpu, Traffic};
    use slackwater_node::fixture::Fixture;

    fn sample() -> Sample {
        Sample { period_s: 0.2, ..Sample::default() }
    }

    fn canary() -> Canary {
        let moments = Moments::new(Probe::new(1024), 1 << 40, f64::INFINITY);
        let proc = "/proc".into();
        Canary { proc, moments, why_no_slow_share: None, sampling: None, quiet_s: SELDOM_AFTER_S - 0.9, between: 2 }
    }

    #[test]
    fn the_working_set_follows_the_l2_cache_within_bounds() {
        let cache = "sys/devices/system/cpu/cpu0/cache";
        let fixture = Fixture::new(&[
            (&format!("{cache}/index1/level"), "1\n"),
            (&format!("{cache}/index1/size"), "32K\n"),
            (&format!("{cache}/index2/level"), "2\n"),
            (&format!("{cache}/index2/type"), "Unified\n"),
            (&format!("{cache}/index2/size"), "768K\n"),
        ]);
        assert_eq!(l2_kib(&fixture.path("sys")), Some(768));
        assert_eq!(l2_kib(&fixture.path("nowhere")), None);
        assert_eq!([None, Some(256), Some(768), Some(4096)].map(working_set_kib), [1024, 1024, 1536, 4096]);
    }

    #[test]
    fn each_value_of_the_canary_is_there_or_has_a_reason() {
        let mut canary = canary();
        for at_its_moment in [false, true] {
            let mut sample = sample();
            let moment = Instant::now();
            if at_its_moment {
                std::thread::sleep(Duration::from_millis(3));
                canary.moments.run_at(moment, Some(1_000_000));
            }
            canary.collect(&mut sample).expect("a section");
            let section = sample.canary.as_ref().expect("a value");
            assert_eq!(section.late_ms.is_some(), at_its_moment);
            assert!(section.late_ms.is_none_or(|late_ms| late_ms >= 3.0), "{section:?}");
            let in_queue_ms = section.late_ms.zip(section.timer_late_ms).map(|(late_ms, timer_ms)| late_ms - timer_ms);
            assert!(in_queue_ms.is_none_or(|ms| (ms - 1.0).abs() < 1e-6), "{section:?}");
            assert_eq!(section.timer_late_ms.is_none(), sample.absent.contains_key("canary.timer_late_ms"));
            assert!(section.cpu_share.is_some_and(|share| share > 0.0) && section.alu_cycles_per_op.is_some());
            assert_eq!(section.slow_share.is_none(), sample.absent.contains_key("canary.slow_share"));
            assert_eq!(section.late_ms.is_none(), sample.absent.contains_key("canary.late_ms"));
            let counters = sample.counters.as_ref().expect("a value");
            assert_eq!((counters.source.as_str(), counters.cpi), ("canary", section.llc_cycles_per_load));
            assert_eq!((counters.wall_cpu_ratio, section.wall_cpu_ratio.is_some()), (section.wall_cpu_ratio, true));
            assert_eq!(counters.cache_miss_rate, section.slow_share);
            assert!(sample.absent.contains_key("counters.instructions_per_s"));
        }
    }

    #[test]
    fn without_requests_periods_that_are_left_out_have_the_figures_of_the_last_run_until_one_comes() {
        let mut canary = canary();
        let (mut to_leave_out, mut left_out) = (0, Vec::new());
        for rps in [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0] {
            let is_left_out = to_leave_out > 0;
            if is_left_out {
                to_leave_out -= 1;
            } else {
                to_leave_out = canary.moments.run_at(Instant::now(), None);
            }
            let (in_flight, unmatched) = (Some(0), Some(0));
            let traffic = Traffic { rps: Some(rps), in_flight, unmatched, ..Traffic::default() };
            let mut sample = Sample { traffic: Some(traffic), ..sample() };
            canary.begin();
            canary.collect(&mut sample).expect("a section");
            let section = sample.canary.expect("a value");
            assert_eq!((section.late_ms.is_none(), section.cpu_share == Some(0.0)), (is_left_out, is_left_out));
            assert!(section.llc_cycles_per_load.is_some() && section.wall_cpu_ratio.is_some());
            left_out.push(u8::from(is_left_out));
        }
        assert_eq!(left_out, [0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 0]);
    }

    #[test]
    fn seldom_is_once_a_second_and_never_more_often_than_the_periods() {
        assert_eq!([0.1, 0.2, 0.5, 1.0, 5.0].map(|s| between(Duration::from_secs_f64(s))), [9, 4, 1, 0, 0]);
        let mut canary = canary();
        canary.start(Instant::now(), Duration::from_millis(200), &Arc::default());
        assert_eq!(canary.between, 4, "by the periods that it runs in, whatever `period_s` is");
    }

    #[test]
    fn hardware_counters_stay_and_the_ratio_is_told_beside_them() {
        let counters = Counters { source: "pmu".to_owned(), cpi: Some(1.5), ..Counters::default() };
        let mut sample = Sample { counters: Some(counters.clone()), ..sample() };
        COLLECTOR.open(&Settings::default(), &System::machine()).collect(&mut sample);
        assert_eq!(sample.counters, Some(counters));
        assert!(sample.canary.is_some_and(|canary| canary.wall_cpu_ratio.is_some()));
    }

    #[test]
    fn it_backs_off_while_the_machine_is_busy_or_takes_its_core_away() {
        assert_eq!(next_length(Some(0.5), 1.0), Length::Whole);
        assert_eq!(next_length(None, 1.2), Length::Whole);
        assert_eq!(next_length(Some(0.95), 1.0), Length::Short);
        assert_eq!(next_length(Some(0.1), 7.0), Length::Short);
        let mut canary = canary();
        let full = Cpu { utilisation: Some(1.0), ..Cpu::default() };
        canary.collect(&mut Sample { cpu: Some(full), ..sample() }).expect("a section");
        let whole = |_: &ProbeRun, _| NextRun { length: Length::Whole, left_out: 0 };
        let (run, _) = canary.moments.take(whole);
        assert_eq!(run.loads, 256, "it ran all the same");
    }

    #[test]
    fn the_core_that_is_lost_while_the_sample_is_taken_counts_too() {
        let mut canary = canary();
        canary.begin();
        std::thread::sleep(std::time::Duration::from_millis(50)); // off the core, between two readings
        let mut sample = sample();
        canary.collect(&mut sample).expect("a section");
        let ratio = sample.canary.and_then(|canary| canary.wall_cpu_ratio).expect("a ratio");
        assert!(ratio > 10.0, "{ratio}");
    }

    #[test]
    fn by_default_the_probe_stays_within_its_share_of_a_core() {
        let (settings, start) = (Settings::default(), Instant::now());
        let mut canary = COLLECTOR.open(&settings, &System::machine());
        let (mut runs, mut cpu_s, mut repeated) = (0, 0.0, 0);
        while runs < 11 {
            let mut sample = sample();
            canary.collect(&mut sample);
            let share = sample.canary.and_then(|canary| canary.cpu_share).expect("a share");
            if share > 0.0 {
                // However long one run takes on a busy machine, the next one waits until the share allows it.
                let most_s = settings.canary.max_cpu_share * start.elapsed().as_secs_f64();
                assert!(cpu_s <= most_s, "{cpu_s} s of CPU before run {runs}, {most_s} allowed");
                cpu_s += share * sample.period_s;
                runs += 1;
            } else {
                repeated += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert!(repeated > 0, "Samples follow one another faster than the probe may run");
    }
}
