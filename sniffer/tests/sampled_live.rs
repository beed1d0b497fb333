//! The kernel's filter on real connections of the loopback interface. Without CAP_NET_RAW the tests print that and
//! pass.

mod support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use slackwater_sniffer::{Live, Share, Tracker, TrackerSettings};
use support::{GET, OK, now_ns, open_capture};

/// Both ends of a connection. The test plays both sides, so it knows when an exchange is under way.
struct Pair {
    client: TcpStream,
    server: TcpStream,
}

impl Pair {
    fn open(listener: &TcpListener) -> Pair {
        let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("the server listens");
        let (server, _) = listener.accept().expect("a connection");
        Pair { client, server }
    }

    fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.client.local_addr().expect("a connection"), self.client.peer_addr().expect("a connection"))
    }

    fn ask(&mut self) {
        self.client.write_all(GET).expect("an open connection");
        self.server.read_exact(&mut [0; GET.len()]).expect("an open connection");
    }

    fn answer(&mut self) {
        self.server.write_all(OK).expect("an open connection");
        self.client.read_exact(&mut [0; OK.len()]).expect("an open connection");
    }
}

fn tracker(port: u16) -> Tracker {
    Tracker::new(TrackerSettings { ports: vec![port], keep_exchanges: true, ..TrackerSettings::default() })
}

/// Reads packets until `holds` is true or a minute is over; the test's assertions tell which.
fn drain_until(live: &mut Live, tracker: &mut Tracker, mut holds: impl FnMut(&mut Tracker) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds(tracker) && Instant::now() < deadline {
        live.drain(tracker).expect("an open capture");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn half() -> Share {
    Share::ALL.halved()
}

#[test]
fn the_kernel_hands_over_the_connections_that_the_tracker_looks_at() {
    for (interface, address) in [("lo", "127.0.0.1:0"), ("lo", "[::1]:0"), ("any", "127.0.0.1:0"), ("any", "[::1]:0")] {
        let Ok(listener) = TcpListener::bind(address) else {
            println!("skipped: there is no {address}");
            continue;
        };
        let port = listener.local_addr().expect("an address").port();
        let Some(mut live) = open_capture(interface, port) else { return };
        let mut pairs: Vec<Pair> = (0..100).map(|_| Pair::open(&listener)).collect();
        for share in [half(), half().halved(), Share::ALL, half().halved().halved()] {
            // `all` takes whatever the kernel hands over; `sampled` only tells which connections these should be.
            let (mut all, mut sampled) = (tracker(port), tracker(port));
            live.sample(&mut sampled, share).expect("a filter");
            sampled.take_period(u64::MAX);
            live.drain(&mut tracker(port)).expect("an open capture");
            for pair in &mut pairs {
                pair.ask();
                pair.answer();
            }
            let expected: BTreeSet<_> =
                pairs.iter().map(Pair::ends).filter(|(client, server)| sampled.looks_at(*client, *server)).collect();
            let mut ends = BTreeSet::new();
            drain_until(&mut live, &mut all, |tracker| {
                ends.extend(tracker.take_exchanges().iter().map(|exchange| (exchange.client, exchange.server)));
                ends.len() >= expected.len()
            });
            assert_eq!(ends, expected, "{share} on {interface}, {address}");
            assert!(share == Share::ALL || expected.len() < pairs.len(), "{share}: {}", expected.len());
        }
    }
}

#[test]
fn a_change_of_the_share_loses_no_packet_of_a_connection_that_stays() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let Some(mut live) = open_capture("lo", port) else { return };
    let mut tracker = tracker(port);
    let mut pairs: Vec<Pair> = (0..60).map(|_| Pair::open(&listener)).collect();
    let smallest = half().halved();
    let stays: BTreeSet<_> = {
        let mut other = Tracker::new(TrackerSettings::default());
        other.sample(smallest, 0);
        other.take_period(u64::MAX);
        pairs.iter().map(Pair::ends).filter(|(client, server)| other.looks_at(*client, *server)).collect()
    };
    let path = [half(), smallest, half(), Share::ALL];
    const ROUNDS: usize = 40;
    for round in 0..ROUNDS {
        pairs.iter_mut().for_each(Pair::ask);
        live.sample(&mut tracker, path[round % path.len()]).expect("a filter");
        pairs.iter_mut().for_each(Pair::answer);
        live.drain(&mut tracker).expect("an open capture");
    }
    let mut exchanges = 0;
    drain_until(&mut live, &mut tracker, |tracker| {
        let ended = tracker.take_exchanges();
        exchanges += ended.iter().filter(|exchange| stays.contains(&(exchange.client, exchange.server))).count();
        exchanges >= ROUNDS * stays.len()
    });
    let period = tracker.take_period(now_ns());
    assert_eq!(exchanges, ROUNDS * stays.len(), "{period:?}");
    assert_eq!((period.counts.holes, period.counts.unmatched_requests), (0, 0), "{period:?}");
}
