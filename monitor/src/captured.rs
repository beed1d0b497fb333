//! What a capture saw in a period, as the section of a Sample, or why that would not be all.

use slackwater_messages::{AbsenceCause, RouteTraffic, Sample, Traffic};
use slackwater_sniffer::{Period, Port, RouteFigures};

use crate::absence::put;
use crate::counter_delta::NO_TIME;
use crate::reason::Reason;

/// Most answers in a period that may belong to requests from before the capture.
const MOST_FROM_BEFORE: u64 = 3;

/// The traffic of a period.
pub struct TrafficPeriod {
    /// The sniffer's figures.
    pub period: Period,
    /// Share of the connections that was looked at.
    pub sampled_share: f64,
    /// Packets that the kernel dropped.
    pub drops: Result<u64, Reason>,
    /// The period's length.
    pub elapsed_s: f64,
    /// CPU time of the sniffer.
    pub cpu_s: f64,
}

/// Fails when a port speaks another protocol: its requests are not counted, and the figures would be too small.
///
/// # Errors
/// Which ports, and what to write in their place.
pub fn foreign(period: &Period, ports: &[Port]) -> Result<(), Reason> {
    if period.foreign_ports.is_empty() {
        return Ok(());
    }
    let measured = ports.iter().map(|port| {
        let speaks = period.foreign_ports.iter().find(|foreign| foreign.port == port.number);
        speaks.map_or(*port, |foreign| Port { protocol: Some(foreign.measure_as), ..*port })
    });
    let wanted: Vec<String> =
        measured.map(|port| serde_json::to_string(&port).unwrap_or_else(|_| port.number.to_string())).collect();
    let faults: Vec<String> = period.foreign_ports.iter().map(ToString::to_string).collect();
    let text = format!(
        "{}: requests there cannot be counted; in node.toml write [sniffer] ports = [{}]",
        faults.join("; "),
        wanted.join(", ")
    );
    Err(Reason::new(AbsenceCause::OtherProtocol, text))
}

/// Fails when only answers were captured, because the requests arrive another way, as with some routes and tunnels. A
/// few answers may belong to requests from before the capture.
///
/// # Errors
/// The number of answers, and what to do.
pub fn both_ways(period: &Period, interface: &str) -> Result<(), Reason> {
    let Period { exchanges, in_flight, counts, .. } = period;
    let answers = counts.orphan_responses;
    if *exchanges > 0 || *in_flight > 0 || counts.unmatched_requests > 0 || answers <= MOST_FROM_BEFORE {
        return Ok(());
    }
    let text = format!(
        "{answers} answers were seen on {interface}, and no request: the requests come in another way; name an interface \
        that both pass in sniffer.interface"
    );
    Err(text.into())
}

/// The section of the Sample; values that are not available go to `sample.absent`.
pub fn section(sample: &mut Sample, taken: TrafficPeriod) -> Traffic {
    let TrafficPeriod { period, sampled_share, drops, elapsed_s, cpu_s } = taken;
    let counts = &period.counts;
    let mut traffic = Traffic {
        in_flight: Some(period.in_flight),
        oldest_unanswered_ms: Some(period.oldest_unanswered_ms),
        // Requests that ask for no answer do not lack one.
        unmatched: Some(counts.unmatched_requests.saturating_sub(counts.quiet_requests)),
        holes: Some(counts.holes),
        sampled_share: Some(sampled_share),
        routes: period.details.routes.iter().map(|route| of_route(route, elapsed_s)).collect(),
        ..Traffic::default()
    };
    let per_s = |value: f64| if elapsed_s > 0.0 { Ok(value / elapsed_s) } else { Err(NO_TIME) };
    put!(sample, traffic.drops, drops);
    put!(sample, traffic.rps, per_s(period.exchanges as f64));
    put!(sample, traffic.rps_error, per_s(period.exchanges_error));
    put!(sample, traffic.errors_per_s, per_s(period.errors as f64));
    put!(sample, traffic.cpu_share, per_s(cpu_s));
    let reason = "no exchange ended in this period";
    put!(sample, traffic.rt_mean_ms, period.rt_mean_ms.ok_or(reason));
    put!(sample, traffic.rt_p50_ms, period.rt_p50_ms.ok_or(reason));
    put!(sample, traffic.rt_p95_ms, period.rt_p95_ms.ok_or(reason));
    put!(sample, traffic.rt_p99_ms, period.rt_p99_ms.ok_or(reason));
    traffic
}

/// Figures of one route class. Without exchanges it has no response time, which its rate of zero explains.
fn of_route(route: &RouteFigures, elapsed_s: f64) -> RouteTraffic {
    let per_s = |count: u64| (elapsed_s > 0.0).then(|| count as f64 / elapsed_s);
    RouteTraffic {
        route: route.name.clone(),
        rps: per_s(route.exchanges),
        rt_mean_ms: route.last_byte_ms.mean,
        rt_p95_ms: route.last_byte_ms.p95,
        errors_per_s: per_s(route.status.server_error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(period: Period, drops: Result<u64, Reason>, elapsed_s: f64) -> TrafficPeriod {
        TrafficPeriod { period, sampled_share: 0.25, drops, elapsed_s, cpu_s: 0.001 }
    }

    #[test]
    fn counts_become_rates_of_the_period() {
        let mut sample = Sample::default();
        let period = Period {
            exchanges: 50,
            errors: 2,
            in_flight: 3,
            oldest_unanswered_ms: 41.0,
            rt_mean_ms: Some(2.5),
            rt_p50_ms: Some(1.0),
            exchanges_error: 12.0,
            ..Period::default()
        };
        let traffic = section(&mut sample, taken(period, Ok(7), 0.2));
        assert_eq!((traffic.rps, traffic.errors_per_s), (Some(250.0), Some(10.0)));
        assert_eq!((traffic.in_flight, traffic.drops, traffic.rt_mean_ms), (Some(3), Some(7), Some(2.5)));
        assert_eq!(traffic.oldest_unanswered_ms, Some(41.0));
        assert_eq!(
            (traffic.sampled_share, traffic.rps_error, traffic.cpu_share),
            (Some(0.25), Some(60.0), Some(0.005))
        );
    }

    #[test]
    fn answers_without_any_request_are_no_rate_of_zero() {
        let mut period = Period::default();
        period.counts.orphan_responses = MOST_FROM_BEFORE;
        assert_eq!(both_ways(&period, "eth0"), Ok(()), "of requests from before the capture");
        period.counts.orphan_responses = 60;
        let reason = both_ways(&period, "eth0").expect_err("one direction is missing");
        let text = "60 answers were seen on eth0, and no request: the requests come in another way; ";
        assert!(reason.text.starts_with(text), "{}", reason.text);
        for seen in [Period { exchanges: 1, ..period.clone() }, Period { in_flight: 1, ..period.clone() }] {
            assert_eq!(both_ways(&seen, "eth0"), Ok(()));
        }
        period.counts.unmatched_requests = 1;
        assert_eq!(both_ways(&period, "eth0"), Ok(()));
    }

    #[test]
    fn route_classes_and_what_was_lost_are_told() {
        let mut period = Period { exchanges: 3, ..Period::default() };
        period.counts.unmatched_requests = 5;
        period.counts.quiet_requests = 3;
        period.counts.holes = 1;
        let mut search = RouteFigures { name: "search".to_owned(), exchanges: 3, ..RouteFigures::default() };
        search.last_byte_ms.mean = Some(9.0);
        search.last_byte_ms.p95 = Some(14.0);
        search.status.server_error = 1;
        period.details.routes = vec![search, RouteFigures { name: "other".to_owned(), ..RouteFigures::default() }];
        let traffic = section(&mut Sample::default(), taken(period, Ok(0), 0.5));
        assert_eq!((traffic.unmatched, traffic.holes), (Some(2), Some(1)));
        let expected = RouteTraffic {
            route: "search".to_owned(),
            rps: Some(6.0),
            rt_mean_ms: Some(9.0),
            rt_p95_ms: Some(14.0),
            errors_per_s: Some(2.0),
        };
        let other = RouteTraffic {
            route: "other".to_owned(),
            rps: Some(0.0),
            errors_per_s: Some(0.0),
            ..RouteTraffic::default()
        };
        assert_eq!(traffic.routes, [expected, other]);
    }

    #[test]
    fn without_exchanges_there_is_no_response_time_but_a_rate_of_zero() {
        let mut sample = Sample::default();
        let traffic = section(&mut sample, taken(Period::default(), Err("gone".into()), 0.2));
        assert_eq!((traffic.rps, traffic.rt_mean_ms, traffic.drops), (Some(0.0), None, None));
        assert_eq!(sample.absent["traffic.drops"], "gone");
        for name in ["rt_mean_ms", "rt_p50_ms", "rt_p95_ms", "rt_p99_ms"] {
            assert_eq!(sample.absent[&format!("traffic.{name}")], "no exchange ended in this period");
        }
    }
}
