//! The loop: it publishes one Sample a period on the bus, until a signal ends it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::ConnectOptions;
use slackwater_messages::Sample;
use slackwater_node::notify::Notify;
use slackwater_node::system::System;
use tokio::signal::unix::{SignalKind, signal};

use crate::agent;
use crate::asks;
use crate::bell::Bell;
use crate::bus::{Bus, subject};
use crate::config::Settings;
use crate::error::Error;
use crate::memory;
use crate::metrics::{Metrics, http};
use crate::pace::Pace;
use crate::sampler::Sampler;
use crate::sandbox;
use crate::timer::{Alarm, Arrival, Schedule};

/// Overruns are reported at most once in this time.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// By then the monitor has connected, captured and measured at least once.
const STARTED_AFTER: Duration = Duration::from_secs(3);
/// The log line of that moment; the benchmark waits for it.
const STARTED: &str = "has started; memory that only the start needed is given back";

/// Publishes Samples until SIGTERM or SIGINT.
///
/// # Errors
/// What keeps the monitor from starting.
pub fn run(settings: &Settings, system: &System) -> Result<(), Error> {
    // Privileges belong to a thread, so they are given up while there is no other one.
    let sampler = Sampler::open(settings, system)?;
    let access = settings.bus.read()?;
    let privileges = sandbox::enter(settings, system)?;
    tracing::info!("running as {privileges}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|reason| Error::Loop { action: "start the event loop", reason })?;
    runtime.block_on(publish(settings, access, sampler))
}

async fn publish(settings: &Settings, access: ConnectOptions, mut sampler: Sampler) -> Result<(), Error> {
    let cannot_listen = |reason| Error::Loop { action: "listen for signals", reason };
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot_listen)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot_listen)?;
    let subject = subject(&settings.pool, &settings.node);
    let mut bus = Bus::open(&settings.bus, access, &settings.node, subject.clone()).await?;
    let metrics = Metrics::new(&settings.node, &settings.pool);
    open_page(settings, &metrics).await;
    if let Err(error) = agent::open(settings, bus.client()).await {
        tracing::error!("HAProxy's agent-check is not answered: {error}");
    }
    let asks = asks::open(settings, bus.client()).await?;
    let pace = &settings.pace;
    let (period_s, looks_s) =
        if pace.by_event { (pace.quiet_s, pace.event_s) } else { (settings.period_s, settings.period_s) };
    tracing::info!("publishing {subject} every {period_s} s");

    let (period, start) = (Duration::from_secs_f64(looks_s), Instant::now());
    let since_start_ns = move |time: Instant| u64::try_from((time - start).as_nanos()).unwrap_or(u64::MAX);
    let now_ns = move || since_start_ns(Instant::now());
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let mut pace =
        pace.by_event.then(|| Pace::new(now_ns(), ns(pace.quiet_s), ns(pace.event_s), ns(settings.period_s)));
    let mut schedule = Schedule::new(start, period);
    let mut overruns = Overruns::new(start);
    let mut alarm = Alarm::new().map_err(|reason| Error::Loop { action: "get a timer", reason })?;
    alarm.set(soonest(schedule.due(), sampler.drain_within()));
    let mut arrival = Arrival::default();
    let bell = Arc::new(Bell::default());
    sampler.start(start, Duration::from_secs_f64(period_s), &bell);
    let mut is_starting = true;
    let mut notify = Notify::ready();
    loop {
        let due = tokio::select! {
            due = alarm.rings() => due,
            () = bell.rings() => Instant::now(),
            () = arrival.comes() => Instant::now(),
            () = asks.came() => Instant::now(),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        };
        for ask in asks.take_traffic() {
            sampler.hear(&ask);
        }
        let looked_ns = now_ns();
        let mut missed = 0;
        let is_due = if let Some(pace) = pace.as_mut() {
            if let Some(ends) = asks.ends() {
                pace.ask(since_start_ns(ends));
            }
            pace.look(looked_ns, &sampler.watch())
        } else {
            let is_due = due >= schedule.due();
            if is_due {
                missed = schedule.next(Instant::now());
            } else {
                sampler.drain();
            }
            is_due
        };
        let sample = is_due.then(|| {
            let next_within_s = Some(pace.as_ref().map_or(period_s, Pace::next_within_s));
            Sample { periods_missed: missed, next_within_s, ..sampler.take() }
        });
        arrival.watch(sampler.next_packet());
        let drain_within = sampler.drain_within().filter(|_| !arrival.is_watching());
        let next = pace.as_ref().map_or(schedule.due(), |pace| {
            // Packets, or an ask where the traffic is what the controller tells of, wake the loop.
            let rings = drain_within.is_none();
            if rings && pace.is_quiet(looked_ns) {
                let (gap_ms, queued_ms) = pace.longest_usual_ms();
                bell.set(gap_ms, queued_ms);
            } else {
                bell.unset();
            }
            start + Duration::from_nanos(pace.look_again_ns(looked_ns, rings))
        });
        alarm.set(soonest(next, drain_within));
        let Some(sample) = sample else { continue };
        metrics.take(&sample, sampler.collectors(), sampler.response_times());
        bus.publish(sample).await;
        notify.alive(due);
        metrics.sent(bus.sent());
        metrics.asks(asks.taken());
        if is_starting && start.elapsed() >= STARTED_AFTER {
            is_starting = false;
            memory::give_back();
            tracing::info!("{STARTED}");
        }
        if let Some(sentence) = overruns.count(missed, due) {
            tracing::warn!("{sentence}");
        }
    }
    notify.stopping();
    bus.close().await;
    tracing::info!("ended by a signal");
    Ok(())
}

/// The time of the next look, or of the drain before it.
fn soonest(look: Instant, drain_within: Option<Duration>) -> Instant {
    drain_within.map_or(look, |within| look.min(Instant::now() + within))
}

/// Opens the page for Prometheus. A failure is only logged, since another program may have the port.
async fn open_page(settings: &Settings, metrics: &Metrics) {
    if settings.metrics.listen.is_empty() {
        return;
    }
    match http::listen(&settings.metrics.listen).await {
        Ok(listener) => {
            tokio::spawn(http::serve(listener, metrics.clone()));
        }
        Err(error) => tracing::error!("no page for Prometheus: {error}"),
    }
}

/// Reports now and then how many periods were left out because one took too long.
struct Overruns {
    unreported: u64,
    reported: Instant,
}

impl Overruns {
    fn new(start: Instant) -> Overruns {
        Overruns { unreported: 0, reported: start }
    }

    /// Counts the periods that were left out; now and then it returns a sentence for the log.
    fn count(&mut self, missed: u64, now: Instant) -> Option<String> {
        self.unreported += missed;
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
    fn overruns_are_reported_once_in_a_while() {
        let start = Instant::now();
        let mut overruns = Overruns::new(start);
        let mut count = |s: u64, missed| overruns.count(missed, start + Duration::from_secs(s));
        let sentence = |missed| Some(format!("{missed} periods were left out, since the one before took too long"));
        assert_eq!((count(1, 0), count(2, 2), count(61, 300), count(62, 0)), (None, None, sentence(302), None));
        assert_eq!((count(63, 4), count(200, 0), count(300, 0)), (None, sentence(4), None));
    }
}
