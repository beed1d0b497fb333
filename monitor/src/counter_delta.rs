//! Counters of the kernel: the difference between two readings.
//!
//! A counter goes back when it wraps or when the thing that it counts is made anew (a cgroup, an interface, a disk that
//! was plugged in again). It leaps when another thing has taken that one's place, or when the kernel or its emulation
//! has a fault. Then there is no figure for that period. This is the only place where counters are subtracted.

use crate::reason::Reason;

/// Why there is no rate when no time passed between two readings.
pub(crate) const NO_TIME: &str = "no time passed since the last reading";
const NO_EARLIER: &str = "there was no earlier reading";
const NOT_COUNTED: &str = "this kernel does not count it";
const WENT_BACK: &str = "the counter went back: it wrapped or began anew";
const LEAPT: &str = "the counter leapt: it grew by more than the time that passed allows";

/// Clocks are read a moment apart, and the kernel books events up to this many seconds late.
const BOOKED_LATE_S: f64 = 0.25;
/// Some kernels book stolen time twice: as such, and as idle.
const BOOKED_TWICE: f64 = 1.5;

/// A reading of a counter, or why there is none.
pub type Count = Result<u64, Reason>;

/// The reading of a counter that not every kernel has.
pub fn if_counted(counter: Option<u64>) -> Count {
    counter.ok_or_else(|| NOT_COUNTED.into())
}

/// The most that a counter grows by in a second. Each counter is declared with its limit, since every difference is
/// compared with the time that passed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrowthLimit {
    per_s: f64,
    falls_a_little: bool,
}

impl GrowthLimit {
    /// The most that a counter of events grows.
    pub const EVENTS: GrowthLimit = GrowthLimit { per_s: 1e10, falls_a_little: false };
    /// The most that a counter of bytes grows.
    pub const BYTES: GrowthLimit = GrowthLimit { per_s: 1e12, falls_a_little: false };

    /// A counter of time grows no faster than time passes; a second has `units` of its units.
    pub const fn time(units: f64) -> GrowthLimit {
        GrowthLimit { per_s: units, falls_a_little: false }
    }

    /// The most that `count` such counters grow together, for example those of all CPUs or of all waiting tasks.
    pub const fn times(self, count: f64) -> GrowthLimit {
        GrowthLimit { per_s: self.per_s * count, ..self }
    }

    /// The same limit for a counter that may go back by a little, as the kernel's documentation warns. Such a step
    /// counts as no growth.
    pub const fn falling_a_little(self) -> GrowthLimit {
        GrowthLimit { falls_a_little: true, ..self }
    }

    fn allows(self, by: f64, elapsed_s: f64) -> bool {
        by <= self.per_s * (BOOKED_TWICE * elapsed_s + BOOKED_LATE_S)
    }

    /// How much a counter grew in `elapsed_s` seconds.
    ///
    /// # Errors
    /// The counter went back or leapt.
    pub fn grown(self, last: u64, now: u64, elapsed_s: f64) -> Result<u64, &'static str> {
        match now.checked_sub(last) {
            Some(by) if self.allows(by as f64, elapsed_s) => Ok(by),
            Some(_) => Err(LEAPT),
            None if self.falls_a_little && (last - now) as f64 <= self.per_s * BOOKED_LATE_S => Ok(0),
            None => Err(WENT_BACK),
        }
    }

    /// The sum of several counters' growths, held to the same limit.
    ///
    /// # Errors
    /// The sum leapt.
    pub fn sum_of(self, grown: &[u64], elapsed_s: f64) -> Result<f64, &'static str> {
        let sum = grown.iter().map(|by| *by as f64).sum();
        if self.allows(sum, elapsed_s) { Ok(sum) } else { Err(LEAPT) }
    }
}

/// The last reading of `N` counters that are read together.
#[derive(Debug, Clone)]
pub struct CounterDelta<const N: usize> {
    limits: [GrowthLimit; N],
    last: Option<(u64, [Option<u64>; N])>,
}

/// The time between two readings.
pub(crate) fn seconds_between(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}

/// The growth of `N` counters between two readings, or why it is not known.
#[derive(Debug, Clone, PartialEq)]
pub struct Delta<const N: usize> {
    /// The time between the readings; 0 when there was only one.
    pub elapsed_s: f64,
    /// How much each counter grew.
    pub by: [Count; N],
}

impl<const N: usize> CounterDelta<N> {
    /// Counters with these limits, of which nothing was read yet.
    pub fn new(limits: [GrowthLimit; N]) -> CounterDelta<N> {
        CounterDelta { limits, last: None }
    }

    /// Sets other limits, for example because the number of CPUs changed.
    pub fn set_limits(&mut self, limits: [GrowthLimit; N]) {
        self.limits = limits;
    }

    /// Takes a reading.
    pub fn advance(&mut self, now_ns: u64, now: [Count; N]) -> Delta<N> {
        let read = std::array::from_fn(|place| now[place].as_ref().ok().copied());
        let before = self.last.replace((now_ns, read));
        let elapsed_s = before.map_or(0.0, |(last_ns, _)| seconds_between(last_ns, now_ns));
        let mut place = 0;
        let by = now.map(|now| {
            let (limit, last) = (self.limits[place], before.and_then(|(_, last)| last[place]));
            place += 1;
            let (now, last) = (now?, last.ok_or(NO_EARLIER)?);
            let grown = if elapsed_s > 0.0 { limit.grown(last, now, elapsed_s) } else { Err(NO_TIME) };
            grown.map_err(Reason::from)
        });
        Delta { elapsed_s, by }
    }

    /// Whether there is a reading to compare with: not before the first one, and not after a gap.
    pub fn has_reading(&self) -> bool {
        self.last.is_some()
    }

    /// Forgets the last reading, because there was a gap.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

impl<const N: usize> Delta<N> {
    /// How much the counter at `place` grew.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn by(&self, place: usize) -> Count {
        self.by[place].clone()
    }

    /// How much the counter at `place` grew per second.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn per_s(&self, place: usize) -> Result<f64, Reason> {
        Ok(self.by(place)? as f64 / self.elapsed_s)
    }

    /// A counter of milliseconds as a share of the time that passed: 1 is the whole time, 2 is two things at once.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn ms_share(&self, place: usize) -> Result<f64, Reason> {
        Ok(self.per_s(place)? / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn deltas<const N: usize>() -> CounterDelta<N> {
        CounterDelta::new([GrowthLimit::EVENTS; N])
    }

    fn read<const N: usize>(counters: [Option<u64>; N]) -> [Count; N] {
        counters.map(if_counted)
    }

    fn because(reason: &str) -> Count {
        Err(reason.into())
    }

    #[test]
    fn growth_is_of_the_time_between_two_readings() {
        let mut deltas = deltas();
        assert_eq!(deltas.advance(0, read([Some(5), None])).by, [because(NO_EARLIER), because(NOT_COUNTED)]);
        let delta = deltas.advance(S / 2, read([Some(15), Some(3)]));
        assert_eq!((delta.by, delta.elapsed_s), ([Ok(10), because(NO_EARLIER)], 0.5));
        assert_eq!(deltas.advance(S, read([Some(15), Some(4)])).per_s(1), Ok(2.0));
        deltas.forget();
        let delta = deltas.advance(2 * S, [Ok(16), because("a strange line")]);
        assert_eq!(delta.by, [because(NO_EARLIER), because("a strange line")]);
    }

    #[test]
    fn counters_that_go_back_wrap_or_leap_give_no_number() {
        let mut deltas = deltas();
        deltas.advance(0, read([Some(100), Some(u64::from(u32::MAX)), Some(0)]));
        let delta = deltas.advance(S / 5, read([Some(1), Some(0), Some(u64::MAX)]));
        assert_eq!(delta.by, [because(WENT_BACK), because(WENT_BACK), because(LEAPT)]);
        let delta = deltas.advance(2 * S / 5, read([Some(3), Some(1), None]));
        assert_eq!(delta.by, [Ok(2), Ok(1), because(NOT_COUNTED)]);
    }

    #[test]
    fn a_time_grows_by_no_more_than_the_time_that_passed() {
        let of_two_cpus = GrowthLimit::time(100.0).times(2.0);
        assert_eq!(of_two_cpus.grown(0, 400, 2.0), Ok(400));
        assert_eq!(of_two_cpus.grown(0, 700, 2.0), Err(LEAPT));
        assert_eq!(of_two_cpus.grown(0, 50, 0.05), Ok(50), "booked late");
        assert_eq!(of_two_cpus.sum_of(&[400, 300], 2.0), Err(LEAPT));
        assert_eq!(of_two_cpus.grown(9, 8, 2.0), Err(WENT_BACK));
        let idle = of_two_cpus.falling_a_little();
        assert_eq!((idle.grown(900, 899, 2.0), idle.grown(900, 800, 2.0)), (Ok(0), Err(WENT_BACK)));
    }

    #[test]
    fn without_time_there_is_no_rate() {
        let mut deltas = deltas();
        deltas.advance(S, [Ok(1)]);
        assert_eq!(deltas.advance(S, [Ok(2)]).by, [because(NO_TIME)]);
        assert_eq!(deltas.advance(0, [Ok(3)]).by, [because(NO_TIME)]);
    }
}
