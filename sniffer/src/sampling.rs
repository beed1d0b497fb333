//! The weight of each exchange while only a share of the connections is followed, and the share changes.
//!
//! An exchange is recorded if its connection was followed from the request to the end of the response. The probability
//! of that is the smallest share in this time, and its reciprocal is the weight (Horvitz and Thompson, 1952). Sums of
//! weights are estimates without bias for all connections, also across changes of the share.

use std::collections::VecDeque;

use crate::key::Key;
use crate::share::{ConnectionHash, Share};

/// Most changes of the share that are remembered, for exchanges that began before them.
const MOST_CHANGES: usize = 64;

/// A share that is in force from `from_ns` on (nanoseconds since 1970).
#[derive(Debug, Clone, Copy)]
struct ShareChange {
    from_ns: u64,
    share: Share,
}

/// The share over time.
pub struct Sampling {
    hash: ConnectionHash,
    /// In the order of time and never empty; the first is in force for all time before the second.
    changes: VecDeque<ShareChange>,
    /// Future changes, in the order of time.
    planned: VecDeque<ShareChange>,
}

impl Sampling {
    /// Follows all connections; `seed` makes the hash that chooses samples.
    pub fn new(seed: u64) -> Sampling {
        let all = ShareChange { from_ns: 0, share: Share::ALL };
        Sampling { hash: ConnectionHash::new(seed), changes: VecDeque::from([all]), planned: VecDeque::new() }
    }

    /// The hash that chooses the connections of a share.
    pub fn hash(&self) -> &ConnectionHash {
        &self.hash
    }

    /// The share now.
    pub fn share(&self) -> Share {
        self.changes.back().map_or(Share::ALL, |change| change.share)
    }

    /// The share after all planned changes.
    pub fn planned(&self) -> Share {
        self.planned.back().map_or(self.share(), |last| last.share)
    }

    /// Whether a connection is followed now.
    pub fn includes(&self, key: &Key) -> bool {
        self.hash.includes(key, self.share())
    }

    /// Plans another share from `from_ns` on (nanoseconds since 1970).
    pub fn plan(&mut self, share: Share, from_ns: u64) {
        self.planned.push_back(ShareChange { from_ns, share });
    }

    /// Whether there is a planned change that is due by now.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.planned.front().is_some_and(|next| next.from_ns <= now_ns)
    }

    /// Puts the next planned change into force. True when fewer connections are followed from now on.
    pub fn change(&mut self) -> bool {
        let Some(next) = self.planned.pop_front() else { return false };
        let falls = self.share().exceeds(next.share);
        self.changes.push_back(next);
        if self.changes.len() > MOST_CHANGES
            && let Some(oldest) = self.changes.pop_front()
            && let Some(first) = self.changes.front_mut()
            && first.share.exceeds(oldest.share)
        {
            first.share = oldest.share;
        }
        falls
    }

    /// The number of connections for which one stands that was followed since `ns`.
    pub fn weight_since(&self, ns: u64) -> u32 {
        let mut weight = self.share().weight();
        for change in self.changes.iter().rev() {
            weight = weight.max(change.share.weight());
            if change.from_ns <= ns {
                break;
            }
        }
        weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_at_through_a_change_weighs_by_the_smallest_share() {
        let mut sampling = Sampling::new(1);
        let (half, quarter) = (Share::ALL.halved(), Share::ALL.halved().halved());
        let mut falls = Vec::new();
        for (from_ns, share) in [(100, half), (200, quarter), (300, half), (400, Share::ALL)] {
            sampling.plan(share, from_ns);
            assert!(!sampling.is_due(from_ns - 1) && sampling.is_due(from_ns));
            falls.push(sampling.change());
        }
        assert_eq!(falls, [true, true, false, false]);
        assert_eq!([0, 199, 299, 300, 399, 400].map(|ns| sampling.weight_since(ns)), [4, 4, 4, 2, 2, 1]);
    }

    #[test]
    fn only_so_many_changes_are_remembered_and_the_oldest_count_as_the_smallest_share() {
        let mut sampling = Sampling::new(1);
        sampling.plan(Share::ALL.halved().halved(), 5);
        sampling.change();
        for from_ns in 10..10 + 2 * MOST_CHANGES as u64 {
            sampling.plan(if from_ns % 2 == 0 { Share::ALL } else { Share::ALL.halved() }, from_ns);
            sampling.change();
        }
        assert_eq!(sampling.changes.len(), MOST_CHANGES);
        assert_eq!((sampling.weight_since(0), sampling.share()), (4, Share::ALL.halved()));
    }
}
