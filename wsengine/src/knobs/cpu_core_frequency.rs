//! `cpu.core_frequency`: a frequency in kHz for each core, with commas between them in the order of the cores' numbers;
//! or one for all. Cores that change their clock together get the highest of their values. Everything else is as for
//! `cpu.frequency`, whose files it writes.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::cpu_frequency::Frequency;
use super::{Knob, Parts, PlannedValue, Reading, show};
use crate::error::{Error, Result};

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(CoreFrequency::new(parts))
}

pub(super) struct CoreFrequency(Frequency);

impl CoreFrequency {
    pub(super) fn new(parts: &Parts<'_>) -> CoreFrequency {
        CoreFrequency(Frequency::new(parts))
    }

    /// The cores whose clock is set, ascending.
    pub(super) fn cores(&self) -> Result<Vec<u32>> {
        Ok(self.0.cores()?.into_keys().collect())
    }
}

/// The values of all cores as one value of an Order.
fn list(each: impl Iterator<Item = String>) -> Value {
    Value::Word(each.collect::<Vec<_>>().join(","))
}

impl Knob for CoreFrequency {
    fn reload_group(&self) -> &'static str {
        "cpu.core_frequency"
    }

    fn read(&self) -> Result<Reading> {
        let requested = self.0.requested_khz()?;
        Ok(Reading { value: list(requested.iter().map(u64::to_string)), how: self.0.read()?.how })
    }

    fn baseline(&self) -> Result<Json> {
        self.0.baseline()
    }

    fn plan(&self, baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let (cores, text) = (self.0.cores()?, show(wanted));
        let no_number = |_| Error::InvalidValue(format!("expected kHz with commas between them, got {text:?}"));
        let mut each: Vec<i64> = text.split(',').map(str::parse).collect::<Result<_, _>>().map_err(no_number)?;
        if matches!(wanted, Value::Integer(_)) {
            each = vec![each[0]; cores.len()];
        }
        if each.len() != cores.len() {
            let (expected, got) = (cores.len(), each.len());
            return Err(Error::InvalidValue(format!("expected a frequency for each of {expected} cores, got {got}")));
        }
        let mut wanted_khz: BTreeMap<String, i64> = BTreeMap::new();
        for (policy, khz) in cores.values().zip(each) {
            let highest = wanted_khz.entry(policy.clone()).or_insert(khz);
            *highest = khz.max(*highest);
        }
        let wanted = wanted_khz.into_iter().map(|(policy, khz)| (policy, Value::Integer(khz))).collect();
        let (reached, note, written) = self.0.plan_each(baseline, &wanted)?;
        let effective = list(cores.values().map(|policy| show(&reached[policy])));
        Ok(PlannedValue { effective, note, written })
    }

    fn drift(&self, baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        self.0.drift(baseline, written)
    }

    fn apply(&self, written: &Json) -> Result<()> {
        self.0.apply(written)
    }

    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>> {
        self.0.restore(baseline, written)
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let how = self.0.verify(written)?.how;
        Ok(Reading { how, ..self.read()? })
    }
}

#[cfg(test)]
#[path = "tests/cpu_core_frequency.rs"]
mod tests;
