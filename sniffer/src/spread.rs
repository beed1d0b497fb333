//! The standard error of an estimate from a sample of the connections.

use crate::ledger::Ledger;
use crate::share::Share;

/// The weight of a connection's exchanges in a period, and whether it had any in a window.
#[derive(Debug, Clone, Copy, Default)]
pub struct Booked {
    period: u32,
    weight: u64,
    window: u32,
}

/// The variance of the connections' exchanges, for the error of their sum, and the number of connections with
/// exchanges.
#[derive(Debug)]
pub struct Spread {
    period: u32,
    variance: f64,
    window: u32,
    connections: u64,
}

impl Default for Spread {
    fn default() -> Self {
        // The numbers of a connection without exchanges are zero.
        Self { period: 1, variance: 0.0, window: 1, connections: 0 }
    }
}

impl Spread {
    /// Adds the exchanges of a connection since the ledger had `before` exchanges.
    pub fn book(&mut self, booked: &mut Booked, before: u64, ledger: &Ledger) {
        let weight = ledger.counts.exchanges.saturating_sub(before);
        if weight > 0 {
            self.add(booked, weight, ledger.sampling.share());
        }
    }

    /// Each connection is in the sample with the probability of the share, independently of the others. So the variance
    /// of the sum is estimated by the sum of (1 - share) (exchanges / share)^2 over the sample.
    fn add(&mut self, booked: &mut Booked, weight: u64, share: Share) {
        if booked.window != self.window {
            booked.window = self.window;
            self.connections += 1;
        }
        if booked.period != self.period {
            (booked.period, booked.weight) = (self.period, 0);
        }
        let before = booked.weight;
        booked.weight += weight;
        self.variance += ((booked.weight as f64).powi(2) - (before as f64).powi(2)) * (1.0 - share.as_f64());
    }

    /// The standard error of the sum of the period's exchanges; the next period begins.
    pub fn take_error(&mut self) -> f64 {
        self.period = self.period.wrapping_add(1);
        std::mem::take(&mut self.variance).sqrt()
    }

    /// Number of connections with an exchange since the last call.
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
        let (mut bookings, quarter) = ([Booked::default(); 3], Share::ALL.halved().halved());
        for period in 0..3 {
            // 1, 2 and 3 exchanges at a quarter: sqrt(3/4 * 16 * (1 + 4 + 9)).
            for (number, booked) in bookings.iter_mut().enumerate() {
                (0..=number).for_each(|_| spread.add(booked, 4, quarter));
            }
            let error = spread.take_error();
            assert!((error - 168f64.sqrt()).abs() < 1e-9, "period {period}: {error}");
        }
        assert_eq!((spread.take_connections(), spread.take_connections()), (3, 0));
        spread.add(&mut bookings[0], 1, Share::ALL);
        assert_eq!((spread.take_connections(), spread.take_error()), (1, 0.0));
    }
}
