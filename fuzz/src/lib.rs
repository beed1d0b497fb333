//! Turns bytes into captures: raw frames, or conversations on one connection.

use slackwater_sniffer::{Packet, Tracker, TrackerSettings};

const LINK_TYPES: [i32; 16] = [1, 0, 12, 108, 113, 228, 229, 276, 9, 50, 51, 101, 239, 105, 1, 1];
const ETHERNET: i32 = 1;
const START_NS: u64 = 1_700_000_000_000_000_000;

/// A tracker with little room, so that its limits are met.
fn tracker(protocol: &'static str) -> Tracker {
    Tracker::new(TrackerSettings {
        protocols: vec![(80, protocol)],
        routes: vec!["a=/a*".parse().expect("a route")],
        times_upgraded: true,
        most_connections: 8,
        most_waiting: 32,
        most_held_bytes: 4_096,
        keep_exchanges: true,
        number_all: true,
        ..TrackerSettings::default()
    })
}

/// Checks what must hold at any time, and at the end.
fn check(mut tracker: Tracker) {
    assert!(tracker.held_bytes() <= 4_096 && tracker.connections() <= 8);
    tracker.take_period(START_NS);
    let summary = tracker.finish();
    assert_eq!((tracker.held_bytes(), tracker.connections(), summary.in_flight), (0, 0, 0));
    let exchanges = tracker.take_exchanges();
    assert_eq!(exchanges.len() as u64, summary.counts.exchanges);
    assert!(summary.counts.quiet_requests <= summary.counts.unmatched_requests);
}

/// Frames: each is a link type, a length and so many bytes.
pub fn frames(mut data: &[u8]) {
    let mut tracker = tracker("http1");
    let mut number = 0;
    while let [link, low, high, rest @ ..] = data {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        number += 1;
        tracker.packet(&Packet {
            time_ns: START_NS + number * 1_000_000,
            link_type: LINK_TYPES[usize::from(link & 15)],
            frame: number,
            original_length: length as u32 + u32::from(link >> 4),
            bytes,
        });
        data = rest;
    }
    check(tracker);
}

/// A conversation: each segment is a control byte, a length, and so many bytes. The control byte's bits: 1 from the
/// server, 2 some bytes back, 4 some bytes ahead, 8 its end was cut, 16 the last segment, 32 acknowledges nothing new,
/// 64 later.
pub fn conversation(protocol: &'static str, mut data: &[u8]) {
    let mut tracker = tracker(protocol);
    let (mut next, mut now_ns) = ([1_001u32, u32::MAX - 100], START_NS);
    let mut number = 0;
    let mut send = |tracker: &mut Tracker,
                    side: usize,
                    seq: u32,
                    ack: u32,
                    flags: u8,
                    bytes: &[u8],
                    cut: u32,
                    now_ns| {
        number += 1;
        let frame = frame(side, seq, ack, flags, bytes);
        let original_length = frame.len() as u32 + cut;
        tracker.packet(&Packet { time_ns: now_ns, link_type: ETHERNET, frame: number, original_length, bytes: &frame });
    };
    send(&mut tracker, 0, next[0] - 1, 0, 0x02, b"", 0, now_ns);
    send(&mut tracker, 1, next[1] - 1, next[0], 0x12, b"", 0, now_ns);
    while let [control, length, rest @ ..] = data {
        let (bytes, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        let side = usize::from(control & 1);
        now_ns += if control & 64 == 0 { 10_000 } else { 20_000_000 };
        let shift = u32::from(*length) / 2;
        let mut seq = next[side];
        if control & 2 != 0 {
            seq = seq.wrapping_sub(shift);
        }
        if control & 4 != 0 {
            seq = seq.wrapping_add(shift);
        }
        let cut = if control & 8 == 0 { 0 } else { 5 };
        let flags = if control & 16 == 0 { 0x10 } else { 0x11 };
        let ack = next[1 - side].wrapping_sub(if control & 32 == 0 { 0 } else { 3 });
        send(&mut tracker, side, seq, ack, flags, bytes, cut, now_ns);
        next[side] = seq.wrapping_add(bytes.len() as u32 + cut + u32::from(control >> 4 & 1));
    }
    check(tracker);
}

/// Ethernet, IPv4 and TCP around some bytes.
fn frame(side: usize, seq: u32, ack: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12] = 8;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(40 + bytes.len() as u16).to_be_bytes());
    frame[23] = 6;
    let ends: [(u8, u16); 2] = [(1, 40_000), (2, 80)];
    let (source, destination) = (ends[side], ends[1 - side]);
    (frame[29], frame[33]) = (source.0, destination.0);
    frame[34..36].copy_from_slice(&source.1.to_be_bytes());
    frame[36..38].copy_from_slice(&destination.1.to_be_bytes());
    frame[38..42].copy_from_slice(&seq.to_be_bytes());
    frame[42..46].copy_from_slice(&ack.to_be_bytes());
    (frame[46], frame[47]) = (0x50, flags);
    frame.extend(bytes);
    frame
}
