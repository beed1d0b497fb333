//! Link layers and tunnels: what is read, and what is counted by its kind.

mod support;

use slackwater_sniffer::TrackerSettings;
use support::{Frame, GET, Measured, OK, Talk, run};

/// Makes of a frame of Ethernet another one.
type Wrap = fn(&[u8]) -> Vec<u8>;

fn wrapped(link_type: i32, wrap: Wrap) -> Measured {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(OK);
    let frames: Vec<Frame> = talk
        .frames
        .iter()
        .map(|frame| {
            let bytes = wrap(&frame.bytes);
            Frame { original_length: bytes.len(), bytes, time_ns: frame.time_ns }
        })
        .collect();
    run(link_type, &frames, TrackerSettings::default())
}

fn ip(frame: &[u8]) -> &[u8] {
    &frame[14..]
}

fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &ether_type.to_be_bytes(), payload].concat()
}

/// An outer IPv4 packet in Ethernet, padded as network cards do.
fn outer(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    head[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    ethernet(0x0800, &[&head[..], payload, &[0; 6]].concat())
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    let head = [50_000u16, port, length, 0].map(u16::to_be_bytes).concat();
    outer(17, &[&head, payload].concat())
}

#[test]
fn link_layers_and_tunnels_are_looked_through() {
    let cases: &[(&str, i32, Wrap)] = &[
        ("raw IP as files number it", 101, |f| ip(f).to_vec()),
        ("PPP", 9, |f| [&[0xff, 3, 0, 0x21], ip(f)].concat()),
        ("PPP, short", 9, |f| [&[0x21], ip(f)].concat()),
        ("PPPoE", 1, |f| ethernet(0x8864, &[&[0x11, 0, 0, 1, 0, 0, 0, 0x21], ip(f)].concat())),
        ("PPPoE as a link type", 51, |f| [&[0x11, 0, 0, 1, 0, 0, 0, 0x21], ip(f)].concat()),
        ("NFLOG", 239, |f| {
            let length = (4 + ip(f).len() as u16).to_le_bytes();
            let prefix = [6, 0, 10, 0, b'a', 0, 0, 0];
            [&[2, 0, 0, 0][..], &prefix, &length, &[9, 0], ip(f)].concat()
        }),
        ("MPLS", 1, |f| ethernet(0x8847, &[&[0, 1, 0, 64, 0, 2, 1, 64], ip(f)].concat())),
        ("GRE", 1, |f| outer(47, &[&[0, 0, 8, 0], ip(f)].concat())),
        ("GRE with all fields", 1, |f| outer(47, &[&[0xb0, 0, 8, 0][..], &[7; 12], ip(f)].concat())),
        ("GRE with Ethernet", 1, |f| outer(47, &[&[0x20, 0, 0x65, 0x58, 0, 0, 0, 1], f].concat())),
        ("PPTP", 1, |f| outer(47, &[&[0x30, 0x81, 0x88, 0x0b][..], &[0; 12], &[0xff, 3, 0, 0x21], ip(f)].concat())),
        ("ERSPAN II", 1, |f| outer(47, &[&[0x10, 0, 0x88, 0xbe][..], &[0; 4], &[0; 8], f].concat())),
        ("IP in IP", 1, |f| outer(4, ip(f))),
        ("VXLAN", 1, |f| udp(4789, &[&[8, 0, 0, 0, 0, 0, 7, 0], f].concat())),
        ("Geneve with options", 1, |f| udp(6081, &[&[1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 0], f].concat())),
        ("VXLAN in VXLAN in a VLAN", 1, |f| {
            let vxlan = |frame: &[u8]| udp(4789, &[&[8, 0, 0, 0, 0, 0, 7, 0], frame].concat());
            let mut frame = vxlan(&vxlan(f));
            frame.splice(12..12, [0x81, 0, 0, 7]);
            frame
        }),
    ];
    for (name, link_type, wrap) in cases {
        let result = wrapped(*link_type, *wrap);
        let counts = result.summary.counts;
        assert_eq!((result.pairs(), counts.not_understood, counts.holes), (vec![(4, 5)], 0, 0), "{name}");
        let sizes = (result.exchanges[0].request_bytes, result.exchanges[0].response_bytes);
        assert_eq!(sizes, (GET.len() as u32, OK.len() as u32), "{name}");
    }
}

#[test]
fn what_is_not_understood_is_counted_by_its_kind() {
    let cases: &[(&str, i32, Wrap)] = &[
        ("link type 105 (IEEE802_11)", 105, |f| f.to_vec()),
        ("EtherType 0x88e5 (MACsec)", 1, |f| ethernet(0x88e5, ip(f))),
        ("EtherType 0x1234", 1, |f| ethernet(0x1234, ip(f))),
        ("PPP protocol 0x00fd", 1, |f| ethernet(0x8864, &[&[0x11, 0, 0, 1, 0, 0, 0, 0xfd], ip(f)].concat())),
        ("IP protocol 50 (ESP)", 1, |f| outer(50, ip(f))),
        ("GTP-U", 1, |f| udp(2152, ip(f))),
        ("headers damaged or cut", 1, |f| f[..30].to_vec()),
        ("headers nested too deeply", 1, |f| (0..20).fold(f.to_vec(), |inner, _| outer(4, ip(&inner)))),
    ];
    for (kind, link_type, wrap) in cases {
        let summary = wrapped(*link_type, *wrap).summary;
        assert_eq!((summary.counts.packets, summary.counts.not_understood), (5, 5), "{kind}");
        assert_eq!(summary.not_understood_kinds, [((*kind).to_owned(), 5)].into());
    }
}

#[test]
fn what_is_known_not_to_be_tcp_is_no_matter() {
    let cases: &[(&str, Wrap)] = &[
        ("ARP", |f| ethernet(0x0806, ip(f))),
        ("a length", |f| ethernet(0x0040, ip(f))),
        ("DNS", |f| udp(53, ip(f))),
        ("ICMP", |f| outer(1, ip(f))),
        ("PPP's link control", |f| ethernet(0x8864, &[&[0x11, 0, 0, 1, 0, 0, 0xc0, 0x21], ip(f)].concat())),
    ];
    for (name, wrap) in cases {
        let counts = wrapped(1, *wrap).summary.counts;
        assert_eq!((counts.packets, counts.not_understood, counts.exchanges), (5, 0, 0), "{name}");
    }
}
