//! The loop of a policy, on a thread of its own: each period it reads its input, decides, and sets the values that
//! changed. It writes only plans of its knobs, within their bounds. The engine begins it, ends it, and puts everything
//! back.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use slackwater_messages::Value;
use slackwater_node::sync::lock;

use super::Knob;
use crate::error::{Error, Result};
use crate::fast::events::LineCounts;
use crate::fast::hurry_up::HurryUp;
use crate::fast::parameters::{Lever, Parameters};
use crate::fast::pareto::{Pareto, Rung};
use crate::fast::socket::EventSocket;
use crate::fast::thread_waits::{ThreadWaits, core_of};

/// A knob that several threads use.
pub type SharedKnob = Arc<dyn Knob + Send + Sync>;

/// A knob of the loop, with its baseline.
pub struct DrivenKnob {
    /// The knob.
    pub knob: SharedKnob,
    /// The knob's own form of its setting before the policy began.
    pub baseline: Json,
}

/// The input of the loop's decisions, with the rule.
pub enum PolicyInput {
    /// Events of hot functions.
    Events(HurryUp, EventSocket),
    /// Waits for a core.
    Waits(Pareto, ThreadWaits),
}

/// A policy at work. [`PolicyLoop::step`] is one period.
pub struct PolicyLoop {
    parameters: Parameters,
    source: PolicyInput,
    /// The knobs that the policy sets, by name.
    knobs: BTreeMap<&'static str, DrivenKnob>,
    /// The cores whose frequency is set.
    cpus: Vec<u32>,
    proc: PathBuf,
    set: BTreeMap<&'static str, Value>,
}

impl PolicyLoop {
    /// `cpus`: the cores that `cpu.core_frequency` sets, ascending; empty for a quota.
    pub fn new(
        parameters: Parameters,
        source: PolicyInput,
        knobs: BTreeMap<&'static str, DrivenKnob>,
        cpus: Vec<u32>,
        proc: PathBuf,
    ) -> PolicyLoop {
        PolicyLoop { parameters, source, knobs, cpus, proc, set: BTreeMap::new() }
    }

    /// Reads, decides and sets.
    ///
    /// # Errors
    /// The knob that could not be set.
    pub fn step(&mut self, now_s: f64) -> Result<()> {
        let wanted = match &mut self.source {
            PolicyInput::Events(hurry_up, socket) => {
                hurry_up.see(&socket.read(now_s));
                hurry_up.forget_outside();
                let hot = hurry_up.hot(now_s);
                vec![match self.parameters.lever {
                    Lever::Quota => ("cpu.quota", Value::Integer(self.sum_of(&hot))),
                    Lever::Frequency => ("cpu.core_frequency", self.of_each_core(&hot)),
                }]
            }
            PolicyInput::Waits(pareto, waits) => {
                let rung = match waits.read(now_s) {
                    Ok(Some(waits)) => {
                        let now = pareto.now();
                        let speed = self.parameters.capacity_cores(now);
                        pareto.decide(now_s, waits.delay_ms, (waits.busy_cores / speed).min(1.0))
                    }
                    Ok(None) | Err(_) => pareto.highest(now_s),
                };
                self.of_rung(rung)
            }
        };
        for (name, value) in wanted {
            self.set(name, value)?;
        }
        Ok(())
    }

    /// The sum of the cores' clocks, as a quota: the clocks of the hottest threads, and the low clock for the other
    /// cores.
    fn sum_of(&self, hot: &[(u32, i64)]) -> i64 {
        let mut clocks: Vec<i64> = hot.iter().map(|(_, clock)| *clock).collect();
        clocks.sort_unstable_by(|a, b| b.cmp(a));
        clocks.resize(self.parameters.cores as usize, self.parameters.clocks[0]);
        clocks.iter().sum()
    }

    /// For each core the highest clock of the threads that ran on it last.
    fn of_each_core(&self, hot: &[(u32, i64)]) -> Value {
        let mut clocks: BTreeMap<u32, i64> = self.cpus.iter().map(|core| (*core, self.parameters.clocks[0])).collect();
        for (thread, clock) in hot {
            if let Some(now) = core_of(&self.proc, *thread).and_then(|core| clocks.get_mut(&core)) {
                *now = (*now).max(*clock);
            }
        }
        list_of(clocks.values())
    }

    fn of_rung(&self, rung: Rung) -> Vec<(&'static str, Value)> {
        let mut wanted = Vec::new();
        if !self.parameters.core_counts().is_empty() {
            wanted.push(("cpu.cores", Value::Integer(rung.cores)));
        }
        wanted.push(match self.parameters.lever {
            Lever::Quota => ("cpu.quota", Value::Integer(rung.cores * rung.clock)),
            Lever::Frequency => ("cpu.core_frequency", list_of(self.cpus.iter().map(|_| &rung.clock))),
        });
        wanted
    }

    fn set(&mut self, name: &'static str, value: Value) -> Result<()> {
        if self.set.get(name) == Some(&value) {
            return Ok(());
        }
        let missing = || Error::Unavailable(format!("the policy has no `{name}`"));
        let driven = self.knobs.get(name).ok_or_else(missing)?;
        let planned = driven.knob.plan(&driven.baseline, &value)?;
        driven.knob.apply(&planned.written)?;
        self.set.insert(name, value);
        Ok(())
    }
}

fn list_of<'a>(clocks: impl Iterator<Item = &'a i64>) -> Value {
    Value::Word(clocks.map(i64::to_string).collect::<Vec<_>>().join(","))
}

/// A loop that runs on a thread of its own until this value is dropped.
pub struct RunningLoop {
    stop: Arc<AtomicBool>,
    /// Held while the loop writes, so that nobody sees half of it.
    writes: Arc<Mutex<Option<Error>>>,
    thread: Option<JoinHandle<()>>,
}

impl RunningLoop {
    /// Makes the loop's first step at once, then begins it.
    ///
    /// # Errors
    /// The knob that the first step could not set.
    pub fn begin(mut policy: PolicyLoop) -> Result<RunningLoop> {
        let (stop, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let (begin, period) = (Instant::now(), Duration::from_millis(policy.parameters.period_ms.unsigned_abs()));
        policy.step(0.0)?;
        let (ends, failed) = (stop.clone(), writes.clone());
        let thread = std::thread::spawn(move || {
            let mut due = begin + period;
            while !ends.load(Ordering::Acquire) {
                let now = Instant::now();
                if now < due {
                    std::thread::park_timeout(due - now);
                    continue;
                }
                // Missed periods are not made up for.
                due = now + period;
                let mut failed = lock(&failed);
                if let Err(error) = policy.step(begin.elapsed().as_secs_f64()) {
                    *failed = Some(error);
                    return;
                }
            }
            if let PolicyInput::Events(_, socket) = &policy.source {
                let LineCounts { accepted, ignored } = socket.counts;
                tracing::info!("hot functions: {accepted} lines were accepted, {ignored} ignored");
            }
        });
        Ok(RunningLoop { stop, writes, thread: Some(thread) })
    }

    /// Keeps the loop from writing while the result lives; it holds the error that ended the loop, if there is one.
    pub fn pause(&self) -> MutexGuard<'_, Option<Error>> {
        lock(&self.writes)
    }
}

impl Drop for RunningLoop {
    /// Waits for the end of the present step.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
