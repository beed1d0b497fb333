//! The probe at moments of its own: a thread that sleeps until a random moment of each period, runs it and sleeps again.
//!
//! A thread, because that is the cheapest way to be woken: the event loop takes several times as long for a moment of its
//! own, also with caches that went cold.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{Length, Probe, Run};
use crate::timer::{Jitter, Schedule, wake_exactly};

/// The probe goes a few calls deep.
const STACK_BYTES: usize = 64 * 1024;

/// A probe that is run for a Sample, or before it at a moment of its own. When this is dropped its thread ends.
pub struct Moments(Arc<Mutex<Shared>>);

struct Shared {
    probe: Probe,
    budget_ns: u64,
    length: Length,
    /// This period's run, and how late it was.
    last: Option<(Run, u64)>,
    /// When the last Sample was taken.
    taken: Option<Instant>,
}

impl Moments {
    /// Runs of at most about `budget_ns`; so far they have no moments of their own.
    pub fn new(probe: Probe, budget_ns: u64) -> Moments {
        let shared = Shared { probe, budget_ns, length: Length::Whole, last: None, taken: None };
        Moments(Arc::new(Mutex::new(shared)))
    }

    /// Begins to run at a moment of each period; the first period begins at `start`.
    ///
    /// # Errors
    /// Why there is no thread.
    pub fn start(&self, start: Instant, period: Duration) -> Result<(), String> {
        let shared = Arc::downgrade(&self.0);
        let thread = thread::Builder::new().name("canary".to_owned()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || run_each_period(&shared, start, period));
        spawned.map(drop).map_err(|error| format!("no thread for the canary: {error}"))
    }

    /// The run of this period with how many nanoseconds it was late; without such a run one is made now. `next` says how
    /// long the next one may be.
    pub fn take(&self, next: impl FnOnce(&Run) -> Length) -> (Run, Option<u64>) {
        let mut shared = lock(&self.0);
        let (run, late_ns) = match shared.last.take() {
            Some((run, late_ns)) => (run, Some(late_ns)),
            None => (shared.run(), None),
        };
        shared.length = next(&run);
        shared.taken = Some(Instant::now());
        (run, late_ns)
    }

    /// Runs it as if `moment` had been drawn and its thread woken now.
    pub fn run_at(&self, moment: Instant) {
        lock(&self.0).run_at(moment);
    }

    /// Why slow loads cannot be told from fast ones here.
    pub fn why_no_slow_share(&self) -> Option<String> {
        lock(&self.0).probe.why_no_slow_share().map(str::to_owned)
    }
}

impl Shared {
    fn run(&mut self) -> Run {
        self.probe.run(self.budget_ns, self.length)
    }

    /// The moment has come, or has passed: a Sample that was taken since then made its own run.
    fn run_at(&mut self, moment: Instant) {
        if self.taken.is_none_or(|taken| taken < moment) {
            let late_ns = u64::try_from(moment.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.last = Some((self.run(), late_ns));
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_each_period(shared: &Weak<Mutex<Shared>>, start: Instant, period: Duration) {
    wake_exactly();
    let (mut schedule, mut jitter) = (Schedule::new(start, period), Jitter::new(period));
    loop {
        let moment = schedule.begin() + jitter.draw();
        thread::sleep(moment.saturating_duration_since(Instant::now()));
        let Some(shared) = shared.upgrade() else { return };
        lock(&shared).run_at(moment);
        schedule.next(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments() -> Moments {
        Moments::new(Probe::new(1024), 1 << 40)
    }

    fn whole(_: &Run) -> Length {
        Length::Whole
    }

    #[test]
    fn it_runs_once_in_each_period_by_itself_and_ends_when_nobody_asks_any_more() {
        let (moments, start, period) = (moments(), Instant::now(), Duration::from_millis(20));
        moments.start(start, period).expect("a thread");
        let deadline = start + Duration::from_secs(30);
        let mut seen = 0;
        while seen < 5 && Instant::now() < deadline {
            thread::sleep(period);
            seen += u32::from(moments.take(whole).1.is_some());
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
        assert_eq!(moments.take(whole).1, None, "it ran with the Sample");
        moments.run_at(before);
        assert_eq!(moments.take(whole).1, None, "that Sample had its run");
        let moment = Instant::now();
        thread::sleep(Duration::from_millis(5));
        moments.run_at(moment);
        assert!(moments.take(whole).1.is_some_and(|late_ns| late_ns >= 5_000_000));
    }

    #[test]
    fn the_next_run_is_as_long_as_the_last_sample_wanted() {
        let moments = moments();
        let (first, _) = moments.take(|_| Length::Short);
        let (second, _) = moments.take(whole);
        assert_eq!((first.loads, second.loads), (512, 256));
    }
}
