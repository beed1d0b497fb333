//! `apache.keepalive`: whether Apache keeps connections for further requests (`on`, `off`).

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::apache_directive::Directive;
use super::{Knob, Parts, PlannedValue, Reading, show};
use crate::apache_config::ParsedConfig;
use crate::error::{Error, Result};

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(Directive::new(parts.apache.clone(), "KeepAlive", &[], effective, plan))
}

fn effective(config: &ParsedConfig) -> Result<Reading> {
    let text = config.last(&["KeepAlive"]).map_or("on", |line| line.value.as_str());
    let how = format!("from the configuration{}", config.own_hosts("KeepAlive"));
    Ok(Reading { value: Value::Word(text.to_ascii_lowercase()), how })
}

fn plan(config: &ParsedConfig, wanted: &Value) -> Result<PlannedValue> {
    let word = show(wanted);
    if !matches!(word.as_str(), "on" | "off") {
        return Err(Error::InvalidValue(format!("KeepAlive is `on` or `off`, got `{word}`")));
    }
    Ok(PlannedValue {
        note: config.own_hosts("KeepAlive").trim_start_matches("; ").to_owned(),
        written: Json::from(word.clone()),
        effective: Value::Word(word),
    })
}
