//! `apache.max_request_workers`: how many requests Apache works on at once.

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::apache_directive::Directive;
use super::{Knob, Parts, PlannedValue, Reading, number};
use crate::apache::Apache;
use crate::apache_config::ParsedConfig;
use crate::error::{Error, Result};

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    let directive = Directive::new(parts.apache.clone(), "MaxRequestWorkers", &["MaxClients"], effective, plan);
    Box::new(directive.checked_by(Apache::runs_with))
}

fn effective(config: &ParsedConfig) -> Result<Reading> {
    let limits = config.limits()?;
    let set = match config.last(&["MaxRequestWorkers", "MaxClients"]) {
        Some(line) => line.number()?,
        None => limits.default_workers(),
    };
    let (workers, note) = limits.clamp(set);
    let clamped = if note.is_empty() { String::new() } else { format!("; {note}") };
    Ok(Reading { value: Value::Integer(workers), how: format!("computed for MPM {}{clamped}", limits.mpm) })
}

fn plan(config: &ParsedConfig, wanted: &Value) -> Result<PlannedValue> {
    let wanted = number(wanted)?;
    if wanted < 1 {
        return Err(Error::InvalidValue(format!("MaxRequestWorkers must be at least 1, got {wanted}")));
    }
    let (workers, note) = config.limits()?.clamp(wanted);
    Ok(PlannedValue { effective: Value::Integer(workers), note, written: Json::from(workers.to_string()) })
}
