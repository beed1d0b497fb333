//! Counters of the kernel: the difference between two readings.
//!
//! They go back when what they count is made anew (a cgroup, an interface, a disk that was plugged in again) or when they
//! wrap, and leap when it has become another thing: then there is no figure for that period.

/// No counter of a machine grows faster per second: bytes, nanoseconds and events stay far below.
const MOST_PER_S: f64 = 1e12;

/// Why there is no rate when no time passed between two readings.
pub(crate) const NO_TIME: &str = "no time passed since the last reading";
const NO_EARLIER: &str = "there was no earlier reading";
const NOT_COUNTED: &str = "this kernel does not count it";
const WENT_BACK: &str = "the counter went back: it wrapped or began anew";
const LEAPT: &str = "the counter leapt: it counts something else now";

/// The last reading of `N` counters that are read together.
#[derive(Debug, Clone)]
pub struct CounterDelta<const N: usize> {
    last: Option<(u64, [Option<u64>; N])>,
}

impl<const N: usize> Default for CounterDelta<N> {
    fn default() -> CounterDelta<N> {
        CounterDelta { last: None }
    }
}

/// The time between two readings.
pub(crate) fn seconds_between(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}

/// What `N` counters grew by in a time, or why that is not known.
#[derive(Debug, Clone, PartialEq)]
pub struct Delta<const N: usize> {
    /// The time between the readings; 0 when there was only one.
    pub elapsed_s: f64,
    /// By how much.
    pub by: [Result<u64, &'static str>; N],
}

impl<const N: usize> CounterDelta<N> {
    /// Takes a reading; `None` is a counter that is not there.
    pub fn advance(&mut self, now_ns: u64, now: [Option<u64>; N]) -> Delta<N> {
        let Some((last_ns, last)) = self.last.replace((now_ns, now)) else {
            return Delta { elapsed_s: 0.0, by: now.map(|counter| Err(counter.map_or(NOT_COUNTED, |_| NO_EARLIER))) };
        };
        let elapsed_s = seconds_between(last_ns, now_ns);
        let delta = |last: Option<u64>, now: Option<u64>| {
            let now = now.ok_or(NOT_COUNTED)?;
            let delta = now.checked_sub(last.ok_or(NO_EARLIER)?).ok_or(WENT_BACK)?;
            if now_ns <= last_ns {
                return Err(NO_TIME);
            }
            // Short periods may end a little later than their clock shows.
            if delta as f64 > MOST_PER_S * elapsed_s.max(1.0) { Err(LEAPT) } else { Ok(delta) }
        };
        Delta { elapsed_s, by: std::array::from_fn(|place| delta(last[place], now[place])) }
    }

    /// False before the first reading, and after a gap.
    pub fn has_reading(&self) -> bool {
        self.last.is_some()
    }

    /// The next reading is the first again: there was a gap.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

impl<const N: usize> Delta<N> {
    /// CounterDelta per second.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn per_s(&self, place: usize) -> Result<f64, &'static str> {
        self.by[place].map(|by| by as f64 / self.elapsed_s)
    }

    /// A time in milliseconds as a number of those that passed: 1 is the whole time, 2 two things at once.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn ms_share(&self, place: usize) -> Result<f64, &'static str> {
        Ok(self.per_s(place)? / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn growth_is_of_the_time_between_two_readings() {
        let mut deltas = CounterDelta::default();
        assert_eq!(deltas.advance(0, [Some(5), None]).by, [Err(NO_EARLIER), Err(NOT_COUNTED)]);
        let delta = deltas.advance(S / 2, [Some(15), Some(3)]);
        assert_eq!((delta.by, delta.elapsed_s), ([Ok(10), Err(NO_EARLIER)], 0.5));
        assert_eq!(deltas.advance(S, [Some(15), Some(4)]).per_s(1), Ok(2.0));
        deltas.forget();
        assert_eq!(deltas.advance(2 * S, [Some(16), None]).by, [Err(NO_EARLIER), Err(NOT_COUNTED)]);
    }

    #[test]
    fn counters_that_go_back_wrap_or_leap_give_no_number() {
        let mut deltas = CounterDelta::default();
        deltas.advance(0, [Some(100), Some(u64::from(u32::MAX)), Some(0)]);
        let delta = deltas.advance(S / 5, [Some(1), Some(0), Some(u64::MAX)]);
        assert_eq!(delta.by, [Err(WENT_BACK), Err(WENT_BACK), Err(LEAPT)]);
        assert_eq!(deltas.advance(2 * S / 5, [Some(3), Some(1), None]).by, [Ok(2), Ok(1), Err(NOT_COUNTED)]);
    }

    #[test]
    fn without_time_there_is_no_rate() {
        let mut deltas = CounterDelta::default();
        deltas.advance(S, [Some(1)]);
        assert_eq!(deltas.advance(S, [Some(2)]).by, [Err(NO_TIME)]);
        assert_eq!(deltas.advance(0, [Some(3)]).by, [Err(NO_TIME)]);
    }
}
