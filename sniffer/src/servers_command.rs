//! `slackwater-sniffer servers`: a line for each server and period, for the controller beside a balancer.

use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use slackwater_sniffer::{Live, Period, RouteFigures, Servers, drop_privileges};

use crate::AnyError;
use crate::arguments::ServersOptions;
use crate::output::json;
use crate::run::now_ns;

/// Shortest and longest time between two looks at the ring. A wake-up costs as much as twenty requests. In the longest
/// rest a ring of 8 MiB takes 0.6 gigabit a second that begins all at once.
const SHORTEST_REST: Duration = Duration::from_millis(25);
const LONGEST_REST: Duration = Duration::from_millis(100);

/// By this factor more may come in a rest than in the one before.
const ROOM: u32 = 4;

/// The time until the ring is looked at again, after `bytes` came in the `last` rest.
fn rest(ring_bytes: u64, bytes: u64, last: Duration) -> Duration {
    let until_full_s = last.as_secs_f64() * ring_bytes as f64 / bytes.max(1) as f64;
    Duration::from_secs_f64(until_full_s.min(60.0) / f64::from(ROOM)).clamp(SHORTEST_REST, LONGEST_REST)
}

/// What a server answered in a period. Times are last request byte to last response byte, in milliseconds.
#[derive(Serialize)]
struct ServerLine {
    server: SocketAddr,
    exchanges: u64,
    errors: u64,
    in_flight: u64,
    oldest_unanswered_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rt_mean_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rt_p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rt_p95_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rt_p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rt_max_ms: Option<f64>,
    /// Sum of the response times.
    rt_sum_ms: f64,
    /// Number and count of each bucket of response times that is not empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rt_buckets: Vec<(usize, u64)>,
    unmatched: u64,
    holes: u64,
    /// Its answers are of another protocol: there are no figures of its requests.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_foreign: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteLine>,
}

#[derive(Serialize)]
struct RouteLine {
    name: String,
    exchanges: u64,
    errors: u64,
    rt_mean_ms: Option<f64>,
    rt_p95_ms: Option<f64>,
}

/// The end of a look: a line for each server that had something to show came before it.
#[derive(Serialize)]
struct LookLine {
    time_unix_s: f64,
    period_s: f64,
    /// Packets that the kernel dropped in this period.
    drops: u64,
}

impl ServerLine {
    fn of(server: SocketAddr, period: Period) -> Self {
        Self {
            server,
            exchanges: period.exchanges,
            errors: period.errors,
            in_flight: period.in_flight,
            oldest_unanswered_ms: period.oldest_unanswered_ms,
            rt_mean_ms: period.rt_mean_ms,
            rt_p50_ms: period.rt_p50_ms,
            rt_p95_ms: period.rt_p95_ms,
            rt_p99_ms: period.rt_p99_ms,
            rt_max_ms: period.rt_max_ms,
            rt_sum_ms: period.buckets.sum_ns as f64 / 1e6,
            rt_buckets: period.buckets.filled(),
            unmatched: period.counts.unmatched_requests,
            holes: period.counts.holes,
            is_foreign: !period.foreign_ports.is_empty(),
            routes: period.details.routes.into_iter().filter(|route| route.exchanges > 0).map(RouteLine::of).collect(),
        }
    }

    /// Whether there is anything to show. A server without a line was silent.
    fn shows(&self) -> bool {
        self.exchanges > 0 || self.in_flight > 0 || self.unmatched > 0 || self.holes > 0 || self.is_foreign
    }
}

impl RouteLine {
    fn of(route: RouteFigures) -> Self {
        Self {
            name: route.name,
            exchanges: route.exchanges,
            errors: route.status.server_error,
            rt_mean_ms: route.last_byte_ms.mean,
            rt_p95_ms: route.last_byte_ms.p95,
        }
    }
}

/// Captures until a signal, or until nobody reads what is printed.
pub fn servers(options: &ServersOptions) -> Result<(), AnyError> {
    let mut servers = Servers::new(&options.servers, &options.tracker_settings()?);
    let mut live = Live::open(&options.live_settings())?;
    drop_privileges(options.user.as_deref())?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let ring_bytes = u64::from(options.buffer_mib) << 20;
    let mut began = Instant::now();
    let (mut drained, mut next_rest) = (began, SHORTEST_REST);
    let mut drops_before = 0;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(next_rest.min((began + options.every).saturating_duration_since(Instant::now())));
        let mut bytes = 0;
        live.drain_each(|packet| {
            bytes += packet.bytes.len() as u64;
            servers.packet(packet);
        })?;
        let now = Instant::now();
        next_rest = rest(ring_bytes, bytes, now - drained);
        drained = now;
        if now < began + options.every {
            continue;
        }
        let time_ns = now_ns();
        for (server, period) in servers.take_periods(time_ns) {
            let line = ServerLine::of(server, period);
            if line.shows() {
                json(&mut out, &line)?;
            }
        }
        let drops = live.drops()?;
        let period_s = (now - began).as_secs_f64();
        json(&mut out, &LookLine { time_unix_s: time_ns as f64 / 1e9, period_s, drops: drops - drops_before })?;
        out.flush()?;
        (drops_before, began) = (drops, now);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_looked_at_before_it_is_full() {
        let (ring_bytes, last) = (8 << 20, Duration::from_millis(100));
        let rests = [0, 1 << 10, 4 << 20, 1 << 30].map(|bytes| rest(ring_bytes, bytes, last).as_millis());
        assert_eq!(rests, [100, 100, 50, 25]);
    }
}
