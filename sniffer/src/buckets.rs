//! Response times counted in few fixed buckets, as monitoring systems add them up over years and servers.

use std::ops::AddAssign;

/// Upper bounds of the buckets in seconds; one more bucket takes what is longer.
pub const BUCKET_BOUNDS_S: [f64; 15] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How many response times (last request byte to last response byte) fell into each bucket, and their sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Not cumulative; the last one has no upper bound.
    pub counts: [u64; BUCKET_BOUNDS_S.len() + 1],
    /// Sum of the times.
    pub sum_ns: u128,
}

impl Buckets {
    /// Records a time that stands for `weight` exchanges.
    pub(crate) fn record(&mut self, ns: u64, weight: u32) {
        let seconds = ns as f64 / 1e9;
        self.counts[BUCKET_BOUNDS_S.partition_point(|bound| *bound < seconds)] += u64::from(weight);
        self.sum_ns += u128::from(ns) * u128::from(weight);
    }

    /// Number of response times in all buckets.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
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
    fn a_time_counts_in_the_first_bucket_that_holds_it() {
        let mut buckets = Buckets::default();
        for ns in [0, 250_000, 250_001, 10_000_000_000, 10_000_000_001] {
            buckets.record(ns, 1);
        }
        assert_eq!((buckets.counts[0], buckets.counts[1], buckets.counts[14], buckets.counts[15]), (2, 1, 1, 1));
        let mut twice = buckets;
        twice += buckets;
        assert_eq!((twice.count(), twice.sum_ns), (10, 2 * buckets.sum_ns));
    }
}
