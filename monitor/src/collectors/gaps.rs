//! Gaps: time in which the machine itself did not run, felt at random moments without a hypervisor's help.
//!
//! A thread sleeps until a moment that is drawn in each interval of `1 / gaps.moments_per_s`. When it wakes later than
//! that, either its own kernel's run queue kept it, which the kernel counts (`wakeup`), or nobody ran at that moment.
//! The share of such moments is the share of time that is lost, since random moments see the mean over time (Wolff,
//! "Poisson Arrivals See Time Averages", 1982; drawn one in each interval they are spread more evenly still). Its
//! standard error is at most that of as many coin tosses, `sqrt(share (1 - share) / moments)`.
//!
//! A loop that reads the clock for as much CPU time finds a gap only if one begins meanwhile, which is some thousand times
//! less often: docs/results/signals.md compares both.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use slackwater_messages::{Gaps as Section, Sample};
use slackwater_node::sync::lock;
use slackwater_node::system::System;

use super::metric::metrics;
use super::{Collector, CollectorKind, put};
use crate::bell::Bell;
use crate::config::Settings;
use crate::counter_delta::NO_TIME;
use crate::pace::Watch;
use crate::reason::Reason;
use crate::timer::wake_exactly;
use crate::wakeup::{Scheduled, Wakeups};

/// A timer that is late by no more than this counts as on time: interrupts and idle states of the CPU take as long.
const ON_TIME_NS: u64 = 300_000;
const NO_MOMENT: &str = "none of its moments lay in this period";
/// The thread goes a few calls deep.
const STACK_BYTES: usize = 64 * 1024;

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "gaps",
    open,
    metrics: metrics! {
        Gauge "gaps_ratio" ["kind" = "lost"] "Share of random moments at which the machine did not run, or at which its own run queue kept the probe." => |s| s.gaps.as_ref()?.lost_share;
        Gauge "gaps_ratio" ["kind" = "queued"] "" => |s| s.gaps.as_ref()?.queued_share;
        Gauge "gaps_longest_seconds" "The longest time that the machine was seen not to run." => |s| Some(s.gaps.as_ref()?.longest_ms? / 1e3);
    },
};

fn open(settings: &Settings, system: &System) -> Box<dyn Collector> {
    let interval_ns = (1e9 / settings.gaps.moments_per_s) as u64;
    Box::new(Gaps { proc: system.proc.clone(), interval_ns, shared: None, bell: Arc::default() })
}

struct Gaps {
    proc: PathBuf,
    interval_ns: u64,
    /// Shared with its thread. `None` until privileges are given up, because each thread has privileges of its own.
    shared: Option<Shared>,
    /// Wakes the loop when a gap is unusual.
    bell: Arc<Bell>,
}

type Shared = Arc<Mutex<Result<MomentCounts, Reason>>>;

/// Counts of the moments since the last Sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct MomentCounts {
    moments: u64,
    lost: u64,
    queued: u64,
    longest_ns: u64,
    longest_queued_ns: u64,
    cpu_ns: u64,
}

impl MomentCounts {
    /// Adds a wake-up that was due at `due_ns` and came at `woke_ns`. `drawn` are the moments from the first to the
    /// second.
    fn add(&mut self, due_ns: u64, woke_ns: u64, scheduled: Scheduled, drawn: impl Iterator<Item = u64>) {
        let late_ns = woke_ns.saturating_sub(due_ns);
        let timer_ns = late_ns.saturating_sub(scheduled.queued_ns);
        for moment_ns in drawn {
            self.moments += 1;
            // The machine stood still first; then the thread waited in the run queue.
            let is_lost = due_ns + timer_ns > moment_ns + ON_TIME_NS;
            self.lost += u64::from(is_lost);
            self.queued += u64::from(!is_lost && woke_ns > moment_ns + ON_TIME_NS);
        }
        if timer_ns > ON_TIME_NS {
            self.longest_ns = self.longest_ns.max(timer_ns);
        }
        self.longest_queued_ns = self.longest_queued_ns.max(late_ns - timer_ns);
        self.cpu_ns += scheduled.cpu_ns;
    }
}

/// The moments: one in each interval, at a random place.
struct Draws {
    interval_ns: u64,
    begin_ns: u64,
    next_ns: u64,
    random: fastrand::Rng,
}

impl Draws {
    fn new(interval_ns: u64, random: fastrand::Rng) -> Draws {
        let mut draws = Draws { interval_ns: interval_ns.max(1), begin_ns: 0, next_ns: 0, random };
        draws.next_ns = draws.random.u64(0..draws.interval_ns);
        draws
    }

    /// The moments up to `now_ns`, oldest first. The iterator draws them.
    fn passed(&mut self, now_ns: u64) -> impl Iterator<Item = u64> {
        std::iter::from_fn(move || {
            let moment_ns = self.next_ns;
            (moment_ns <= now_ns).then(|| {
                self.begin_ns += self.interval_ns;
                self.next_ns = self.begin_ns + self.random.u64(0..self.interval_ns);
                moment_ns
            })
        })
    }
}

/// Sleeps from moment to moment until the collector is dropped.
fn sleep_and_wake(shared: &Weak<Mutex<Result<MomentCounts, Reason>>>, bell: &Bell, proc: &Path, interval_ns: u64) {
    wake_exactly();
    let (mut wakeups, start) = (Wakeups::open(proc), Instant::now());
    let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut draws = Draws::new(interval_ns, fastrand::Rng::new());
    loop {
        let due_ns = draws.next_ns;
        thread::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns())));
        let (woke_ns, scheduled) = (now_ns(), wakeups.since_last());
        let Some(shared) = shared.upgrade() else { return };
        let mut counts = lock(&shared);
        match scheduled {
            Ok(scheduled) => {
                let mut sum = counts.clone().unwrap_or_default();
                sum.add(due_ns, woke_ns, scheduled, draws.passed(woke_ns));
                bell.longest(sum.longest_ns, sum.longest_queued_ns);
                *counts = Ok(sum);
            }
            Err(reason) => {
                draws.passed(woke_ns).for_each(drop);
                *counts = Err(reason);
            }
        }
    }
}

impl Gaps {
    fn run(&mut self) {
        if self.shared.is_some() {
            return;
        }
        let shared = Arc::new(Mutex::new(Ok(MomentCounts::default())));
        let (weak, bell) = (Arc::downgrade(&shared), Arc::clone(&self.bell));
        let (proc, interval_ns) = (self.proc.clone(), self.interval_ns);
        let thread = thread::Builder::new().name("gaps".to_owned()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || sleep_and_wake(&weak, &bell, &proc, interval_ns)) {
            *lock(&shared) = Err(format!("no thread that wakes at random moments: {error}").into());
        }
        self.shared = Some(shared);
    }
}

impl Collector for Gaps {
    fn start(&mut self, _start: Instant, _period: Duration, bell: &Arc<Bell>) {
        self.bell = Arc::clone(bell);
        self.run();
    }

    fn drain(&mut self) {
        self.run();
    }

    fn watch(&mut self, watch: &mut Watch) {
        let Some(shared) = &self.shared else { return };
        if let Ok(tally) = &*lock(shared) {
            watch.gap_ms = Some(tally.longest_ns as f64 / 1e6);
            watch.queued_ms = Some(tally.longest_queued_ns as f64 / 1e6);
        }
    }

    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        self.run();
        let Some(shared) = &self.shared else { return Ok(()) };
        let tally = match &mut *lock(shared) {
            Ok(tally) => std::mem::take(tally),
            Err(reason) => return Err(reason.clone()),
        };
        if tally.moments == 0 {
            return Err(NO_MOMENT.into());
        }
        sample.gaps = Some(section(sample, &tally));
        Ok(())
    }
}

fn section(sample: &mut Sample, tally: &MomentCounts) -> Section {
    let share = |count: u64| Some(count as f64 / tally.moments as f64);
    let mut gaps = Section {
        moments: Some(tally.moments),
        lost_share: share(tally.lost),
        queued_share: share(tally.queued),
        longest_ms: Some(tally.longest_ns as f64 / 1e6),
        cpu_share: None,
    };
    let cpu_s = tally.cpu_ns as f64 / 1e9;
    put!(sample, gaps.cpu_share, if sample.period_s > 0.0 { Ok(cpu_s / sample.period_s) } else { Err(NO_TIME) });
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    const MS: u64 = 1_000_000;

    fn tally(due_ms: u64, woke_ms: u64, queued_ms: u64, drawn_ms: &[u64]) -> MomentCounts {
        let mut tally = MomentCounts::default();
        let scheduled = Scheduled { queued_ns: queued_ms * MS, cpu_ns: 7 };
        tally.add(due_ms * MS, woke_ms * MS, scheduled, drawn_ms.iter().map(|ms| ms * MS));
        tally
    }

    #[test]
    fn a_late_timer_is_lost_time_and_a_wait_in_the_own_queue_is_not() {
        let counts = |tally: MomentCounts| (tally.moments, tally.lost, tally.queued, tally.longest_ns / MS);
        assert_eq!(counts(tally(10, 10, 0, &[10])), (1, 0, 0, 0), "on time");
        assert_eq!(counts(tally(10, 15, 0, &[10])), (1, 1, 0, 5));
        assert_eq!(counts(tally(10, 15, 5, &[10])), (1, 0, 1, 0), "the machine ran something else");
        assert_eq!(counts(tally(10, 15, 900, &[10])), (1, 0, 1, 0), "also its earlier waits");
    }

    #[test]
    fn a_long_gap_loses_each_moment_in_it() {
        // Nothing ran for 60 ms, then the thread waited in the queue for 40.
        let tally = tally(10, 110, 40, &[10, 35, 65, 75, 105]);
        assert_eq!((tally.moments, tally.lost, tally.queued), (5, 3, 2));
        assert_eq!((tally.longest_ns, tally.longest_queued_ns), (60 * MS, 40 * MS));
    }

    #[test]
    fn each_interval_has_one_moment_also_those_that_were_slept_through() {
        let mut draws = Draws::new(50 * MS, fastrand::Rng::with_seed(7));
        let mut moments: Vec<u64> = Vec::new();
        for now_ms in [20, 400, 401, 1000] {
            moments.extend(draws.passed(now_ms * MS));
        }
        assert_eq!(moments.iter().map(|ns| ns / (50 * MS)).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        let offsets: std::collections::BTreeSet<u64> = moments.iter().map(|ns| ns % (50 * MS)).collect();
        assert!(offsets.len() > 15, "{moments:?}");
    }

    #[test]
    fn the_share_found_is_the_share_lost_within_its_standard_error() {
        // A neighbour takes 5 ms of each 20 at a steady beat; the thread sleeps through the rest of a gap.
        let mut draws = Draws::new(50 * MS, fastrand::Rng::with_seed(1));
        let mut tally = MomentCounts::default();
        for _ in 0..20_000 {
            let due_ns = draws.next_ns;
            let gap_ends_ns = due_ns / (20 * MS) * 20 * MS + 5 * MS;
            let woke_ns = due_ns.max(gap_ends_ns);
            tally.add(due_ns, woke_ns, Scheduled { queued_ns: 0, cpu_ns: 0 }, draws.passed(woke_ns));
        }
        // What is left of a gap when it is met must be longer than `ON_TIME_NS`.
        let expected = (5.0 - 0.3) / 20.0;
        let share = tally.lost as f64 / tally.moments as f64;
        let error = (expected * (1.0 - expected) / tally.moments as f64).sqrt();
        assert!((share - expected).abs() < 4.0 * error, "{share} instead of {expected} +- {error}");
        assert!(tally.longest_ns <= 5 * MS && tally.longest_ns > 49 * MS / 10, "{tally:?}");
    }

    #[test]
    fn a_section_has_shares_of_its_moments_or_the_reason_why_not() {
        let mut sample = Sample { period_s: 0.2, ..Sample::default() };
        let tally =
            MomentCounts { moments: 4, lost: 1, queued: 2, longest_ns: 3 * MS, longest_queued_ns: MS, cpu_ns: 20_000 };
        let gaps = section(&mut sample, &tally);
        assert_eq!((gaps.moments, gaps.lost_share, gaps.queued_share), (Some(4), Some(0.25), Some(0.5)));
        assert_eq!((gaps.longest_ms, gaps.cpu_share), (Some(3.0), Some(0.0001)));
        assert!(sample.absent.is_empty(), "{:?}", sample.absent);
        sample.period_s = 0.0;
        assert_eq!(section(&mut sample, &tally).cpu_share, None);
        assert_eq!(sample.absent["gaps.cpu_share"], NO_TIME);
    }

    #[test]
    fn its_thread_wakes_by_itself_and_ends_with_the_collector() {
        let mut gaps = Gaps { proc: "/proc".into(), interval_ns: 5 * MS, shared: None, bell: Arc::default() };
        gaps.drain();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut moments = 0;
        while moments < 20 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
            let mut sample = Sample { period_s: 0.02, ..Sample::default() };
            let mut watch = Watch::default();
            gaps.watch(&mut watch);
            assert!(watch.gap_ms.is_some() && watch.queued_ms.is_some() && watch.in_flight.is_none(), "{watch:?}");
            if let Err(reason) = gaps.collect(&mut sample) {
                assert_eq!(reason, NO_MOMENT.into());
                continue;
            }
            let section = sample.gaps.expect("a value");
            moments += section.moments.expect("a count");
            assert!(section.lost_share.is_some_and(|share| (0.0..=1.0).contains(&share)), "{section:?}");
        }
        assert!(moments >= 20, "{moments}");
        let left = gaps.shared.as_ref().map(Arc::downgrade).expect("a thread");
        drop(gaps);
        while left.upgrade().is_some() {
            assert!(Instant::now() < deadline, "the thread does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn without_the_schedulers_account_the_section_has_its_reason() {
        let fixture = Fixture::new(&[]);
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut sample = collector.sample();
        while !sample.absent["gaps"].ends_with("thread-self/schedstat: is not there") {
            assert!(Instant::now() < deadline, "no reason comes: {:?}", sample.absent);
            thread::sleep(Duration::from_millis(5));
            sample = collector.sample();
        }
    }
}
