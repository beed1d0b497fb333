//! The tracker when it follows only a share of the connections.

use std::net::SocketAddr;

use super::Tracker;
use crate::key::Key;
use crate::sampling::Sampling;
use crate::share::Share;

impl Tracker {
    /// Follows only this share of the connections from `from_ns` on, in the clock of the packets (nanoseconds since
    /// 1970). The figures still stand for all connections: counts are estimates without bias, response times are those
    /// of the sample. The other connections are forgotten, and their open requests are not counted. A connection that
    /// joins the sample counts from its next request on.
    pub fn sample(&mut self, share: Share, from_ns: u64) {
        if share != self.ledger.sampling.planned() {
            self.ledger.sampling.plan(share, from_ns);
        }
    }

    /// The share of the connections that is followed now.
    pub fn share(&self) -> Share {
        self.ledger.sampling.share()
    }

    /// Whether a connection between these addresses is followed now.
    pub fn looks_at(&self, client: SocketAddr, server: SocketAddr) -> bool {
        let end = |address: SocketAddr| (address.ip(), address.port());
        self.ledger.sampling.includes(&Key { client: end(client), server: end(server) })
    }

    /// The shares over time, and the hash that chooses the connections.
    pub(crate) fn sampling(&self) -> &Sampling {
        &self.ledger.sampling
    }

    /// Number of followed connections on which an exchange ended since the last call.
    pub fn take_connections(&mut self) -> u64 {
        self.spread.take_connections()
    }

    /// Requests whose response has not ended.
    pub fn in_flight(&self) -> u64 {
        let sampling = &self.ledger.sampling;
        if sampling.weight_since(0) == 1 {
            return self.ledger.in_flight;
        }
        let slots = self.waiting.iter().filter_map(|slot| self.slots[slot].as_ref());
        let weighed = slots.map(|slot| {
            let since = slot.connection.oldest_unanswered().map_or(u64::MAX, |moment| moment.time_ns);
            slot.connection.in_flight() * u64::from(sampling.weight_since(since))
        });
        weighed.sum()
    }

    /// Age of the oldest request without any byte of a response, on the connections that are followed; 0 when there is
    /// none. `now_ns` as for `take_period`. The cost depends on the number of connections with requests in flight only.
    pub fn oldest_unanswered_ms(&self, now_ns: u64) -> f64 {
        let slots = self.waiting.iter().filter_map(|slot| self.slots[slot].as_ref());
        let moments = slots.filter_map(|slot| slot.connection.oldest_unanswered());
        let moments = moments.filter(|moment| moment.frame >= self.ledger.stepped_at);
        let oldest_ns = moments.map(|moment| moment.time_ns).min();
        oldest_ns.map_or(0.0, |ns| now_ns.saturating_sub(ns) as f64 / 1e6)
    }

    /// Carries out the planned changes of the share that are due.
    pub(super) fn change_share(&mut self, now_ns: u64) {
        while self.ledger.sampling.is_due(now_ns) {
            self.ledger.weigh();
            if self.ledger.sampling.change() {
                for slot in 0..self.slots.len() {
                    self.forget(slot);
                }
                let sampling = &self.ledger.sampling;
                self.closed.keep(|key| sampling.includes(key));
            }
        }
    }

    /// Removes a connection without recording anything, if it is no longer in the sample.
    fn forget(&mut self, slot: usize) {
        let is_outside = |key| !self.ledger.sampling.includes(key);
        if self.slots[slot].as_ref().is_some_and(|slot| is_outside(&slot.connection.key)) {
            let counts = self.ledger.counts;
            self.ledger.forgets = true;
            self.remove(slot, false);
            self.ledger.forgets = false;
            self.ledger.counts = counts;
        }
    }
}
