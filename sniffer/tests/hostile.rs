//! Bytes and floods that mean harm: nothing panics, memory stays bounded, real exchanges are still measured.

mod support;

use slackwater_sniffer::{Tracker, TrackerSettings};
use support::{Dice, GET, OK, START_NS, SentSegment, Talk, packet};

const LINK_TYPES: [i32; 9] = [0, 1, 12, 108, 113, 228, 229, 276, 999];

#[test]
fn damaged_packets_do_no_harm() {
    let mut dice = Dice::new(7);
    let mut talk = Talk::new();
    for _ in 0..4 {
        talk.client(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
        talk.server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        talk.server(b"0\r\n\r\n");
    }
    talk.server_ends();
    let settings = TrackerSettings { most_held_bytes: 4_000, most_connections: 20, ..TrackerSettings::default() };
    let mut tracker = Tracker::new(settings);
    for round in 0..4_000u64 {
        let mut frames = talk.frames.clone();
        for _ in 0..1 + dice.roll(8) {
            let place = dice.roll(frames.len());
            let frame = &mut frames[place];
            match dice.roll(5) {
                0 => frame.bytes.truncate(dice.roll(100)),
                1 => frame.time_ns = dice.roll(usize::MAX) as u64,
                2 => frame.original_length = dice.roll(1 << 32),
                // The heads are where damage hurts.
                3 if !frame.bytes.is_empty() => {
                    let byte = dice.roll(frame.bytes.len().min(60));
                    frame.bytes[byte] = dice.roll(256) as u8;
                }
                _ => {
                    let other = dice.roll(frames.len());
                    frames.swap(place, other);
                }
            }
        }
        let link_type = if dice.roll(4) == 0 { LINK_TYPES[dice.roll(LINK_TYPES.len())] } else { 1 };
        for frame in &frames {
            tracker.packet(&packet(link_type, round, frame));
            assert!(tracker.held_bytes() <= 4_000 && tracker.connections() <= 20);
        }
        if dice.roll(50) == 0 {
            tracker.take_period(dice.roll(usize::MAX) as u64);
        }
    }
    let summary = tracker.finish();
    assert_eq!((tracker.held_bytes(), tracker.connections(), summary.in_flight), (0, 0, 0));
    assert!(summary.counts.exchanges > 100, "some conversations were whole: {summary:?}");
}

#[test]
fn a_flood_of_connections_is_bounded_and_real_exchanges_are_still_measured() {
    let mut tracker = Tracker::new(TrackerSettings { most_connections: 1_000, ..TrackerSettings::default() });
    let mut real = Talk::new();
    let mut number = 0;
    let mut feed = |tracker: &mut Tracker, talk: &mut Talk| {
        for frame in talk.frames.drain(..) {
            number += 1;
            tracker.packet(&packet(1, number, &frame));
        }
    };
    for flood in 0..20_000u32 {
        let mut attacker = Talk::silent();
        attacker.now_ns = START_NS + u64::from(flood) * 1_000;
        (attacker.client_port, attacker.client) = (1_024 + (flood % 60_000) as u16, flood);
        attacker.send(SentSegment { from_client: true, seq: flood, ack: None, flags: "S", bytes: b"" });
        feed(&mut tracker, &mut attacker);
        if flood % 100 == 0 {
            real.now_ns = attacker.now_ns;
            real.client(GET);
            real.server(OK);
            feed(&mut tracker, &mut real);
        }
        assert!(tracker.connections() <= 1_000);
    }
    let summary = tracker.finish();
    assert_eq!((summary.counts.exchanges, summary.counts.orphan_responses), (200, 0));
    assert!(summary.counts.evicted >= 18_000, "{summary:?}");
}

#[test]
fn requests_that_are_never_answered_are_bounded_and_given_up() {
    let settings = TrackerSettings { most_waiting: 500, idle_s: 10, ..TrackerSettings::default() };
    let mut tracker = Tracker::new(settings);
    for port in 0..100 {
        let mut talk = Talk::silent();
        talk.client_port = 2_000 + port;
        talk.handshake();
        talk.client(&GET.repeat(20));
        support::feed(&mut tracker, &talk.frames);
    }
    let period = tracker.take_period(START_NS + 1_000_000_000);
    // A quarter of the connections takes all there is, the others keep one each.
    assert_eq!((period.in_flight, period.counts.refused), (575, 1_425));
    let period = tracker.take_period(START_NS + 60_000_000_000);
    assert_eq!((period.in_flight, period.counts.unmatched_requests, period.counts.evicted), (0, 575, 100));
}

#[test]
fn heads_and_holes_without_end_are_bounded() {
    let settings = TrackerSettings { most_held_bytes: 1 << 20, ..TrackerSettings::default() };
    let mut tracker = Tracker::new(settings);
    for port in 0..40 {
        let mut talk = Talk::silent();
        talk.client_port = 2_000 + port;
        talk.handshake();
        talk.client(b"GET / HTTP/1.1\r\n");
        for _ in 0..100 {
            talk.client(&[b'x'; 1_000]);
        }
        // Segments that each leave a hole before them.
        for _ in 0..400 {
            talk.server = talk.server.wrapping_add(1);
            talk.server(&[b'y'; 1_000]);
        }
        for (number, frame) in talk.frames.iter().enumerate() {
            tracker.packet(&packet(1, number as u64, frame));
            assert!(tracker.held_bytes() <= 1 << 20);
        }
    }
    let summary = tracker.finish();
    assert!(summary.counts.holes > 1_000 && summary.counts.malformed >= 40, "{summary:?}");
    assert_eq!(tracker.held_bytes(), 0);
}

#[test]
fn a_period_counts_what_is_in_flight() {
    let mut tracker = Tracker::new(TrackerSettings::default());
    let mut talk = Talk::new();
    talk.client(GET);
    talk.client(GET);
    talk.server(OK);
    support::feed(&mut tracker, &talk.frames);
    let period = tracker.take_period(talk.now_ns);
    assert_eq!((period.exchanges, period.in_flight, period.rt_p50_ms), (1, 1, Some(2.0)));
    let period = tracker.take_period(talk.now_ns);
    assert_eq!((period.exchanges, period.in_flight, period.rt_p50_ms), (0, 1, None));
}

#[test]
fn what_is_in_flight_is_right_after_evictions_too() {
    let mut tracker = Tracker::new(TrackerSettings { most_connections: 3, ..TrackerSettings::default() });
    let mut number = 0;
    let mut talks: Vec<Talk> = Vec::new();
    for port in 0..5 {
        let mut talk = Talk::silent();
        (talk.client_port, talk.now_ns) = (2_000 + port, START_NS + u64::from(port) * 10_000_000);
        talk.handshake();
        talk.client(GET);
        talk.client(GET);
        let now_ns = talk.now_ns;
        feed(&mut tracker, &mut number, now_ns, &mut talk);
        talks.push(talk);
    }
    let period = tracker.take_period(START_NS + 60_000_000);
    assert_eq!((period.in_flight, period.counts.evicted, period.counts.unmatched_requests), (6, 2, 4));
    for talk in &mut talks {
        talk.server(&[OK, OK].concat());
        feed(&mut tracker, &mut number, START_NS + 70_000_000, talk);
    }
    let period = tracker.take_period(START_NS + 80_000_000);
    assert_eq!(period.in_flight, 0, "{period:?}");
    assert_eq!(tracker.finish().in_flight, 0);
}

#[test]
fn fragments_and_other_protocols_are_passed_over() {
    let mut tracker = Tracker::new(TrackerSettings::default());
    let mut talk = Talk::new();
    talk.client(GET);
    // More fragments follow.
    talk.frames[3].bytes[20] |= 0x20;
    // UDP.
    talk.frames[2].bytes[23] = 17;
    support::feed(&mut tracker, &talk.frames);
    let counts = tracker.finish().counts;
    assert_eq!((counts.packets, counts.fragments, counts.unmatched_requests), (4, 1, 0));
}

#[test]
fn half_open_requests_are_bounded_and_real_exchanges_are_still_measured() {
    let settings = TrackerSettings {
        most_connections: 500,
        most_held_bytes: 64 << 10,
        most_waiting: 1_000,
        ..TrackerSettings::default()
    };
    let mut tracker = Tracker::new(settings);
    let mut real = Talk::new();
    let mut number = 0;
    let mut feed = |tracker: &mut Tracker, talk: &mut Talk| {
        for frame in talk.frames.drain(..) {
            number += 1;
            tracker.packet(&packet(1, number, &frame));
        }
    };
    for flood in 0..10_000u32 {
        let mut attacker = Talk::silent();
        (attacker.now_ns, attacker.step_ns) = (START_NS + u64::from(flood) * 100_000, 10_000);
        (attacker.client_port, attacker.client) = (1_024 + (flood % 38_000) as u16, flood);
        attacker.handshake();
        match flood % 4 {
            // A head that never ends, a body that never comes, pipelined requests without an answer, holes.
            0 => attacker.client(&[&GET[..20], &[b'x'; 1_000]].concat()),
            1 => attacker.client(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"),
            2 => attacker.client(&GET.repeat(50)),
            _ => {
                attacker.client = attacker.client.wrapping_add(10_000);
                attacker.client(&[b'y'; 1_400])
            }
        };
        feed(&mut tracker, &mut attacker);
        if flood % 20 == 0 {
            real.now_ns = attacker.now_ns;
            real.client(GET);
            real.server(OK);
            feed(&mut tracker, &mut real);
        }
        assert!(tracker.connections() <= 500 && tracker.held_bytes() <= 64 << 10);
    }
    let summary = tracker.finish();
    assert_eq!(summary.counts.exchanges, 500, "{summary:?}");
    assert!(summary.counts.evicted > 9_000 && summary.counts.unmatched_requests > 1_000, "{summary:?}");
    assert_eq!(tracker.held_bytes(), 0);
}

#[test]
fn floods_in_other_protocols_are_bounded_too() {
    for (protocol, bytes) in [("memcached", &b"get a b c\r\nget d"[..]), ("unknown", b"anything")] {
        let mut tracker = Tracker::new(TrackerSettings {
            protocols: vec![(80, protocol)],
            most_connections: 200,
            most_held_bytes: 1_000,
            most_waiting: 250,
            ..TrackerSettings::default()
        });
        for flood in 0..5_000u32 {
            let mut attacker = Talk::silent();
            attacker.now_ns = START_NS + u64::from(flood) * 100_000;
            attacker.client_port = 1_024 + flood as u16;
            attacker.handshake();
            attacker.client(bytes);
            for frame in &attacker.frames {
                tracker.packet(&packet(1, 1, frame));
            }
            assert!(tracker.connections() <= 200 && tracker.held_bytes() <= 1_000, "{protocol}");
        }
        let period = tracker.take_period(START_NS + 1_000_000_000);
        assert!(period.in_flight <= 250, "{protocol}: {period:?}");
        let summary = tracker.finish();
        assert_eq!((summary.in_flight, tracker.held_bytes()), (0, 0), "{protocol}");
        assert!(summary.counts.unmatched_requests >= 1_000, "{protocol}: {summary:?}");
    }
}

/// Feeds the frames that were added since the last call, all at this time.
fn feed(tracker: &mut Tracker, number: &mut u64, now_ns: u64, talk: &mut Talk) {
    for mut frame in talk.frames.drain(..) {
        *number += 1;
        frame.time_ns = now_ns;
        tracker.packet(&packet(1, *number, &frame));
        assert!(tracker.held_bytes() <= 8 << 20);
    }
}

#[test]
fn who_fills_the_memory_does_not_cost_others_their_heads() {
    let long_head = [&GET[..GET.len() - 2], b"Cookie: ", &[b'c'; 6_000], b"\r\n\r\n"].concat();
    // The attackers send heads without end, or leave holes that are never filled.
    type Attack = fn(&mut Talk);
    let attacks: [Attack; 2] = [
        |talk| {
            talk.client(b"GET / HTTP/1.1\r\n");
            (0..40).for_each(|_| _ = talk.client(&[b'x'; 1_400]));
        },
        |talk| {
            talk.client = talk.client.wrapping_add(1);
            (0..80).for_each(|_| _ = talk.client(&[b'x'; 1_400]));
        },
    ];
    for attack in attacks {
        let mut tracker = Tracker::new(TrackerSettings::default());
        let (mut number, mut now_ns, mut most) = (0, START_NS, 0);
        for round in 0..1_000u32 {
            // All within three seconds: time alone gives nothing back.
            now_ns += 3_000_000;
            let mut real = Talk::silent();
            (real.client_port, real.client) = (20_000 + round as u16, round);
            real.handshake();
            real.client(&long_head[..1_400]);
            feed(&mut tracker, &mut number, now_ns, &mut real);
            let mut attacker = Talk::silent();
            attacker.client_port = 1_024 + round as u16;
            attacker.handshake();
            attack(&mut attacker);
            feed(&mut tracker, &mut number, now_ns + 1_000_000, &mut attacker);
            real.client(&long_head[1_400..4_000]);
            real.client(&long_head[4_000..]);
            real.server(OK);
            feed(&mut tracker, &mut number, now_ns + 2_000_000, &mut real);
            most = most.max(tracker.held_bytes());
        }
        assert!(most > 7 << 20, "the memory was filled: {most}");
        let summary = tracker.finish();
        assert_eq!((summary.counts.exchanges, summary.counts.orphan_responses), (1_000, 0), "{summary:?}");
        assert!(summary.counts.evicted > 500, "{summary:?}");
        assert_eq!(tracker.held_bytes(), 0);
    }
}

#[test]
fn the_greediest_gives_way_before_many_that_hold_little() {
    let mut tracker = Tracker::new(TrackerSettings { most_held_bytes: 100_000, ..TrackerSettings::default() });
    let mut number = 0;
    let mut begin = |tracker: &mut Tracker, port: u16, bytes: usize| {
        let mut talk = Talk::silent();
        talk.client_port = port;
        talk.handshake();
        talk.client(&[&GET[..GET.len() - 2], &vec![b'x'; bytes]].concat());
        feed(tracker, &mut number, START_NS, &mut talk);
        talk
    };
    let mut small: Vec<Talk> = (0..10).map(|port| begin(&mut tracker, 2_000 + port, 100)).collect();
    (0..10).for_each(|port| drop(begin(&mut tracker, 3_000 + port, 20_000)));
    for talk in &mut small {
        talk.client(b"\r\n\r\n");
        talk.server(OK);
        feed(&mut tracker, &mut number, START_NS + 1_000_000, talk);
    }
    let counts = tracker.finish().counts;
    assert_eq!((counts.exchanges, counts.evicted), (10, 7), "{counts:?}");
}
