//! Requests and response times, from the packets that the sniffer sees on the node's interface.

use std::time::Duration;

use slackwater_messages::{AbsenceCause, RouteTraffic, Sample, Traffic};
use slackwater_node::system::System;
use slackwater_sniffer::{Buckets, LiveSettings, Period, Port, RouteFigures, TrackerSettings};

use super::metric::{count, metrics};
use super::{Collector, CollectorKind, put};
use crate::capture::Capture;
use crate::config::{Settings, SnifferSettings};
use crate::counter_delta::{NO_TIME, seconds_between};
use crate::pace::Watch;
use crate::reason::Reason;

/// Time after which a failed capture (the interface is not up yet, or went away) is tried again.
const RETRY_NS: u64 = 5_000_000_000;
/// Most answers in a period that may belong to requests from before the capture.
const MOST_FROM_BEFORE: u64 = 3;

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
        Gauge "requests_sampled_share" "Share of the connections that was looked at; 1 is all. Below it, requests are estimated from this sample." => |s| s.traffic.as_ref()?.sampled_share;
        Gauge "requests_standard_error" "Standard error of the requests per second of the last period." => |s| s.traffic.as_ref()?.rps_error;
        Rate "capture_cpu_seconds" "CPU time that the sniffer took." => |s| s.traffic.as_ref()?.cpu_share;
        Count "capture_drops" "Packets that the kernel dropped before the sniffer saw them." => |s| count(s.traffic.as_ref()?.drops);
        Count "capture_holes" "Places where bytes were not captured." => |s| count(s.traffic.as_ref()?.holes);
    },
};

/// Opens the capture; a capture that fails is tried again and again.
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

fn no_capture(why: &Reason) -> Reason {
    Reason { cause: why.cause.or(Some(AbsenceCause::NoCapture)), text: format!("no capture: {why}") }
}

/// The traffic of a period.
struct TrafficPeriod {
    period: Period,
    sampled_share: f64,
    /// Packets that the kernel dropped.
    drops: Result<u64, Reason>,
    elapsed_s: f64,
    /// CPU time of the sniffer.
    cpu_s: f64,
}

struct Wire {
    settings: SnifferSettings,
    system: System,
    /// The capture, or why there is none and when to try again.
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
            let watched = TrackerSettings::watching(&self.settings.ports, &self.settings.routes);
            let tracker = TrackerSettings { sample_seed: fastrand::u64(..), sums_up: false, ..watched };
            let live = LiveSettings {
                interface: self.settings.interface.clone(),
                ports: tracker.ports.clone(),
                buffer_mib: self.settings.buffer_mib,
                ..LiveSettings::default()
            };
            Capture::open(&live, tracker, self.settings.max_cpu_share, now_ns)
                .map_err(|error| (no_capture(&error), now_ns.saturating_add(RETRY_NS)))
        };
    }

    fn fail(&mut self, error: &dyn std::fmt::Display) {
        let retry_ns = (self.system.monotonic_ns)().saturating_add(RETRY_NS);
        self.capture = Err((no_capture(&Reason::from(error.to_string())), retry_ns));
    }

    /// The traffic since the last call.
    fn take(&mut self) -> Option<TrafficPeriod> {
        let capture = self.capture.as_mut().ok()?;
        let now_ns = (self.system.monotonic_ns)();
        let elapsed_s = seconds_between(std::mem::replace(&mut self.last_ns, now_ns), now_ns);
        let period = capture.take_period((self.system.wall_ns)());
        self.times += period.buckets;
        let (drops, cpu_s) = (capture.take_drops(), capture.take_cpu_s());
        Some(TrafficPeriod { period, sampled_share: capture.tracker.share().as_f64(), drops, elapsed_s, cpu_s })
    }
}

impl Collector for Wire {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        self.drain();
        let Some(taken) = self.take() else {
            let Err((reason, retry_ns)) = &self.capture else { return Ok(()) };
            let (reason, is_due) = (reason.clone(), (self.system.monotonic_ns)() >= *retry_ns);
            if is_due {
                self.reopen();
            }
            return Err(reason);
        };
        foreign(&taken.period, &self.settings.ports)?;
        both_ways(&taken.period, &self.settings.interface)?;
        sample.traffic = Some(section(sample, taken));
        Ok(())
    }

    fn drain_within(&self) -> Option<Duration> {
        self.capture.as_ref().ok().map(Capture::drain_within)
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
        if let Err(error) = capture.drain((self.system.monotonic_ns)()) {
            self.fail(&error);
        }
    }
}

/// Fails when a port speaks another protocol: its requests are not counted, and the figures would be too small.
fn foreign(period: &Period, ports: &[Port]) -> Result<(), Reason> {
    if period.foreign_ports.is_empty() {
        return Ok(());
    }
    let measured = ports.iter().map(|port| {
        let speaks = period.foreign_ports.iter().find(|foreign| foreign.port == port.number);
        speaks.map_or(*port, |foreign| Port { protocol: Some(foreign.measure_as), ..*port })
    });
    let wanted: Vec<String> =
        measured.map(|port| serde_json::to_string(&port).unwrap_or_else(|_| port.number.to_string())).collect();
    let faults: Vec<String> = period.foreign_ports.iter().map(ToString::to_string).collect();
    let text = format!(
        "{}: requests there cannot be counted; in node.toml write [sniffer] ports = [{}]",
        faults.join("; "),
        wanted.join(", ")
    );
    Err(Reason::new(AbsenceCause::OtherProtocol, text))
}

/// Fails when only answers were captured, because the requests arrive another way, as with some routes and tunnels. A
/// few answers may belong to requests from before the capture.
fn both_ways(period: &Period, interface: &str) -> Result<(), Reason> {
    let Period { exchanges, in_flight, counts, .. } = period;
    let answers = counts.orphan_responses;
    if *exchanges > 0 || *in_flight > 0 || counts.unmatched_requests > 0 || answers <= MOST_FROM_BEFORE {
        return Ok(());
    }
    let text = format!(
        "{answers} answers were seen on {interface}, and no request: the requests come in another way; name an interface \
        that both pass in sniffer.interface"
    );
    Err(text.into())
}

/// The section of the Sample; values that are not available go to `sample.absent`.
fn section(sample: &mut Sample, taken: TrafficPeriod) -> Traffic {
    let TrafficPeriod { period, sampled_share, drops, elapsed_s, cpu_s } = taken;
    let counts = &period.counts;
    let mut traffic = Traffic {
        in_flight: Some(period.in_flight),
        oldest_unanswered_ms: Some(period.oldest_unanswered_ms),
        // Requests that ask for no answer do not lack one.
        unmatched: Some(counts.unmatched_requests.saturating_sub(counts.quiet_requests)),
        holes: Some(counts.holes),
        sampled_share: Some(sampled_share),
        routes: period.details.routes.iter().map(|route| of_route(route, elapsed_s)).collect(),
        ..Traffic::default()
    };
    let per_s = |value: f64| if elapsed_s > 0.0 { Ok(value / elapsed_s) } else { Err(NO_TIME) };
    put!(sample, traffic.drops, drops);
    put!(sample, traffic.rps, per_s(period.exchanges as f64));
    put!(sample, traffic.rps_error, per_s(period.exchanges_error));
    put!(sample, traffic.errors_per_s, per_s(period.errors as f64));
    put!(sample, traffic.cpu_share, per_s(cpu_s));
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
    use crate::collectors::ActiveCollector;
    use slackwater_sniffer::LEAST_CONNECTIONS;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    fn taken(period: Period, drops: Result<u64, Reason>, elapsed_s: f64) -> TrafficPeriod {
        TrafficPeriod { period, sampled_share: 0.25, drops, elapsed_s, cpu_s: 0.001 }
    }

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
            exchanges_error: 12.0,
            ..Period::default()
        };
        let traffic = section(&mut sample, taken(period, Ok(7), 0.2));
        assert_eq!((traffic.rps, traffic.errors_per_s), (Some(250.0), Some(10.0)));
        assert_eq!((traffic.in_flight, traffic.drops, traffic.rt_mean_ms), (Some(3), Some(7), Some(2.5)));
        assert_eq!(traffic.oldest_unanswered_ms, Some(41.0));
        assert_eq!(
            (traffic.sampled_share, traffic.rps_error, traffic.cpu_share),
            (Some(0.25), Some(60.0), Some(0.005))
        );
    }

    #[test]
    fn answers_without_any_request_are_no_rate_of_zero() {
        let mut period = Period::default();
        period.counts.orphan_responses = MOST_FROM_BEFORE;
        assert_eq!(both_ways(&period, "eth0"), Ok(()), "of requests from before the capture");
        period.counts.orphan_responses = 60;
        let reason = both_ways(&period, "eth0").expect_err("one direction is missing");
        let text = "60 answers were seen on eth0, and no request: the requests come in another way; ";
        assert!(reason.text.starts_with(text), "{}", reason.text);
        for seen in [Period { exchanges: 1, ..period.clone() }, Period { in_flight: 1, ..period.clone() }] {
            assert_eq!(both_ways(&seen, "eth0"), Ok(()));
        }
        period.counts.unmatched_requests = 1;
        assert_eq!(both_ways(&period, "eth0"), Ok(()));
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
        let traffic = section(&mut Sample::default(), taken(period, Ok(0), 0.5));
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
        let traffic = section(&mut sample, taken(Period::default(), Err("gone".into()), 0.2));
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
            assert!(collector.collector.drain_within().is_none() && collector.collector.response_times().is_none());
        }
    }

    /// Both ends of connections on the loopback interface, all played by the test.
    fn exchange_on_each(pairs: &mut [(TcpStream, TcpStream)]) {
        for (client, server) in pairs {
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("an open connection");
            assert!(server.read(&mut [0; 1_024]).expect("an open connection") > 0);
            server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("an open connection");
            assert!(client.read(&mut [0; 1_024]).expect("an open connection") > 0);
        }
    }

    /// Takes Samples of the traffic until the condition holds for one.
    fn sample_until(active: &mut ActiveCollector, mut act: impl FnMut(), holds: impl Fn(&Traffic) -> bool) -> Traffic {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            act();
            active.collector.drain();
            let traffic = active.sample().traffic.expect("an open capture");
            if holds(&traffic) {
                return traffic;
            }
            assert!(Instant::now() < deadline, "{traffic:?}");
        }
    }

    #[test]
    fn above_the_budget_the_share_falls_and_when_the_load_is_gone_it_rises() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let mut settings = Settings::default();
        settings.sniffer.interface = "lo".to_owned();
        settings.sniffer.ports = vec![address.port().to_string().parse().expect("a port")];
        settings.sniffer.max_cpu_share = 0.001;
        let mut collector = COLLECTOR.open(&settings, &System::machine());
        if collector.collector.drain_within().is_none() {
            return println!("skipped: {:?}", collector.sample().absent["traffic"]);
        }
        // Enough that a half of them is a sample.
        let connections = 4 * LEAST_CONNECTIONS;
        let pair =
            |_| (TcpStream::connect(address).expect("the server listens"), listener.accept().expect("a connection").0);
        let mut pairs: Vec<_> = (0..connections).map(pair).collect();
        let whole = collector.sample().traffic.expect("an open capture");
        assert_eq!((whole.sampled_share, whole.rps_error), (Some(1.0), Some(0.0)));
        let load = || exchange_on_each(&mut pairs);
        let sampled = sample_until(&mut collector, load, |traffic| {
            traffic.sampled_share < Some(1.0) && traffic.rps_error > Some(0.0)
        });
        assert!(sampled.rps > Some(0.0) && sampled.cpu_share > Some(0.0), "{sampled:?}");
        assert_eq!((sampled.holes, sampled.unmatched), (Some(0), Some(0)), "{sampled:?}");
        let idle = || std::thread::sleep(Duration::from_millis(20));
        sample_until(&mut collector, idle, |traffic| traffic.sampled_share == Some(1.0));
        // All connections are seen again: without an error.
        exchange_on_each(&mut pairs);
        let whole = sample_until(&mut collector, idle, |traffic| traffic.rps > Some(0.0));
        assert_eq!(whole.rps_error, Some(0.0), "{whole:?}");
    }
}
