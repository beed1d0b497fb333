//! Counts and response times: of the running period, and of everything so far.
//!
//! Times go into HDR histograms of three significant digits in nanoseconds, up to an hour; mean and maximum are exact.

use hdrhistogram::Histogram;

use crate::figures::{Counts, Exchange, Period, Summary, Times};

/// Response times as they come in.
struct Recorder {
    histogram: Histogram<u32>,
    sum_ns: u128,
    max_ns: u64,
}

const LONGEST_NS: u64 = 3_600_000_000_000;

impl Recorder {
    fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are in order");
        Self { histogram, sum_ns: 0, max_ns: 0 }
    }

    fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    fn add(&mut self, more: &Self) {
        self.histogram.add(&more.histogram).expect("the bounds are the same");
        self.sum_ns += more.sum_ns;
        self.max_ns = self.max_ns.max(more.max_ns);
    }

    fn clear(&mut self) {
        self.histogram.reset();
        self.sum_ns = 0;
        self.max_ns = 0;
    }

    fn times(&self) -> Times {
        let count = self.histogram.len();
        if count == 0 {
            return Times::default();
        }
        let ms = |ns: f64| Some(ns / 1e6);
        let quantile = |q| ms(self.histogram.value_at_quantile(q).min(self.max_ns) as f64);
        Times {
            mean: ms(self.sum_ns as f64 / count as f64),
            p50: quantile(0.50),
            p95: quantile(0.95),
            p99: quantile(0.99),
            max: ms(self.max_ns as f64),
        }
    }
}

/// Memory for bytes and requests that wait, shared by all connections.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Bytes that may be held back at a time.
    pub most_bytes: usize,
    /// Requests that may wait at a time.
    pub most_waiting: usize,
}

/// The books: counts, times, and what memory the connections use.
pub struct Ledger {
    /// Of the running period.
    pub counts: Counts,
    /// Connections followed since the start.
    pub connections: u64,
    /// Requests waiting on connections that are open.
    pub in_flight: u64,
    /// Requests waiting on all connections of the table.
    pub waiting: usize,
    held_bytes: usize,
    budget: Budget,
    total: Counts,
    last_byte: Recorder,
    first_byte: Recorder,
    last_byte_total: Recorder,
    first_byte_total: Recorder,
    exchanges: Option<Vec<Exchange>>,
}

impl Ledger {
    /// Empty books; `keep_exchanges`: each exchange is kept until it is taken.
    pub fn new(budget: Budget, keep_exchanges: bool) -> Self {
        Self {
            counts: Counts::default(),
            connections: 0,
            in_flight: 0,
            waiting: 0,
            held_bytes: 0,
            budget,
            total: Counts::default(),
            last_byte: Recorder::new(),
            first_byte: Recorder::new(),
            last_byte_total: Recorder::new(),
            first_byte_total: Recorder::new(),
            exchanges: keep_exchanges.then(Vec::new),
        }
    }

    /// Enters an exchange.
    pub fn exchange(&mut self, exchange: Exchange) {
        self.counts.exchanges += 1;
        self.counts.errors += u64::from(exchange.status >= 500);
        *self.counts.status.of(exchange.status) += 1;
        if let Some(ns) = exchange.last_byte_ns {
            self.last_byte.record(ns);
        }
        if let Some(ns) = exchange.first_byte_ns {
            self.first_byte.record(ns);
        }
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.push(exchange);
        }
    }

    /// Asks for memory to hold bytes back; false when there is none left.
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

    /// Bytes held back at the moment.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// True when no more requests may wait.
    pub fn is_full(&self) -> bool {
        self.waiting >= self.budget.most_waiting
    }

    /// The exchanges since the last call, if they are kept.
    pub fn take_exchanges(&mut self) -> Vec<Exchange> {
        self.exchanges.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Closes the period and starts the next.
    pub fn take_period(&mut self) -> Period {
        let times = self.last_byte.times();
        let period = Period {
            exchanges: self.counts.exchanges,
            errors: self.counts.errors,
            in_flight: self.in_flight,
            rt_mean_ms: times.mean,
            rt_p50_ms: times.p50,
            rt_p95_ms: times.p95,
            rt_p99_ms: times.p99,
            rt_max_ms: times.max,
            first_byte_ms: self.first_byte.times(),
            counts: self.counts,
        };
        self.total += std::mem::take(&mut self.counts);
        if period.exchanges > 0 {
            self.last_byte_total.add(&self.last_byte);
            self.first_byte_total.add(&self.first_byte);
            self.last_byte.clear();
            self.first_byte.clear();
        }
        period
    }

    /// Everything since the start; closes the period.
    pub fn summary(&mut self) -> Summary {
        self.take_period();
        Summary {
            counts: self.total,
            connections: self.connections,
            in_flight: self.in_flight,
            first_byte_ms: self.first_byte_total.times(),
            last_byte_ms: self.last_byte_total.times(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        Ledger::new(Budget { most_bytes: 10, most_waiting: 1 }, false)
    }

    fn exchange(status: u16, last_byte_ns: Option<u64>) -> Exchange {
        let method = crate::http1::head::request(b"GET / HTTP/1.1\r\n\r\n").expect("a request").0.method;
        Exchange {
            request_frame: 1,
            response_frame: 2,
            stream: 0,
            last_byte_ns,
            first_byte_ns: Some(1_000),
            method,
            status,
            protocol: "http1",
        }
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut ledger = ledger();
        (1..=100).for_each(|ms| ledger.exchange(exchange(200, Some(ms * 1_000_000))));
        let period = ledger.take_period();
        for (got, want) in [(period.rt_p50_ms, 50.0), (period.rt_p95_ms, 95.0), (period.rt_p99_ms, 99.0)] {
            assert!((got.expect("a time") / want - 1.0).abs() < 0.002, "{got:?} is not {want}");
        }
        assert_eq!((period.rt_mean_ms, period.rt_max_ms), (Some(50.5), Some(100.0)));
    }

    #[test]
    fn a_period_starts_empty_and_the_summary_holds_all() {
        let mut ledger = ledger();
        ledger.exchange(exchange(503, Some(5_000_000)));
        assert_eq!((ledger.take_period().errors, ledger.take_period().exchanges), (1, 0));
        assert_eq!(ledger.take_period().rt_mean_ms, None);
        ledger.exchange(exchange(200, None));
        let summary = ledger.summary();
        assert_eq!((summary.counts.exchanges, summary.last_byte_ms.max), (2, Some(5.0)));
        assert_eq!((summary.counts.status.successful, summary.counts.status.server_error), (1, 1));
    }

    #[test]
    fn memory_is_lent_up_to_the_budget() {
        let mut ledger = ledger();
        assert!(ledger.hold(8) && !ledger.hold(3));
        ledger.release(8);
        assert!(ledger.hold(10));
    }
}
