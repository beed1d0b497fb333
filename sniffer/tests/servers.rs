//! Each of several servers by itself.

mod support;

use std::net::SocketAddr;

use slackwater_sniffer::{Servers, TrackerSettings};
use support::{GET, OK, Talk, packet};

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
