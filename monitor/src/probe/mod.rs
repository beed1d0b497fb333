//! The canary's probe: known code in three parts, each of which is slowed by other doings of the neighbours.
//!
//! [`arithmetic`] moves with the clock and a sibling thread, the L2 chase with who shares the core's own caches, the
//! last-level chase with who shares the socket's. The ratio of wall to CPU time shows whether the core was taken away
//! meanwhile.

use rustix::thread::ClockId;

use crate::reason::Reason;
use crate::timer::clock_ns;

mod arithmetic;
mod chase;
mod cycles;
mod moments;

pub use chase::KIB_PER_LOAD;
use chase::{Chase, Loads};
use cycles::Rate;
pub use moments::{Lateness, Moments, NextRun, RunOrigin};

/// Turns of the arithmetic and of the L2 chase; the median counts, so that a turn which was interrupted, and the first
/// one, which warms the cache, change nothing.
const TURNS: usize = 5;
/// A whole run goes round the last-level chase this many times, unless its budget ends first. The first pass finds what
/// the neighbours left of the run before, the second what they push out within microseconds.
const PASSES: u32 = 2;

/// How long a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Both passes.
    Whole,
    /// One pass: while the machine needs its caches and its time itself.
    Short,
}

/// The figures of one run of the probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProbeRun {
    /// Cycles (TSC; where there is none: nanoseconds) per operation of the arithmetic.
    pub alu_cycles_per_op: f64,
    /// Cycles per load that the L2 cache answers.
    pub l2_cycles_per_load: f64,
    /// Cycles of CPU time per load that the last-level cache answers, without the cost of timing it.
    pub llc_cycles_per_load: f64,
    /// Share of the last-level chase's loads that took longer than a cache hit.
    pub slow_share: Option<f64>,
    /// Wall and CPU time of the run.
    pub spent: Spent,
    /// Loads of the last-level chase; fewer than the whole when the budget ended first.
    pub loads: u32,
}

/// Wall and CPU time of a piece of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Wall time.
    pub wall_ns: u64,
    /// CPU time of this thread.
    pub cpu_ns: u64,
}

impl Spent {
    /// Wall time over CPU time; 1 means that nobody took the core away.
    pub fn ratio(self) -> f64 {
        self.wall_ns as f64 / self.cpu_ns.max(1) as f64
    }
}

impl std::ops::Add for Spent {
    type Output = Spent;

    fn add(self, more: Spent) -> Spent {
        Spent { wall_ns: self.wall_ns + more.wall_ns, cpu_ns: self.cpu_ns + more.cpu_ns }
    }
}

/// Measures the wall and CPU time of a piece of work.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    wall_ns: u64,
    cpu_ns: u64,
}

impl Stopwatch {
    /// Starts now. Reading CPU time is a system call, and on the return from it a kernel takes the core from a cgroup
    /// that has used up its quota. So the wall clock is read before it here, and after it at the end.
    pub fn start() -> Stopwatch {
        let wall_ns = clock_ns(ClockId::Monotonic);
        Stopwatch { wall_ns, cpu_ns: clock_ns(ClockId::ThreadCPUTime) }
    }

    /// The time spent until now.
    pub fn spent(self) -> Spent {
        let cpu_ns = clock_ns(ClockId::ThreadCPUTime).saturating_sub(self.cpu_ns);
        Spent { wall_ns: clock_ns(ClockId::Monotonic).saturating_sub(self.wall_ns), cpu_ns }
    }
}

/// The working set, and the calibration for this machine.
pub struct Probe {
    chase: Chase,
    rate: Rate,
}

impl Probe {
    /// Lays out the working set and learns the time of a cache hit; takes some milliseconds.
    pub fn new(working_set_kib: u32) -> Probe {
        let rate = Rate::start();
        Probe { chase: Chase::new(working_set_kib), rate }
    }

    /// Why slow and fast loads cannot be distinguished here.
    pub fn why_no_slow_share(&self) -> Option<&Reason> {
        self.chase.why_no_slow_share()
    }

    /// Runs for at most about `budget_ns` of wall time: when the core is taken away meanwhile, the run ends as soon as
    /// it comes back. Some turns and loads are always made.
    pub fn run(&mut self, budget_ns: u64, length: Length) -> ProbeRun {
        let cycles_per_ns = self.rate.cycles_per_ns();
        let stopwatch = Stopwatch::start();
        let end_cycles = cycles::now() + (budget_ns as f64 * cycles_per_ns) as u64;
        let alu_cycles_per_op = median_turn(end_cycles, arithmetic::turn);
        let l2_cycles_per_load = median_turn(end_cycles, || self.chase.l2_turn());

        let chase = Stopwatch::start();
        let whole = self.chase.round() * if length == Length::Whole { PASSES } else { 1 };
        let mut made = Loads::default();
        while made.loads == 0 || (made.loads < whole && cycles::now() < end_cycles) {
            let chunk = self.chase.last_level_chunk();
            made = Loads { loads: made.loads + chunk.loads, slow: made.slow + chunk.slow };
        }
        let chase_cycles = chase.spent().cpu_ns as f64 * cycles_per_ns;
        let llc_cycles_per_load = chase_cycles / f64::from(made.loads) - self.chase.overhead_cycles() as f64;
        ProbeRun {
            alu_cycles_per_op,
            l2_cycles_per_load,
            llc_cycles_per_load: llc_cycles_per_load.max(0.0),
            slow_share: self.why_no_slow_share().is_none().then(|| f64::from(made.slow) / f64::from(made.loads)),
            spent: stopwatch.spent(),
            loads: made.loads,
        }
    }
}

/// The median of the turns that fit before the end; at least one turn is made.
fn median_turn(end_cycles: u64, mut turn: impl FnMut() -> f64) -> f64 {
    let mut turns = [0.0; TURNS];
    let mut made = 0;
    while made == 0 || (made < TURNS && cycles::now() < end_cycles) {
        turns[made] = turn();
        made += 1;
    }
    turns[..made].sort_unstable_by(f64::total_cmp);
    turns[made / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_gives_values_within_their_bounds() {
        let mut probe = Probe::new(1024);
        for length in [Length::Whole, Length::Short] {
            for _ in 0..10 {
                let run = probe.run(400_000, length);
                assert!(run.llc_cycles_per_load >= 0.0 && run.spent.ratio() > 0.9 && run.spent.cpu_ns > 0, "{run:?}");
                assert!(run.alu_cycles_per_op > 0.0 && run.l2_cycles_per_load > 0.0, "{run:?}");
                let whole = if length == Length::Whole { PASSES * 256 } else { 256 };
                assert!(run.loads >= chase::CHUNK && run.loads <= whole, "{run:?}");
                assert_eq!(run.slow_share.is_none(), probe.why_no_slow_share().is_some());
                assert!(run.slow_share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{run:?}");
            }
        }
    }

    #[test]
    fn a_run_ends_with_its_budget() {
        assert_eq!(Probe::new(4096).run(0, Length::Whole).loads, chase::CHUNK);
        let mut turns = 0;
        median_turn(0, || {
            turns += 1;
            1.0
        });
        assert_eq!(turns, 1);
    }

    #[test]
    fn one_turn_that_was_interrupted_changes_nothing() {
        let mut times = [90.0, 2.0, 1.0, 3.0, 1000.0].into_iter();
        assert!((median_turn(u64::MAX, || times.next().expect("five turns")) - 3.0).abs() < f64::EPSILON);
    }
}
