//! Ports that speak another protocol than they are taken for.

mod support;

use slackwater_sniffer::{ForeignPort, TrackerSettings};
use support::{Frame, GET, OK, START_NS, Talk, feed, run};

const HELLO: &[u8] = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03";
const SERVER_HELLO: &[u8] = b"\x16\x03\x03\x00\x05\x02\x00\x00\x01\x03";
const RECORD: &[u8] = b"\x17\x03\x03\x00\x05abcde";
const SETTINGS: &[u8] = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00";

fn named(ports: &[ForeignPort]) -> Vec<(u16, &'static str, &'static str)> {
    ports.iter().map(|port| (port.port, port.speaks, port.measure_as)).collect()
}

fn foreign_ports(talk: &Talk) -> Vec<(u16, &'static str, &'static str)> {
    named(&talk.run().summary.foreign_ports)
}

/// A conversation behind its handshake, between these ports.
fn between(client_port: u16, server_port: u16) -> Talk {
    let mut talk = Talk { client_port, server_port, ..Talk::silent() };
    talk.handshake();
    talk
}

/// The foreign ports at the end of a period that these frames are in.
fn in_period(tracker: &mut slackwater_sniffer::Tracker, frames: &[Frame], at_s: u64) -> Vec<ForeignPort> {
    feed(tracker, frames);
    tracker.take_period(START_NS + at_s * 1_000_000_000).foreign_ports
}

#[test]
fn the_first_answer_of_another_protocol_names_it() {
    for (client, server, speaks, measure_as) in [
        (HELLO, SERVER_HELLO, "TLS", "unknown"),
        (
            &[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", SETTINGS].concat()[..],
            SETTINGS,
            "HTTP/2 (h2c, as gRPC uses it)",
            "unknown",
        ),
        (
            b"\x01\x01\x00\x01\x00\x08\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00",
            b"\x01\x06\x00\x01\x00\x01\x00\x00x",
            "FastCGI",
            "unknown",
        ),
        (b"get k\r\n", b"VALUE k 0 1\r\nx\r\nEND\r\n", "memcached", "memcached"),
        (b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n", "Redis", "unknown"),
        (b"\x99\x98\x97", b"\x99\x98\x97", "", "unknown"),
    ] {
        let mut talk = Talk::new();
        talk.client(client);
        talk.server(server);
        assert_eq!(foreign_ports(&talk), [(80, speaks, measure_as)], "{speaks}");
    }
}

#[test]
fn behind_a_preamble_the_protocol_is_named_by_the_server() {
    let mut talk = Talk::new();
    talk.client(&[b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n", HELLO].concat());
    talk.server(SERVER_HELLO);
    assert_eq!(foreign_ports(&talk), [(80, "TLS", "unknown")]);
}

#[test]
fn a_server_that_speaks_first_is_told_and_one_that_never_answers_is_not() {
    let mut talk = Talk::new();
    talk.server(b"SSH-2.0-x\r\n");
    assert_eq!(foreign_ports(&talk), [(80, "SSH", "unknown")]);
    let mut silent = Talk::new();
    silent.client(HELLO);
    silent.server_ends();
    assert_eq!(foreign_ports(&silent), []);
}

#[test]
fn an_upgrade_to_http2_is_told_and_one_to_a_web_socket_is_not() {
    for (switch, client, server, is_foreign) in [
        ("h2c", &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], SETTINGS, true),
        ("websocket", b"\x81\x85abcdefghi", b"\x81\x05hello", false),
    ] {
        let mut talk = Talk::new();
        talk.client(GET);
        talk.server(format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: {switch}\r\n\r\n").as_bytes());
        for _ in 0..3 {
            talk.client(client);
            talk.server(server);
        }
        assert_eq!(!foreign_ports(&talk).is_empty(), is_foreign, "{switch}");
    }
}

#[test]
fn a_scanner_that_speaks_tls_to_a_web_server_changes_nothing() {
    let mut talk = Talk::new();
    talk.client(HELLO);
    talk.server(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert_eq!(foreign_ports(&talk), []);
}

#[test]
fn connections_met_in_the_middle_are_no_false_alarm() {
    // The end of a large response, then the next exchange.
    let mut download = Talk::silent();
    for _ in 0..50 {
        download.server(&[b'x'; 1400]);
        download.client_acks();
    }
    download.client(GET);
    download.server(OK);
    // The end of a large request.
    let mut upload = Talk::silent();
    for _ in 0..50 {
        upload.client(&[b'x'; 1400]);
    }
    upload.server(OK);
    // A WebSocket that was open before.
    let mut web_socket = Talk::silent();
    for _ in 0..50 {
        web_socket.client(b"\x81\x85abcdefghi");
        web_socket.server(b"\x81\x05hello");
    }
    // Responses whose starts were lost, each.
    let mut lossy = Talk::new();
    for _ in 0..50 {
        lossy.client(GET);
        lossy.server = lossy.server.wrapping_add(100);
        lossy.server(b"rest of a response");
        lossy.client_acks();
        lossy.pause(20);
    }
    // Next to nothing of each packet was captured.
    let mut cut = Talk::new();
    for _ in 0..3 {
        cut.client(GET);
        cut.server(OK);
    }
    cut.frames.iter_mut().for_each(|frame| frame.cut(58));
    for (name, talk) in
        [("cut", cut), ("download", download), ("upload", upload), ("web socket", web_socket), ("lossy", lossy)]
    {
        assert_eq!(foreign_ports(&talk), [], "{name}");
    }
}

#[test]
fn connections_of_another_protocol_that_were_open_before_are_told() {
    for (client, server, speaks) in [
        (RECORD, RECORD, "TLS"),
        (
            &b"\x00\x00\x05\x01\x05\x00\x00\x00\x01hello"[..],
            &b"\x00\x00\x05\x01\x04\x00\x00\x00\x01hello"[..],
            "HTTP/2 (h2c, as gRPC uses it)",
        ),
    ] {
        let mut talk = Talk::silent();
        for _ in 0..3 {
            talk.client(client);
            talk.server(server);
        }
        assert_eq!(foreign_ports(&talk), [(80, speaks, "unknown")]);
    }
}

#[test]
fn the_last_periods_with_answers_decide_and_silence_changes_nothing() {
    let mut tracker = slackwater_sniffer::Tracker::new(TrackerSettings::default());
    assert_eq!(in_period(&mut tracker, &[], 1), [], "an idle port is taken for what it should be");
    let mut tls = Talk::new();
    tls.client(HELLO);
    tls.server(SERVER_HELLO);
    for at_s in [2, 3, 9000] {
        let frames = if at_s == 2 { &tls.frames[..] } else { &[] };
        assert_eq!(named(&in_period(&mut tracker, frames, at_s)), [(80, "TLS", "unknown")]);
    }
    let mut http = between(40_001, 80);
    for _ in 0..2 {
        http.client(GET);
        http.server(OK);
    }
    assert_eq!(in_period(&mut tracker, &http.frames, 9001), [], "it speaks HTTP now");
}

#[test]
fn a_health_check_in_http1_does_not_hide_the_rest() {
    let mut frames = Vec::new();
    for port in 0..5 {
        let mut talk = between(41_000 + port, 80);
        talk.client(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        talk.server(SETTINGS);
        frames.extend(talk.frames);
    }
    let mut check = Talk::new();
    check.client(GET);
    check.server(OK);
    frames.extend(check.frames);
    let result = run(1, &frames, TrackerSettings::default());
    assert_eq!(named(&result.summary.foreign_ports)[0].1, "HTTP/2 (h2c, as gRPC uses it)");
}

#[test]
fn a_port_of_memcached_that_speaks_tls_is_told_too() {
    let mut talk = between(40_000, 11211);
    talk.client(HELLO);
    talk.server(SERVER_HELLO);
    let settings = TrackerSettings { ports: vec![11211], ..TrackerSettings::default() };
    let result = run(1, &talk.frames, settings);
    let ports = result.summary.foreign_ports;
    assert_eq!((ports[0].taken_for, ports[0].speaks), ("memcached", "TLS"));
    assert_eq!(ports[0].to_string(), "port 11211 is taken for memcached, and speaks TLS");
}
