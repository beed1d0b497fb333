//! The loop: one Sample a period to the bus, until a signal ends it.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use crate::bus::{Bus, subject};
use crate::config::Settings;
use crate::inputs::Inputs;
use crate::metrics::{Metrics, http};
use crate::sampler::Sampler;

/// Overruns are reported at most once in this time.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Time between two drains of the sniffer's ring at least, so that a flood of packets does not become one of wake-ups.
const DRAIN_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// The part of a period in which the probe may start.
const PROBE_WITHIN: std::ops::Range<f64> = 0.05..0.85;

/// The time between two drains for who cannot wait for the ring: several a period, and often enough for the ring however
/// long the period is.
pub fn drain_every(period: Duration) -> Duration {
    (period / 4).min(Duration::from_millis(100))
}

/// Publishes Samples until SIGTERM or SIGINT.
///
/// # Errors
/// What keeps the monitor from starting.
pub fn run(settings: &Settings, inputs: &Inputs) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no event loop: {error}"))?;
    runtime.block_on(publish(settings, inputs))
}

async fn publish(settings: &Settings, inputs: &Inputs) -> Result<(), String> {
    let cannot_listen = |error: std::io::Error| format!("cannot listen for signals: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot_listen)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot_listen)?;
    let subject = subject(&settings.pool, &settings.node);
    let name = format!("slackwater-monitor {}", settings.node);
    let mut bus = Bus::open(&settings.bus, &name, subject.clone()).await?;
    let mut sampler = Sampler::open(settings, inputs)?;
    let metrics = Metrics::new(&settings.node, &settings.pool);
    open_page(settings, &metrics).await;
    eprintln!("slackwater-monitor: publishing {subject} every {} s", settings.period_s);

    let period = Duration::from_secs_f64(settings.period_s);
    let mut periods = ticks(period);
    let mut overruns = Overruns::new(Instant::now(), period);
    let mut jitter = Jitter::new(period);
    let mut probe_at = Some(Instant::now() + jitter.next());
    let mut ring = Ring::default();
    loop {
        ring.watch(sampler.wakes_on());
        tokio::select! {
            due = periods.tick() => {
                let mut sample = sampler.take();
                sample.periods_missed = overruns.count(due);
                metrics.take(&sample, sampler.response_times(), bus.sent());
                bus.publish(sample).await;
                probe_at = Some(due + jitter.next());
                if let Some(sentence) = overruns.sentence(due) {
                    eprintln!("slackwater-monitor: {sentence}");
                }
            }
            at = reached(probe_at) => {
                probe_at = None;
                sampler.probe(u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
            () = ring.readable() => sampler.drain(),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    bus.close().await;
    eprintln!("slackwater-monitor: ended by a signal");
    Ok(())
}

/// The page is no reason not to start: somebody else may have its port.
async fn open_page(settings: &Settings, metrics: &Metrics) {
    if settings.metrics.listen.is_empty() {
        return;
    }
    match http::listen(&settings.metrics.listen).await {
        Ok(listener) => {
            tokio::spawn(http::serve(listener, metrics.clone()));
        }
        Err(error) => eprintln!("slackwater-monitor: no page for Prometheus: {error}"),
    }
}

/// Waits for that time; for ever without one.
async fn reached(time: Option<Instant>) -> Instant {
    match time {
        Some(time) => {
            sleep_until(time).await;
            time
        }
        None => std::future::pending().await,
    }
}

/// Ticks that are left out, not made up for, when one comes late.
fn ticks(every: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// Draws the moment of each period at which the probe runs, differently in each process.
struct Jitter {
    period: Duration,
    random: fastrand::Rng,
}

impl Jitter {
    fn new(period: Duration) -> Jitter {
        Jitter { period, random: fastrand::Rng::new() }
    }

    fn next(&mut self) -> Duration {
        let share = PROBE_WITHIN.start + self.random.f64() * (PROBE_WITHIN.end - PROBE_WITHIN.start);
        self.period.mul_f64(share)
    }
}

/// Waits for the sniffer's ring, which may be opened anew at any time.
#[derive(Default)]
struct Ring {
    watched: Option<AsyncFd<Rc<OwnedFd>>>,
    drained: Option<Instant>,
}

impl Ring {
    fn watch(&mut self, ring: Option<Rc<OwnedFd>>) {
        let is_same = match (&self.watched, &ring) {
            (Some(watched), Some(ring)) => Rc::ptr_eq(watched.get_ref(), ring),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            // Where it cannot be watched it is drained at each period's end.
            self.watched = ring.and_then(|ring| {
                // SAFETY: an `Rc<OwnedFd>` names one descriptor, which stays open as long as the `AsyncFd` holds it.
                unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }.ok()
            });
        }
    }

    async fn readable(&mut self) {
        let Some(watched) = &self.watched else { return std::future::pending().await };
        if let Some(drained) = self.drained {
            sleep_until(drained + DRAIN_AGAIN_AFTER).await;
        }
        match watched.readable().await {
            // What comes from here on makes it readable again.
            Ok(mut guard) => guard.clear_ready(),
            Err(_) => return std::future::pending().await,
        }
        self.drained = Some(Instant::now());
    }
}

/// Counts the periods that were left out because one took too long.
struct Overruns {
    period: Duration,
    last_due: Instant,
    unreported: u64,
    reported: Instant,
}

impl Overruns {
    fn new(start: Instant, period: Duration) -> Overruns {
        Overruns { period, last_due: start, unreported: 0, reported: start }
    }

    /// Takes the time at which a tick was due; how many were left out before it.
    fn count(&mut self, due: Instant) -> u64 {
        let since_last = due.saturating_duration_since(std::mem::replace(&mut self.last_due, due));
        // Half a period more, since a tick may be due a little early or late.
        let periods = (since_last + self.period / 2).as_nanos() / self.period.as_nanos();
        let missed = u64::try_from(periods.saturating_sub(1)).unwrap_or(u64::MAX);
        self.unreported += missed;
        missed
    }

    /// Now and then something for the log.
    fn sentence(&mut self, now: Instant) -> Option<String> {
        if self.unreported == 0 || now.saturating_duration_since(self.reported) < REPORT_EVERY {
            return None;
        }
        self.reported = now;
        let missed = std::mem::take(&mut self.unreported);
        Some(format!("{missed} periods were left out, since the one before took too long"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_wait_for_the_ring_drains_it_as_often_as_it_needs() {
        let every_ms = |period_s| drain_every(Duration::from_secs_f64(period_s)).as_millis();
        assert_eq!([0.2, 1.0, 60.0].map(every_ms), [50, 100, 100]);
    }

    #[test]
    fn periods_that_were_left_out_are_counted_and_reported_once_in_a_while() {
        let start = Instant::now();
        let mut overruns = Overruns::new(start, Duration::from_millis(200));
        let mut at = |ms: u64| {
            let due = start + Duration::from_millis(ms);
            (overruns.count(due), overruns.sentence(due))
        };
        assert_eq!(at(200), (0, None));
        assert_eq!(at(400), (0, None));
        assert_eq!(at(1000), (2, None));
        assert_eq!(at(1200), (0, None));
        let sentence = |missed| Some(format!("{missed} periods were left out, since the one before took too long"));
        assert_eq!(at(61_400), (300, sentence(302)));
        assert_eq!(at(61_600), (0, None));
        assert_eq!(at(200_000), (691, sentence(691)));
    }

    #[test]
    fn periods_that_a_collector_overran_are_counted_and_never_made_up_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let period = Duration::from_millis(20);
            let mut periods = ticks(period);
            let mut overruns = Overruns::new(Instant::now(), period);
            let first = periods.tick().await;
            let (mut last, mut taken, mut missed) = (first, 0, 0);
            overruns.count(first);
            while missed == 0 || taken < 5 {
                if taken == 2 {
                    std::thread::sleep(period * 5); // a collector that blocks
                }
                let due = periods.tick().await;
                assert!(due > last && due <= Instant::now(), "a tick for each period, and none before it is due");
                last = due;
                taken += 1;
                missed += overruns.count(due);
            }
            assert!(missed >= 4, "{missed}");
            let periods = (last - first + period / 2).as_nanos() / period.as_nanos();
            assert_eq!(u128::from(taken + missed), periods);
        });
    }

    #[test]
    fn the_probe_runs_at_moments_of_its_own_within_the_period() {
        let period = Duration::from_millis(200);
        let offsets = || {
            let mut jitter = Jitter::new(period);
            (0..200).map(|_| jitter.next()).collect::<Vec<_>>()
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
