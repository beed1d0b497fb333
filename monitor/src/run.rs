//! The loop: one Sample a period to the bus, until a signal ends it.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::bus::{Bus, subject};
use crate::config::Settings;
use crate::confine::confine;
use crate::inputs::Inputs;
use crate::sampler::Sampler;

/// Overruns are reported at most once in this time.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// The time between two drains of the sniffer's ring: several a period, and often enough for the ring however long the
/// period is. A ring of 4 MiB has 16 blocks, and the kernel takes a new one each 40 ms also when little comes in.
pub fn drain_every(period: Duration) -> Duration {
    (period / 4).min(Duration::from_millis(100))
}

/// Publishes Samples until SIGTERM or SIGINT.
///
/// # Errors
/// What keeps the monitor from starting.
pub fn run(settings: &Settings, inputs: &Inputs) -> Result<(), String> {
    // While there is no other thread: privileges are each thread's own.
    let sampler = Sampler::open(settings, inputs)?;
    let left = confine(settings, inputs)?;
    eprintln!("slackwater-monitor: goes on with {left}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no event loop: {error}"))?;
    runtime.block_on(publish(settings, sampler))
}

async fn publish(settings: &Settings, mut sampler: Sampler) -> Result<(), String> {
    let cannot_listen = |error: std::io::Error| format!("cannot listen for signals: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot_listen)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot_listen)?;
    let subject = subject(&settings.pool, &settings.node);
    let name = format!("slackwater-monitor {}", settings.node);
    let mut bus = Bus::open(&settings.bus.url, &name, subject.clone()).await?;
    eprintln!("slackwater-monitor: publishing {subject} every {} s", settings.period_s);

    let period = Duration::from_secs_f64(settings.period_s);
    let mut periods = ticks(period);
    let mut drains = ticks(drain_every(period));
    let mut overruns = Overruns::new(Instant::now(), period);
    loop {
        tokio::select! {
            due = periods.tick() => {
                let sample = sampler.take();
                bus.publish(slackwater_messages::encode(&sample));
                if let Some(sentence) = overruns.count(due) {
                    eprintln!("slackwater-monitor: {sentence}");
                }
            }
            _ = drains.tick(), if sampler.must_drain() => sampler.drain(),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    bus.close().await;
    eprintln!("slackwater-monitor: ended by a signal");
    Ok(())
}

/// Ticks that are left out, not made up for, when one comes late.
fn ticks(every: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// Counts the periods that were left out because one took too long.
struct Overruns {
    period: Duration,
    last_due: Instant,
    missed: u128,
    reported: Instant,
}

impl Overruns {
    fn new(start: Instant, period: Duration) -> Overruns {
        Overruns { period, last_due: start, missed: 0, reported: start }
    }

    /// Takes the time at which a tick was due; now and then it gives a sentence for the log.
    fn count(&mut self, due: Instant) -> Option<String> {
        let since_last = due.saturating_duration_since(std::mem::replace(&mut self.last_due, due));
        // Half a period more, since a tick may be due a little early or late.
        let periods = (since_last + self.period / 2).as_nanos() / self.period.as_nanos();
        self.missed += periods.saturating_sub(1);
        if self.missed == 0 || due.saturating_duration_since(self.reported) < REPORT_EVERY {
            return None;
        }
        self.reported = due;
        let missed = std::mem::take(&mut self.missed);
        Some(format!("{missed} periods were left out, since the one before took too long"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_periods_are_drained_as_often_as_the_ring_needs() {
        let every_ms = |period_s| drain_every(Duration::from_secs_f64(period_s)).as_millis();
        assert_eq!([0.2, 1.0, 60.0].map(every_ms), [50, 100, 100]);
    }

    #[test]
    fn periods_that_were_left_out_are_counted_and_reported_once_in_a_while() {
        let start = Instant::now();
        let mut overruns = Overruns::new(start, Duration::from_millis(200));
        let mut at = |ms: u64| overruns.count(start + Duration::from_millis(ms));
        assert_eq!(at(200), None);
        assert_eq!(at(400), None);
        assert_eq!(at(1000), None); // two left out
        assert_eq!(at(1200), None);
        assert_eq!(
            at(61_400).as_deref(),
            Some("302 periods were left out, since the one before took too long") // and 300 more
        );
        assert_eq!(at(61_600), None);
        assert_eq!(at(200_000), Some("691 periods were left out, since the one before took too long".to_owned()));
    }
}
