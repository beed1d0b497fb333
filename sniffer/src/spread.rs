//! How sure an estimate from a sample of the connections is.

use crate::ledger::Ledger;
use crate::share::Share;

/// What was booked of a connection in a period and in a window.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    period: u32,
    weight: u64,
    window: u32,
}

/// How much the connections differ in their exchanges, for the error of their sum; and how many have any.
#[derive(Debug)]
pub struct Spread {
    period: u32,
    variance: f64,
    window: u32,
    connections: u64,
}

impl Default for Spread {
    fn default() -> Self {
        // Zero stands in a connection of which nothing was booked.
        Self { period: 1, variance: 0.0, window: 1, connections: 0 }
    }
}

impl Spread {
    /// Notes what was booked of a connection since the ledger stood at `before` exchanges.
    pub fn book(&mut self, tally: &mut Tally, before: u64, ledger: &Ledger) {
        let weight = ledger.counts.exchanges.saturating_sub(before);
        if weight > 0 {
            self.add(tally, weight, ledger.sampling.share());
        }
    }

    /// Each connection is in the sample with the probability of the share, by itself, so the variance of the sum is
    /// estimated by the sum of (1 - share) (exchanges / share)^2 over the sample.
    fn add(&mut self, tally: &mut Tally, weight: u64, share: Share) {
        if tally.window != self.window {
            tally.window = self.window;
            self.connections += 1;
        }
        if tally.period != self.period {
            (tally.period, tally.weight) = (self.period, 0);
        }
        let before = tally.weight;
        tally.weight += weight;
        self.variance += ((tally.weight as f64).powi(2) - (before as f64).powi(2)) * (1.0 - share.as_f64());
    }

    /// The standard error of the sum of the period's exchanges; the next period begins.
    pub fn take_error(&mut self) -> f64 {
        self.period = self.period.wrapping_add(1);
        std::mem::take(&mut self.variance).sqrt()
    }

    /// Connections of which an exchange was booked since the last call.
    pub fn take_connections(&mut self) -> u64 {
        self.window = self.window.wrapping_add(1);
        std::mem::take(&mut self.connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_sum_is_that_of_drawing_its_connections() {
        let mut spread = Spread::default();
        let (mut tallies, quarter) = ([Tally::default(); 3], Share::ALL.halved().halved());
        for period in 0..3 {
            // 1, 2 and 3 exchanges at a quarter: sqrt(3/4 * 16 * (1 + 4 + 9)).
            for (at, tally) in tallies.iter_mut().enumerate() {
                (0..=at).for_each(|_| spread.add(tally, 4, quarter));
            }
            let error = spread.take_error();
            assert!((error - 168f64.sqrt()).abs() < 1e-9, "period {period}: {error}");
        }
        assert_eq!((spread.take_connections(), spread.take_connections()), (3, 0));
        spread.add(&mut tallies[0], 1, Share::ALL);
        assert_eq!((spread.take_connections(), spread.take_error()), (1, 0.0));
    }
}
