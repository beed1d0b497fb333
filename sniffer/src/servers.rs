//! Each server by itself, as a host sees them that talks to several of them: a balancer's.

use std::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;

use crate::figures::Period;
use crate::segment::Packet;
use crate::settings::TrackerSettings;
use crate::tracker::Tracker;

/// Connections to a server that are followed at a time: of one client, the balancer.
const MOST_CONNECTIONS: usize = 4_096;

/// Bytes of a server's connections that may be held back at a time, however many servers share the memory.
const LEAST_HELD_BYTES: usize = 512 << 10;

/// Follows the connections to some servers, with a tracker for each.
pub struct Servers {
    trackers: Vec<(SocketAddr, Tracker)>,
    /// Address and port of each server -> its place in `trackers`.
    places: HashMap<(IpAddr, u16), usize>,
}

impl Servers {
    /// Watches these servers. The settings' `ports` do not count, and what is bounded is shared among the servers.
    pub fn new(servers: &[SocketAddr], settings: &TrackerSettings) -> Servers {
        let shared = servers.len().max(1);
        let of_server = |server: &SocketAddr| TrackerSettings {
            ports: vec![server.port()],
            sums_up: false,
            most_connections: settings.most_connections.min(MOST_CONNECTIONS),
            most_waiting: settings.most_waiting.min(MOST_CONNECTIONS),
            most_held_bytes: (settings.most_held_bytes / shared).max(LEAST_HELD_BYTES),
            ..settings.clone()
        };
        let trackers = servers.iter().map(|server| (*server, Tracker::new(of_server(server)))).collect();
        // An IPv4 address in the form of IPv6 is IPv4 on the wire.
        let ends = servers.iter().map(|server| (server.ip().to_canonical(), server.port()));
        let places = ends.zip(0..).collect();
        Servers { trackers, places }
    }

    /// Takes a packet; those of other servers are passed over.
    pub fn packet(&mut self, packet: &Packet<'_>) {
        let Ok(segment) = packet.segment() else { return };
        let place = self.places.get(&segment.destination).or_else(|| self.places.get(&segment.source));
        if let Some((_, tracker)) = place.and_then(|place| self.trackers.get_mut(*place)) {
            tracker.packet(packet);
        }
    }

    /// Each server's period, in the order in which the servers were given. `now_ns` is in the clock of the packets.
    pub fn take_periods(&mut self, now_ns: u64) -> impl Iterator<Item = (SocketAddr, Period)> + '_ {
        self.trackers.iter_mut().map(move |(server, tracker)| (*server, tracker.take_period(now_ns)))
    }
}
