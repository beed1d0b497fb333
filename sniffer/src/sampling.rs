//! How much each thing seen counts while only a share of the connections is looked at, and the share changes.
//!
//! An exchange is booked if its connection was looked at from the request to the end of the response: so with the
//! probability of the smallest share in that time, whose reciprocal is its weight (Horvitz and Thompson, 1952). Sums of
//! weights are estimates without bias of what all connections have, also across changes of the share: long exchanges, of
//! which more span a change, weigh as much more as fewer of them are seen.

use std::collections::VecDeque;

use crate::key::Key;
use crate::share::{ConnectionHash, Share};

/// Changes of the share that are remembered, for exchanges that began before them.
const MOST_CHANGES: usize = 64;

/// A change of the share; it holds from `from_ns` on (nanoseconds since 1970).
#[derive(Debug, Clone, Copy)]
struct Change {
    from_ns: u64,
    share: Share,
}

/// The share over time.
pub struct Sampling {
    hash: ConnectionHash,
    /// Never empty, in the order of time; the first one holds for all time before the second.
    changes: VecDeque<Change>,
    /// Changes to come, in the order of time.
    planned: VecDeque<Change>,
}

impl Sampling {
    /// All connections.
    pub fn new(seed: u64) -> Sampling {
        let all = Change { from_ns: 0, share: Share::ALL };
        Sampling { hash: ConnectionHash::new(seed), changes: VecDeque::from([all]), planned: VecDeque::new() }
    }

    /// Which connections a share has.
    pub fn hash(&self) -> &ConnectionHash {
        &self.hash
    }

    /// The share now.
    pub fn share(&self) -> Share {
        self.changes.back().map_or(Share::ALL, |change| change.share)
    }

    /// The share once all planned changes have come into force.
    pub fn planned(&self) -> Share {
        self.planned.back().map_or(self.share(), |last| last.share)
    }

    /// Whether a connection is looked at now.
    pub fn includes(&self, key: &Key) -> bool {
        self.hash.includes(key, self.share())
    }

    /// Plans another share from `from_ns` on (nanoseconds since 1970).
    pub fn plan(&mut self, share: Share, from_ns: u64) {
        self.planned.push_back(Change { from_ns, share });
    }

    /// Whether the next planned change, if there is one, comes into force by now.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.planned.front().is_some_and(|next| next.from_ns <= now_ns)
    }

    /// The next planned change comes into force. True where fewer connections are looked at from now on.
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

    /// How many connections one stands for that was looked at all the time since then.
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
        for (at, share) in [(100, half), (200, quarter), (300, half), (400, Share::ALL)] {
            sampling.plan(share, at);
            assert!(!sampling.is_due(at - 1) && sampling.is_due(at));
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
        for at in 10..10 + 2 * MOST_CHANGES as u64 {
            sampling.plan(if at % 2 == 0 { Share::ALL } else { Share::ALL.halved() }, at);
            sampling.change();
        }
        assert_eq!(sampling.changes.len(), MOST_CHANGES);
        assert_eq!((sampling.weight_since(0), sampling.share()), (4, Share::ALL.halved()));
    }
}
