//! Response times counted in fixed buckets, as monitoring systems add them up over years and servers.

use std::ops::AddAssign;
use std::sync::LazyLock;

/// Upper bounds of the classes of buckets in seconds; one more bucket takes what is longer.
pub const BUCKET_BOUNDS_S: [f64; 15] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Buckets in each class: their bounds are a geometric series, 4.4% or 5.9% apart; those of the first class are evenly
/// spaced.
pub const BUCKETS_OF_CLASS: usize = 16;

/// Number of buckets with an upper bound.
const BOUNDED: usize = BUCKET_BOUNDS_S.len() * BUCKETS_OF_CLASS;

/// Upper bounds of the buckets.
static BOUNDS_NS: LazyLock<[u64; BOUNDED]> = LazyLock::new(|| {
    std::array::from_fn(|bucket| {
        let (class, place) = (bucket / BUCKETS_OF_CLASS, bucket % BUCKETS_OF_CLASS + 1);
        let share = place as f64 / BUCKETS_OF_CLASS as f64;
        let upper_s = BUCKET_BOUNDS_S[class];
        let bound_s = match class.checked_sub(1).map(|below| BUCKET_BOUNDS_S[below]) {
            Some(lower_s) => upper_s * (lower_s / upper_s).powf(1.0 - share),
            None => upper_s * share,
        };
        (bound_s * 1e9).round() as u64
    })
});

/// How many response times (last request byte to last response byte) fell into each bucket, and their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets {
    /// Not cumulative; the last one has no upper bound.
    pub counts: [u64; BOUNDED + 1],
    /// Sum of the times.
    pub sum_ns: u128,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { counts: [0; BOUNDED + 1], sum_ns: 0 }
    }
}

impl Buckets {
    /// Records a time that stands for `weight` exchanges.
    pub(crate) fn record(&mut self, ns: u64, weight: u32) {
        self.counts[BOUNDS_NS.partition_point(|bound| *bound < ns)] += u64::from(weight);
        self.sum_ns += u128::from(ns) * u128::from(weight);
    }

    /// Number of response times in all buckets.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Number of response times in each class, by `BUCKET_BOUNDS_S`; the last one has no upper bound.
    pub fn classes(&self) -> [u64; BUCKET_BOUNDS_S.len() + 1] {
        let mut classes = [0; BUCKET_BOUNDS_S.len() + 1];
        for (class, counts) in classes.iter_mut().zip(self.counts.chunks(BUCKETS_OF_CLASS)) {
            *class = counts.iter().sum();
        }
        classes
    }

    /// Number and count of each bucket that holds a response time.
    pub fn filled(&self) -> Vec<(usize, u64)> {
        self.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect()
    }
}

impl AddAssign for Buckets {
    fn add_assign(&mut self, more: Self) {
        self.counts.iter_mut().zip(more.counts).for_each(|(count, more)| *count += more);
        self.sum_ns += more.sum_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_the_first_class_that_holds_it() {
        let mut buckets = Buckets::default();
        for ns in [0, 250_000, 250_001, 10_000_000_000, 10_000_000_001] {
            buckets.record(ns, 1);
        }
        let classes = buckets.classes();
        assert_eq!((classes[0], classes[1], classes[14], classes[15]), (2, 1, 1, 1));
        assert_eq!(buckets.filled(), [(0, 1), (15, 1), (16, 1), (239, 1), (240, 1)]);
        let mut twice = buckets;
        twice += buckets;
        assert_eq!((twice.count(), twice.sum_ns), (10, 2 * buckets.sum_ns));
    }

    #[test]
    fn each_class_ends_at_its_bound_and_buckets_are_six_percent_wide_at_most() {
        for (class, bound_s) in BUCKET_BOUNDS_S.iter().enumerate() {
            assert_eq!(BOUNDS_NS[(class + 1) * BUCKETS_OF_CLASS - 1], (bound_s * 1e9).round() as u64);
        }
        for pair in BOUNDS_NS[BUCKETS_OF_CLASS - 1..].windows(2) {
            let width = pair[1] as f64 / pair[0] as f64;
            assert!((1.04..1.06).contains(&width), "{} ns to {} ns", pair[0], pair[1]);
        }
        assert!(BOUNDS_NS[..BUCKETS_OF_CLASS].windows(2).all(|pair| pair[1] - pair[0] <= 15_626));
    }
}
