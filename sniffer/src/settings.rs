//! What to watch, and with how much memory.

use crate::routes::Route;

/// What a `Tracker` watches, and how much memory it may use.
#[derive(Debug, Clone)]
pub struct TrackerSettings {
    /// TCP ports of the servers.
    pub ports: Vec<u16>,
    /// What ports of these speak, by its name in the table of protocols, where that is not what they usually do.
    pub protocols: Vec<(u16, &'static str)>,
    /// Route classes; at most `MOST_ROUTES` count.
    pub routes: Vec<Route>,
    /// Measure turns, as of an unknown protocol, after a connection went over to another one (`Upgrade`, `CONNECT`).
    /// Else what follows is passed over: what a web socket carries is no response of the server.
    pub times_upgraded: bool,
    /// Give histograms with periods and the summary, to `merge` them.
    pub with_histograms: bool,
    /// Connections followed at a time; when there are more, closed and idle ones make room.
    pub most_connections: usize,
    /// Requests waiting for their response at a time, on all connections. When there are more, a connection keeps only
    /// one: so a flood of requests does not hide those that are answered.
    pub most_waiting: usize,
    /// Bytes held back at a time on all connections: segments out of order, heads in several segments.
    pub most_held_bytes: usize,
    /// A connection is given up after so many seconds without a packet.
    pub idle_s: u64,
    /// Keep each exchange until `Tracker::take_exchanges`.
    pub keep_exchanges: bool,
    /// Makes the sample of connections where not all are looked at. Secret, so that nobody chooses what is seen.
    pub sample_seed: u64,
    /// Number connections as Wireshark does, which counts those of all ports. Costs a table of them.
    pub number_all: bool,
}

impl Default for TrackerSettings {
    fn default() -> Self {
        Self {
            ports: vec![80],
            protocols: Vec::new(),
            routes: Vec::new(),
            times_upgraded: false,
            with_histograms: false,
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
