//! The kernel's filter on real connections of the loopback interface. Needs CAP_NET_RAW: says so and passes without it.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slackwater_sniffer::{Live, LiveSettings, Share, Tracker, TrackerSettings};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// Both ends of a connection. The test plays both sides, so it knows when an exchange is under way.
struct Pair {
    client: TcpStream,
    server: TcpStream,
}

impl Pair {
    fn open(listener: &TcpListener) -> Pair {
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (server, _) = listener.accept().expect("it was connected to");
        Pair { client, server }
    }

    fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.client.local_addr().expect("connected"), self.client.peer_addr().expect("connected"))
    }

    fn ask(&mut self) {
        self.client.write_all(REQUEST).expect("open");
        self.server.read_exact(&mut [0; REQUEST.len()]).expect("open");
    }

    fn answer(&mut self) {
        self.server.write_all(ANSWER).expect("open");
        self.client.read_exact(&mut [0; ANSWER.len()]).expect("open");
    }
}

fn tracker(port: u16) -> Tracker {
    Tracker::new(TrackerSettings { ports: vec![port], keep_exchanges: true, ..TrackerSettings::default() })
}

/// Opens the capture, or says why the test is skipped.
fn open(interface: &str, port: u16) -> Option<Live> {
    let settings = LiveSettings { interface: interface.to_owned(), ports: vec![port], ..LiveSettings::default() };
    match Live::open(&settings) {
        Ok(live) => Some(live),
        Err(error) if error.to_string().contains("CAP_NET_RAW") => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Reads packets until something is so; what comes after says whether it was.
fn drain_until(live: &mut Live, tracker: &mut Tracker, mut is_so: impl FnMut(&mut Tracker) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so(tracker) && Instant::now() < deadline {
        live.drain(tracker).expect("an open capture");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
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
        let port = listener.local_addr().expect("bound").port();
        let Some(mut live) = open(interface, port) else { return };
        let mut pairs: Vec<Pair> = (0..100).map(|_| Pair::open(&listener)).collect();
        for share in [half(), half().halved(), Share::ALL, half().halved().halved()] {
            // `all` takes whatever the kernel hands over; `sampled` only tells which connections these should be.
            let (mut all, mut sampled) = (tracker(port), tracker(port));
            live.sample(&mut sampled, share).expect("a filter");
            sampled.take_period(u64::MAX);
            live.drain(&mut tracker(port)).expect("what came before");
            for pair in &mut pairs {
                pair.ask();
                pair.answer();
            }
            let expected: BTreeSet<_> =
                pairs.iter().map(Pair::ends).filter(|(client, server)| sampled.looks_at(*client, *server)).collect();
            let mut seen = BTreeSet::new();
            drain_until(&mut live, &mut all, |tracker| {
                seen.extend(tracker.take_exchanges().iter().map(|exchange| (exchange.client, exchange.server)));
                seen.len() >= expected.len()
            });
            assert_eq!(seen, expected, "{share} on {interface}, {address}");
            assert!(share == Share::ALL || expected.len() < pairs.len(), "{share}: {}", expected.len());
        }
    }
}

#[test]
fn a_change_of_the_share_loses_no_packet_of_a_connection_that_stays() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let Some(mut live) = open("lo", port) else { return };
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
