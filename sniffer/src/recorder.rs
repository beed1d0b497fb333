//! Times and sizes as they come in: HDR histograms of three significant digits in nanoseconds, up to an hour.

use hdrhistogram::Histogram;

use crate::figures::{Exchange, Sizes, StatusClass, StatusClasses, Times};

/// Response times as they come in; mean and maximum are exact.
pub struct Recorder {
    pub histogram: Histogram<u32>,
    sum_ns: u128,
    max_ns: u64,
}

const LONGEST_NS: u64 = 3_600_000_000_000;

impl Recorder {
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are in order");
        Self { histogram, sum_ns: 0, max_ns: 0 }
    }

    /// A time that stands for so many.
    pub fn record(&mut self, ns: u64, weight: u32) {
        self.histogram.record_n(ns.min(LONGEST_NS), weight).expect("it is within the bounds");
        self.sum_ns += u128::from(ns) * u128::from(weight);
        self.max_ns = self.max_ns.max(ns);
    }

    pub fn add(&mut self, more: &Self) {
        if more.histogram.is_empty() {
            return;
        }
        self.histogram.add(&more.histogram).expect("the bounds are the same");
        self.sum_ns += more.sum_ns;
        self.max_ns = self.max_ns.max(more.max_ns);
    }

    pub fn clear(&mut self) {
        if !self.histogram.is_empty() {
            self.histogram.reset();
        }
        self.sum_ns = 0;
        self.max_ns = 0;
    }

    pub fn times(&self) -> Times {
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

/// Sizes of messages as they come in.
#[derive(Default)]
pub struct SizeRecorder {
    count: u64,
    sum: u64,
    max: u32,
}

impl SizeRecorder {
    /// A size that stands for so many.
    pub fn record(&mut self, bytes: u32, weight: u32) {
        self.count += u64::from(weight);
        self.sum += u64::from(bytes) * u64::from(weight);
        self.max = self.max.max(bytes);
    }

    pub fn add(&mut self, more: &Self) {
        self.count += more.count;
        self.sum += more.sum;
        self.max = self.max.max(more.max);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn sizes(&self) -> Sizes {
        if self.count == 0 {
            return Sizes::default();
        }
        Sizes { mean: Some(self.sum as f64 / self.count as f64), max: Some(self.max) }
    }
}

const CLASSES: usize = StatusClass::NAMES.len();

/// Records what is measured of a route class.
pub struct RouteRecorder {
    pub status: StatusClasses,
    pub first_byte: Recorder,
    /// By status class, once one occurred.
    pub last_byte: [Option<Box<Recorder>>; CLASSES],
    pub request_bytes: SizeRecorder,
    pub response_bytes: SizeRecorder,
}

impl RouteRecorder {
    pub fn new() -> Self {
        Self {
            status: StatusClasses::default(),
            first_byte: Recorder::new(),
            last_byte: Default::default(),
            request_bytes: SizeRecorder::default(),
            response_bytes: SizeRecorder::default(),
        }
    }

    /// An exchange that stands for so many.
    pub fn record(&mut self, exchange: &Exchange, weight: u32) {
        *self.status.of(exchange.class) += u64::from(weight);
        if let Some(ns) = exchange.last_byte_ns {
            self.last_byte[exchange.class as usize].get_or_insert_with(|| Box::new(Recorder::new())).record(ns, weight);
        }
        if let Some(ns) = exchange.first_byte_ns {
            self.first_byte.record(ns, weight);
        }
        self.request_bytes.record(exchange.request_bytes, weight);
        self.response_bytes.record(exchange.response_bytes, weight);
    }

    pub fn add(&mut self, more: &Self) {
        self.status += more.status;
        self.first_byte.add(&more.first_byte);
        for (own, more) in self.last_byte.iter_mut().zip(&more.last_byte) {
            if let Some(more) = more {
                own.get_or_insert_with(|| Box::new(Recorder::new())).add(more);
            }
        }
        self.request_bytes.add(&more.request_bytes);
        self.response_bytes.add(&more.response_bytes);
    }

    pub fn clear(&mut self) {
        self.status = StatusClasses::default();
        self.first_byte.clear();
        self.last_byte.iter_mut().flatten().for_each(|recorder| recorder.clear());
        self.request_bytes = SizeRecorder::default();
        self.response_bytes = SizeRecorder::default();
    }

    pub fn last_byte(&self) -> Recorder {
        let mut all = Recorder::new();
        self.last_byte.iter().flatten().for_each(|recorder| all.add(recorder));
        all
    }
}
