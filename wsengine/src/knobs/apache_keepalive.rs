//! `apache.keepalive`: whether Apache keeps connections for further requests (`on`, `off`).

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::{Knob, Parts, Plan, Reading, show};
use crate::apache::Directive;
use crate::apache_config::Seen;

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(Directive::new(parts.apache.clone(), "KeepAlive", &[], effective, plan))
}

fn effective(seen: &Seen) -> Result<Reading, String> {
    let text = seen.last(&["KeepAlive"]).map_or("on", |line| line.value.as_str());
    let how = format!("from the configuration{}", seen.own_hosts("KeepAlive"));
    Ok(Reading { value: Value::Word(text.to_ascii_lowercase()), how })
}

fn plan(seen: &Seen, wanted: &Value) -> Result<Plan, String> {
    let word = show(wanted);
    if !matches!(word.as_str(), "on" | "off") {
        return Err(format!("KeepAlive is `on` or `off`, got `{word}`"));
    }
    Ok(Plan {
        note: seen.own_hosts("KeepAlive").trim_start_matches("; ").to_owned(),
        ours: Json::from(word.clone()),
        effective: Value::Word(word),
    })
}
