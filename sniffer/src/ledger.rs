//! Counts and response times of the present period and of the whole run.
//!
//! Each route class and status class that occurs has one histogram, and all other figures are sums of these. So an
//! exchange costs two entries, however many figures there are.

use std::collections::BTreeMap;

use crate::answers::Ports;
use crate::buckets::Buckets;
use crate::figures::{Counts, Details, Exchange, Period, RouteFigures, StatusClass, Summary, Times};
use crate::link::Unread;
use crate::merge;
use crate::recorder::{self, RouteRecorder, SizeRecorder};
use crate::routes::{self, Route};
use crate::sampling::Sampling;

/// Limits of the memory for bytes held back and for waiting requests, shared by all connections.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Bytes that may be held back at a time.
    pub most_bytes: usize,
    /// Requests that may wait at a time.
    pub most_waiting: usize,
}

/// Memory that stays free for the next packet, which never needs more.
const RESERVE_BYTES: usize = 128 * 1024;

/// Most kinds of packets that are not understood, which are counted separately.
const MOST_KINDS: usize = 32;

/// Counts, times, and the memory that the connections use.
pub struct Ledger {
    /// Counts of the present period as captured, since it began or since the share of the connections last changed.
    pub counts: Counts,
    /// Which connections are followed, and the weight of each.
    pub sampling: Sampling,
    /// Exchanges are not recorded at present, because a connection leaves the sample.
    pub forgets: bool,
    /// Counts of the present period before the share last changed, estimated for all connections.
    before: Counts,
    /// Connections followed since the start.
    pub connections: u64,
    /// Requests waiting on connections that are open.
    pub in_flight: u64,
    /// Requests waiting on all connections of the table.
    pub waiting: usize,
    /// The first frame after the clock was last set back.
    pub stepped_at: u64,
    /// The answers of the servers, by port.
    pub ports: Ports,
    held_bytes: usize,
    budget: Budget,
    not_understood: BTreeMap<Unread, u64>,
    total: Counts,
    buckets: Buckets,
    routes: Vec<Route>,
    with_histograms: bool,
    period_routes: Vec<Option<Box<RouteRecorder>>>,
    /// Since the start; `None` where no summary is wanted.
    total_routes: Option<Vec<Option<Box<RouteRecorder>>>>,
    exchanges: Option<Vec<Exchange>>,
}

/// What a ledger keeps beside the counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keeps {
    /// Each exchange, until it is taken.
    pub exchanges: bool,
    /// Histograms of periods and of the summary.
    pub histograms: bool,
    /// Times and sizes since the start, for a summary.
    pub total: bool,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(budget: Budget, sampling: Sampling, routes: Vec<Route>, keeps: Keeps) -> Self {
        let recorders = || (0..=routes.len()).map(|_| None).collect();
        Self {
            counts: Counts::default(),
            sampling,
            forgets: false,
            before: Counts::default(),
            connections: 0,
            in_flight: 0,
            waiting: 0,
            stepped_at: 0,
            ports: Ports::default(),
            held_bytes: 0,
            budget,
            not_understood: BTreeMap::new(),
            total: Counts::default(),
            buckets: Buckets::default(),
            period_routes: recorders(),
            total_routes: keeps.total.then(recorders),
            routes,
            with_histograms: keeps.histograms,
            exchanges: keeps.exchanges.then(Vec::new),
        }
    }

    /// The route class of a request for this target.
    pub fn route(&self, target: &[u8]) -> u8 {
        if self.routes.is_empty() { 0 } else { routes::classify(&self.routes, target) }
    }

    /// The route class of messages without a target.
    pub fn other_route(&self) -> u8 {
        self.routes.len() as u8
    }

    /// Counts a packet that was not understood.
    pub fn not_understood(&mut self, unread: Unread) {
        self.counts.not_understood += 1;
        if self.not_understood.len() < MOST_KINDS || self.not_understood.contains_key(&unread) {
            *self.not_understood.entry(unread).or_default() += 1;
        }
    }

    /// Records an exchange. An exchange during which the clock was set has no times.
    pub fn exchange(&mut self, mut exchange: Exchange) {
        if self.forgets {
            return;
        }
        if exchange.request_frame < self.stepped_at {
            (exchange.first_byte_ns, exchange.last_byte_ns) = (None, None);
        }
        let weight = self.sampling.weight_since(exchange.time_ns);
        self.counts.exchanges += u64::from(weight);
        self.counts.errors += u64::from(exchange.class == StatusClass::ServerError) * u64::from(weight);
        *self.counts.status.of(exchange.class) += u64::from(weight);
        if let Some(ns) = exchange.last_byte_ns {
            self.buckets.record(ns, weight);
        }
        let recorder = &mut self.period_routes[usize::from(exchange.route).min(self.routes.len())];
        recorder.get_or_insert_with(|| Box::new(RouteRecorder::new())).record(&exchange, weight);
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.push(exchange);
        }
    }

    /// Reserves memory for bytes that are held back; false when none is left.
    pub fn hold(&mut self, bytes: usize) -> bool {
        let fits = self.held_bytes + bytes <= self.budget.most_bytes;
        if fits {
            self.held_bytes += bytes;
        }
        fits
    }

    /// Gives memory back.
    pub fn release(&mut self, bytes: usize) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
    }

    /// Whether little memory is left, so that the connection that holds most must be given up.
    pub fn is_pressed(&self) -> bool {
        let reserve = (self.budget.most_bytes / 4).min(RESERVE_BYTES);
        self.held_bytes > self.budget.most_bytes - reserve
    }

    /// Bytes held back at the moment.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether connections with a waiting request may let no further request wait.
    pub fn is_full(&self) -> bool {
        self.waiting >= self.budget.most_waiting
    }

    /// The exchanges since the last call, if they are kept.
    pub fn take_exchanges(&mut self) -> Vec<Exchange> {
        self.exchanges.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Extrapolates the counts so far to all connections, because the share changes or the period ends.
    pub fn weigh(&mut self) {
        self.before += std::mem::take(&mut self.counts).weighed(self.sampling.share().weight());
    }

    /// Closes the period and starts the next. `in_flight` and `oldest_unanswered_ms` are values of its end.
    pub fn take_period(&mut self, in_flight: u64, oldest_unanswered_ms: f64) -> Period {
        self.weigh();
        let counts = self.before;
        let (times, details) = if counts.exchanges > 0 { self.total_of(&self.period_routes) } else { self.empty() };
        let period = Period {
            exchanges: counts.exchanges,
            errors: counts.errors,
            in_flight,
            oldest_unanswered_ms,
            rt_mean_ms: times.mean,
            rt_p50_ms: times.p50,
            rt_p95_ms: times.p95,
            rt_p99_ms: times.p99,
            rt_max_ms: times.max,
            counts,
            exchanges_error: 0.0,
            foreign_ports: Vec::new(),
            details,
            buckets: self.buckets,
        };
        self.close_period();
        period
    }

    fn close_period(&mut self) {
        self.weigh();
        if self.before.exchanges > 0 {
            for (route, period) in self.period_routes.iter_mut().enumerate() {
                let Some(period) = period else { continue };
                if let Some(total) = &mut self.total_routes {
                    total[route].get_or_insert_with(|| Box::new(RouteRecorder::new())).add(period);
                }
                period.clear();
            }
        }
        self.buckets = Buckets::default();
        self.total += std::mem::take(&mut self.before);
    }

    /// The figures since the start; closes the period.
    pub fn summary(&mut self) -> Summary {
        self.close_period();
        let (last_byte_ms, details) =
            self.total_routes.as_deref().map_or_else(|| self.empty(), |total| self.total_of(total));
        Summary {
            counts: self.total,
            not_understood_kinds: self.not_understood.iter().map(|(kind, count)| (kind.to_string(), *count)).collect(),
            connections: self.connections,
            in_flight: self.in_flight,
            foreign_ports: self.ports.now(),
            last_byte_ms,
            details,
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let others = (!self.routes.is_empty()).then_some(routes::OTHER);
        self.routes.iter().map(|route| route.name.as_str()).chain(others)
    }

    /// The figures without exchanges: only the names of the route classes.
    fn empty(&self) -> (Times, Details) {
        let named = |name: &str| RouteFigures { name: name.to_owned(), ..RouteFigures::default() };
        (Times::default(), Details { routes: self.names().map(named).collect(), ..Details::default() })
    }

    /// The last-byte times and all other figures of the recorders, of which each route class has one.
    fn total_of(&self, recorders: &[Option<Box<RouteRecorder>>]) -> (Times, Details) {
        let routes = || recorders.iter().flatten();
        let last_byte = || routes().flat_map(|route| route.last_byte());
        let first_byte = || routes().map(|route| &route.first_byte);
        let class_times =
            |class: usize| recorder::times(routes().filter_map(|route| route.last_byte[class].as_deref()));
        let by_class = StatusClass::NAMES.iter().enumerate().map(|(class, name)| (*name, class_times(class)));
        let details = Details {
            first_byte_ms: recorder::times(first_byte()),
            status_ms: by_class.filter(|(_, times)| times.mean.is_some()).collect(),
            request_bytes: SizeRecorder::sum(routes().map(|route| &route.request_bytes)).sizes(),
            response_bytes: SizeRecorder::sum(routes().map(|route| &route.response_bytes)).sizes(),
            routes: self
                .names()
                .zip(recorders)
                .map(|(name, recorder)| self.route_figures(name, recorder.as_deref()))
                .collect(),
            histogram: self.with_histograms.then(|| merge::text(&recorder::histogram(last_byte()))),
            first_byte_histogram: self.with_histograms.then(|| merge::text(&recorder::histogram(first_byte()))),
        };
        (recorder::times(last_byte()), details)
    }

    fn route_figures(&self, name: &str, recorder: Option<&RouteRecorder>) -> RouteFigures {
        let mut figures = RouteFigures { name: name.to_owned(), ..RouteFigures::default() };
        if let Some(recorder) = recorder {
            figures.exchanges = recorder.request_bytes.count();
            figures.status = recorder.status;
            figures.first_byte_ms = recorder.first_byte.times();
            figures.last_byte_ms = recorder::times(recorder.last_byte());
            figures.request_bytes = recorder.request_bytes.sizes();
            figures.response_bytes = recorder.response_bytes.sizes();
            figures.histogram = self.with_histograms.then(|| merge::text(&recorder::histogram(recorder.last_byte())));
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::merge;

    fn ledger(routes: &[&str]) -> Ledger {
        let routes = routes.iter().map(|text| text.parse().expect("a route")).collect();
        let keeps = Keeps { exchanges: false, histograms: true, total: true };
        Ledger::new(Budget { most_bytes: 10, most_waiting: 1 }, Sampling::new(0), routes, keeps)
    }

    fn exchange(status: u16, last_byte_ns: Option<u64>) -> Exchange {
        let method = crate::http1::head::request(b"GET / HTTP/1.1\r\n\r\n").expect("a request").0.method;
        Exchange {
            request_frame: 1,
            response_frame: 2,
            stream: 0,
            client: ([10, 0, 0, 1], 40_000).into(),
            server: ([10, 0, 0, 2], 80).into(),
            time_ns: 0,
            last_byte_ns,
            first_byte_ns: Some(1_000),
            method,
            status,
            word: "",
            class: StatusClass::of_http(status),
            protocol: "http1",
            route: 0,
            request_bytes: 40,
            response_bytes: 400,
        }
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut ledger = ledger(&[]);
        (1..=100).for_each(|ms| ledger.exchange(exchange(200, Some(ms * 1_000_000))));
        let period = ledger.take_period(0, 0.0);
        for (got, want) in [(period.rt_p50_ms, 50.0), (period.rt_p95_ms, 95.0), (period.rt_p99_ms, 99.0)] {
            assert!((got.expect("a time") / want - 1.0).abs() < 0.002, "{got:?} is not {want}");
        }
        assert_eq!((period.rt_mean_ms, period.rt_max_ms), (Some(50.5), Some(100.0)));
        assert_eq!((period.buckets.count(), period.buckets.sum_ns), (100, 5_050_000_000));
        assert_eq!(ledger.take_period(0, 0.0).buckets.count(), 0);
    }

    #[test]
    fn a_period_starts_empty_and_the_summary_holds_all() {
        let mut ledger = ledger(&[]);
        ledger.exchange(exchange(503, Some(5_000_000)));
        assert_eq!((ledger.take_period(0, 0.0).errors, ledger.take_period(0, 0.0).exchanges), (1, 0));
        assert_eq!(ledger.take_period(0, 0.0).rt_mean_ms, None);
        ledger.exchange(exchange(200, None));
        let summary = ledger.summary();
        assert_eq!((summary.counts.exchanges, summary.last_byte_ms.max), (2, Some(5.0)));
        assert_eq!((summary.counts.status.successful, summary.counts.status.server_error), (1, 1));
        assert_eq!((summary.details.status_ms["5xx"].p50, summary.details.status_ms.len()), (Some(5.0), 1));
        assert_eq!((summary.details.response_bytes.mean, summary.details.response_bytes.max), (Some(400.0), Some(400)));
    }

    #[test]
    fn route_classes_are_kept_apart_and_add_up() {
        let mut ledger = ledger(&["dear=/search*", "cheap=/*"]);
        for (target, ms) in [("/search?q=a", 80), ("/", 1), ("/logo", 2), ("*", 7)] {
            let route = ledger.route(target.as_bytes());
            ledger.exchange(Exchange { route, ..exchange(200, Some(ms * 1_000_000)) });
        }
        for routes in [ledger.take_period(0, 0.0).details.routes, ledger.summary().details.routes] {
            let maxima: Vec<_> = routes.iter().map(|r| (r.name.as_str(), r.exchanges, r.last_byte_ms.max)).collect();
            assert_eq!(maxima, [("dear", 1, Some(80.0)), ("cheap", 2, Some(2.0)), ("other", 1, Some(7.0))]);
        }
        assert_eq!(
            (ledger.summary().last_byte_ms.max, ledger.take_period(0, 0.0).details.routes.len()),
            (Some(80.0), 3)
        );
    }

    #[test]
    fn histograms_of_several_nodes_merge_to_what_one_would_have_measured() {
        let (mut first, mut second, mut both) = (ledger(&[]), ledger(&[]), ledger(&[]));
        for number in 1..=10_000u64 {
            let time = exchange(200, Some(number * number * 10));
            both.exchange(time);
            if number % 3 == 0 { first.exchange(time) } else { second.exchange(time) }
        }
        let texts = [
            first.summary().details.histogram.expect("a histogram of all exchanges"),
            second.take_period(0, 0.0).details.histogram.expect("a histogram of all exchanges"),
        ];
        let (count, merged) = merge(texts.iter().map(String::as_str)).expect("histograms");
        let expected = both.summary().last_byte_ms;
        assert_eq!(count, 10_000);
        for (got, want) in [merged.mean, merged.p50, merged.p95, merged.p99, merged.max].iter().zip([
            expected.mean,
            expected.p50,
            expected.p95,
            expected.p99,
            expected.max,
        ]) {
            let (got, want) = (got.expect("a time"), want.expect("a time"));
            assert!((got / want - 1.0).abs() < 0.001, "{got} is not {want}");
        }
        assert!(merge(["HISTF"]).is_err() && merge(["!"]).is_err());
        assert_eq!(merge([]).expect("an empty histogram").1, Times::default());
    }

    #[test]
    fn memory_is_lent_up_to_the_budget() {
        let mut ledger = ledger(&[]);
        assert!(ledger.hold(8) && !ledger.hold(3));
        ledger.release(8);
        assert!(ledger.hold(10));
    }
}
