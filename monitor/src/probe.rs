//! The canary's probe: a chase of pointers in random order, where each load waits for the one before.
//!
//! One line of each page is used, so all lines compete for the few places that the L2 cache has for that page offset:
//! a pass is answered by the last-level cache after some hundred loads, which a period's budget can pay. The first pass
//! of a run finds what the neighbours left of the run before, the others what they push out within microseconds.

use rustix::thread::ClockId;

/// One step of the chase.
#[repr(align(4096))]
struct Node {
    next: u32,
}

/// The memory of one step in KiB.
pub const KIB_PER_LOAD: u32 = 4;
/// A run goes round this many times, unless its budget ends first.
const PASSES: u32 = 4;
/// Loads between two looks at the clock: at most some microseconds, also when all of them miss.
const CHUNK: u32 = 32;
/// The fastest of this many turns counts as a hit, so that a neighbour who is already there spoils few.
const CALIBRATION_TURNS: usize = 16;
/// Below this ratio of a miss to a hit the two cannot be told apart.
const LEAST_CONTRAST: f64 = 1.3;

/// What one run of the probe found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Cycles (TSC; where there is none: nanoseconds) of CPU time per load, without the cost of timing it.
    pub cycles_per_load: f64,
    /// Share of the loads that took longer than a cache hit.
    pub slow_share: Option<f64>,
    /// Wall time over CPU time.
    pub wall_cpu_ratio: f64,
    /// Loads made; fewer than the whole when the budget ended first.
    pub loads: u32,
}

/// The working set and where the chase stands in it.
pub struct Probe {
    nodes: Vec<Node>,
    at: u32,
    start_cycles: u64,
    start_ns: u64,
    /// What timing a load costs by itself.
    overhead_cycles: u64,
    slow_cycles: Result<u64, String>,
}

impl Probe {
    /// Lays out the working set and learns the time of a cache hit; takes some milliseconds.
    pub fn new(working_set_kib: u32) -> Probe {
        let nodes = cycle(working_set_kib / KIB_PER_LOAD);
        let overhead_cycles = (0..1000).map(|_| cycles::timed(|| {})).min().unwrap_or_default();
        let (start_cycles, start_ns) = (cycles::now(), clock_ns(ClockId::Monotonic));
        let slow_cycles = Err(String::new());
        let mut probe = Probe { nodes, at: 0, start_cycles, start_ns, overhead_cycles, slow_cycles };
        probe.slow_cycles = probe.calibrate();
        probe
    }

    /// Why slow loads cannot be told from fast ones here.
    pub fn why_no_slow_share(&self) -> Option<&str> {
        self.slow_cycles.as_ref().err().map(String::as_str)
    }

    /// Goes round from where the last run ended, for at most about `budget_ns` of wall time: when the core is taken away
    /// meanwhile, the run ends as soon as it comes back.
    pub fn run(&mut self, budget_ns: u64) -> Run {
        let cycles_per_ns = self.cycles_per_ns();
        let wall_start_ns = clock_ns(ClockId::Monotonic);
        let cpu_start_ns = clock_ns(ClockId::ThreadCPUTime);
        let end_cycles = cycles::now() + (budget_ns as f64 * cycles_per_ns) as u64;
        let slow_cycles = self.slow_cycles.clone().unwrap_or(u64::MAX);
        let whole = PASSES * self.nodes.len() as u32;
        let (mut loads, mut slow) = (0, 0);
        while loads == 0 || (loads < whole && cycles::now() < end_cycles) {
            for _ in 0..CHUNK {
                slow += u32::from(self.timed_load() > slow_cycles);
            }
            loads += CHUNK;
        }
        let cpu_ns = clock_ns(ClockId::ThreadCPUTime).saturating_sub(cpu_start_ns).max(1);
        let wall_ns = clock_ns(ClockId::Monotonic).saturating_sub(wall_start_ns);
        let cycles_per_load = cpu_ns as f64 * cycles_per_ns / f64::from(loads) - self.overhead_cycles as f64;
        Run {
            cycles_per_load: cycles_per_load.max(0.0),
            slow_share: self.slow_cycles.is_ok().then(|| f64::from(slow) / f64::from(loads)),
            wall_cpu_ratio: wall_ns as f64 / cpu_ns as f64,
            loads,
        }
    }

    fn timed_load(&mut self) -> u64 {
        let at = self.at;
        let mut next = 0;
        let taken = cycles::timed(|| next = std::hint::black_box(self.nodes[at as usize].next));
        self.at = next;
        taken
    }

    /// Since the start, so that it becomes more exact with time.
    fn cycles_per_ns(&self) -> f64 {
        let ns = clock_ns(ClockId::Monotonic).saturating_sub(self.start_ns).max(1);
        cycles::now().saturating_sub(self.start_cycles) as f64 / ns as f64
    }

    /// The number of cycles above which a load is slow: midway between a cache hit and a miss.
    fn calibrate(&mut self) -> Result<u64, String> {
        if !cycles::CAN_TIME_ONE_LOAD {
            return Err("single loads cannot be timed on this kind of CPU".to_owned());
        }
        let mut hits = vec![u64::MAX; self.nodes.len()];
        for _ in 0..CALIBRATION_TURNS {
            for hit in &mut hits {
                *hit = self.timed_load().min(*hit);
            }
        }
        for node in &self.nodes {
            cycles::flush(node);
        }
        let mut misses: Vec<u64> = (0..self.nodes.len()).map(|_| self.timed_load()).collect();
        threshold(&mut hits, &mut misses)
    }
}

/// Midway between the slowest tenth of the hits and the median of the misses.
fn threshold(hits: &mut [u64], misses: &mut [u64]) -> Result<u64, String> {
    hits.sort_unstable();
    misses.sort_unstable();
    let (hit, miss) = (hits[hits.len() * 9 / 10], misses[misses.len() / 2]);
    if (miss as f64) < hit as f64 * LEAST_CONTRAST {
        return Err(format!("cache hits ({hit} cycles) and misses ({miss} cycles) cannot be told apart here"));
    }
    Ok(hit.midpoint(miss))
}

/// Nodes that form one cycle in random order (Sattolo's algorithm); the same each time.
fn cycle(length: u32) -> Vec<Node> {
    let mut nodes: Vec<Node> = (0..length).map(|next| Node { next }).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..nodes.len()).rev() {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let other = (random % last as u64) as usize;
        let next = nodes[last].next;
        nodes[last].next = nodes[other].next;
        nodes[other].next = next;
    }
    nodes
}

fn clock_ns(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or_default() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or_default()
}

#[cfg(target_arch = "x86_64")]
mod cycles {
    //! The time stamp counter.

    use std::arch::x86_64::{_mm_clflush, _mm_lfence, _mm_mfence, _rdtsc};

    pub(super) const CAN_TIME_ONE_LOAD: bool = true;

    pub(super) fn now() -> u64 {
        // SAFETY: each x86-64 CPU has the instruction; where the kernel forbids it the process is not even started.
        unsafe { _rdtsc() }
    }

    /// How long `what` takes; nothing of before or after runs meanwhile.
    #[inline(always)]
    pub(super) fn timed(what: impl FnOnce()) -> u64 {
        // SAFETY: lfence belongs to SSE2, which each x86-64 CPU has.
        let fence = || unsafe { _mm_lfence() };
        fence();
        let start = now();
        fence();
        what();
        fence();
        now().saturating_sub(start)
    }

    /// Throws the cache line out of all caches.
    pub(super) fn flush<T>(line: &T) {
        // SAFETY: clflush and mfence belong to SSE2; flushing changes no memory.
        unsafe {
            _mm_clflush(std::ptr::from_ref(line).cast());
            _mm_mfence();
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod cycles {
    //! Nanoseconds of the monotonic clock, which are too coarse for one load.

    pub(super) const CAN_TIME_ONE_LOAD: bool = false;

    pub(super) fn now() -> u64 {
        super::clock_ns(super::ClockId::Monotonic)
    }

    pub(super) fn timed(what: impl FnOnce()) -> u64 {
        what();
        0
    }

    pub(super) fn flush<T>(_line: &T) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chase_comes_by_every_node_once() {
        for length in [2, 3, 100, 512] {
            let nodes = cycle(length);
            let mut seen = vec![false; nodes.len()];
            let mut at = 0;
            for _ in 0..length {
                assert!(!std::mem::replace(&mut seen[at as usize], true), "came by {at} twice");
                at = nodes[at as usize].next;
            }
            assert_eq!(at, 0);
        }
    }

    #[test]
    fn the_threshold_lies_between_hits_and_misses() {
        let mut hits: Vec<u64> = (0..100).map(|i| if i < 95 { 60 } else { 400 }).collect();
        assert_eq!(threshold(&mut hits, &mut [300; 10]), Ok(180));
        let error = threshold(&mut [100; 10], &mut [120; 10]).unwrap_err();
        assert_eq!(error, "cache hits (100 cycles) and misses (120 cycles) cannot be told apart here");
    }

    #[test]
    fn a_run_gives_values_within_their_bounds() {
        let mut probe = Probe::new(1024);
        for _ in 0..20 {
            let run = probe.run(200_000);
            assert!(run.cycles_per_load >= 0.0 && run.wall_cpu_ratio > 0.9, "{run:?}");
            assert!(run.loads >= CHUNK && run.loads <= PASSES * 256, "{run:?}");
            assert_eq!(run.slow_share.is_none(), probe.why_no_slow_share().is_some());
            assert!(run.slow_share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{run:?}");
        }
    }

    #[test]
    fn a_run_ends_with_its_budget() {
        assert_eq!(Probe::new(4096).run(0).loads, CHUNK);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn lines_that_were_thrown_out_are_slow() {
        let mut probe = Probe::new(1024);
        let Ok(slow_cycles) = probe.slow_cycles.clone() else {
            println!("skipped: {}", probe.why_no_slow_share().unwrap_or_default());
            return;
        };
        let mut slow_of_1000 = |flush: bool| {
            let mut slow = 0;
            for _ in 0..1000 {
                let node = &probe.nodes[probe.at as usize];
                std::hint::black_box(node.next);
                if flush {
                    cycles::flush(node);
                }
                slow += u32::from(probe.timed_load() > slow_cycles);
            }
            slow
        };
        let (cached, flushed) = (slow_of_1000(false), slow_of_1000(true));
        assert!(flushed > 2 * cached, "slow of 1000 loads: {cached} cached, {flushed} flushed");
    }
}
