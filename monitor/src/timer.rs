//! Periods and the moments in them, and how the monitor is woken for these.
//!
//! A timer of the kernel wakes it once for each moment, within microseconds. The timers of the event loop wake it
//! several times before that, and are a millisecond late.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A timer that rings once for each time that it is set.
pub struct Alarm {
    timer: AsyncFd<OwnedFd>,
    due: Option<Instant>,
}

impl Alarm {
    /// An alarm that is not set.
    ///
    /// # Errors
    /// When the kernel gives no timer.
    pub fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: an `OwnedFd` names one descriptor, which stays open as long as the `AsyncFd` holds it.
        let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?;
        Ok(Alarm { timer, due: None })
    }

    /// Replaces the time that was set before. The alarm rings at once for a time in the past.
    pub fn set(&mut self, due: Instant) {
        // Zero would switch the timer off.
        let left = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let no_repeat = Timespec { tv_sec: 0, tv_nsec: 0 };
        let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let value = Timespec { tv_sec, tv_nsec: left.subsec_nanos().into() };
        let time = Itimerspec { it_interval: no_repeat, it_value: value };
        // The kernel refuses malformed times only.
        let _ = timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &time);
        self.due = Some(due);
    }

    /// Waits until it rings and returns the time that it was set to; waits for ever while it is not set.
    pub async fn rings(&mut self) -> Instant {
        loop {
            let Ok(mut ready) = self.timer.readable().await else { return std::future::pending().await };
            // Each expiry makes the descriptor readable again, although it is never read.
            ready.clear_ready();
            if let Some(due) = self.due.take_if(|due| *due <= Instant::now()) {
                return due;
            }
        }
    }
}

/// Wakes the monitor with the first packet after a time without any.
#[derive(Default)]
pub struct Arrival(Option<AsyncFd<OwnedFd>>);

impl Arrival {
    /// Waits from now on for this descriptor to become readable, or for nothing.
    pub fn watch(&mut self, descriptor: Option<RawFd>) {
        if descriptor.is_some() == self.0.is_some() {
            return;
        }
        // A copy, since whoever owns the descriptor may close it meanwhile. Where there is none the looks go on.
        // SAFETY: it is open, as its owner has just named it.
        let copy = descriptor.and_then(|open| unsafe { BorrowedFd::borrow_raw(open) }.try_clone_to_owned().ok());
        // SAFETY: an `OwnedFd` names one descriptor, which stays open as long as the `AsyncFd` holds it.
        self.0 = copy.and_then(|copy| unsafe { AsyncFd::register_with_interest(copy, Interest::READABLE) }.ok());
    }

    /// Whether it waits for a packet.
    pub fn is_watching(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until the descriptor becomes readable; for ever while there is none.
    pub async fn comes(&self) {
        match &self.0 {
            Some(descriptor) => match descriptor.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

/// A clock of the kernel, in nanoseconds.
#[inline]
pub fn clock_ns(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or_default() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or_default()
}

/// Lets this thread's sleeps end within a microsecond of their time; by default the kernel may delay them by 50.
pub fn wake_exactly() {
    // A kernel that refuses wakes a little later.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// The ends of the periods. A period that has ended before the work of the one before it is done is skipped, never made
/// up for.
pub struct Schedule {
    period: Duration,
    due: Instant,
}

impl Schedule {
    /// The first period begins now.
    pub fn new(now: Instant, period: Duration) -> Schedule {
        Schedule { period, due: now + period }
    }

    /// When the running period began.
    pub fn begin(&self) -> Instant {
        self.due - self.period
    }

    /// When the running period ends.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Begins the next period; returns the number of periods that are skipped because they ended before `now`.
    pub fn next(&mut self, now: Instant) -> u64 {
        let late = now.saturating_duration_since(self.due);
        let missed = late.as_nanos() / self.period.as_nanos().max(1);
        let skipped = self.period.saturating_mul(u32::try_from(missed).unwrap_or(u32::MAX));
        self.due += skipped + self.period;
        u64::try_from(missed).unwrap_or(u64::MAX)
    }
}

/// Draws the moment of each period at which the probe runs, differently in each process.
pub struct Jitter {
    period: Duration,
    random: fastrand::Rng,
}

/// The part of a period in which the probe may start.
const PROBE_WITHIN: std::ops::Range<f64> = 0.05..0.85;

impl Jitter {
    /// For periods of this length.
    pub fn new(period: Duration) -> Jitter {
        Jitter { period, random: fastrand::Rng::new() }
    }

    /// A random moment, as the time since the period's begin.
    pub fn draw(&mut self) -> Duration {
        let share = PROBE_WITHIN.start + self.random.f64() * (PROBE_WITHIN.end - PROBE_WITHIN.start);
        self.period.mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_that_a_collector_overran_are_counted_and_never_made_up_for() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut schedule = Schedule::new(start, Duration::from_millis(200));
        let seen: Vec<_> = [200, 401, 590, 1650, 1801, 200_000]
            .map(|ms| (schedule.due() - start, schedule.next(at(ms)), ms))
            .map(|(due, missed, ms)| (due.as_millis(), missed, ms))
            .into();
        assert_eq!(
            seen,
            [
                (200, 0, 200),
                (400, 0, 401),
                (600, 0, 590),
                (800, 4, 1650), // those of 1000, 1200, 1400 and 1600 are left out
                (1800, 0, 1801),
                (2000, 990, 200_000),
            ]
        );
        assert_eq!(schedule.due(), at(200_200), "on the same beat as ever");
    }

    #[test]
    fn a_loop_that_blocks_meets_each_of_its_periods_once_or_counts_it_as_missed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (period, start) = (Duration::from_millis(20), Instant::now());
            let (mut schedule, mut alarm) = (Schedule::new(start, period), Alarm::new().expect("a timer"));
            let (mut taken, mut missed) = (0, 0);
            while taken < 6 {
                alarm.set(schedule.due());
                let due = alarm.rings().await;
                assert_eq!(due, schedule.due());
                assert!(due <= Instant::now(), "none before it is due");
                if taken == 2 {
                    std::thread::sleep(period * 5); // a collector that blocks
                }
                taken += 1;
                missed += schedule.next(Instant::now());
            }
            assert!(missed >= 4, "{missed}");
            assert_eq!(schedule.due() - start, period * (taken + 1 + u32::try_from(missed).expect("a small number")));
        });
    }

    #[test]
    fn an_alarm_that_is_set_anew_rings_for_the_new_time_only() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut alarm = Alarm::new().expect("a timer");
            let (soon, now) = (Duration::from_millis(1), Instant::now());
            alarm.set(now);
            assert_eq!(alarm.rings().await, now);
            alarm.set(now + Duration::from_secs(3600));
            alarm.set(now + soon);
            assert_eq!(alarm.rings().await, now + soon);
            let again = tokio::time::timeout(Duration::from_millis(20), alarm.rings()).await;
            assert!(again.is_err(), "it rang without being set");
        });
    }

    #[test]
    fn an_arrival_wakes_once_for_what_comes_while_it_waits_also_when_its_owner_closes() {
        use std::io::Write as _;
        use std::os::fd::AsRawFd as _;
        use std::os::unix::net::UnixStream;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let soon = Duration::from_millis(20);
            let mut arrival = Arrival::default();
            assert!(tokio::time::timeout(soon, arrival.comes()).await.is_err(), "it waits for nothing");
            let (mut writer, reader) = UnixStream::pair().expect("two ends");
            arrival.watch(Some(reader.as_raw_fd()));
            assert!(tokio::time::timeout(soon, arrival.comes()).await.is_err(), "nothing came");
            writer.write_all(b"x").expect("the reader is there");
            arrival.comes().await;
            arrival.watch(Some(reader.as_raw_fd()));
            assert!(tokio::time::timeout(soon, arrival.comes()).await.is_err(), "once");
            drop(reader);
            writer.write_all(b"x").expect("the copy is open");
            arrival.comes().await;
            arrival.watch(None);
            assert!(!arrival.is_watching() && writer.write_all(b"x").is_err(), "the copy is closed");
        });
    }

    #[test]
    fn the_probe_runs_at_moments_of_its_own_within_the_period() {
        let period = Duration::from_millis(200);
        let offsets = || {
            let mut jitter = Jitter::new(period);
            (0..200).map(|_| jitter.draw()).collect::<Vec<_>>()
        };
        let (one, other) = (offsets(), offsets());
        for offset in one.iter().chain(&other) {
            assert!(*offset >= period.mul_f64(0.05) && *offset < period, "{offset:?}");
        }
        assert!(one.iter().filter(|offset| one[0] == **offset).count() == 1, "it is drawn anew each period");
        let together = one.iter().zip(&other).filter(|(a, b)| a.abs_diff(**b) < Duration::from_millis(1)).count();
        assert!(together < 20, "two monitors share {together} of 200 moments");
        let early = one.iter().filter(|offset| **offset < period.mul_f64(0.45)).count();
        assert!((50..150).contains(&early), "{early} of 200 lie in the first half");
    }
}
