//! The knobs: one file each, one line each in [`KNOBS`].

use std::rc::Rc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use slackwater_messages::Value;
use slackwater_node::system::System;

use crate::allowed::{AllowedValues, ValueError};
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

/// A value, and how it was determined.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reading {
    /// The value.
    pub value: Value,
    /// Where it was read, or what it was computed from.
    pub how: String,
}

/// The result that setting a value would have.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedValue {
    /// The value that would take effect.
    pub effective: Value,
    /// Why that differs from the wanted value; empty when it does not.
    pub note: String,
    /// The setting to write, in the knob's own form.
    pub written: Json,
}

/// A setting of the web server, or of the machine, that can be changed and put back.
///
/// `baseline` and `written` are the knob's own forms of a setting, which the engine keeps on disk. A call that fails
/// changes nothing, except where its documentation says so.
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
    /// Why this machine does not have it.
    fn read(&self) -> Result<Reading>;

    /// The setting before any Order.
    ///
    /// # Errors
    /// Why this machine does not have it.
    fn baseline(&self) -> Result<Json>;

    /// The result that setting `wanted` would have.
    ///
    /// # Errors
    /// Why it cannot be set.
    fn plan(&self, baseline: &Json, wanted: &Value) -> Result<PlannedValue>;

    /// A sentence about a change that somebody else made since we wrote `written`; `None` without one. A baseline that
    /// somebody put back counts too, where it can be seen: `systemctl daemon-reload` does so with weights and cores of
    /// cgroups.
    ///
    /// # Errors
    /// Why the setting cannot be read.
    fn drift(&self, baseline: &Json, written: &[Json]) -> Result<Option<String>>;

    /// Sets `written`; takes effect with `commit`.
    ///
    /// # Errors
    /// The failure; the engine then restores.
    fn apply(&self, written: &Json) -> Result<()>;

    /// Puts the baseline back wherever one of `written` is set; takes effect with `commit`. Changes of somebody else
    /// are left alone and returned, a sentence for each.
    ///
    /// # Errors
    /// The failure; the engine tries again.
    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>>;

    /// Tests the configuration and reloads the server, where a knob has one; once for all knobs of a group.
    ///
    /// # Errors
    /// The failure. When `restoring` is false, everything is as before `apply`.
    fn commit(&self, restoring: bool) -> Result<()> {
        let _ = restoring;
        Ok(())
    }

    /// Reads the setting back after `apply` and `commit`.
    ///
    /// # Errors
    /// The setting that is in effect instead.
    fn verify(&self, written: &Json) -> Result<Reading>;

    /// Why the setting is no longer maintained, as a sentence; its lease then ends.
    fn failure(&self) -> Option<String> {
        None
    }
}

/// Everything from which knobs are made.
pub struct Parts<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// The roots of the kernel's trees, and the clocks.
    pub system: &'a System,
    /// Shared by all knobs of Apache.
    pub apache: Rc<Apache>,
}

/// One kind of knob.
pub struct KnobKind {
    /// Its name, which is also that of its setting.
    pub name: &'static str,
    /// The values that Orders may set.
    pub allowed: fn(&Settings) -> &AllowedValues,
    /// The value as the knob takes it, or why Orders may not set it.
    pub check: fn(&Settings, &Value) -> Result<Value, ValueError>,
    /// Makes the knob.
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

/// Groups of knobs that write the same files: only one knob of a group is set at a time.
const SAME_FILES: &[&[&str]] = &[
    &["cpu.policy", "cpu.frequency", "cpu.core_frequency"],
    &["cpu.policy", "cpu.quota", "cpu.share"],
    &["cpu.policy", "cpu.cores"],
];

/// Whether two knobs write the same files.
pub fn share_files(first: &str, second: &str) -> bool {
    first != second && SAME_FILES.iter().any(|knobs| knobs.contains(&first) && knobs.contains(&second))
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

/// A knob's own form of a setting, from the engine's state.
fn from_json<T: DeserializeOwned>(kept: &Json) -> Result<T> {
    serde_json::from_value(kept.clone())
        .map_err(|error| Error::State(format!("a setting in the state cannot be read: {error}")))
}

/// A setting whose own form is a text, from the engine's state.
fn text_of(kept: &Json) -> Result<&str> {
    kept.as_str().ok_or_else(|| Error::State("a setting in the state is no text".to_owned()))
}

/// A knob's own form of a setting, for the engine's state.
fn to_json(own: &impl Serialize) -> Json {
    serde_json::to_value(own).unwrap_or(Json::Null)
}

/// The web server's cgroup, for a knob that has no `value` without it.
fn web_cgroup<'a>(name: &'a str, value: &str) -> Result<&'a str> {
    if name.is_empty() {
        let message = format!("cpu.cgroup is empty: without the web server's cgroup it has no {value}");
        return Err(Error::Unavailable(message));
    }
    Ok(name)
}

/// Number of cores of this machine.
fn core_count() -> i64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as i64)
}

/// The whole number that [`AllowedValues::check`] made of an Order's value.
fn number(value: &Value) -> Result<i64> {
    match value {
        Value::Integer(number) => Ok(*number),
        other => Err(Error::InvalidValue(format!("expected a whole number, got {}", show(other)))),
    }
}

/// A value as text, for sentences.
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
