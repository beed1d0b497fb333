//! The probe at moments of its own: a thread sleeps until a random moment of each period, runs the probe and sleeps
//! again.
//!
//! It is a thread because that is the cheapest thing to wake: the event loop takes several times as long, also with
//! caches that went cold.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use slackwater_node::sync::lock;

use super::{Length, Probe, ProbeRun};
use crate::reason::Reason;
use crate::timer::{Jitter, Schedule, wake_exactly};
use crate::wakeup::Wakeups;

/// The probe goes a few calls deep.
const STACK_BYTES: usize = 64 * 1024;

/// A probe that is run for a Sample, or before it at a moment of its own. When this is dropped its thread ends.
pub struct Moments(Arc<Mutex<Shared>>);

struct Shared {
    probe: Probe,
    budget_ns: u64,
    next: NextRun,
    /// This period's run, and how late it was.
    last: Option<(ProbeRun, Lateness)>,
    /// The number of periods that the thread leaves out after this run.
    left_out: u32,
    /// The run that the Samples of left-out periods get, and how many such periods are still to come.
    repeated: Option<(ProbeRun, u32)>,
    /// When the last Sample was taken.
    taken: Option<Instant>,
    /// Share of a core that runs with a Sample may take.
    most_cpu_share: f64,
    /// The last run, with its end.
    ran: Option<(ProbeRun, Instant)>,
}

/// How the next runs are to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextRun {
    /// How much a run does.
    pub length: Length,
    /// The number of periods that are left out between two runs.
    pub left_out: u32,
}

/// How much later than its moment a run began, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lateness {
    /// The whole lateness.
    pub ns: u64,
    /// The part before the thread was put into the run queue; `None` where the kernel does not count the queue's part.
    pub timer_ns: Option<u64>,
}

/// When the run of a Sample was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOrigin {
    /// The run was made at its moment, this late.
    Lateness(Lateness),
    /// The run was made with the Sample, since no moment fell into this period.
    Now,
    /// The run is of an earlier period; that of this one was left out.
    Before,
    /// The run is of an earlier Sample, so recent that another would take more than the probe's share of a core.
    Recent,
}

impl Moments {
    /// Runs take at most about `budget_ns`, and those that a Sample makes no more than `most_cpu_share` of a core.
    /// Before `start` there are no moments.
    pub fn new(probe: Probe, budget_ns: u64, most_cpu_share: f64) -> Moments {
        let next = NextRun { length: Length::Whole, left_out: 0 };
        let (last, left_out, repeated, taken, ran) = (None, 0, None, None, None);
        let shared = Shared { probe, budget_ns, next, last, left_out, repeated, taken, most_cpu_share, ran };
        Moments(Arc::new(Mutex::new(shared)))
    }

    /// Begins to run at a moment of each period; the first period begins at `start`. `proc` is usually `/proc`.
    ///
    /// # Errors
    /// Why there is no thread.
    pub fn start(&self, proc: PathBuf, start: Instant, period: Duration) -> io::Result<()> {
        let shared = Arc::downgrade(&self.0);
        let thread = thread::Builder::new().name("canary".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || run_each_period(&shared, &mut Wakeups::open(&proc), start, period)).map(drop)
    }

    /// The run of this period, or the last one when this period was left out. Without either a run is made now, or the
    /// last one is taken again if it is too recent. `next` decides how the next runs are made.
    pub fn take(&self, next: impl FnOnce(&ProbeRun, RunOrigin) -> NextRun) -> (ProbeRun, RunOrigin) {
        let mut shared = lock(&self.0);
        let repeated = shared.repeated.take();
        let (run, when, left_out) = match (shared.last.take(), repeated) {
            (Some((run, late)), _) => (run, RunOrigin::Lateness(late), shared.left_out),
            (None, Some((run, left_out))) => (run, RunOrigin::Before, left_out - 1),
            (None, None) => match shared.ran_recently() {
                Some(run) => (run, RunOrigin::Recent, 0),
                None => (shared.run(), RunOrigin::Now, 0),
            },
        };
        shared.repeated = (left_out > 0).then_some((run, left_out));
        shared.next = next(&run, when);
        shared.taken = Some(Instant::now());
        (run, when)
    }

    /// Runs the probe as if `moment` had been drawn and the thread had woken now, after `queued_ns` in the run queue
    /// where that is known. Returns how many periods are left out after it.
    pub fn run_at(&self, moment: Instant, queued_ns: Option<u64>) -> u32 {
        lock(&self.0).run_at(moment, queued_ns)
    }

    /// Why slow and fast loads cannot be distinguished here.
    pub fn why_no_slow_share(&self) -> Option<Reason> {
        lock(&self.0).probe.why_no_slow_share().cloned()
    }
}

impl Shared {
    fn run(&mut self) -> ProbeRun {
        let run = self.probe.run(self.budget_ns, self.next.length);
        self.ran = Some((run, Instant::now()));
        run
    }

    /// The last run, while another one would take more than the allowed share of a core.
    fn ran_recently(&self) -> Option<ProbeRun> {
        let (run, ended) = self.ran?;
        let is_recent = ended.elapsed().as_nanos() as f64 * self.most_cpu_share < run.spent.cpu_ns as f64;
        is_recent.then_some(run)
    }

    /// Runs the probe, unless a Sample that was taken since `moment` has made its own run. Returns how many periods are
    /// left out after it.
    fn run_at(&mut self, moment: Instant, queued_ns: Option<u64>) -> u32 {
        if self.taken.is_some_and(|taken| taken >= moment) {
            return 0;
        }
        let ns = u64::try_from(moment.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let late = Lateness { ns, timer_ns: queued_ns.map(|queued_ns| ns.saturating_sub(queued_ns)) };
        self.last = Some((self.run(), late));
        self.left_out = self.next.left_out;
        self.left_out
    }
}

fn run_each_period(shared: &Weak<Mutex<Shared>>, wakeups: &mut Wakeups, start: Instant, period: Duration) {
    wake_exactly();
    let (mut schedule, mut jitter) = (Schedule::new(start, period), Jitter::new(period));
    loop {
        let moment = schedule.begin() + jitter.draw();
        // Waiting during the run before does not count.
        let _ = wakeups.since_last();
        thread::sleep(moment.saturating_duration_since(Instant::now()));
        let queued_ns = wakeups.since_last().ok().map(|scheduled| scheduled.queued_ns);
        let Some(shared) = shared.upgrade() else { return };
        let left_out = lock(&shared).run_at(moment, queued_ns);
        schedule.next(Instant::now());
        for _ in 0..left_out {
            schedule.next(schedule.begin());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments() -> Moments {
        Moments::new(Probe::new(1024), 1 << 40, f64::INFINITY)
    }

    fn whole(_: &ProbeRun, _: RunOrigin) -> NextRun {
        NextRun { length: Length::Whole, left_out: 0 }
    }

    #[test]
    fn it_runs_once_in_each_period_by_itself_and_ends_when_nobody_asks_any_more() {
        let (moments, start, period) = (moments(), Instant::now(), Duration::from_millis(20));
        moments.start("/proc".into(), start, period).expect("a thread");
        let deadline = start + Duration::from_secs(30);
        let mut own_runs = 0;
        while own_runs < 5 && Instant::now() < deadline {
            thread::sleep(period);
            own_runs += u32::from(matches!(moments.take(whole).1, RunOrigin::Lateness(_)));
        }
        assert_eq!(own_runs, 5);
        let left = Arc::downgrade(&moments.0);
        drop(moments);
        while left.upgrade().is_some() {
            assert!(Instant::now() < deadline, "the thread does not end");
            thread::sleep(period);
        }
    }

    #[test]
    fn a_moment_before_the_last_sample_is_left_out_and_a_late_one_says_how_late() {
        let moments = moments();
        let before = Instant::now();
        assert_eq!(moments.take(whole).1, RunOrigin::Now, "it ran with the Sample");
        moments.run_at(before, None);
        assert_eq!(moments.take(whole).1, RunOrigin::Now, "that Sample had its run");
        let moment = Instant::now();
        thread::sleep(Duration::from_millis(5));
        moments.run_at(moment, Some(2_000_000));
        let RunOrigin::Lateness(late) = moments.take(whole).1 else { panic!("at its moment") };
        assert!(late.ns >= 5_000_000 && late.timer_ns == Some(late.ns - 2_000_000), "{late:?}");
    }

    #[test]
    fn samples_that_follow_one_another_share_a_run_until_the_probe_may_run_again() {
        let moments = Moments::new(Probe::new(1024), 1 << 40, 1e-9);
        let (first, when) = moments.take(whole);
        assert_eq!(when, RunOrigin::Now);
        assert_eq!(moments.take(whole), (first, RunOrigin::Recent));
        moments.run_at(Instant::now(), None);
        assert!(matches!(moments.take(whole).1, RunOrigin::Lateness(_)), "its own moments stay");
        lock(&moments.0).most_cpu_share = f64::INFINITY;
        assert_eq!(moments.take(whole).1, RunOrigin::Now);
    }

    #[test]
    fn where_runs_are_rare_each_is_repeated_and_a_change_holds_from_the_next_run_on() {
        let moments = moments();
        let seldom = |_: &ProbeRun, _: RunOrigin| NextRun { length: Length::Whole, left_out: 2 };
        assert_eq!(moments.take(seldom).1, RunOrigin::Now);
        assert_eq!(moments.run_at(Instant::now(), None), 2, "the periods after it are left out");
        let (first, _) = moments.take(seldom);
        for next in [seldom, whole] {
            assert_eq!(moments.take(next), (first, RunOrigin::Before));
        }
        assert_eq!(moments.run_at(Instant::now(), None), 0, "no longer");
        assert!(matches!(moments.take(whole).1, RunOrigin::Lateness(_)));
        assert_eq!(moments.take(whole).1, RunOrigin::Now, "nothing is repeated that was not left out");
    }

    #[test]
    fn the_next_run_is_as_long_as_the_last_sample_wanted() {
        let moments = moments();
        let (first, _) = moments.take(|_, _| NextRun { length: Length::Short, left_out: 0 });
        let (second, _) = moments.take(whole);
        assert_eq!((first.loads, second.loads), (512, 256));
    }
}
