//! A bit for each connection of the table, set while it has requests in flight. So an iteration over these connections
//! costs nothing for the others, and the number of requests in flight changes in one place.

use crate::ledger::Ledger;

/// A bit for each slot of the table.
#[derive(Default)]
pub struct Waiting(Vec<u64>);

impl Waiting {
    /// Notes that the connection in `slot` had `before` requests in flight, and now has `now`.
    pub fn moved(&mut self, slot: usize, before: u64, now: u64, ledger: &mut Ledger) {
        if before == now {
            return;
        }
        ledger.in_flight = ledger.in_flight + now - before;
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        if now > 0 { self.0[word] |= bit } else { self.0[word] &= !bit }
    }

    /// The slots with requests in flight.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(place, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(place * 64 + bit as usize)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Budget, Keeps};
    use crate::sampling::Sampling;

    #[test]
    fn places_come_and_go_with_their_requests() {
        let (mut waiting, budget) = (Waiting::default(), Budget { most_bytes: 0, most_waiting: 0 });
        let mut ledger = Ledger::new(budget, Sampling::new(0), Vec::new(), Keeps::default());
        for (slot, before, now) in [(0, 0, 1), (63, 0, 2), (64, 0, 1), (1000, 0, 3), (63, 2, 1), (64, 1, 0), (7, 0, 0)]
        {
            waiting.moved(slot, before, now, &mut ledger);
        }
        assert_eq!((waiting.iter().collect::<Vec<_>>(), ledger.in_flight), (vec![0, 63, 1000], 5));
    }
}
