//! The settings of a tracker: the ports that it watches, and the memory that it may use.

use crate::port::Port;
use crate::routes::Route;

/// Settings of a `Tracker`.
#[derive(Debug, Clone)]
pub struct TrackerSettings {
    /// TCP ports of the servers.
    pub ports: Vec<u16>,
    /// Ports among these that speak another protocol than usual, with its name in the table of protocols.
    pub protocols: Vec<(u16, &'static str)>,
    /// Route classes; at most `MOST_ROUTES` count.
    pub routes: Vec<Route>,
    /// Measure turns, as for an unknown protocol, after a connection changed to another protocol (`Upgrade`,
    /// `CONNECT`). Otherwise the rest of the connection is passed over, because a web socket carries no responses of
    /// the server.
    pub times_upgraded: bool,
    /// Give histograms with periods and the summary, to `merge` them.
    pub with_histograms: bool,
    /// Keep the figures since the start, for `Tracker::summary` and `Tracker::finish`. Without them the times and sizes of
    /// a summary are missing.
    pub sums_up: bool,
    /// Most connections that are followed at a time; closed and idle ones make room for others.
    pub most_connections: usize,
    /// Most requests that wait for their response at a time, on all connections. Beyond that a connection keeps only
    /// one request, so that a flood of requests does not hide those that are answered.
    pub most_waiting: usize,
    /// Most bytes held back at a time on all connections: segments out of order, heads in several segments.
    pub most_held_bytes: usize,
    /// A connection is given up after this time without a packet.
    pub idle_s: u64,
    /// Keep each exchange until `Tracker::take_exchanges`.
    pub keep_exchanges: bool,
    /// Seed of the hash that chooses a sample of the connections. It is secret, so that nobody can choose what is
    /// sampled.
    pub sample_seed: u64,
    /// Number connections as Wireshark does, which counts those of all ports. This costs a table of all connections.
    pub number_all: bool,
}

impl TrackerSettings {
    /// Watches these ports, with these route classes; everything else is as by default.
    pub fn watching(ports: &[Port], routes: &[Route]) -> Self {
        Self {
            ports: ports.iter().map(|port| port.number).collect(),
            protocols: ports.iter().filter_map(|port| Some((port.number, port.protocol?))).collect(),
            routes: routes.to_vec(),
            ..Self::default()
        }
    }
}

impl Default for TrackerSettings {
    fn default() -> Self {
        Self {
            ports: vec![80],
            protocols: Vec::new(),
            routes: Vec::new(),
            times_upgraded: false,
            with_histograms: false,
            sums_up: true,
            most_connections: 32_768,
            most_waiting: 131_072,
            most_held_bytes: 8 << 20,
            idle_s: 300,
            keep_exchanges: false,
            sample_seed: 0,
            number_all: false,
        }
    }
}
