//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use slackwater_sniffer::{LiveSettings, MOST_ROUTES, Port, Route, TrackerSettings, known_protocol};

/// Response times of web servers (HTTP/1.x over TCP), of memcached, and of any protocol in which client and server take
/// turns, from the packets on the wire.
///
/// A response time is the time from the last byte of a request to the last byte of its response. Frames and streams are
/// numbered as in Wireshark.
///
/// Limits: 128 requests of HTTP (1,024 of memcached) may wait on a connection, and 131,072 on all; those beyond are
/// counted as refused. Headers may have 64 KiB, methods 255 bytes. 32,768 connections are followed at a time, and given up
/// after 300 s without a packet. Fragments of IP packets are counted and skipped, packets that are not understood counted
/// by kind.
#[derive(Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "Example: slackwater-sniffer read requests.pcap --port 80 --json"
)]
pub struct Command {
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Subcommand)]
pub enum Action {
    /// Read a capture (pcap or pcapng, also compressed with gzip) from a file or standard input.
    ///
    /// Ethernet, PPP, PPPoE, Linux cooked (v1, v2), NFLOG, loopback and raw IP are read; also in VLANs, MPLS, GRE, ERSPAN,
    /// IP in IP, VXLAN and Geneve. If no packet is understood, the exit status is 1 and the error names what was there.
    #[command(
        after_help = "Example: slackwater-sniffer read requests.pcap.gz --port 80 --port 443:unknown --exchanges\n         tcpdump -i eth0 -w - port 80 | slackwater-sniffer read - --every 1"
    )]
    Read {
        /// The file; `-` stands for standard input.
        file: PathBuf,
        #[command(flatten)]
        options: TrafficOptions,
    },
    /// Capture from an interface until interrupted; needs the capability CAP_NET_RAW, and drops it at once.
    #[command(after_help = "Example: slackwater-sniffer live -i eth0 --port 80 --every 1")]
    Live {
        /// The interface; `any` stands for all.
        #[arg(short, long)]
        interface: String,
        #[command(flatten)]
        options: TrafficOptions,
        /// Stop after so many seconds.
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        seconds: Option<Duration>,
        /// Bytes kept of each packet; by default all.
        #[arg(long, value_name = "BYTES", default_value_t = LiveSettings::default().snap_length)]
        snap_length: u32,
        /// Size of the kernel's ring in MiB.
        #[arg(long, value_name = "MIB", default_value_t = LiveSettings::default().buffer_mib)]
        buffer_mib: u32,
        /// Change to this user (a name or a number) once the capture is open. All capabilities go in any case.
        #[arg(long)]
        user: Option<String>,
    },
    /// Print a line of JSON for each of some servers and each period, and a line that ends the period, until interrupted.
    ///
    /// For a host that passes all requests to these servers, as a balancer does. Servers without a line were silent.
    #[command(after_help = "Example: slackwater-sniffer servers -i eth0 --server 10.0.0.11:80 --server 10.0.0.12:80")]
    Servers(ServersOptions),
    /// Put histograms of several runs or nodes together: percentiles of all. Reads what `--json --histograms` printed,
    /// from files or standard input, and merges the last line of each file.
    #[command(after_help = "Example: slackwater-sniffer merge node1.json node2.json")]
    Merge {
        /// Lines of JSON with a `histogram`.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

impl Action {
    /// Whether the output is JSON, for a program.
    pub fn prints_json(&self) -> bool {
        match self {
            Self::Read { options, .. } | Self::Live { options, .. } => options.json,
            Self::Servers(_) => true,
            Self::Merge { json, .. } => *json,
        }
    }
}

#[derive(Args)]
pub struct TrafficOptions {
    /// TCP port of the servers, and what it speaks: http1, memcached or unknown (turns are timed, not read, as for TLS).
    /// Without that: memcached on 11211, unknown on 443, else http1. May be given several times.
    #[arg(short, long = "port", value_name = "PORT[:PROTOCOL]", default_value = "80", value_parser = str::parse::<Port>)]
    pub ports: Vec<Port>,
    /// A class of requests with figures of its own: those whose path, without the query, matches the pattern, in which
    /// `*` stands for anything (for memcached: the first key). The first that matches counts. May be given several times.
    #[arg(long = "route", value_name = "NAME=PATTERN", value_parser = str::parse::<Route>)]
    pub routes: Vec<Route>,
    /// Print the figures of each period of so many seconds; on a terminal, in a table that is refreshed.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub every: Option<Duration>,
    /// Print the summary, and periods, as JSON: one object a line.
    #[arg(long)]
    pub json: bool,
    /// Print a line of JSON for each matched request and response, with its time and addresses; a summary that is not JSON goes to standard error.
    #[arg(long)]
    pub exchanges: bool,
    /// Put histograms into the JSON, to merge them over periods and nodes.
    #[arg(long, requires = "json")]
    pub histograms: bool,
    /// Also time turns on connections that went over to another protocol (Upgrade, CONNECT).
    #[arg(long)]
    pub upgraded: bool,
}

#[derive(Args)]
pub struct ServersOptions {
    /// The interface on which the servers are reached.
    #[arg(short, long)]
    pub interface: String,
    /// Address and port of a server. Is given once for each.
    #[arg(long = "server", value_name = "ADDRESS:PORT", required = true)]
    pub servers: Vec<SocketAddr>,
    /// What the servers speak: http1, memcached or unknown (turns are timed, not read, as for TLS).
    #[arg(long, default_value = "http1", value_parser = known_protocol)]
    pub protocol: &'static str,
    /// A class of requests with figures of its own, as of `live`. May be given several times.
    #[arg(long = "route", value_name = "NAME=PATTERN", value_parser = str::parse::<Route>)]
    pub routes: Vec<Route>,
    /// Length of a period.
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    pub every: Duration,
    /// Bytes kept of each packet; by default all.
    #[arg(long, value_name = "BYTES", default_value_t = LiveSettings::default().snap_length)]
    pub snap_length: u32,
    /// Size of the kernel's ring in MiB.
    #[arg(long, value_name = "MIB", default_value_t = LiveSettings::default().buffer_mib)]
    pub buffer_mib: u32,
    /// Change to this user (a name or a number) once the capture is open. All capabilities go in any case.
    #[arg(long)]
    pub user: Option<String>,
}

impl ServersOptions {
    /// The settings of each server's tracker.
    pub fn tracker_settings(&self) -> Result<TrackerSettings, ArgumentError> {
        if self.routes.len() > MOST_ROUTES {
            return Err(ArgumentError::TooManyRoutes(self.routes.len()));
        }
        let protocols = self.servers.iter().map(|server| (server.port(), self.protocol)).collect();
        Ok(TrackerSettings { protocols, routes: self.routes.clone(), ..TrackerSettings::default() })
    }

    /// The settings of the capture.
    pub fn live_settings(&self) -> LiveSettings {
        LiveSettings {
            interface: self.interface.clone(),
            ports: Vec::new(),
            servers: self.servers.clone(),
            snap_length: self.snap_length,
            buffer_mib: self.buffer_mib,
        }
    }
}

/// An argument that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentError {
    #[error("{0} routes: at most {MOST_ROUTES}")]
    TooManyRoutes(usize),
    #[error("{0:?} is not a number of seconds")]
    Seconds(String),
    #[error("{0}: at least 0.001 seconds")]
    TooShort(String),
}

impl TrafficOptions {
    /// The tracker's settings.
    pub fn settings(&self, number_all: bool) -> Result<TrackerSettings, ArgumentError> {
        if self.routes.len() > MOST_ROUTES {
            return Err(ArgumentError::TooManyRoutes(self.routes.len()));
        }
        Ok(TrackerSettings {
            times_upgraded: self.upgraded,
            with_histograms: self.histograms,
            keep_exchanges: self.exchanges,
            number_all,
            ..TrackerSettings::watching(&self.ports, &self.routes)
        })
    }
}

fn seconds(text: &str) -> Result<Duration, ArgumentError> {
    let seconds: f64 = text.parse().map_err(|_| ArgumentError::Seconds(text.to_owned()))?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| *duration >= Duration::from_millis(1))
        .ok_or_else(|| ArgumentError::TooShort(text.to_owned()))
}
