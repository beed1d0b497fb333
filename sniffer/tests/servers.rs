//! Each of several servers by itself.

mod support;

use std::net::SocketAddr;

use slackwater_sniffer::{Servers, TrackerSettings};
use support::traffic::Traffic;
use support::{Frame, GET, OK, Talk, packet};

/// What `Talk` says to a port: requests that are answered, and then one that is not.
fn talk(port: u16, client_port: u16, answered: usize) -> Talk {
    let mut talk = Talk::silent();
    (talk.server_port, talk.client_port) = (port, client_port);
    talk.handshake();
    for _ in 0..answered {
        talk.client(GET);
        talk.server(OK);
    }
    talk.client(GET);
    talk
}

#[test]
fn each_server_has_the_requests_that_it_was_asked_for() {
    let addresses: [SocketAddr; 3] =
        ["10.0.0.2:80", "10.0.0.2:8080", "10.0.0.9:80"].map(|address| address.parse().expect("an address"));
    let mut servers = Servers::new(&addresses, &TrackerSettings::default());
    let talks = [talk(80, 40_000, 1), talk(80, 40_001, 2), talk(8080, 40_002, 4), talk(81, 40_003, 8)];
    let now_ns = talks.iter().map(|talk| talk.now_ns).max().expect("talks");
    for (number, frame) in talks.iter().flat_map(|talk| &talk.frames).enumerate() {
        servers.packet(&packet(1, number as u64 + 1, frame));
    }
    let periods: Vec<_> =
        servers.take_periods(now_ns).map(|(server, period)| (server, period.exchanges, period.in_flight)).collect();
    assert_eq!(periods, [(addresses[0], 3, 2), (addresses[1], 4, 1), (addresses[2], 0, 0)]);
    let exchanges: u64 = servers.take_periods(now_ns).map(|(_, period)| period.exchanges).sum();
    assert_eq!(exchanges, 0, "a period starts empty");
}

/// Whether the segment in a frame of IPv4 in Ethernet has bytes, or opens or ends a connection.
fn has_bytes(frame: &Frame) -> bool {
    let flags = frame.bytes[14 + 20 + 13];
    frame.bytes.len() > 14 + 20 + 20 || flags & 7 != 0
}

#[test]
fn acknowledgements_alone_change_no_figure_also_where_packets_are_lost() {
    for (seed, lost_of) in [(1, usize::MAX), (2, 50), (3, 10)] {
        let mut frames = Traffic { connections: 200, most_requests: 20, opened_within_ms: 500 }.frames(seed);
        let end_ns = frames.last().expect("frames").time_ns;
        let mut number = 0;
        frames.retain(|frame| {
            number += usize::from(has_bytes(frame));
            !has_bytes(frame) || number % lost_of != lost_of - 1
        });
        let address: SocketAddr = "10.0.0.2:80".parse().expect("an address");
        let figures = |frames: &[&Frame]| {
            let mut servers = Servers::new(&[address], &TrackerSettings::default());
            for (number, frame) in frames.iter().enumerate() {
                servers.packet(&packet(1, number as u64 + 1, frame));
            }
            let (_, period) = servers.take_periods(end_ns + 10_000_000_000).next().expect("a server");
            (period.exchanges, period.rt_mean_ms, period.rt_p95_ms, period.rt_p99_ms, period.in_flight)
        };
        let all: Vec<&Frame> = frames.iter().collect();
        let without: Vec<&Frame> = frames.iter().filter(|frame| has_bytes(frame)).collect();
        assert!(without.len() < all.len());
        assert_eq!(figures(&all), figures(&without), "seed {seed}, one of {lost_of} lost");
    }
}

#[test]
fn a_server_may_be_named_by_an_ipv4_address_in_the_form_of_ipv6() {
    let address: SocketAddr = "[::ffff:10.0.0.2]:80".parse().expect("an address");
    let mut servers = Servers::new(&[address], &TrackerSettings::default());
    let talk = talk(80, 40_000, 3);
    for (number, frame) in talk.frames.iter().enumerate() {
        servers.packet(&packet(1, number as u64 + 1, frame));
    }
    let periods: Vec<_> =
        servers.take_periods(talk.now_ns).map(|(server, period)| (server, period.exchanges)).collect();
    assert_eq!(periods, [(address, 3)]);
}
