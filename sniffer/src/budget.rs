//! Decides which share of the connections is followed, so that the sniffer keeps to a budget of CPU time.
//!
//! Above the budget the share is halved at once. It is doubled only after several looks in a row below a limit, which
//! lies so far below half of the budget that a steady load does not make the share swing. Estan, Keys, Moore and
//! Varghese adapt NetFlow's sampling rate in the same way (*Building a better NetFlow*, SIGCOMM 2004).
//!
//! A few connections, as a balancer keeps them alive, are too small a sample: below `LEAST_CONNECTIONS` all are
//! followed, whatever that costs.

use crate::share::Share;

/// Connections with exchanges that a sample needs in each look: then the standard error of their rate is a tenth, if
/// all connections are alike.
pub const LEAST_CONNECTIONS: u64 = 100;

/// The share is halved only with this multiple of `LEAST_CONNECTIONS`, because the size of the remaining sample varies.
const ROOM_TO_HALVE: u64 = 3;

/// Below this part of the budget the share is doubled.
const CALM_BELOW: f64 = 0.4;

/// Looks in a row that must be below it.
const CALM_LOOKS: u32 = 3;

/// Keeps to a budget of CPU time.
#[derive(Debug, Clone)]
pub struct CpuBudget {
    most_cpu_share: f64,
    share: Share,
    calm_looks: u32,
}

impl CpuBudget {
    /// A budget of this share of one core (0 to 1).
    pub fn new(most_cpu_share: f64) -> CpuBudget {
        CpuBudget { most_cpu_share, share: Share::ALL, calm_looks: 0 }
    }

    /// The share of the connections to follow from now on. Since the last look the sniffer has used `cpu_share` of a
    /// core, and exchanges have ended on `connections` of those that it follows.
    pub fn look(&mut self, cpu_share: f64, connections: u64) -> Share {
        let is_calm = cpu_share < CALM_BELOW * self.most_cpu_share;
        self.calm_looks = if is_calm { self.calm_looks + 1 } else { 0 };
        let is_above = cpu_share > self.most_cpu_share && connections >= ROOM_TO_HALVE * LEAST_CONNECTIONS;
        if connections < LEAST_CONNECTIONS || self.calm_looks >= CALM_LOOKS {
            self.calm_looks = 0;
            self.share = self.share.doubled();
        } else if is_above {
            self.share = self.share.halved();
        }
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shares under a load that would use `load` of a core if all connections were followed.
    fn shares(budget: &mut CpuBudget, looks: usize, load: f64, connections: f64) -> Vec<f64> {
        let mut share = budget.share;
        let looked = (0..looks).map(|_| {
            share = budget.look(load * share.as_f64(), (connections * share.as_f64()) as u64);
            share.as_f64()
        });
        looked.collect()
    }

    #[test]
    fn the_share_falls_at_once_and_stays_where_the_budget_holds() {
        let mut budget = CpuBudget::new(0.02);
        assert_eq!(shares(&mut budget, 6, 0.1, 10_000.0), [0.5, 0.25, 0.125, 0.125, 0.125, 0.125]);
    }

    #[test]
    fn no_steady_load_makes_it_swing() {
        for load in (1..400).map(|n| f64::from(n) / 1_000.0) {
            let mut budget = CpuBudget::new(0.02);
            let shares = shares(&mut budget, 60, load, 1e6);
            assert!(shares.windows(2).all(|pair| pair[1] <= pair[0]), "{load}: {shares:?}");
            let used = load * shares[59];
            assert!(used <= 0.02, "{load}: {used}");
        }
    }

    #[test]
    fn it_rises_step_by_step_when_the_load_is_gone() {
        let mut budget = CpuBudget::new(0.02);
        shares(&mut budget, 5, 0.1, 10_000.0);
        assert_eq!(
            shares(&mut budget, 10, 0.01, 10_000.0)[..10],
            [0.125, 0.125, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 1.0, 1.0]
        );
    }

    #[test]
    fn few_connections_are_all_looked_at_whatever_they_cost() {
        let mut budget = CpuBudget::new(0.02);
        assert_eq!(shares(&mut budget, 3, 0.9, 250.0), [1.0, 1.0, 1.0]);
        assert_eq!(shares(&mut budget, 3, 0.9, 600.0), [0.5, 0.25, 0.25]);
        assert_eq!(shares(&mut budget, 3, 0.9, 150.0), [0.5, 1.0, 1.0]);
    }
}
