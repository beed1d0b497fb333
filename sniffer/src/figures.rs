//! The figures that the sniffer gives: an exchange, counts, and the times of a period or of a whole run.

use std::ops::AddAssign;

use serde::Serialize;

use crate::http1::Method;

/// A request and the response to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exchange {
    /// The frame with the request's last byte, as Wireshark counts (from 1).
    pub request_frame: u64,
    /// The frame with the response's last byte.
    pub response_frame: u64,
    /// The connection's number as in Wireshark (from 0).
    pub stream: u64,
    /// Last request byte to last response byte, in nanoseconds; `None` when one of them was not captured. When the
    /// response ends before the request does, the last request byte before the response counts.
    pub last_byte_ns: Option<u64>,
    /// Last request byte to first response byte, in nanoseconds.
    pub first_byte_ns: Option<u64>,
    /// The request's method.
    pub method: Method,
    /// The response's status code.
    pub status: u16,
    /// Which of `PROTOCOLS` it was.
    pub protocol: &'static str,
}

/// What was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Frames looked at.
    pub packets: u64,
    /// Requests whose response ended.
    pub exchanges: u64,
    /// Of these: status 500 and above.
    pub errors: u64,
    /// Requests that got no response while their connection was followed.
    pub unmatched_requests: u64,
    /// Responses whose request was not captured or is not known for sure.
    pub orphan_responses: u64,
    /// Responses that began and were broken off, or that the capture does not hold to their end.
    pub unfinished_responses: u64,
    /// Segments that repeat bytes seen before.
    pub retransmitted: u64,
    /// Places where bytes are missing for good.
    pub holes: u64,
    /// Of these: within the head of a message, which is given up.
    pub lost_heads: u64,
    /// Messages that follow no protocol known here.
    pub malformed: u64,
    /// Fragments of IP packets: skipped.
    pub fragments: u64,
    /// Connections given up while open: idle for too long, or in the way when the table was full.
    pub evicted: u64,
    /// Requests not followed because too many were waiting already.
    pub refused: u64,
    /// Exchanges by status class.
    pub status: StatusClasses,
}

/// Exchanges by the first digit of their status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StatusClasses {
    /// Only 101: a final answer.
    #[serde(rename = "1xx")]
    pub informational: u64,
    /// Done.
    #[serde(rename = "2xx")]
    pub successful: u64,
    /// Look elsewhere, or at what you have.
    #[serde(rename = "3xx")]
    pub redirection: u64,
    /// The request was wrong.
    #[serde(rename = "4xx")]
    pub client_error: u64,
    /// The server failed; statuses that no class has count here.
    #[serde(rename = "5xx")]
    pub server_error: u64,
}

impl StatusClasses {
    pub(crate) fn of(&mut self, status: u16) -> &mut u64 {
        match status / 100 {
            1 => &mut self.informational,
            2 => &mut self.successful,
            3 => &mut self.redirection,
            4 => &mut self.client_error,
            _ => &mut self.server_error,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.packets += more.packets;
        self.exchanges += more.exchanges;
        self.errors += more.errors;
        self.unmatched_requests += more.unmatched_requests;
        self.orphan_responses += more.orphan_responses;
        self.unfinished_responses += more.unfinished_responses;
        self.retransmitted += more.retransmitted;
        self.holes += more.holes;
        self.lost_heads += more.lost_heads;
        self.malformed += more.malformed;
        self.fragments += more.fragments;
        self.evicted += more.evicted;
        self.refused += more.refused;
        self.status.informational += more.status.informational;
        self.status.successful += more.status.successful;
        self.status.redirection += more.status.redirection;
        self.status.client_error += more.status.client_error;
        self.status.server_error += more.status.server_error;
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

/// What ended in a period. Response times are last request byte to last response byte, in milliseconds, and absent when
/// nothing ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Period {
    /// Exchanges that ended.
    pub exchanges: u64,
    /// Of these: status 500 and above.
    pub errors: u64,
    /// Requests at the end of the period whose response has not ended.
    pub in_flight: u64,
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
    /// Last request byte to first response byte.
    pub first_byte_ms: Times,
    /// Everything that was counted in the period.
    pub counts: Counts,
}

/// Everything since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Summary {
    /// What was counted.
    #[serde(flatten)]
    pub counts: Counts,
    /// Connections followed.
    pub connections: u64,
    /// Requests whose response has not ended.
    pub in_flight: u64,
    /// Last request byte to first response byte.
    pub first_byte_ms: Times,
    /// Last request byte to last response byte.
    pub last_byte_ms: Times,
}
