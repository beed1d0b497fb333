//! Records times and sizes: HDR histograms of three significant digits in nanoseconds, up to an hour.
//!
//! A period has some hundred exchanges and a histogram has 33,000 places, so only the used places are kept. Memory and
//! time grow with the exchanges, not with the number of places, whose memory a thousand servers would not have.

use hdrhistogram::Histogram;

use crate::figures::{Exchange, Sizes, StatusClass, StatusClasses, Times};

/// Response times; mean and maximum are exact.
pub struct Recorder {
    /// Places and the number of times in each, in any order; a place may stand here several times.
    counts: Vec<(u16, u32)>,
    /// Entries of `counts` from which on those of one place are put together.
    most: usize,
    sum_ns: u128,
    max_ns: u64,
}

const LONGEST_NS: u64 = 3_600_000_000_000;

/// Entries that a recorder may have before places are put together.
const MOST_ENTRIES: usize = 1_024;

/// Places of an octave: three significant digits.
const OCTAVE_BITS: u32 = 10;

/// The place of a time in an HdrHistogram: one place for each nanosecond up to 2,047, then 1,024 places for each
/// octave.
const fn place(ns: u64) -> u16 {
    let octave = (u64::BITS - (ns | ((2 << OCTAVE_BITS) - 1)).leading_zeros()) - OCTAVE_BITS - 1;
    ((octave << OCTAVE_BITS) + (ns >> octave) as u32) as u16
}

/// The longest time of a place.
fn longest_of(place: u16) -> u64 {
    let octave = u32::from(place >> OCTAVE_BITS).saturating_sub(1);
    let lowest = u64::from(place) - (u64::from(octave) << OCTAVE_BITS);
    ((lowest + 1) << octave) - 1
}

impl Recorder {
    pub fn new() -> Self {
        Self { counts: Vec::new(), most: MOST_ENTRIES, sum_ns: 0, max_ns: 0 }
    }

    /// Records a time that stands for `weight` exchanges.
    pub fn record(&mut self, ns: u64, weight: u32) {
        self.count([(place(ns.min(LONGEST_NS)), weight)]);
        self.sum_ns += u128::from(ns) * u128::from(weight);
        self.max_ns = self.max_ns.max(ns);
    }

    fn count(&mut self, more: impl IntoIterator<Item = (u16, u32)>) {
        self.counts.extend(more);
        if self.counts.len() < self.most {
            return;
        }
        self.counts.sort_unstable();
        self.counts.dedup_by(|next, kept| {
            let is_same = next.0 == kept.0;
            kept.1 = kept.1.saturating_add(if is_same { next.1 } else { 0 });
            is_same
        });
        self.most = MOST_ENTRIES.max(2 * self.counts.len());
    }

    pub fn add(&mut self, more: &Self) {
        self.count(more.each());
        self.sum_ns += more.sum_ns;
        self.max_ns = self.max_ns.max(more.max_ns);
    }

    pub fn clear(&mut self) {
        self.counts.clear();
        self.counts.shrink_to(MOST_ENTRIES);
        self.most = MOST_ENTRIES;
        self.sum_ns = 0;
        self.max_ns = 0;
    }

    fn each(&self) -> impl Iterator<Item = (u16, u32)> {
        self.counts.iter().copied()
    }

    pub fn times(&self) -> Times {
        times([self])
    }
}

/// The times of several recorders together.
pub fn times<'a>(recorders: impl IntoIterator<Item = &'a Recorder>) -> Times {
    let (mut counted, mut sum_ns, mut max_ns) = (Vec::new(), 0, 0);
    for recorder in recorders {
        counted.extend(recorder.each());
        sum_ns += recorder.sum_ns;
        max_ns = recorder.max_ns.max(max_ns);
    }
    counted.sort_unstable();
    let count = counted.iter().map(|(_, times)| u64::from(*times)).sum::<u64>();
    if count == 0 {
        return Times::default();
    }
    let ms = |ns: f64| Some(ns / 1e6);
    let quantile = |q: f64| {
        let mut left = ((q * count as f64).ceil() as u64).max(1);
        let place = counted.iter().find(|(_, times)| {
            let is_there = left <= u64::from(*times);
            left = left.saturating_sub(u64::from(*times));
            is_there
        });
        ms(place.map_or(max_ns, |(place, _)| longest_of(*place).min(max_ns)) as f64)
    };
    Times {
        mean: ms(sum_ns as f64 / count as f64),
        p50: quantile(0.50),
        p95: quantile(0.95),
        p99: quantile(0.99),
        max: ms(max_ns as f64),
    }
}

/// The times of several recorders together, as a histogram of the HdrHistogram library.
pub fn histogram<'a>(recorders: impl IntoIterator<Item = &'a Recorder>) -> Histogram<u32> {
    let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are in order");
    for (place, times) in recorders.into_iter().flat_map(Recorder::each) {
        histogram.record_n(longest_of(place).min(LONGEST_NS), times).expect("the time is within the bounds");
    }
    histogram
}

/// Sizes of messages.
#[derive(Default)]
pub struct SizeRecorder {
    count: u64,
    sum: u64,
    max: u32,
}

impl SizeRecorder {
    /// Records a size that stands for `weight` messages.
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

    /// Several recorders together.
    pub fn sum<'a>(recorders: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        recorders.for_each(|recorder| sum.add(recorder));
        sum
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

/// Records the exchanges of a route class.
pub struct RouteRecorder {
    pub status: StatusClasses,
    pub first_byte: Recorder,
    /// By status class; `None` until a response of the class arrives.
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

    /// Records an exchange that stands for `weight` exchanges.
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

    /// Last-byte times, by status class.
    pub fn last_byte(&self) -> impl Iterator<Item = &Recorder> {
        self.last_byte.iter().flatten().map(AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_percentiles_are_those_of_hdr_histogram() {
        let mut reference = Histogram::<u32>::new_with_bounds(1, LONGEST_NS, 3).expect("bounds");
        let (mut even, mut odd) = (Recorder::new(), Recorder::new());
        let mut ns = 1;
        for number in 0..3_000 {
            for time in [ns - 1, ns, ns + number % 7] {
                let weight = 1 + (number % 3) as u32;
                let recorder = if number % 2 == 0 { &mut even } else { &mut odd };
                recorder.record(time, weight);
                reference.record_n(time, weight).expect("in bounds");
                assert_eq!(longest_of(place(time)), reference.highest_equivalent(time), "{time}");
            }
            ns = (ns * 1013 / 1000 + 1).min(LONGEST_NS - 7);
        }
        assert_eq!(histogram([&even, &odd]), reference);
        let together = times([&even, &odd]);
        for (value, quantile) in [(together.p50, 0.5), (together.p95, 0.95), (together.p99, 0.99)] {
            let expected = reference.value_at_quantile(quantile).min(even.max_ns.max(odd.max_ns));
            assert_eq!(value, Some(expected as f64 / 1e6));
        }
        even.add(&odd);
        assert_eq!(even.times(), together);
        even.clear();
        even.record(5, 2);
        assert_eq!((even.times().p99, even.each().collect::<Vec<_>>()), (Some(5e-6), vec![(5, 2)]));
    }

    #[test]
    fn a_time_beyond_an_hour_counts_in_the_last_place() {
        let mut recorder = Recorder::new();
        recorder.record(u64::MAX, 1);
        assert_eq!(recorder.each().collect::<Vec<_>>(), [(place(LONGEST_NS), 1)]);
    }
}
