//! Chases of pointers in random order, where each load waits for the one before. Two chases share one piece of memory,
//! each with a cache line of its own in each page:
//!
//! - the **last-level** chase takes one line of every page. All these lines compete for the few places that the L2 cache
//!   has for that page offset, so the last-level cache answers after some hundred loads, which a period's budget can pay.
//! - the **L2** chase takes one line of the first [`L2_PAGES`] pages: more than an L1 cache has places for at that page
//!   offset, and few enough for any L2 cache.

use std::hint::black_box;

use super::cycles;
use crate::reason::Reason;

/// The memory of one step in KiB: a page.
pub const KIB_PER_LOAD: u32 = 4;
/// L1 caches keep 8 to 12 lines of a page offset.
const L2_PAGES: u32 = 64;
/// Loads between two looks at the clock: at most some microseconds, also when all of them miss.
pub(super) const CHUNK: u32 = 32;
/// The fastest of this many turns counts as a hit, so that a neighbour who is already there spoils few.
const CALIBRATION_TURNS: usize = 16;
/// Below this ratio of a miss to a hit the two cannot be distinguished.
const LEAST_CONTRAST: f64 = 1.3;

#[repr(align(64))]
struct CacheLine {
    next: u32,
}

/// Both lines of a page.
#[repr(align(4096))]
struct MemoryPage {
    last_level: CacheLine,
    l2: CacheLine,
}

/// The working set, with the state of the last-level chase.
pub(super) struct Chase {
    pages: Vec<MemoryPage>,
    /// The page where the last-level chase stands.
    position: u32,
    /// What timing a load costs by itself.
    overhead_cycles: u64,
    slow_cycles: Result<u64, Reason>,
}

/// Some loads of the last-level chase.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Loads {
    pub(super) loads: u32,
    /// Loads that took longer than a cache hit.
    pub(super) slow: u32,
}

impl Chase {
    /// Lays out the working set and learns the time of a cache hit; takes some milliseconds.
    pub(super) fn new(working_set_kib: u32) -> Chase {
        let length = (working_set_kib / KIB_PER_LOAD).max(L2_PAGES);
        let pages = cycle(length).into_iter().zip(cycle(L2_PAGES).into_iter().chain(std::iter::repeat(0)));
        let pages =
            pages.map(|(next, l2)| MemoryPage { last_level: CacheLine { next }, l2: CacheLine { next: l2 } }).collect();
        let overhead_cycles = (0..1000).map(|_| cycles::timed(|| {})).min().unwrap_or_default();
        let mut chase = Chase { pages, position: 0, overhead_cycles, slow_cycles: Err("not calibrated".into()) };
        chase.slow_cycles = chase.calibrate();
        chase
    }

    /// Why slow and fast loads cannot be distinguished here.
    pub(super) fn why_no_slow_share(&self) -> Option<&Reason> {
        self.slow_cycles.as_ref().err()
    }

    /// What timing one load costs by itself.
    pub(super) fn overhead_cycles(&self) -> u64 {
        self.overhead_cycles
    }

    /// The number of loads in one round of the last-level chase.
    pub(super) fn round(&self) -> u32 {
        u32::try_from(self.pages.len()).unwrap_or(u32::MAX)
    }

    /// [`CHUNK`] loads of the last-level chase, from where it last ended, each timed.
    pub(super) fn last_level_chunk(&mut self) -> Loads {
        let slow_cycles = self.slow_cycles.clone().unwrap_or(u64::MAX);
        let slow = (0..CHUNK).map(|_| u32::from(self.timed_load() > slow_cycles)).sum();
        Loads { loads: CHUNK, slow }
    }

    /// Cycles per load in one round of the L2 chase, which is timed as a whole.
    pub(super) fn l2_turn(&self) -> f64 {
        let mut position = 0;
        let taken = cycles::timed(|| {
            for _ in 0..L2_PAGES {
                position = black_box(self.pages[position as usize].l2.next);
            }
        });
        taken as f64 / f64::from(L2_PAGES)
    }

    fn timed_load(&mut self) -> u64 {
        let position = self.position;
        let mut next = 0;
        let taken = cycles::timed(|| next = black_box(self.pages[position as usize].last_level.next));
        self.position = next;
        taken
    }

    /// The number of cycles above which a load is slow: midway between a cache hit and a miss.
    fn calibrate(&mut self) -> Result<u64, Reason> {
        if !cycles::CAN_TIME_ONE_LOAD {
            return Err("single loads cannot be timed on this kind of CPU".into());
        }
        let mut hits = vec![u64::MAX; self.pages.len()];
        for _ in 0..CALIBRATION_TURNS {
            for hit in &mut hits {
                *hit = self.timed_load().min(*hit);
            }
        }
        for page in &self.pages {
            cycles::flush(&page.last_level);
        }
        let mut misses: Vec<u64> = (0..self.pages.len()).map(|_| self.timed_load()).collect();
        threshold(&mut hits, &mut misses)
    }
}

/// Midway between the slowest tenth of the hits and the median of the misses.
fn threshold(hits: &mut [u64], misses: &mut [u64]) -> Result<u64, Reason> {
    hits.sort_unstable();
    misses.sort_unstable();
    let (hit, miss) = (hits[hits.len() * 9 / 10], misses[misses.len() / 2]);
    if (miss as f64) < hit as f64 * LEAST_CONTRAST {
        return Err(format!("cache hits ({hit} cycles) and misses ({miss} cycles) cannot be told apart here").into());
    }
    Ok(hit.midpoint(miss))
}

/// Numbers that form one cycle in random order (Sattolo's algorithm); the same each time.
fn cycle(length: u32) -> Vec<u32> {
    let mut next: Vec<u32> = (0..length).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..next.len()).rev() {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        next.swap(last, (random % last as u64) as usize);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chase_comes_by_every_place_once() {
        for length in [2, 3, 100, 512] {
            let next = cycle(length);
            let mut visited = vec![false; next.len()];
            let mut position = 0;
            for _ in 0..length {
                assert!(!std::mem::replace(&mut visited[position as usize], true), "came by {position} twice");
                position = next[position as usize];
            }
            assert_eq!(position, 0);
        }
    }

    #[test]
    fn both_chases_have_a_line_of_their_own_in_each_page() {
        let chase = Chase::new(1024);
        assert_eq!((chase.round(), size_of::<MemoryPage>()), (256, 4096));
        let page = &chase.pages[0];
        assert_eq!(std::ptr::from_ref(&page.l2).addr() - std::ptr::from_ref(&page.last_level).addr(), 64);
        assert!(chase.l2_turn() > 0.0);
    }

    #[test]
    fn the_threshold_lies_between_hits_and_misses() {
        let mut hits: Vec<u64> = (0..100).map(|i| if i < 95 { 60 } else { 400 }).collect();
        assert_eq!(threshold(&mut hits, &mut [300; 10]), Ok(180));
        let error = threshold(&mut [100; 10], &mut [120; 10]).unwrap_err();
        assert_eq!(error.text, "cache hits (100 cycles) and misses (120 cycles) cannot be told apart here");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn lines_that_were_thrown_out_are_slow() {
        let mut chase = Chase::new(1024);
        let Ok(slow_cycles) = chase.slow_cycles.clone() else {
            println!("skipped: {}", chase.why_no_slow_share().expect("a reason"));
            return;
        };
        let mut slow_of_1000 = |flush: bool| {
            let mut slow = 0;
            for _ in 0..1000 {
                let line = &chase.pages[chase.position as usize].last_level;
                black_box(line.next);
                if flush {
                    cycles::flush(line);
                }
                slow += u32::from(chase.timed_load() > slow_cycles);
            }
            slow
        };
        let (cached, flushed) = (slow_of_1000(false), slow_of_1000(true));
        assert!(flushed > 2 * cached, "slow of 1000 loads: {cached} cached, {flushed} flushed");
    }
}
