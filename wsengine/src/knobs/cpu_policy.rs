//! `cpu.policy`: a policy that decides on the node itself, every 50 ms or less often, with its parameters as its value
//! ([`crate::fast::parameters`]). It sets `cpu.core_frequency` or `cpu.quota`, and `cpu.cores`, through their knobs,
//! within their bounds. Its lease is the Order's; what puts those knobs back is on disk before the loop begins.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use slackwater_messages::Value;

use super::cpu_core_frequency::CoreFrequency;
use super::policy_loop::{DrivenKnob, PolicyInput, PolicyLoop, RunningLoop, SharedKnob};
use super::{Knob, Parts, PlannedValue, Reading, cpu_cores, cpu_quota, from_json, show, to_json};
use crate::allowed::ValueError;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::fast::hurry_up::HurryUp;
use crate::fast::parameters::{Lever, Parameters, ParametersError, Rule};
use crate::fast::pareto::Pareto;
use crate::fast::socket::EventSocket;
use crate::fast::thread_waits::ThreadWaits;

/// The knob's value while no policy runs.
const OFF: &str = "off";
const CORES: &str = "cpu.cores";

/// The policy that a value names, with its parameters.
///
/// # Errors
/// Why Orders may not set it: each clock, sum and number of cores must be within the bounds of its knob.
pub fn check(settings: &Settings, value: &Value) -> Result<Value, ValueError> {
    let parameters: Parameters =
        show(value).parse().map_err(|error: ParametersError| ValueError::Policy(error.to_string()))?;
    let cpu = &settings.cpu;
    cpu.policy.check(&Value::Word(parameters.policy().to_owned()))?;
    let (lever, values) = (parameters.lever.knob(), parameters.lever_values());
    let allowed = if parameters.lever == Lever::Quota { &cpu.quota } else { &cpu.core_frequency };
    let of_knob = |knob| move |error: ValueError| ValueError::Part(knob, Box::new(error));
    for value in values.iter().min().into_iter().chain(values.iter().max()) {
        allowed.check(&Value::Integer(*value)).map_err(of_knob(lever))?;
    }
    for count in parameters.core_counts() {
        cpu.cores.check(&Value::Integer(count)).map_err(of_knob(CORES))?;
    }
    Ok(Value::Word(parameters.to_string()))
}

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    let (cpu, system) = (&parts.settings.cpu, parts.system);
    let frequency = Arc::new(CoreFrequency::new(parts));
    let knobs: [(bool, &'static str, SharedKnob); 3] = [
        (!cpu.core_frequency.is_empty(), Lever::Frequency.knob(), frequency.clone()),
        (!cpu.quota.is_empty(), Lever::Quota.knob(), Arc::new(cpu_quota::quota_knob(parts))),
        (!cpu.cores.is_empty(), CORES, cpu_cores::shared(parts)),
    ];
    let knobs = knobs.into_iter().filter(|(is_listed, _, _)| *is_listed).map(|(_, name, knob)| (name, knob)).collect();
    Box::new(CpuPolicy {
        knobs,
        frequency,
        proc: system.proc.clone(),
        cgroup_root: system.cgroup.clone(),
        cgroup: cpu.cgroup.clone(),
        processes: cpu.processes.clone(),
        socket: PathBuf::from(&cpu.events_socket),
        running: RefCell::new(None),
    })
}

struct CpuPolicy {
    /// The knobs that Orders may set here.
    knobs: BTreeMap<&'static str, SharedKnob>,
    frequency: Arc<CoreFrequency>,
    proc: PathBuf,
    cgroup_root: PathBuf,
    cgroup: String,
    processes: Vec<String>,
    socket: PathBuf,
    running: RefCell<Option<(RunningLoop, PolicyPlan)>>,
}

/// The setting of each knob before the policy began.
type Baselines = BTreeMap<String, Json>;

/// A policy, and all settings that it may make in each knob.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PolicyPlan {
    policy: String,
    baselines: Baselines,
    may_set: BTreeMap<String, Vec<Json>>,
}

/// All settings that several policies may make in each knob.
fn together(written: &[Json]) -> Result<BTreeMap<String, Vec<Json>>> {
    let mut settings: BTreeMap<String, Vec<Json>> = BTreeMap::new();
    for plan in written {
        for (name, values) in from_json::<PolicyPlan>(plan)?.may_set {
            settings.entry(name).or_default().extend(values);
        }
    }
    Ok(settings)
}

impl CpuPolicy {
    fn knob(&self, name: &str) -> Result<&SharedKnob> {
        let missing = || Error::Unavailable(format!("the configuration does not list `{name}`, which the policy sets"));
        self.knobs.get(name).ok_or_else(missing)
    }

    /// The knob's own forms of these values, and the first note of their plans.
    fn planned(&self, name: &str, baselines: &Baselines, values: &[i64]) -> Result<(Vec<Json>, String)> {
        let knob = self.knob(name)?;
        let Some(baseline) = baselines.get(name) else {
            return Err(knob.baseline().err().unwrap_or_else(|| Error::Unavailable(format!("`{name}` was not read"))));
        };
        let plans = values.iter().map(|value| knob.plan(baseline, &Value::Integer(*value)));
        let plans = plans.collect::<Result<Vec<_>>>()?;
        let note = plans.iter().map(|plan| &plan.note).find(|note| !note.is_empty()).cloned().unwrap_or_default();
        Ok((plans.into_iter().map(|plan| plan.written).collect(), note))
    }

    fn waits(&self) -> Result<ThreadWaits> {
        ThreadWaits::open(&self.proc, &self.cgroup_root, &self.cgroup, &self.processes)
    }

    fn begin(&self, own: &PolicyPlan) -> Result<RunningLoop> {
        let parameters = parsed(&own.policy)?;
        let source = match parameters.rule {
            Rule::HurryUp { after_ms } => PolicyInput::Events(
                HurryUp::new(parameters.clocks.clone(), after_ms as f64 / 1e3),
                EventSocket::open(&self.socket, &self.proc)?,
            ),
            Rule::Pareto { up_delay_us, fewest } => {
                PolicyInput::Waits(Pareto::new(parameters.ladder(fewest), up_delay_us as f64 / 1e3), self.waits()?)
            }
        };
        let mut driven = BTreeMap::new();
        for (name, knob) in &self.knobs {
            if let Some(baseline) = own.baselines.get(*name).filter(|_| own.may_set.contains_key(*name)) {
                driven.insert(*name, DrivenKnob { knob: knob.clone(), baseline: baseline.clone() });
            }
        }
        let cpus = if parameters.lever == Lever::Frequency { self.frequency.cores()? } else { Vec::new() };
        RunningLoop::begin(PolicyLoop::new(parameters, source, driven, cpus, self.proc.clone()))
    }

    fn put_back(&self, baselines: &Baselines, may_set: &BTreeMap<String, Vec<Json>>) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for (name, values) in may_set {
            if let Some(baseline) = baselines.get(name) {
                left.extend(self.knob(name)?.restore(baseline, values)?);
            }
        }
        Ok(left)
    }
}

fn parsed(text: &str) -> Result<Parameters> {
    text.parse().map_err(|error| Error::InvalidValue(format!("{text:?} is no policy: {error}")))
}

fn describe(parameters: &Parameters) -> String {
    let lever = match parameters.lever {
        Lever::Frequency => "the clock of each core",
        Lever::Quota => "cpu.quota, in place of a clock",
    };
    format!("{} sets {lever}, every {} ms", parameters.policy(), parameters.period_ms)
}

impl Knob for CpuPolicy {
    fn reload_group(&self) -> &'static str {
        "cpu.policy"
    }

    fn read(&self) -> Result<Reading> {
        if let Some((_, own)) = self.running.borrow().as_ref() {
            let how = describe(&parsed(&own.policy)?);
            return Ok(Reading { value: Value::Word(own.policy.clone()), how });
        }
        from_json::<Baselines>(&self.baseline()?)?;
        Ok(Reading { value: Value::Word(OFF.to_owned()), how: "no policy runs".to_owned() })
    }

    fn baseline(&self) -> Result<Json> {
        let levers = [Lever::Frequency.knob(), Lever::Quota.knob()];
        let mut why = "neither `cpu.core_frequency` nor `cpu.quota` is configured for it to set".to_owned();
        let mut baselines = Baselines::new();
        for (name, knob) in &self.knobs {
            match knob.baseline() {
                Ok(baseline) => {
                    baselines.insert((*name).to_owned(), baseline);
                }
                Err(error) if levers.contains(name) => why = format!("{name}: {error}"),
                Err(_) => {}
            }
        }
        if levers.iter().any(|name| baselines.contains_key(*name)) {
            Ok(to_json(&baselines))
        } else {
            Err(Error::Unavailable(why))
        }
    }

    fn plan(&self, baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let parameters = parsed(&show(wanted))?;
        let baselines: Baselines = from_json(baseline)?;
        let (lever, mut note) = self.planned(parameters.lever.knob(), &baselines, &parameters.lever_values())?;
        let mut may_set = BTreeMap::from([(parameters.lever.knob().to_owned(), lever)]);
        let counts = parameters.core_counts();
        if !counts.is_empty() {
            let (cores, of_cores) = self.planned(CORES, &baselines, &counts)?;
            may_set.insert(CORES.to_owned(), cores);
            note = if note.is_empty() { of_cores } else { note };
        }
        match parameters.rule {
            Rule::Pareto { .. } => drop(self.waits()?),
            Rule::HurryUp { .. } if self.socket.parent().is_some_and(std::path::Path::is_dir) => {}
            Rule::HurryUp { .. } => {
                let message = format!("the folder of {} (cpu.events_socket) is not there", self.socket.display());
                return Err(Error::Unavailable(message));
            }
        }
        let policy = parameters.to_string();
        let effective = Value::Word(policy.clone());
        Ok(PlannedValue { effective, note, written: to_json(&PolicyPlan { policy, baselines, may_set }) })
    }

    fn drift(&self, baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        let baselines: Baselines = from_json(baseline)?;
        let running = self.running.borrow();
        let _still = running.as_ref().map(|(running, _)| running.pause());
        for (name, values) in together(written)? {
            if let Some(baseline) = baselines.get(&name)
                && let Some(change) = self.knob(&name)?.drift(baseline, &values)?
            {
                return Ok(Some(change));
            }
        }
        Ok(None)
    }

    fn apply(&self, written: &Json) -> Result<()> {
        let own: PolicyPlan = from_json(written)?;
        // The policy that ran before may have set a knob that this one does not set.
        let before = self.running.borrow_mut().take().map(|(running, before)| {
            drop(running);
            before
        });
        if let Some(before) = before {
            self.put_back(&before.baselines, &before.may_set)?;
        }
        let running = self.begin(&own)?;
        *self.running.borrow_mut() = Some((running, own));
        Ok(())
    }

    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>> {
        drop(self.running.borrow_mut().take());
        self.put_back(&from_json(baseline)?, &together(written)?)
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let own: PolicyPlan = from_json(written)?;
        let now = self.read()?;
        if now.value == Value::Word(own.policy) {
            Ok(now)
        } else {
            Err(Error::NotInEffect("no policy runs".to_owned()))
        }
    }

    fn failure(&self) -> Option<String> {
        let running = self.running.borrow();
        let (running, own) = running.as_ref()?;
        running.pause().as_ref().map(|error| format!("{}: {error}", own.policy))
    }
}

#[cfg(test)]
#[path = "tests/cpu_policy.rs"]
mod tests;
