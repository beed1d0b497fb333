//! A policy with its parameters, written as the value of the knob `cpu.policy`:
//! `hurry-up lever=cpu.quota clocks=20,40,60 cores=2 period_ms=50 after_ms=450`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::pareto::{Rung, ladder};

/// Bounds of the parameters.
const PERIOD_MS: (i64, i64) = (50, 1000);
const CORES: (i64, i64) = (1, 64);
const AFTER_MS: (i64, i64) = (0, 60_000);
const UP_DELAY_US: (i64, i64) = (10, 1_000_000);
const MOST_CLOCKS: usize = 16;
/// Longest text, in bytes.
const LONGEST: usize = 300;

/// The setting that the policy changes: the frequency of each core, or the quota in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lever {
    /// `cpu.core_frequency`; clocks are kHz.
    Frequency,
    /// `cpu.quota`; clocks are percent of one core's time.
    Quota,
}

impl Lever {
    /// The name of the knob.
    pub fn knob(self) -> &'static str {
        match self {
            Lever::Frequency => "cpu.core_frequency",
            Lever::Quota => "cpu.quota",
        }
    }
}

/// The policy, with the parameters that only it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// See [`super::hurry_up`].
    HurryUp {
        /// A thread gets the high clock after this time in the hot function.
        after_ms: i64,
    },
    /// See [`super::pareto`].
    Pareto {
        /// A longer wait for a core leads one rung up.
        up_delay_us: i64,
        /// Cores on the lowest rung; when they are as many as `cores`, their number is never changed.
        fewest: i64,
    },
}

/// A policy with its parameters, each within its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// The policy.
    pub rule: Rule,
    /// The setting that it changes.
    pub lever: Lever,
    /// Ascending; two or three for `hurry-up`.
    pub clocks: Vec<i64>,
    /// Most cores that serve.
    pub cores: i64,
    /// Length of a period of the loop.
    pub period_ms: i64,
}

/// Why a text is no policy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ParametersError(String);

fn fail<T>(why: impl Into<String>) -> Result<T, ParametersError> {
    Err(ParametersError(why.into()))
}

/// The parameters in a text; each is taken out once.
struct NamedParameters<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> NamedParameters<'a> {
    fn take(&mut self, name: &str) -> Result<&'a str, ParametersError> {
        self.0.remove(name).map_or_else(|| fail(format!("the parameter `{name}` is missing")), Ok)
    }

    fn whole(&mut self, name: &str, (lowest, highest): (i64, i64)) -> Result<i64, ParametersError> {
        let text = self.take(name)?;
        match text.parse() {
            Ok(number) if (lowest..=highest).contains(&number) => Ok(number),
            _ => fail(format!("`{name}`: expected a whole number, {lowest} to {highest}, got {text:?}")),
        }
    }
}

impl FromStr for Parameters {
    type Err = ParametersError;

    fn from_str(text: &str) -> Result<Parameters, ParametersError> {
        if text.len() > LONGEST {
            return fail(format!("expected at most {LONGEST} characters, got {}", text.len()));
        }
        let mut words = text.split(' ');
        let policy = words.next().unwrap_or_default();
        let mut named = NamedParameters(BTreeMap::new());
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                return fail(format!("expected NAME=VALUE, got {word:?}"));
            };
            if named.0.insert(name, value).is_some() {
                return fail(format!("`{name}` is there twice"));
            }
        }
        let lever = match named.take("lever")? {
            "cpu.core_frequency" => Lever::Frequency,
            "cpu.quota" => Lever::Quota,
            other => return fail(format!("`lever`: expected cpu.core_frequency or cpu.quota, got {other:?}")),
        };
        let list = named.take("clocks")?;
        let clocks: Vec<i64> = list.split(',').map(|clock| clock.parse().unwrap_or(0)).collect();
        let rises = clocks.windows(2).all(|pair| pair[0] < pair[1]) && clocks[0] > 0;
        let most = if policy == "hurry-up" { 3 } else { MOST_CLOCKS };
        if !rises || !(2..=most).contains(&clocks.len()) {
            return fail(format!("`clocks`: expected 2 to {most} ascending whole numbers, got {list:?}"));
        }
        let cores = named.whole("cores", CORES)?;
        let period_ms = named.whole("period_ms", PERIOD_MS)?;
        let rule = match policy {
            "hurry-up" => Rule::HurryUp { after_ms: named.whole("after_ms", AFTER_MS)? },
            "pareto" => Rule::Pareto {
                up_delay_us: named.whole("up_delay_us", UP_DELAY_US)?,
                fewest: named.whole("fewest", (1, cores))?,
            },
            other => return fail(format!("expected hurry-up or pareto, got {other:?}")),
        };
        match named.0.keys().next() {
            Some(name) => fail(format!("{policy} has no parameter `{name}`")),
            None => Ok(Parameters { rule, lever, clocks, cores, period_ms }),
        }
    }
}

impl Parameters {
    /// Its policy's name.
    pub fn policy(&self) -> &'static str {
        match self.rule {
            Rule::HurryUp { .. } => "hurry-up",
            Rule::Pareto { .. } => "pareto",
        }
    }

    /// The ladder of `pareto`.
    pub fn ladder(&self, fewest: i64) -> Vec<Rung> {
        ladder(fewest, self.cores, &self.clocks)
    }

    /// All values that the lever may get: each clock, or each sum of the cores' shares.
    pub fn lever_values(&self) -> Vec<i64> {
        match (self.lever, self.rule) {
            (Lever::Frequency, _) => self.clocks.clone(),
            (Lever::Quota, Rule::Pareto { fewest, .. }) => {
                self.ladder(fewest).iter().map(|rung| rung.cores * rung.clock).collect()
            }
            (Lever::Quota, Rule::HurryUp { .. }) => {
                let (low, high) = (self.clocks[0], self.clocks[self.clocks.len() - 1]);
                let mid = self.clocks[1];
                let sum = |mids: i64, highs: i64| (self.cores - mids - highs) * low + mids * mid + highs * high;
                let mut sums: Vec<i64> = (0..=self.cores)
                    .flat_map(|mids| (0..=self.cores - mids).map(move |highs| sum(mids, highs)))
                    .collect();
                sums.sort_unstable();
                sums.dedup();
                sums
            }
        }
    }

    /// The CPU time that a rung allows, in cores; with a quota a share of their time.
    pub fn capacity_cores(&self, rung: Rung) -> f64 {
        match self.lever {
            Lever::Frequency => rung.cores as f64,
            Lever::Quota => (rung.cores * rung.clock) as f64 / 100.0,
        }
    }

    /// The numbers of cores that may be set; empty when their number is never changed.
    pub fn core_counts(&self) -> Vec<i64> {
        match self.rule {
            Rule::Pareto { fewest, .. } if fewest < self.cores => (fewest..=self.cores).collect(),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clocks: Vec<String> = self.clocks.iter().map(i64::to_string).collect();
        let (policy, lever, clocks) = (self.policy(), self.lever.knob(), clocks.join(","));
        write!(f, "{policy} lever={lever} clocks={clocks} cores={} period_ms={}", self.cores, self.period_ms)?;
        match self.rule {
            Rule::HurryUp { after_ms } => write!(f, " after_ms={after_ms}"),
            Rule::Pareto { up_delay_us, fewest } => write!(f, " up_delay_us={up_delay_us} fewest={fewest}"),
        }
    }
}
