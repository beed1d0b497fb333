//! A fixed loop of arithmetic in registers: it touches no memory, so neighbours in the caches leave it alone.
//!
//! Four chains run side by side and keep the core's units busy, so a sibling thread of the same core shows as well as a
//! lower clock does.

use std::hint::black_box;

use super::cycles;

/// Rounds of one turn; each makes [`OPS_PER_ROUND`] operations.
const ROUNDS: u32 = 512;
/// A multiplication and an addition in each of four chains.
const OPS_PER_ROUND: u32 = 8;

/// Cycles per operation of one turn.
pub(super) fn turn() -> f64 {
    let taken = cycles::timed(|| {
        black_box(work(black_box(1)));
    });
    taken as f64 / f64::from(ROUNDS * OPS_PER_ROUND)
}

/// The loop itself. Its result depends on each step, so that the compiler can leave none out.
fn work(seed: u64) -> u64 {
    const MULTIPLY: u64 = 0x5851_f42d_4c95_7f2d;
    let mut chains = [seed, seed ^ 2, seed ^ 3, seed ^ 4];
    for _ in 0..ROUNDS {
        for chain in &mut chains {
            *chain = chain.wrapping_mul(MULTIPLY).wrapping_add(1);
        }
    }
    chains.iter().fold(0, |sum, chain| sum ^ chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_depends_on_its_seed_and_is_the_same_each_time() {
        assert_eq!(work(1), work(1));
        assert_ne!(work(1), work(2));
        assert!(turn() > 0.0);
    }
}
