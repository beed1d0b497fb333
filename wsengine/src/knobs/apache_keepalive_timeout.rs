//! `apache.keepalive_timeout`: seconds that Apache waits for the next request on a connection.

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::apache_directive::Directive;
use super::{Knob, Parts, PlannedValue, Reading, number};
use crate::apache_config::ParsedConfig;
use crate::error::{Error, Result};

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(Directive::new(parts.apache.clone(), "KeepAliveTimeout", &[], effective, plan))
}

fn effective(config: &ParsedConfig) -> Result<Reading> {
    let text = config.last(&["KeepAliveTimeout"]).map_or("5", |line| line.value.as_str());
    let value = text.parse().map_or_else(|_| Value::Word(text.to_owned()), Value::Integer);
    Ok(Reading { value, how: format!("from the configuration{}", config.own_hosts("KeepAliveTimeout")) })
}

fn plan(config: &ParsedConfig, wanted: &Value) -> Result<PlannedValue> {
    let seconds = number(wanted)?;
    if seconds < 0 {
        return Err(Error::InvalidValue(format!("KeepAliveTimeout must not be negative, got {seconds}")));
    }
    let mut note = config.own_hosts("KeepAliveTimeout");
    if config.last(&["KeepAlive"]).is_some_and(|line| line.value.eq_ignore_ascii_case("off")) {
        note.push_str("; KeepAlive is off, so it has no effect");
    }
    Ok(PlannedValue {
        effective: Value::Integer(seconds),
        note: note.trim_start_matches("; ").to_owned(),
        written: Json::from(seconds.to_string()),
    })
}
