//! The probe at moments of its own: a thread that sleeps until a random moment of each period, runs it and sleeps again.
//!
//! A thread, because that is the cheapest to wake: the event loop takes several times as long for a moment of its
//! own, also with caches that went cold.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{Length, Probe, Run};
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
    last: Option<(Run, Late)>,
    /// So many periods the thread leaves out after this run, as it was set.
    left_out: u32,
    /// What the Samples of the periods that are left out get, and how many such periods are still to come.
    repeated: Option<(Run, u32)>,
    /// When the last Sample was taken.
    taken: Option<Instant>,
    /// Share of a core for runs that a Sample makes, and the last run with its end.
    most_cpu_share: f64,
    ran: Option<(Run, Instant)>,
}

/// What a Sample wants of those to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextRun {
    /// How much a run does.
    pub length: Length,
    /// So many periods between two runs are left out.
    pub left_out: u32,
}

/// How much later than at its moment a run began, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late {
    /// The whole lateness.
    pub ns: u64,
    /// The part before the thread was put into the run queue; `None` where the kernel does not count the wait in it.
    pub timer_ns: Option<u64>,
}

/// When the run of a Sample was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The run was made at its moment, this late.
    Late(Late),
    /// The run was made with the Sample, since no moment fell into this period.
    Now,
    /// The run is of an earlier period; that of this one was left out.
    Before,
    /// The run is of an earlier Sample, so recent that another would take more than the probe's share of a core.
    Recent,
}

impl Moments {
    /// Runs of at most about `budget_ns`, and those that a Sample makes of no more than `most_cpu_share` of a core; so far
    /// they have no moments of their own.
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

    /// The run of this period; where it was left out, the last one; without such a run one is made now, unless the last one
    /// was too recent: then it is that one. `next` is what is set for the next ones.
    pub fn take(&self, next: impl FnOnce(&Run, When) -> NextRun) -> (Run, When) {
        let mut shared = lock(&self.0);
        let repeated = shared.repeated.take();
        let (run, when, left_out) = match (shared.last.take(), repeated) {
            (Some((run, late)), _) => (run, When::Late(late), shared.left_out),
            (None, Some((run, left_out))) => (run, When::Before, left_out - 1),
            (None, None) => match shared.ran_recently() {
                Some(run) => (run, When::Recent, 0),
                None => (shared.run(), When::Now, 0),
            },
        };
        shared.repeated = (left_out > 0).then_some((run, left_out));
        shared.next = next(&run, when);
        shared.taken = Some(Instant::now());
        (run, when)
    }

    /// Runs it as if `moment` had been drawn and its thread woken now, after so long in the run queue, if that is known;
    /// how many periods are left out after it.
    pub fn run_at(&self, moment: Instant, queued_ns: Option<u64>) -> u32 {
        lock(&self.0).run_at(moment, queued_ns)
    }

    /// Why slow and fast loads cannot be distinguished here.
    pub fn why_no_slow_share(&self) -> Option<Reason> {
        lock(&self.0).probe.why_no_slow_share().cloned()
    }
}

impl Shared {
    fn run(&mut self) -> Run {
        let run = self.probe.run(self.budget_ns, self.next.length);
        self.ran = Some((run, Instant::now()));
        run
    }

    /// The last run, while the time since its end is too short for what it took.
    fn ran_recently(&self) -> Option<Run> {
        let (run, ended) = self.ran?;
        let is_recent = ended.elapsed().as_nanos() as f64 * self.most_cpu_share < run.spent.cpu_ns as f64;
        is_recent.then_some(run)
    }

    /// The moment has come, or has passed: a Sample that was taken since then made its own run. How many periods are left
    /// out after it.
    fn run_at(&mut self, moment: Instant, queued_ns: Option<u64>) -> u32 {
        if self.taken.is_some_and(|taken| taken >= moment) {
            return 0;
        }
        let ns = u64::try_from(moment.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let late = Late { ns, timer_ns: queued_ns.map(|queued_ns| ns.saturating_sub(queued_ns)) };
        self.last = Some((self.run(), late));
        self.left_out = self.next.left_out;
        self.left_out
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_each_period(shared: &Weak<Mutex<Shared>>, wakeups: &mut Wakeups, start: Instant, period: Duration) {
    wake_exactly();
    let (mut schedule, mut jitter) = (Schedule::new(start, period), Jitter::new(period));
    loop {
        let moment = schedule.begin() + jitter.draw();
        // What it waited in the run before does not count.
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

    fn whole(_: &Run, _: When) -> NextRun {
        NextRun { length: Length::Whole, left_out: 0 }
    }

    #[test]
    fn it_runs_once_in_each_period_by_itself_and_ends_when_nobody_asks_any_more() {
        let (moments, start, period) = (moments(), Instant::now(), Duration::from_millis(20));
        moments.start("/proc".into(), start, period).expect("a thread");
        let deadline = start + Duration::from_secs(30);
        let mut seen = 0;
        while seen < 5 && Instant::now() < deadline {
            thread::sleep(period);
            seen += u32::from(matches!(moments.take(whole).1, When::Late(_)));
        }
        assert_eq!(seen, 5, "runs of its own");
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
        assert_eq!(moments.take(whole).1, When::Now, "it ran with the Sample");
        moments.run_at(before, None);
        assert_eq!(moments.take(whole).1, When::Now, "that Sample had its run");
        let moment = Instant::now();
        thread::sleep(Duration::from_millis(5));
        moments.run_at(moment, Some(2_000_000));
        let When::Late(late) = moments.take(whole).1 else { panic!("at its moment") };
        assert!(late.ns >= 5_000_000 && late.timer_ns == Some(late.ns - 2_000_000), "{late:?}");
    }

    #[test]
    fn samples_that_follow_one_another_share_a_run_until_the_probe_may_run_again() {
        let moments = Moments::new(Probe::new(1024), 1 << 40, 1e-9);
        let (first, when) = moments.take(whole);
        assert_eq!(when, When::Now);
        assert_eq!(moments.take(whole), (first, When::Recent));
        moments.run_at(Instant::now(), None);
        assert!(matches!(moments.take(whole).1, When::Late(_)), "its own moments stay");
        lock(&moments.0).most_cpu_share = f64::INFINITY;
        assert_eq!(moments.take(whole).1, When::Now);
    }

    #[test]
    fn where_runs_are_rare_each_is_repeated_and_a_change_holds_from_the_next_run_on() {
        let moments = moments();
        let seldom = |_: &Run, _: When| NextRun { length: Length::Whole, left_out: 2 };
        assert_eq!(moments.take(seldom).1, When::Now);
        assert_eq!(moments.run_at(Instant::now(), None), 2, "the periods after it are left out");
        let (first, _) = moments.take(seldom);
        for next in [seldom, whole] {
            assert_eq!(moments.take(next), (first, When::Before));
        }
        assert_eq!(moments.run_at(Instant::now(), None), 0, "no longer");
        assert!(matches!(moments.take(whole).1, When::Late(_)));
        assert_eq!(moments.take(whole).1, When::Now, "nothing is repeated that was not left out");
    }

    #[test]
    fn the_next_run_is_as_long_as_the_last_sample_wanted() {
        let moments = moments();
        let (first, _) = moments.take(|_, _| NextRun { length: Length::Short, left_out: 0 });
        let (second, _) = moments.take(whole);
        assert_eq!((first.loads, second.loads), (512, 256));
    }
}
