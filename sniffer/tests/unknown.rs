//! Protocols that are not read: turns, by sequence and acknowledgement numbers alone.

mod support;

use slackwater_sniffer::{StatusClass, TrackerSettings};
use support::{Dice, Frame, GET, Measured, OK, SentSegment, Talk, run};

fn measure_frames(frames: &[Frame]) -> Measured {
    run(1, frames, TrackerSettings { protocols: vec![(80, "unknown")], ..TrackerSettings::default() })
}

fn measure(talk: &Talk) -> Measured {
    measure_frames(&talk.frames)
}

#[test]
fn a_turn_is_a_run_of_the_client_and_a_run_of_the_server() {
    let mut talk = Talk::new();
    for _ in 0..3 {
        talk.client(b"\x17\x03\x03 first");
        talk.client(b"second");
        talk.server(b"answer");
        talk.client_acks();
        talk.server(b"more");
    }
    let result = measure(&talk);
    assert_eq!((result.pairs(), result.unpaired()), (vec![(5, 8), (10, 13), (15, 18)], (0, 0)));
    let turn = &result.exchanges[0];
    assert_eq!((turn.first_byte_ns, turn.last_byte_ns), (Some(1_000_000), Some(3_000_000)));
    assert_eq!((turn.protocol, turn.method.as_str(), turn.class), ("unknown", "", StatusClass::Unknown));
    assert_eq!((turn.request_bytes, turn.response_bytes), (15, 10));
    assert_eq!(result.summary.counts.status.unknown, 3);
}

#[test]
fn a_server_that_greets_answers_nothing_and_a_silent_one_leaves_the_request_unmatched() {
    let mut talk = Talk::new();
    talk.server(b"220 welcome\r\n");
    talk.client(b"HELO\r\n");
    talk.server(b"250\r\n");
    talk.client(b"NOOP\r\n");
    assert_eq!((measure(&talk).pairs(), measure(&talk).unpaired()), (vec![(5, 6)], (1, 0)));
}

#[test]
fn what_the_server_says_before_it_received_the_request_belongs_to_the_turn_before() {
    let mut talk = Talk::new();
    talk.client(b"one");
    let before = talk.client;
    talk.server(b"answer to one");
    talk.client(b"two");
    let late = SentSegment { from_client: false, seq: talk.server, ack: Some(before), flags: "", bytes: b"rest" };
    talk.send(late);
    talk.server += 4;
    talk.server(b"answer to two");
    assert_eq!(measure(&talk).pairs(), [(4, 7), (6, 8)]);
}

#[test]
fn retransmissions_and_disorder_change_nothing() {
    for seed in 1..200 {
        let mut dice = Dice::new(seed);
        let mut talk = Talk::silent();
        talk.step_ns = 10_000;
        (talk.client, talk.server) = (u32::MAX - dice.roll(40) as u32, u32::MAX - dice.roll(40) as u32);
        talk.handshake();
        for _ in 0..8 {
            for _ in 0..1 + dice.roll(3) {
                talk.client(b"request");
            }
            for _ in 0..1 + dice.roll(3) {
                talk.server(b"response");
            }
        }
        let expected = measure(&talk).exchanges.len();
        let mut frames = talk.frames.clone();
        for _ in 0..5 {
            let original = 3 + dice.roll(frames.len() - 4);
            let copy = frames[original].clone();
            frames.insert(original + 1 + dice.roll(2), copy);
            let place = 3 + dice.roll(frames.len() - 4);
            frames.swap(place, place + 1);
        }
        for (number, frame) in frames.iter_mut().enumerate() {
            frame.time_ns = support::START_NS + number as u64 * 10_000;
        }
        let result = measure_frames(&frames);
        assert_eq!((result.exchanges.len(), expected, result.unpaired()), (8, 8, (0, 0)), "seed {seed}");
    }
}

#[test]
fn a_response_that_was_not_captured_is_not_replaced_by_the_next() {
    let mut talk = Talk::new();
    for _ in 0..3 {
        talk.client(b"request");
        talk.server(b"response");
        talk.client_acks();
        talk.pause(20);
    }
    let mut frames = talk.frames.clone();
    frames.remove(7);
    let result = measure_frames(&frames);
    assert_eq!((result.pairs(), result.unpaired(), result.summary.counts.holes), (vec![(4, 5), (9, 10)], (1, 0), 1));
    let mut frames = talk.frames.clone();
    frames.remove(6);
    let result = measure_frames(&frames);
    assert_eq!((result.pairs(), result.unpaired()), (vec![(4, 5), (9, 10)], (0, 1)), "a request was lost");
}

#[test]
fn after_an_upgrade_turns_are_timed_on_request() {
    let mut talk = Talk::new();
    talk.client(b"GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
    talk.server(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n");
    talk.client(b"\x81\x85hello");
    talk.server(b"\x81\x05hello");
    let count = |times_upgraded| {
        let settings = TrackerSettings { times_upgraded, ..TrackerSettings::default() };
        run(1, &talk.frames, settings).exchanges.iter().map(|e| e.protocol).collect::<Vec<_>>()
    };
    assert_eq!((count(false), count(true)), (vec!["http1"], vec!["http1", "unknown"]));
}

#[test]
fn a_handshake_of_tls_is_no_turn() {
    const REQUEST: &[u8] = b"\x17\x03\x03 request";
    const RESPONSE: &[u8] = b"\x17\x03\x03 response";
    let mut newer = Talk::new();
    newer.client(b"\x16\x03\x01 hello");
    newer.server(b"\x16\x03\x03 hello\x17\x03\x03 finished");
    newer.client(b"\x14\x03\x03 \x17\x03\x03 finished");
    newer.client(REQUEST);
    newer.server(RESPONSE);
    assert_eq!((measure(&newer).pairs(), measure(&newer).unpaired()), (vec![(7, 8)], (0, 0)), "TLS 1.3");
    let mut older = Talk::new();
    older.client(b"\x16\x03\x01 hello");
    older.server(b"\x16\x03\x03 hello");
    older.client(b"\x16\x03\x03 key\x14\x03\x03 \x16\x03\x03 finished");
    older.server(b"\x14\x03\x03 \x16\x03\x03 finished");
    for _ in 0..2 {
        older.client(REQUEST);
        older.server(RESPONSE);
    }
    assert_eq!((measure(&older).pairs(), measure(&older).unpaired()), (vec![(8, 9), (10, 11)], (0, 0)), "TLS 1.2");
}

#[test]
fn each_port_speaks_its_own_protocol() {
    let mut http = Talk::new();
    http.client(GET);
    http.server(OK);
    let mut tls = Talk::silent();
    tls.server_port = 443;
    tls.now_ns = http.now_ns;
    tls.handshake();
    tls.client(GET);
    tls.server(OK);
    let frames = [http.frames, tls.frames].concat();
    let settings = TrackerSettings { ports: vec![80, 443], ..TrackerSettings::default() };
    let protocols: Vec<_> = run(1, &frames, settings).exchanges.iter().map(|e| e.protocol).collect();
    assert_eq!(protocols, ["http1", "unknown"]);
}

#[test]
fn a_turn_is_booked_once_the_connection_rests() {
    let mut tracker = slackwater_sniffer::Tracker::new(TrackerSettings {
        protocols: vec![(80, "unknown")],
        ..TrackerSettings::default()
    });
    let mut talk = Talk::new();
    talk.client(b"request");
    for (number, frame) in talk.frames.drain(..).enumerate() {
        tracker.packet(&support::packet(1, number as u64 + 1, &frame));
    }
    assert_eq!(tracker.take_period(talk.now_ns).in_flight, 1);
    talk.server(b"response");
    tracker.packet(&support::packet(1, 5, &talk.frames[0]));
    let period = tracker.take_period(talk.now_ns + 2_000_000_000);
    assert_eq!((period.exchanges, period.in_flight), (1, 0));
}
