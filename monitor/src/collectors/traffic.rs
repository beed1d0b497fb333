//! Requests and response times: from the packets that the sniffer sees on the node's interface, or while the controller
//! tells of them from the balancer's host.

use std::os::fd::RawFd;
use std::time::Duration;

use slackwater_messages::{AbsenceCause, Ask, Sample};
use slackwater_node::system::System;
use slackwater_sniffer::{Buckets, LiveSettings, TrackerSettings};

use super::metric::{count, metrics};
use super::{Collector, CollectorKind};
use crate::balancers_traffic::{BalancersTraffic, NO_CAPTURE_NEEDED};
use crate::capture::Capture;
use crate::captured::{TrafficPeriod, both_ways, foreign, section};
use crate::config::{Settings, SnifferSettings};
use crate::counter_delta::{NO_TIME, seconds_between};
use crate::pace::Watch;
use crate::reason::Reason;

/// Time after which a failed capture (the interface is not up yet, or went away) is tried again.
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
        balancers: BalancersTraffic::default(),
        is_spared: false,
    };
    wire.reopen();
    Box::new(wire)
}

fn no_capture(why: &Reason) -> Reason {
    Reason { cause: why.cause.or(Some(AbsenceCause::NoCapture)), text: format!("no capture: {why}") }
}

struct Wire {
    settings: SnifferSettings,
    system: System,
    /// The capture, or why there is none and when to try again.
    capture: Result<Capture, (Reason, u64)>,
    last_ns: u64,
    times: Buckets,
    balancers: BalancersTraffic,
    /// The capture is closed, since it is not needed.
    is_spared: bool,
}

impl Wire {
    /// Closes the capture while it is not needed, and opens it again when it is.
    fn spare(&mut self) {
        let needed = self.balancers.needs_capture((self.system.monotonic_ns)());
        if needed && self.is_spared {
            self.is_spared = false;
            self.reopen();
        } else if !needed && !self.is_spared {
            self.is_spared = true;
            self.capture = Err((Reason::new(AbsenceCause::NoCapture, NO_CAPTURE_NEEDED), u64::MAX));
        }
    }

    /// What the capture saw since the last call, or why it sees nothing; a capture that failed is tried again.
    fn captured(&mut self) -> Result<TrafficPeriod, Reason> {
        let Some(taken) = self.take() else {
            let Err((reason, retry_ns)) = &self.capture else { return Err(Reason::from(NO_TIME)) };
            let (reason, is_due) = (reason.clone(), (self.system.monotonic_ns)() >= *retry_ns);
            if is_due {
                self.reopen();
            }
            return Err(reason);
        };
        foreign(&taken.period, &self.settings.ports)?;
        both_ways(&taken.period, &self.settings.interface)?;
        Ok(taken)
    }

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
        let captured = self.captured();
        let now_ns = (self.system.monotonic_ns)();
        if self.balancers.is_told(now_ns) && !self.is_spared {
            self.balancers.compare(captured.as_ref().ok().map(|taken| taken.period.exchanges), now_ns);
        }
        if self.balancers.stands_in(now_ns) {
            sample.traffic = Some(self.balancers.section(sample));
        } else {
            self.balancers.leave_out();
            sample.traffic = Some(section(sample, captured?));
        }
        self.spare();
        Ok(())
    }

    fn drain_within(&self) -> Option<Duration> {
        self.capture.as_ref().ok().map(Capture::drain_within)
    }

    fn next_packet(&self) -> Option<RawFd> {
        self.capture.as_ref().ok()?.next_packet()
    }

    fn watch(&mut self, watch: &mut Watch) {
        if self.balancers.stands_in((self.system.monotonic_ns)()) {
            return self.balancers.watch(watch);
        }
        let Ok(capture) = &self.capture else { return };
        watch.oldest_unanswered_ms = Some(capture.tracker.oldest_unanswered_ms((self.system.wall_ns)()));
        watch.in_flight = Some(capture.tracker.in_flight() as f64);
    }

    fn response_times(&self) -> Option<Buckets> {
        self.capture.is_ok().then_some(self.times)
    }

    fn hear(&mut self, ask: &Ask) {
        // The balancer's host does not know this node's classes of requests.
        if self.settings.routes.is_empty()
            && let (Some(traffic), Some(period_s)) = (&ask.traffic, ask.period_s)
        {
            self.balancers.hear(traffic, period_s, ask.lease_s, (self.system.monotonic_ns)());
        }
    }

    fn drain(&mut self) {
        self.spare();
        let Ok(capture) = &mut self.capture else { return };
        if let Err(error) = capture.drain((self.system.monotonic_ns)()) {
            self.fail(&error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::ActiveCollector;
    use slackwater_messages::Traffic;
    use slackwater_node::fixture::Fixture;
    use slackwater_sniffer::LEAST_CONNECTIONS;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

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

    /// Whether a descriptor becomes readable within this time.
    fn is_readable(descriptor: RawFd, within: Duration) -> bool {
        let mut waits = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        let within_ms = i32::try_from(within.as_millis()).expect("a short time");
        // SAFETY: the call writes to `waits` only.
        unsafe { libc::poll(&raw mut waits, 1, within_ms) == 1 }
    }

    #[test]
    fn while_nothing_comes_the_next_packet_tells_of_itself_and_a_request_in_flight_is_looked_after() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let mut settings = Settings::default();
        settings.sniffer.interface = "lo".to_owned();
        settings.sniffer.ports = vec![address.port().to_string().parse().expect("a port")];
        let mut active = COLLECTOR.open(&settings, &System::machine());
        if active.collector.drain_within().is_none() {
            return println!("skipped: {:?}", active.sample().absent["traffic"]);
        }
        assert!(active.collector.next_packet().is_none(), "nobody has looked yet");
        let packets = loop {
            active.collector.drain();
            if let Some(packets) = active.collector.next_packet() {
                break packets;
            }
        };
        assert!(!is_readable(packets, Duration::ZERO));
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut look = || {
            assert!(Instant::now() < deadline, "the looks do not end");
            active.collector.drain();
            let mut watch = Watch::default();
            active.collector.watch(&mut watch);
            (active.collector.next_packet().is_some(), watch.in_flight)
        };
        let mut client = TcpStream::connect(address).expect("the server listens");
        let mut server = listener.accept().expect("a connection").0;
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("an open connection");
        assert!(server.read(&mut [0; 1_024]).expect("an open connection") > 0);
        assert!(is_readable(packets, Duration::from_secs(60)), "the kernel tells of the packets by itself");
        while look() != (false, Some(1.0)) {}
        for _ in 0..100 {
            assert_eq!(look(), (false, Some(1.0)), "until it is answered");
        }
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("an open connection");
        while look() != (true, Some(0.0)) {}
    }

    fn told(rps: f64, lease_s: f64) -> Ask {
        let traffic = Some(Traffic { rps: Some(rps), rt_mean_ms: Some(2.0), ..Traffic::default() });
        Ask { lease_s, traffic, period_s: Some(1.0), ..Ask::default() }
    }

    #[test]
    fn while_the_controller_tells_of_the_traffic_nothing_is_captured_and_then_it_is_again() {
        let fixture = Fixture::new(&[]);
        let mut settings = Settings::default();
        settings.sniffer.interface = "lo".to_owned();
        settings.sniffer.ports = vec!["1".parse().expect("a port")];
        let mut active = COLLECTOR.open(&settings, &fixture.system());
        let captures = |active: &ActiveCollector| active.collector.drain_within().is_some();
        if !captures(&active) {
            return println!("skipped: {:?}", active.sample().absent["traffic"]);
        }
        for second in 0..4 {
            assert!(captures(&active), "not compared yet, after {second} s");
            active.collector.hear(&told(100.0, 3.0));
            fixture.advance_s(1.0);
            let captured = active.sample().traffic.expect("traffic");
            assert_eq!(captured.rps, Some(if second == 3 { 100.0 } else { 0.0 }));
        }
        assert!(!captures(&active) && active.collector.response_times().is_none());
        fixture.advance_s(1.0);
        let traffic = active.sample().traffic.expect("traffic");
        assert_eq!((traffic.rps, traffic.cpu_share), (Some(100.0), Some(0.0)), "the newest again");
        fixture.advance_s(2.0);
        active.collector.drain();
        assert!(captures(&active), "the lease is over");
        fixture.advance_s(0.1);
        assert_eq!(active.sample().traffic.expect("traffic").rps, Some(0.0), "of its own");
    }

    #[test]
    fn without_a_capture_the_controller_tells_and_classes_of_requests_need_one() {
        let fixture = Fixture::new(&[]);
        let mut settings = Settings::default();
        settings.sniffer.interface = String::new();
        let mut active = COLLECTOR.open(&settings, &fixture.system());
        active.collector.hear(&told(100.0, 3.0));
        assert_eq!(active.sample().traffic.expect("traffic").rps, Some(100.0));
        fixture.advance_s(3.0);
        assert!(active.sample().absent["traffic"].contains("no interface"));
        settings.sniffer.routes = vec!["search=/search*".parse().expect("a route")];
        let mut active = COLLECTOR.open(&settings, &fixture.system());
        active.collector.hear(&told(100.0, 3.0));
        assert_eq!(active.sample().traffic, None);
    }
}
