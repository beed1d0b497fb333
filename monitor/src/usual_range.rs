//! A signal's usual range, and the times in which signals are outside of theirs.

use std::collections::VecDeque;

/// A value is unusual above this many times the median.
const USUAL_FACTOR: f64 = 2.0;
/// Seconds that are remembered.
const REMEMBERED: usize = 60;
/// Seconds that must be known before anything is unusual.
const LEARNT_AFTER: usize = 10;
/// An event ends when all signals were within their ranges for this time.
pub const ENDS_AFTER_NS: u64 = 500_000_000;

/// One signal's usual range.
#[derive(Debug, Default)]
pub struct UsualRange {
    seconds: VecDeque<f64>,
    /// The highest value of this second so far.
    pub highest: Option<f64>,
}

impl UsualRange {
    /// Above this a value is unusual.
    pub fn limit(&self, floor: f64) -> f64 {
        if self.seconds.len() < LEARNT_AFTER {
            return f64::INFINITY;
        }
        let mut sorted: Vec<f64> = self.seconds.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        floor.max(USUAL_FACTOR * sorted[sorted.len() / 2])
    }

    /// Remembers the second's highest value.
    pub fn end_second(&mut self) {
        let Some(highest) = self.highest.take() else { return };
        if self.seconds.len() == REMEMBERED {
            self.seconds.pop_front();
        }
        self.seconds.push_back(highest);
    }
}

/// A time in which signals are outside their ranges.
#[derive(Debug, Clone, Copy)]
pub struct Outside {
    /// Begin.
    pub since_ns: u64,
    /// The last look at which a signal was outside.
    pub last_ns: u64,
}

impl Outside {
    /// After a look: it goes on, or begins, or has ended.
    pub fn after(before: Option<Outside>, now_ns: u64, is_outside: bool) -> Option<Outside> {
        if is_outside {
            return Some(Outside { since_ns: before.map_or(now_ns, |before| before.since_ns), last_ns: now_ns });
        }
        before.filter(|before| now_ns.saturating_sub(before.last_ns) < ENDS_AFTER_NS)
    }
}
