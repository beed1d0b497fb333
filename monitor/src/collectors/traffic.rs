//! Requests and response times, from the packets that the sniffer sees on the node's interface.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use slackwater_messages::{AbsenceCause, RouteTraffic, Sample, Traffic};
use slackwater_sniffer::{Buckets, Live, LiveSettings, Period, RouteFigures, Tracker, TrackerSettings};

use super::metric::{count, metrics};
use super::{Collector, CollectorKind, put};
use crate::config::{Settings, SnifferSettings};
use crate::counter_delta::{NO_TIME, seconds_between};
use crate::pace::Watch;
use crate::reason::Reason;
use crate::system::System;
use crate::watched::tracker_settings;

/// A capture that failed (the interface is not up yet, or went away) is tried again after this time.
const RETRY_NS: u64 = 5_000_000_000;

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "traffic",
    open,
    metrics: metrics! {
        Rate "requests" "Requests whose response ended, as seen on the wire." => |s| s.traffic.as_ref()?.rps;
        Rate "request_errors" "Of these: status 500 and above." => |s| s.traffic.as_ref()?.errors_per_s;
        Gauge "requests_in_flight" "Requests whose response has not ended." => |s| count(s.traffic.as_ref()?.in_flight);
        Gauge "requests_oldest_unanswered_seconds" "Age of the oldest request of whose response nothing has come; 0 while there is none." => |s| Some(s.traffic.as_ref()?.oldest_unanswered_ms? / 1e3);
        Count "requests_unmatched" "Requests given up: never answered, evicted, or lost in a hole." => |s| count(s.traffic.as_ref()?.unmatched);
        Count "capture_drops" "Packets that the kernel dropped before the sniffer saw them." => |s| count(s.traffic.as_ref()?.drops);
        Count "capture_holes" "Places where bytes were not captured." => |s| count(s.traffic.as_ref()?.holes);
    },
};

/// Opens the capture; where that fails it is tried again and again.
fn open(settings: &Settings, system: &System) -> Box<dyn Collector> {
    let mut wire = Wire {
        settings: settings.sniffer.clone(),
        system: system.clone(),
        capture: Err((Reason::from(""), 0)),
        last_ns: 0,
        times: Buckets::default(),
    };
    wire.reopen();
    Box::new(wire)
}

struct Capture {
    live: Live,
    tracker: Tracker,
    drops: u64,
    /// Packets came since the drops were read: a ring that stays empty drops none.
    is_used: bool,
    /// Readable when packets wait. A descriptor of its own, since who waits for it may look later than the capture ends.
    readable: Rc<OwnedFd>,
}

impl Capture {
    fn open(settings: &LiveSettings, tracker: TrackerSettings) -> Result<Capture, Reason> {
        let live = Live::open(settings).map_err(|error| Reason {
            cause: error.lacks_capability().then_some(AbsenceCause::LacksCapability),
            text: error.to_string(),
        })?;
        // SAFETY: the descriptor stays open as long as `live`, which outlives this borrow.
        let readable = unsafe { BorrowedFd::borrow_raw(live.as_raw_fd()) }.try_clone_to_owned();
        let readable = readable.map_err(|error: io::Error| error.to_string())?;
        Ok(Capture { live, tracker: Tracker::new(tracker), drops: 0, is_used: true, readable: Rc::new(readable) })
    }

    /// Packets dropped since the last call.
    fn drops(&mut self) -> Result<u64, Reason> {
        let total = self.live.drops().map_err(|error| error.to_string())?;
        Ok(total.saturating_sub(std::mem::replace(&mut self.drops, total)))
    }
}

fn no_capture(why: &Reason) -> Reason {
    Reason { cause: why.cause.or(Some(AbsenceCause::NoCapture)), text: format!("no capture: {why}") }
}

struct Wire {
    settings: SnifferSettings,
    system: System,
    /// The reason why there is none, and when to try again.
    capture: Result<Capture, (Reason, u64)>,
    last_ns: u64,
    times: Buckets,
}

impl Wire {
    fn reopen(&mut self) {
        let now_ns = (self.system.monotonic_ns)();
        self.last_ns = now_ns;
        self.capture = if self.settings.interface.is_empty() {
            let why = "no capture: no interface is configured";
            Err((Reason::new(AbsenceCause::NoInterface, why), u64::MAX))
        } else {
            let tracker = tracker_settings(&self.settings.ports, &self.settings.routes);
            let live = LiveSettings {
                interface: self.settings.interface.clone(),
                ports: tracker.ports.clone(),
                buffer_mib: self.settings.buffer_mib,
                ..LiveSettings::default()
            };
            Capture::open(&live, tracker).map_err(|error| (no_capture(&error), now_ns.saturating_add(RETRY_NS)))
        };
    }

    fn fail(&mut self, error: &dyn std::fmt::Display) {
        let retry_ns = (self.system.monotonic_ns)().saturating_add(RETRY_NS);
        self.capture = Err((no_capture(&Reason::from(error.to_string())), retry_ns));
    }

    /// What ended since the last call, the packets dropped meanwhile, and the time that passed.
    fn take(&mut self) -> Option<(Period, Result<u64, Reason>, f64)> {
        let capture = self.capture.as_mut().ok()?;
        let now_ns = (self.system.monotonic_ns)();
        let elapsed_s = seconds_between(std::mem::replace(&mut self.last_ns, now_ns), now_ns);
        let period = capture.tracker.take_period((self.system.wall_ns)());
        self.times += period.buckets;
        let drops = if std::mem::take(&mut capture.is_used) { capture.drops() } else { Ok(0) };
        Some((period, drops, elapsed_s))
    }
}

impl Collector for Wire {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        self.drain();
        let Some((period, drops, elapsed_s)) = self.take() else {
            let Err((reason, retry_ns)) = &self.capture else { return Ok(()) };
            let (reason, is_due) = (reason.clone(), (self.system.monotonic_ns)() >= *retry_ns);
            if is_due {
                self.reopen();
            }
            return Err(reason);
        };
        sample.traffic = Some(section(sample, &period, drops, elapsed_s));
        Ok(())
    }

    fn wakes_on(&self) -> Option<Rc<OwnedFd>> {
        self.capture.as_ref().ok().map(|capture| Rc::clone(&capture.readable))
    }

    fn watch(&mut self, watch: &mut Watch) {
        let Ok(capture) = &self.capture else { return };
        watch.oldest_unanswered_ms = Some(capture.tracker.oldest_unanswered_ms((self.system.wall_ns)()));
        watch.in_flight = Some(capture.tracker.in_flight() as f64);
    }

    fn response_times(&self) -> Option<Buckets> {
        self.capture.is_ok().then_some(self.times)
    }

    fn drain(&mut self) {
        let Ok(capture) = &mut self.capture else { return };
        match capture.live.drain(&mut capture.tracker) {
            Ok(packets) => capture.is_used |= packets > 0,
            Err(error) => self.fail(&error),
        }
    }
}

/// The section of the Sample; what is not there goes to `sample.absent`.
fn section(sample: &mut Sample, period: &Period, drops: Result<u64, Reason>, elapsed_s: f64) -> Traffic {
    let counts = &period.counts;
    let mut traffic = Traffic {
        in_flight: Some(period.in_flight),
        oldest_unanswered_ms: Some(period.oldest_unanswered_ms),
        // Requests that need no answer are not missing one.
        unmatched: Some(counts.unmatched_requests.saturating_sub(counts.quiet_requests)),
        holes: Some(counts.holes),
        routes: period.details.routes.iter().map(|route| of_route(route, elapsed_s)).collect(),
        ..Traffic::default()
    };
    let per_s = |count: u64| if elapsed_s > 0.0 { Ok(count as f64 / elapsed_s) } else { Err(NO_TIME) };
    put!(sample, traffic.drops, drops);
    put!(sample, traffic.rps, per_s(period.exchanges));
    put!(sample, traffic.errors_per_s, per_s(period.errors));
    let reason = "no exchange ended in this period";
    put!(sample, traffic.rt_mean_ms, period.rt_mean_ms.ok_or(reason));
    put!(sample, traffic.rt_p50_ms, period.rt_p50_ms.ok_or(reason));
    put!(sample, traffic.rt_p95_ms, period.rt_p95_ms.ok_or(reason));
    put!(sample, traffic.rt_p99_ms, period.rt_p99_ms.ok_or(reason));
    traffic
}

/// Figures of one route class. Without exchanges it has no response time, which its rate of zero explains.
fn of_route(route: &RouteFigures, elapsed_s: f64) -> RouteTraffic {
    let per_s = |count: u64| (elapsed_s > 0.0).then(|| count as f64 / elapsed_s);
    RouteTraffic {
        route: route.name.clone(),
        rps: per_s(route.exchanges),
        rt_mean_ms: route.last_byte_ms.mean,
        rt_p95_ms: route.last_byte_ms.p95,
        errors_per_s: per_s(route.status.server_error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_become_rates_of_the_period() {
        let mut sample = Sample::default();
        let period = Period {
            exchanges: 50,
            errors: 2,
            in_flight: 3,
            oldest_unanswered_ms: 41.0,
            rt_mean_ms: Some(2.5),
            rt_p50_ms: Some(1.0),
            ..Period::default()
        };
        let traffic = section(&mut sample, &period, Ok(7), 0.2);
        assert_eq!((traffic.rps, traffic.errors_per_s), (Some(250.0), Some(10.0)));
        assert_eq!((traffic.in_flight, traffic.drops, traffic.rt_mean_ms), (Some(3), Some(7), Some(2.5)));
        assert_eq!(traffic.oldest_unanswered_ms, Some(41.0));
    }

    #[test]
    fn route_classes_and_what_was_lost_are_told() {
        let mut period = Period { exchanges: 3, ..Period::default() };
        period.counts.unmatched_requests = 5;
        period.counts.quiet_requests = 3;
        period.counts.holes = 1;
        let mut search = RouteFigures { name: "search".to_owned(), exchanges: 3, ..RouteFigures::default() };
        search.last_byte_ms.mean = Some(9.0);
        search.last_byte_ms.p95 = Some(14.0);
        search.status.server_error = 1;
        period.details.routes = vec![search, RouteFigures { name: "other".to_owned(), ..RouteFigures::default() }];
        let traffic = section(&mut Sample::default(), &period, Ok(0), 0.5);
        assert_eq!((traffic.unmatched, traffic.holes), (Some(2), Some(1)));
        let expected = RouteTraffic {
            route: "search".to_owned(),
            rps: Some(6.0),
            rt_mean_ms: Some(9.0),
            rt_p95_ms: Some(14.0),
            errors_per_s: Some(2.0),
        };
        let other = RouteTraffic {
            route: "other".to_owned(),
            rps: Some(0.0),
            errors_per_s: Some(0.0),
            ..RouteTraffic::default()
        };
        assert_eq!(traffic.routes, [expected, other]);
    }

    #[test]
    fn without_exchanges_there_is_no_response_time_but_a_rate_of_zero() {
        let mut sample = Sample::default();
        let traffic = section(&mut sample, &Period::default(), Err("gone".into()), 0.2);
        assert_eq!((traffic.rps, traffic.rt_mean_ms, traffic.drops), (Some(0.0), None, None));
        assert_eq!(sample.absent["traffic.drops"], "gone");
        for name in ["rt_mean_ms", "rt_p50_ms", "rt_p95_ms", "rt_p99_ms"] {
            assert_eq!(sample.absent[&format!("traffic.{name}")], "no exchange ended in this period");
        }
    }

    #[test]
    fn a_capture_that_cannot_be_opened_gives_its_reason() {
        let mut settings = Settings::default();
        for (interface, reason, causes) in [
            ("", "no capture: no interface is configured", &[AbsenceCause::NoInterface][..]),
            // Without the right to capture nobody learns whether the interface is there.
            ("no-such-if0", "no capture: ", &[AbsenceCause::NoCapture, AbsenceCause::LacksCapability]),
        ] {
            settings.sniffer.interface = interface.to_owned();
            let mut sample = Sample::default();
            let mut collector = COLLECTOR.open(&settings, &System::machine());
            collector.collect(&mut sample);
            assert!(sample.traffic.is_none() && sample.absent["traffic"].starts_with(reason), "{:?}", sample.absent);
            assert!(causes.contains(&sample.absence_causes["traffic"]), "{:?}", sample.absence_causes);
            assert!(collector.collector.wakes_on().is_none() && collector.collector.response_times().is_none());
        }
    }
}
