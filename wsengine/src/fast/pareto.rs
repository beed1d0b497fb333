//! `pareto`: a ladder of cores, then clocks, which is climbed up or down one rung at a time. Source, timing and
//! thresholds are those of `lab/slackwater_lab/governor/policies/pareto.py`.

const UP_AFTER_UP_S: f64 = 0.2;
const UP_AFTER_DOWN_S: f64 = 2.0;
const DOWN_AFTER_S: f64 = 4.0;
/// Queues count as short below this share of the delay at which the rule goes up.
const SHORT: f64 = 8.0 / 32.0;
const MARGIN: f64 = 1.2;

/// Cores with one clock for all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rung {
    /// The number of cores.
    pub cores: i64,
    /// The clock of each of them, in the lever's unit.
    pub clock: i64,
}

/// Cores at the lowest clock, from `fewest` to `cores`, then the clocks.
pub fn ladder(fewest: i64, cores: i64, clocks: &[i64]) -> Vec<Rung> {
    let low = clocks[0];
    let rising = (fewest..=cores).map(|cores| Rung { cores, clock: low });
    rising.chain(clocks[1..].iter().map(|clock| Rung { cores, clock: *clock })).collect()
}

/// The rule with its state.
#[derive(Debug)]
pub struct Pareto {
    ladder: Vec<Rung>,
    up_delay_ms: f64,
    rung: usize,
    up_s: f64,
    down_s: f64,
}

impl Pareto {
    /// Begins on the highest rung. `up_delay_ms`: a longer wait for a core leads one rung up.
    pub fn new(ladder: Vec<Rung>, up_delay_ms: f64) -> Pareto {
        let rung = ladder.len() - 1;
        Pareto { ladder, up_delay_ms, rung, up_s: f64::NEG_INFINITY, down_s: f64::NEG_INFINITY }
    }

    /// The present rung.
    pub fn now(&self) -> Rung {
        self.ladder[self.rung]
    }

    /// Decides the next rung: `delay_ms` is the longest wait for a core, `busy_share` the share of the rung's cores in
    /// use.
    pub fn decide(&mut self, now_s: f64, delay_ms: f64, busy_share: f64) -> Rung {
        let rested = now_s - self.up_s >= UP_AFTER_UP_S && now_s - self.down_s >= UP_AFTER_DOWN_S;
        if delay_ms > self.up_delay_ms {
            if rested && self.rung + 1 < self.ladder.len() {
                (self.rung, self.up_s) = (self.rung + 1, now_s);
            }
        } else if self.rung > 0
            && delay_ms < self.up_delay_ms * SHORT
            && now_s - self.up_s.max(self.down_s) >= DOWN_AFTER_S
            && 1.0 - busy_share > MARGIN * self.worth()
        {
            (self.rung, self.down_s) = (self.rung - 1, now_s);
        }
        self.now()
    }

    /// Goes to the highest rung, for want of a measurement.
    pub fn highest(&mut self, now_s: f64) -> Rung {
        (self.rung, self.up_s) = (self.ladder.len() - 1, now_s);
        self.now()
    }

    /// Share of the present throughput that is lost one rung below.
    fn worth(&self) -> f64 {
        let (below, now) = (self.ladder[self.rung - 1], self.ladder[self.rung]);
        if below.cores != now.cores {
            return 1.0 / now.cores as f64;
        }
        (now.clock - below.clock) as f64 / now.clock as f64
    }
}
