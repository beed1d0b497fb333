//! Captures real connections on the loopback interface. Without CAP_NET_RAW the tests print that and pass.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use slackwater_sniffer::{Live, LiveSettings, Period, Tracker, TrackerSettings};
use support::{GET, now_ns, open_capture};

/// A server that takes `delay` for each answer; it serves each connection until the client closes it.
fn serve(listener: TcpListener, delay: Duration) {
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            connection.set_nodelay(true).expect("a socket option");
            std::thread::spawn(move || {
                let mut buffer = [0; 1_024];
                while connection.read(&mut buffer).is_ok_and(|length| length > 0) {
                    std::thread::sleep(delay);
                    let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
                    let _ = connection.write_all(b"hello");
                }
            });
        }
    });
}

fn ask(connection: &mut TcpStream) {
    connection.write_all(GET).expect("the server listens");
    let mut answer = Vec::new();
    let mut buffer = [0; 1_024];
    while !answer.ends_with(b"hello") {
        let length = connection.read(&mut buffer).expect("the server answers");
        assert!(length > 0, "the server closed");
        answer.extend_from_slice(&buffer[..length]);
    }
}

/// Waits until `holds` is true or a minute is over; the test's assertions tell which.
fn until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn exchanges_on_the_loopback_are_all_seen_with_their_times() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let Some(mut live) = open_capture("lo", port) else { return };
    let mut tracker = Tracker::new(TrackerSettings { ports: vec![port], ..TrackerSettings::default() });
    assert_eq!(live.drain(&mut tracker).expect("an open capture"), 0, "nothing to read does not block");
    serve(listener, Duration::from_millis(5));
    let client = std::thread::spawn(move || {
        let started = Instant::now();
        let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        (0..20).for_each(|_| ask(&mut connection));
        for _ in 0..10 {
            ask(&mut TcpStream::connect(("127.0.0.1", port)).expect("the server listens"));
        }
        started.elapsed().as_secs_f64() * 1e3 / 30.0
    });
    let mut exchanges = 0;
    let mut periods: Vec<Period> = Vec::new();
    until(|| {
        live.drain(&mut tracker).expect("an open capture");
        let period = tracker.take_period(now_ns());
        exchanges += period.exchanges;
        periods.push(period);
        exchanges >= 30
    });
    let mean_by_client_ms = client.join().expect("every request was answered");
    let drops = live.drops().expect("counters");
    let summary = tracker.summary();
    assert_eq!((exchanges, drops, summary.in_flight), (30, 0, 0), "{summary:?}");
    assert_eq!((summary.counts.unmatched_requests, summary.counts.orphan_responses), (0, 0));
    let mean = summary.last_byte_ms.mean.expect("30 times");
    assert!(mean >= 5.0 && mean <= mean_by_client_ms, "{mean} ms on the wire, {mean_by_client_ms} ms to the client");
    assert!(summary.details.first_byte_ms.mean <= summary.last_byte_ms.mean);
    let busy = periods.iter().find(|period| period.exchanges > 0).expect("a period with exchanges");
    assert!(busy.rt_p99_ms >= busy.rt_p50_ms && busy.rt_p50_ms >= Some(5.0));
}

#[test]
fn the_capture_goes_on_once_every_privilege_is_dropped() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    if open_capture("lo", port).is_none() {
        return;
    }
    serve(listener, Duration::ZERO);
    let mut sniffer = Command::new(env!("CARGO_BIN_EXE_slackwater-sniffer"))
        .args(["live", "-i", "lo", "--json", "--every", "0.1", "--user", "65534", "--port", &port.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut lines = BufReader::new(sniffer.stdout.take().expect("a pipe")).lines();
    let mut next =
        || -> Value { serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("a line of JSON") };
    // The first period tells that the capture is open, and that periods come without packets.
    assert_eq!(next()["exchanges"], 0);
    let status = std::fs::read_to_string(format!("/proc/{}/status", sniffer.id())).expect("the command runs");
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of this name");
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(value(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(
        (value("NoNewPrivs:"), value("Uid:")[1].as_str(), value("Groups:").len()),
        (vec!["1".into()], "65534", 0)
    );
    ask(&mut TcpStream::connect(("127.0.0.1", port)).expect("the server listens"));
    let mut exchanges = 0;
    until(|| {
        exchanges += next()["exchanges"].as_u64().expect("a number");
        exchanges > 0
    });
    let stopped = Command::new("kill").args(["-INT", &sniffer.id().to_string()]).status().expect("the command runs");
    assert!(exchanges == 1 && stopped.success());
    let last = std::iter::from_fn(|| lines.next()?.ok()).last().expect("a summary");
    assert!(sniffer.wait().expect("the command ends").success());
    let summary: Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!((&summary["exchanges"], &summary["drops"], &summary["connections"]), (&1.into(), &0.into(), &1.into()));
}

#[test]
fn what_does_not_fit_the_ring_is_counted_as_drops_and_the_capture_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    if open_capture("lo", port).is_none() {
        return;
    }
    let settings = LiveSettings { interface: "lo".into(), ports: vec![port], buffer_mib: 1, ..LiveSettings::default() };
    let mut live = Live::open(&settings).expect("the capture before could be opened");
    let mut tracker = Tracker::new(TrackerSettings { ports: vec![port], ..TrackerSettings::default() });
    serve(listener, Duration::ZERO);
    let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    // A body of 8 MiB while nobody reads the ring.
    let page = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 8 << 20);
    let mut reader = connection.try_clone().expect("a second handle");
    let answers = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    connection.write_all(page.as_bytes()).expect("the server reads");
    connection.write_all(&vec![b'x'; 8 << 20]).expect("the server reads");
    drop(connection);
    until(|| {
        live.drain(&mut tracker).expect("an open capture");
        live.drops().expect("counters") > 0
    });
    assert!(live.drops().expect("counters") > 0);
    drop(answers);
    ask(&mut TcpStream::connect(("127.0.0.1", port)).expect("the server listens"));
    let mut exchanges = 0;
    until(|| {
        live.drain(&mut tracker).expect("an open capture");
        exchanges += tracker.take_period(now_ns()).exchanges;
        exchanges > 0
    });
    assert!(exchanges > 0, "{:?}", tracker.summary());
}
