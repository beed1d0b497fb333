//! `apache.max_request_workers`: how many requests Apache works on at once.

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::{Knob, Parts, Plan, Reading, number};
use crate::apache::{Apache, Directive};
use crate::apache_config::Seen;

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    let directive = Directive::new(parts.apache.clone(), "MaxRequestWorkers", &["MaxClients"], effective, plan);
    Box::new(directive.seen_running(Apache::runs_with))
}

fn effective(seen: &Seen) -> Result<Reading, String> {
    let limits = seen.limits()?;
    let set = match seen.last(&["MaxRequestWorkers", "MaxClients"]) {
        Some(line) => line.value.parse().map_err(|_| format!("{}: {:?} is no number", line.place(), line.value))?,
        None => limits.default_workers(),
    };
    let (workers, note) = limits.clamp(set);
    let clamped = if note.is_empty() { String::new() } else { format!("; {note}") };
    Ok(Reading { value: Value::Integer(workers), how: format!("computed for MPM {}{clamped}", limits.mpm) })
}

fn plan(seen: &Seen, wanted: &Value) -> Result<Plan, String> {
    let wanted = number(wanted)?;
    if wanted < 1 {
        return Err(format!("MaxRequestWorkers must be at least 1, got {wanted}"));
    }
    let (workers, note) = seen.limits()?.clamp(wanted);
    Ok(Plan { effective: Value::Integer(workers), note, ours: Json::from(workers.to_string()) })
}
