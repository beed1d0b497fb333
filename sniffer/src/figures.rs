//! The figures that the sniffer gives: an exchange, counts, and the times of a period or of a whole run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::AddAssign;

use serde::Serialize;

use crate::answers::ForeignPort;
use crate::buckets::Buckets;
use crate::method::Method;

/// A request and the response to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exchange {
    /// The frame with the request's last byte, as Wireshark counts (from 1).
    pub request_frame: u64,
    /// The frame with the response's last byte.
    pub response_frame: u64,
    /// The connection's number as in Wireshark (from 0).
    pub stream: u64,
    /// The client's address.
    pub client: SocketAddr,
    /// The server's address.
    pub server: SocketAddr,
    /// When the request's last byte was captured, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Last request byte to last response byte, in nanoseconds; `None` when one of them was not captured, or when it is
    /// not certain which byte was the last. When the response ends before the request does, the time begins with the
    /// last request byte before the response.
    pub last_byte_ns: Option<u64>,
    /// Last request byte to first response byte, in nanoseconds.
    pub first_byte_ns: Option<u64>,
    /// The request's method or command; empty where the protocol is unknown.
    pub method: Method,
    /// The response's status code; 0 where the protocol answers in words (`word`) or is unknown.
    pub status: u16,
    /// The answer of a protocol that answers in words, as in `STORED`; else empty.
    pub word: &'static str,
    /// The class of the response.
    pub class: StatusClass,
    /// The protocol's name in the table of protocols.
    pub protocol: &'static str,
    /// Index of the route class in `TrackerSettings::routes`; their number when the request belongs to none.
    pub route: u8,
    /// The request's bytes on the wire, heads included (modulo 4 GiB).
    pub request_bytes: u32,
    /// The response's bytes on the wire, heads included and interim responses not (modulo 4 GiB).
    pub response_bytes: u32,
}

/// The class of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusClass {
    /// Only 101 of HTTP: a final answer.
    Informational,
    /// Success; also a miss of memcached.
    Successful,
    /// Redirection, and "not modified".
    Redirection,
    /// The request was wrong.
    ClientError,
    /// The server failed; also the statuses of HTTP that are in no class.
    ServerError,
    /// The protocol is unknown.
    Unknown,
}

impl StatusClass {
    pub(crate) const NAMES: [&'static str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "unknown"];

    /// The class of a status code of HTTP.
    pub(crate) fn of_http(status: u16) -> Self {
        match status / 100 {
            1 => Self::Informational,
            2 => Self::Successful,
            3 => Self::Redirection,
            4 => Self::ClientError,
            _ => Self::ServerError,
        }
    }
}

/// Counts of packets, messages and connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Frames.
    pub packets: u64,
    /// Frames whose content can't be read; see `Summary::not_understood_kinds`.
    pub not_understood: u64,
    /// Requests whose response ended.
    pub exchanges: u64,
    /// Exchanges with status 500 and above, or the protocol's equivalent.
    pub errors: u64,
    /// Requests that got no response while their connection was followed.
    pub unmatched_requests: u64,
    /// Unmatched requests that ask for no response (`noreply`, `quit`, misses of quiet commands).
    pub quiet_requests: u64,
    /// Responses whose request was not captured or is not known for sure.
    pub orphan_responses: u64,
    /// Responses that began and were broken off, or that the capture does not hold to their end.
    pub unfinished_responses: u64,
    /// Segments that repeat earlier bytes.
    pub retransmitted: u64,
    /// Places where bytes are missing for good.
    pub holes: u64,
    /// Holes within the head of a message, which is given up.
    pub lost_heads: u64,
    /// Messages that follow no protocol known here.
    pub malformed: u64,
    /// Fragments of IP packets: skipped.
    pub fragments: u64,
    /// Connections given up while open: idle for too long, or removed because the table or the memory for bytes held
    /// back was full.
    pub evicted: u64,
    /// Requests not followed because too many were waiting already.
    pub refused: u64,
    /// Exchanges by status class.
    pub status: StatusClasses,
}

/// Exchanges by the class of their response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StatusClasses {
    /// See `StatusClass::Informational`.
    #[serde(rename = "1xx")]
    pub informational: u64,
    /// See `StatusClass::Successful`.
    #[serde(rename = "2xx")]
    pub successful: u64,
    /// See `StatusClass::Redirection`.
    #[serde(rename = "3xx")]
    pub redirection: u64,
    /// See `StatusClass::ClientError`.
    #[serde(rename = "4xx")]
    pub client_error: u64,
    /// See `StatusClass::ServerError`.
    #[serde(rename = "5xx")]
    pub server_error: u64,
    /// See `StatusClass::Unknown`.
    pub unknown: u64,
}

impl StatusClasses {
    /// Each class's name and number of exchanges.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        let Self { informational, successful, redirection, client_error, server_error, unknown } = *self;
        let [a, b, c, d, e, f] = StatusClass::NAMES;
        [(a, informational), (b, successful), (c, redirection), (d, client_error), (e, server_error), (f, unknown)]
    }

    pub(crate) fn of(&mut self, class: StatusClass) -> &mut u64 {
        match class {
            StatusClass::Informational => &mut self.informational,
            StatusClass::Successful => &mut self.successful,
            StatusClass::Redirection => &mut self.redirection,
            StatusClass::ClientError => &mut self.client_error,
            StatusClass::ServerError => &mut self.server_error,
            StatusClass::Unknown => &mut self.unknown,
        }
    }
}

impl Counts {
    /// Estimates for all connections, of which one in `weight` was followed. Counts of packets stay, and so do counts
    /// that were recorded with a weight of their own.
    pub(crate) fn weighed(self, weight: u32) -> Self {
        let weight = u64::from(weight);
        Self {
            unmatched_requests: self.unmatched_requests * weight,
            quiet_requests: self.quiet_requests * weight,
            orphan_responses: self.orphan_responses * weight,
            unfinished_responses: self.unfinished_responses * weight,
            refused: self.refused * weight,
            ..self
        }
    }
}

impl AddAssign for StatusClasses {
    fn add_assign(&mut self, more: Self) {
        self.informational += more.informational;
        self.successful += more.successful;
        self.redirection += more.redirection;
        self.client_error += more.client_error;
        self.server_error += more.server_error;
        self.unknown += more.unknown;
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.packets += more.packets;
        self.not_understood += more.not_understood;
        self.exchanges += more.exchanges;
        self.errors += more.errors;
        self.unmatched_requests += more.unmatched_requests;
        self.quiet_requests += more.quiet_requests;
        self.orphan_responses += more.orphan_responses;
        self.unfinished_responses += more.unfinished_responses;
        self.retransmitted += more.retransmitted;
        self.holes += more.holes;
        self.lost_heads += more.lost_heads;
        self.malformed += more.malformed;
        self.fragments += more.fragments;
        self.evicted += more.evicted;
        self.refused += more.refused;
        self.status += more.status;
    }
}

/// Response times in milliseconds; absent when nothing ended. Percentiles are nearest-rank, within 0.1%.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Times {
    /// Arithmetic mean.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Longest.
    pub max: Option<f64>,
}

/// Sizes of messages in bytes; absent when nothing ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sizes {
    /// Arithmetic mean.
    pub mean: Option<f64>,
    /// Largest.
    pub max: Option<u32>,
}

/// The figures of a route class.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RouteFigures {
    /// Its name; `other` for requests that no pattern matches.
    pub name: String,
    /// Exchanges that ended.
    pub exchanges: u64,
    /// Exchanges by status class.
    pub status: StatusClasses,
    /// Last request byte to first response byte.
    pub first_byte_ms: Times,
    /// Last request byte to last response byte.
    pub last_byte_ms: Times,
    /// Requests' sizes.
    pub request_bytes: Sizes,
    /// Responses' sizes.
    pub response_bytes: Sizes,
    /// All last-byte times in nanoseconds, as an HDR histogram; see `merge`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
}

/// The figures of a period or of a whole run beside the number of exchanges and their last-byte times.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Details {
    /// Last request byte to first response byte.
    pub first_byte_ms: Times,
    /// Last request byte to last response byte, by status class; only classes with exchanges.
    pub status_ms: BTreeMap<&'static str, Times>,
    /// Requests' sizes.
    pub request_bytes: Sizes,
    /// Responses' sizes.
    pub response_bytes: Sizes,
    /// By route class, in the order of the settings; empty when there are none.
    pub routes: Vec<RouteFigures>,
    /// All last-byte times in nanoseconds, as an HDR histogram; see `merge`. Only if the settings ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
    /// All first-byte times, in the same form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_histogram: Option<String>,
}

/// The exchanges that ended in a period. Response times are from the last request byte to the last response byte, in
/// milliseconds, and absent when none ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Period {
    /// Exchanges that ended.
    pub exchanges: u64,
    /// Exchanges with status 500 and above.
    pub errors: u64,
    /// Requests whose response has not ended, at the end of the period.
    pub in_flight: u64,
    /// Age of the oldest request without any byte of a response; 0 when there is none.
    pub oldest_unanswered_ms: f64,
    /// Mean response time.
    pub rt_mean_ms: Option<f64>,
    /// Median.
    pub rt_p50_ms: Option<f64>,
    /// 95th percentile.
    pub rt_p95_ms: Option<f64>,
    /// 99th percentile.
    pub rt_p99_ms: Option<f64>,
    /// Longest.
    pub rt_max_ms: Option<f64>,
    /// All counts of the period.
    pub counts: Counts,
    /// Ports that speak another protocol than they are taken for. Their requests are not in these figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub foreign_ports: Vec<ForeignPort>,
    /// Standard error of `exchanges` as an estimate: 0 while all connections are followed.
    #[serde(skip)]
    pub exchanges_error: f64,
    /// The figures that a period and a whole run share.
    #[serde(flatten)]
    pub details: Details,
    /// All last-byte times in few buckets.
    #[serde(skip)]
    pub buckets: Buckets,
}

/// The figures since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// All counts.
    #[serde(flatten)]
    pub counts: Counts,
    /// Number of packets that were not understood, by kind.
    pub not_understood_kinds: BTreeMap<String, u64>,
    /// Connections followed.
    pub connections: u64,
    /// Requests whose response has not ended.
    pub in_flight: u64,
    /// Ports that speak another protocol than they are taken for. Their requests are not in these figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub foreign_ports: Vec<ForeignPort>,
    /// Last request byte to last response byte.
    pub last_byte_ms: Times,
    /// The figures that a period and a whole run share.
    #[serde(flatten)]
    pub details: Details,
}
