//! The knobs: one file each, one line each in [`KNOBS`].

use std::rc::Rc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use slackwater_messages::Value;
use slackwater_node::system::System;

use crate::allowed::{Allowed, ValueError};
use crate::apache::Apache;
use crate::config::Settings;
use crate::error::{Error, Result};

mod apache_directive;
mod apache_keepalive;
mod apache_keepalive_timeout;
mod apache_max_request_workers;
mod batch_cores;
mod batch_running;
mod cpu_core_frequency;
mod cpu_cores;
mod cpu_frequency;
mod cpu_policy;
mod cpu_quota;
mod cpu_share;
mod cpu_uclamp_min;
mod php_fpm_max_children;
mod policy_loop;
mod streaming_num_threads;

/// A value and how it is known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reading {
    /// The value.
    pub value: Value,
    /// Where it was read, or what it was computed from.
    pub how: String,
}

/// What setting a value would come to.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedValue {
    /// The value that it would really be.
    pub effective: Value,
    /// Why that is not the one asked for; empty when it is.
    pub note: String,
    /// What would stand there, in the knob's own form.
    pub written: Json,
}

/// Something of a web server that can be changed and put back.
///
/// `baseline` and `written` are the knob's own forms of a setting, kept on disk by the engine. What fails changes nothing,
/// except where it says so.
pub trait Knob {
    /// Knobs of one group share their `commit`, and so a reload.
    fn reload_group(&self) -> &'static str;

    /// Shortest time between two commits that an Order causes.
    fn min_interval_s(&self) -> f64 {
        0.0
    }

    /// The value in effect.
    ///
    /// # Errors
    /// Why it cannot be had here.
    fn read(&self) -> Result<Reading>;

    /// What is set there, before any Order.
    ///
    /// # Errors
    /// Why it cannot be had here.
    fn baseline(&self) -> Result<Json>;

    /// What setting `wanted` would come to.
    ///
    /// # Errors
    /// Why it cannot be done.
    fn plan(&self, baseline: &Json, wanted: &Value) -> Result<PlannedValue>;

    /// In words, what somebody else changed since we wrote `written`. Putting the baseline back counts too, where that
    /// shows: `systemctl daemon-reload` does it to weights and cores of cgroups.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn drift(&self, baseline: &Json, written: &[Json]) -> Result<Option<String>>;

    /// Sets `written`; takes effect with `commit`.
    ///
    /// # Errors
    /// What went wrong; the engine then restores.
    fn apply(&self, written: &Json) -> Result<()>;

    /// Puts the baseline back wherever one of `written` is set; takes effect with `commit`. What somebody else changed
    /// is left alone, and returned in words.
    ///
    /// # Errors
    /// What went wrong; it will be tried again.
    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>>;

    /// Tests and reloads, where there is such a thing; once for all knobs of a group.
    ///
    /// # Errors
    /// What went wrong. When `restoring` is false all is as before `apply`.
    fn commit(&self, restoring: bool) -> Result<()> {
        let _ = restoring;
        Ok(())
    }

    /// Reads back what `apply` and `commit` came to.
    ///
    /// # Errors
    /// What it became instead.
    fn verify(&self, written: &Json) -> Result<Reading>;

    /// Why what was set is not kept up any more, in words: its lease then ends.
    fn failure(&self) -> Option<String> {
        None
    }
}

/// What knobs are made of.
pub struct Parts<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// Roots and clocks.
    pub system: &'a System,
    /// Shared by all knobs of Apache.
    pub apache: Rc<Apache>,
}

/// One kind of knob.
pub struct KnobKind {
    /// Its name, which is also that of its setting.
    pub name: &'static str,
    /// What Orders may set.
    pub allowed: fn(&Settings) -> &Allowed,
    /// The value as the knob takes it, or why Orders may not set it.
    pub check: fn(&Settings, &Value) -> Result<Value, ValueError>,
    /// Makes it.
    pub make: fn(&Parts<'_>) -> Box<dyn Knob>,
}

impl std::fmt::Debug for KnobKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A kind: its setting, how its values are checked, and its module.
macro_rules! kind {
    ($name:literal, $section:ident.$setting:ident, $check:ident, $module:ident) => {
        KnobKind {
            name: $name,
            allowed: |settings| &settings.$section.$setting,
            check: |settings, value| settings.$section.$setting.$check(value),
            make: $module::make,
        }
    };
}

/// All kinds.
pub const KNOBS: &[KnobKind] = &[
    kind!("apache.max_request_workers", apache.max_request_workers, check, apache_max_request_workers),
    kind!("apache.keepalive_timeout", apache.keepalive_timeout, check, apache_keepalive_timeout),
    kind!("apache.keepalive", apache.keepalive, check, apache_keepalive),
    kind!("php_fpm.max_children", php_fpm.max_children, check, php_fpm_max_children),
    kind!("cpu.frequency", cpu.frequency, check, cpu_frequency),
    kind!("cpu.core_frequency", cpu.core_frequency, check_each, cpu_core_frequency),
    kind!("cpu.uclamp_min", cpu.uclamp_min, check, cpu_uclamp_min),
    kind!("cpu.cores", cpu.cores, check, cpu_cores),
    kind!("cpu.quota", cpu.quota, check, cpu_quota),
    kind!("cpu.share", cpu.share, check, cpu_share),
    KnobKind {
        name: "cpu.policy",
        allowed: |settings| &settings.cpu.policy,
        check: cpu_policy::check,
        make: cpu_policy::make,
    },
    kind!("batch.cores", batch.cores, check, batch_cores),
    kind!("batch.running", batch.running, check, batch_running),
    kind!("streaming.num_threads", streaming.num_threads, check, streaming_num_threads),
];

/// Knobs that write the same files: one of them is set at a time.
const SAME_FILES: &[&[&str]] = &[
    &["cpu.policy", "cpu.frequency", "cpu.core_frequency"],
    &["cpu.policy", "cpu.quota", "cpu.share"],
    &["cpu.policy", "cpu.cores"],
];

/// Whether two knobs write the same files.
pub fn share_files(one: &str, other: &str) -> bool {
    one != other && SAME_FILES.iter().any(|knobs| knobs.contains(&one) && knobs.contains(&other))
}

/// The knobs that the configuration lists, by name.
pub fn make_all(settings: &Settings, system: &System) -> Vec<(&'static str, Box<dyn Knob>)> {
    let apache = Rc::new(Apache::new(&settings.apache, system));
    let parts = Parts { settings, system, apache };
    KNOBS
        .iter()
        .filter(|kind| !(kind.allowed)(settings).is_empty())
        .map(|kind| (kind.name, (kind.make)(&parts)))
        .collect()
}

/// A knob's own form, from what the engine kept.
fn from_json<T: DeserializeOwned>(kept: &Json) -> Result<T> {
    serde_json::from_value(kept.clone()).map_err(|error| Error::State(format!("what was kept cannot be read: {error}")))
}

/// The text that a knob keeps as its own form.
fn text_of(kept: &Json) -> Result<&str> {
    kept.as_str().ok_or_else(|| Error::State("what was kept is no text".to_owned()))
}

/// A knob's own form, for the engine to keep.
fn to_json(own: &impl Serialize) -> Json {
    serde_json::to_value(own).unwrap_or(Json::Null)
}

/// The whole number that [`Allowed::check`] made of an Order's value.
fn number(value: &Value) -> Result<i64> {
    match value {
        Value::Integer(number) => Ok(*number),
        other => Err(Error::InvalidValue(format!("expected a whole number, got {}", show(other)))),
    }
}

/// A value as in sentences.
pub fn show(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Word(word) => word.clone(),
    }
}

#[cfg(test)]
mod tests {
    use slackwater_node::settings::Declared as _;

    use super::*;

    #[test]
    fn each_knob_has_a_setting_of_its_name_and_by_default_none_is_ours() {
        let settings = Settings::list();
        for knob in KNOBS {
            assert!(settings.iter().any(|setting| setting.name == knob.name), "{}", knob.name);
            assert!((knob.allowed)(&Settings::default()).is_empty(), "{}", knob.name);
        }
    }
}
