//! `apache.keepalive_timeout`: seconds that Apache waits for the next request on a connection.

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::{Knob, Parts, Plan, Reading, number};
use crate::apache::Directive;
use crate::apache_config::Seen;

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(Directive::new(parts.apache.clone(), "KeepAliveTimeout", &[], effective, plan))
}

fn effective(seen: &Seen) -> Result<Reading, String> {
    let text = seen.last(&["KeepAliveTimeout"]).map_or("5", |line| line.value.as_str());
    let value = text.parse().map_or_else(|_| Value::Word(text.to_owned()), Value::Integer);
    Ok(Reading { value, how: format!("from the configuration{}", seen.own_hosts("KeepAliveTimeout")) })
}

fn plan(seen: &Seen, wanted: &Value) -> Result<Plan, String> {
    let seconds = number(wanted)?;
    if seconds < 0 {
        return Err(format!("KeepAliveTimeout must not be negative, got {seconds}"));
    }
    let mut note = seen.own_hosts("KeepAliveTimeout");
    if seen.last(&["KeepAlive"]).is_some_and(|line| line.value.eq_ignore_ascii_case("off")) {
        note.push_str("; KeepAlive is off, so it has no effect");
    }
    Ok(Plan {
        effective: Value::Integer(seconds),
        note: note.trim_start_matches("; ").to_owned(),
        ours: Json::from(seconds.to_string()),
    })
}
