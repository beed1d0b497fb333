//! `cpu.frequency`: the governor of the cores, or a frequency in kHz that they hold.
//!
//! The kernel's interface (measured with acpi-cpufreq and cpufreq-dt) accepts values out of range and clamps them,
//! rounds to its table, keeps a clamped request for later, and with some firmware accepts a write that changes nothing.
//! So only digits and known words are written, everything is read back, and the result is reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use slackwater_messages::Value;
use slackwater_node::files::{text, write_kernel};
use slackwater_node::list::parse_list;

use super::{Knob, Parts, PlannedValue, Reading, from_json, show, to_json};
use crate::error::{Error, Result};
use crate::wait::wait_for;

/// Drivers whose scaling_cur_freq is a measurement, which says little about an idle core.
const MEASURED: &[&str] = &["intel_pstate", "intel_cpufreq", "amd-pstate", "amd-pstate-epp"];
/// A governor has set its frequency after this time.
const SETTLED_WITHIN_S: f64 = 1.0;

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(Frequency::new(parts))
}

/// The clocks of our cores.
pub(super) struct Frequency {
    pub(super) folder: PathBuf,
    pub(super) cpus: Vec<u32>,
}

/// The settings in one policy's files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PolicySettings {
    governor: String,
    min_khz: u64,
    max_khz: u64,
    /// Only under the governor `userspace`.
    set_khz: Option<u64>,
}

type Policies = BTreeMap<String, PolicySettings>;

/// One policy: cores that change their frequency together.
struct CpufreqPolicy(PathBuf);

impl CpufreqPolicy {
    fn text(&self, name: &str) -> Result<String> {
        Ok(text(&self.0.join(name))?)
    }

    fn khz(&self, name: &str) -> Result<u64> {
        let text = self.text(name)?;
        let message = || format!("{}: expected kHz, got {text:?}", self.0.join(name).display());
        text.parse().map_err(|_| Error::Unavailable(message()))
    }

    fn cores(&self) -> Vec<u32> {
        parse_list(&self.text("affected_cpus").unwrap_or_default().replace(' ', ",")).unwrap_or_default()
    }

    fn words(&self, name: &str) -> Vec<String> {
        self.text(name).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    fn now(&self) -> Result<PolicySettings> {
        let governor = self.text("scaling_governor")?;
        let set_khz = if governor == "userspace" { Some(self.khz("scaling_setspeed")?) } else { None };
        Ok(PolicySettings {
            governor,
            min_khz: self.khz("scaling_min_freq")?,
            max_khz: self.khz("scaling_max_freq")?,
            set_khz,
        })
    }

    /// The frequency that a core gets when it is set to `wanted`, and why it differs.
    fn nearest(&self, wanted: u64) -> Result<(u64, String)> {
        let (lowest, highest) = (self.khz("cpuinfo_min_freq")?, self.khz("cpuinfo_max_freq")?);
        let firmware = self.khz("bios_limit").unwrap_or(highest);
        let most = highest.min(firmware);
        if wanted > most {
            let limit = if firmware < highest { "the firmware's limit" } else { "the highest possible" };
            return Ok((most, format!("{most} kHz is {limit}")));
        }
        if wanted < lowest {
            return Ok((lowest, format!("{lowest} kHz is the lowest possible")));
        }
        let table: Vec<u64> =
            self.words("scaling_available_frequencies").iter().filter_map(|khz| khz.parse().ok()).collect();
        // scaling_setspeed rounds up, within what is allowed.
        match table.iter().copied().filter(|khz| *khz >= wanted && *khz <= most).min() {
            Some(khz) if khz != wanted => Ok((khz, format!("{khz} kHz is the next in the table"))),
            _ => Ok((wanted, String::new())),
        }
    }

    /// The settings to write for `wanted`, the value that takes effect, and why it differs.
    fn plan(&self, baseline: &PolicySettings, wanted: &Value) -> Result<(PolicySettings, Value, String)> {
        let governors = self.words("scaling_available_governors");
        match wanted {
            Value::Integer(khz) => {
                let negative = |_| Error::InvalidValue(format!("a frequency is not negative, got {khz}"));
                let wanted = u64::try_from(*khz).map_err(negative)?;
                let (khz, note) = self.nearest(wanted)?;
                let userspace = governors.iter().any(|governor| governor == "userspace");
                let written = PolicySettings {
                    governor: if userspace { "userspace".to_owned() } else { baseline.governor.clone() },
                    min_khz: if userspace { baseline.min_khz.min(khz) } else { khz },
                    max_khz: if userspace { baseline.max_khz.max(khz) } else { khz },
                    set_khz: userspace.then_some(khz),
                };
                Ok((written, Value::Integer(khz.try_into().unwrap_or(i64::MAX)), note))
            }
            word => {
                let governor = show(word);
                if !governors.contains(&governor) {
                    let driver = self.text("scaling_driver").unwrap_or_default();
                    let has = governors.join(", ");
                    let message = format!("driver {driver} has the governors {has}, not `{governor}`");
                    return Err(Error::InvalidValue(message));
                }
                let set_khz = (governor == "userspace").then(|| self.khz("scaling_cur_freq")).transpose()?;
                let written = PolicySettings { governor: governor.clone(), set_khz, ..baseline.clone() };
                Ok((written, Value::Word(governor), String::new()))
            }
        }
    }

    /// Writes the settings that differ. Limits that grow are written first, so that no request is clamped and kept.
    fn set(&self, own: &PolicySettings) -> Result<()> {
        let path = |name: &str| self.0.join(name);
        let now = self.now()?;
        if now.governor != own.governor {
            write_kernel(&path("scaling_governor"), &own.governor)?;
        }
        // The kernel clamps a minimum above the maximum in silence and applies it later, so it is never written.
        let limits = [("scaling_max_freq", own.max_khz), ("scaling_min_freq", own.min_khz)];
        let order = if own.max_khz >= now.min_khz { limits } else { [limits[1], limits[0]] };
        for (name, khz) in order {
            if self.khz(name)? != khz {
                write_kernel(&path(name), &khz.to_string())?;
            }
        }
        if let Some(khz) = own.set_khz
            && (now.set_khz != Some(khz) || self.khz("scaling_setspeed")? != khz)
        {
            write_kernel(&path("scaling_setspeed"), &khz.to_string())?;
        }
        Ok(())
    }

    fn shows_the_request(&self) -> bool {
        let driver = self.text("scaling_driver").unwrap_or_default();
        !MEASURED.contains(&driver.as_str()) && self.0.join("scaling_cur_freq").is_file()
    }

    /// Reads back the settings `own`, in words; an error names the settings in effect instead.
    fn check(&self, own: &PolicySettings) -> Result<String> {
        let now = self.now()?;
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        if now != *own {
            return Err(other_settings(&name, &now, own));
        }
        let expected = match own.governor.as_str() {
            "userspace" => own.set_khz,
            "performance" => Some(own.max_khz),
            "powersave" => Some(own.min_khz),
            _ => None,
        };
        let Some(expected) = expected.filter(|_| self.shows_the_request()) else {
            return Ok(format!("{name}: {}", describe(&now)));
        };
        let reached = || self.khz("scaling_cur_freq").ok().filter(|khz| *khz == expected);
        match wait_for(SETTLED_WITHIN_S, reached) {
            Some(khz) => Ok(format!("{name}: {}, running at {khz} kHz", describe(&now))),
            None => {
                let now = self.text("scaling_cur_freq").unwrap_or_default();
                Err(Error::NotInEffect(format!(
                    "{name}: the kernel took {expected} kHz and runs at {now} kHz all the same"
                )))
            }
        }
    }
}

fn other_settings(name: &str, now: &PolicySettings, wanted: &PolicySettings) -> Error {
    Error::NotInEffect(format!("{name}: it became {}, not {}", describe(now), describe(wanted)))
}

fn describe(own: &PolicySettings) -> String {
    let set = own.set_khz.map_or(String::new(), |khz| format!(" at {khz}"));
    format!("governor {}{set}, {} to {} kHz", own.governor, own.min_khz, own.max_khz)
}

fn no_policy() -> Error {
    Error::Unavailable("no policy".to_owned())
}

impl Frequency {
    pub(super) fn new(parts: &Parts<'_>) -> Frequency {
        Frequency { folder: parts.system.sys.join("devices/system/cpu/cpufreq"), cpus: parts.settings.cpu.cpus.clone() }
    }

    /// Our cores, ascending, and the policy of each.
    pub(super) fn cores(&self) -> Result<BTreeMap<u32, String>> {
        let mut policy_of = BTreeMap::new();
        for (name, policy) in self.policies()? {
            let ours = policy.cores().into_iter().filter(|core| self.cpus.is_empty() || self.cpus.contains(core));
            policy_of.extend(ours.map(|core| (core, name.clone())));
        }
        Ok(policy_of)
    }

    /// Plans a value for each policy: the value that each gets, why these differ, and the settings to write.
    pub(super) fn plan_each(
        &self,
        baseline: &Json,
        wanted: &BTreeMap<String, Value>,
    ) -> Result<(BTreeMap<String, Value>, String, Json)> {
        let baseline: Policies = from_json(baseline)?;
        let (mut written, mut reached, mut notes) = (Policies::new(), BTreeMap::new(), Vec::new());
        for (name, value) in wanted {
            let gone = || Error::Unavailable(format!("{name} was not there when the lease began"));
            let theirs = baseline.get(name).ok_or_else(gone)?;
            let (own, effective, note) = self.policy(name).plan(theirs, value)?;
            written.insert(name.clone(), own);
            reached.insert(name.clone(), effective);
            if !note.is_empty() && !notes.contains(&note) {
                notes.push(note);
            }
        }
        Ok((reached, notes.join("; "), to_json(&written)))
    }

    /// The frequency that each core's policy requests, in the order of the cores: the one that it holds, else its
    /// maximum.
    pub(super) fn requested_khz(&self) -> Result<Vec<u64>> {
        let mut requested = Vec::new();
        for name in self.cores()?.values() {
            let now = self.policy(name).now()?;
            requested.push(now.set_khz.unwrap_or(now.max_khz));
        }
        Ok(requested)
    }

    /// The policies of our cores.
    fn policies(&self) -> Result<Vec<(String, CpufreqPolicy)>> {
        let mut policies = Vec::new();
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let policy = CpufreqPolicy(entry.path());
            if !name.starts_with("policy") {
                continue;
            }
            let cores = policy.cores();
            // A policy without cores that are online takes no writes.
            if !cores.is_empty() && (self.cpus.is_empty() || cores.iter().any(|core| self.cpus.contains(core))) {
                policies.push((name, policy));
            }
        }
        policies.sort_by(|a, b| a.0.cmp(&b.0));
        if policies.is_empty() {
            return Err(Error::Unavailable(format!(
                "{} has no policy of our cores: this kernel has no cpufreq driver for this machine, as in most VMs \
                 (use `cpu.share` there)",
                self.folder.display()
            )));
        }
        Ok(policies)
    }

    fn policy(&self, name: &str) -> CpufreqPolicy {
        CpufreqPolicy(self.folder.join(Path::new(name)))
    }
}

impl Knob for Frequency {
    fn reload_group(&self) -> &'static str {
        "cpu.frequency"
    }

    fn read(&self) -> Result<Reading> {
        let (mut value, mut how) = (None, Vec::new());
        for (name, policy) in self.policies()? {
            let now = policy.now()?;
            how.push(format!("{name}: {}", describe(&now)));
            value.get_or_insert(match now.set_khz {
                Some(khz) => Value::Integer(khz.try_into().unwrap_or(i64::MAX)),
                None => Value::Word(now.governor),
            });
        }
        Ok(Reading { value: value.ok_or_else(no_policy)?, how: how.join("; ") })
    }

    fn baseline(&self) -> Result<Json> {
        let policies = self.policies()?;
        let own = policies.iter().map(|(name, policy)| Ok((name.clone(), policy.now()?)));
        Ok(to_json(&own.collect::<Result<Policies>>()?))
    }

    fn plan(&self, baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let policies: Policies = from_json(baseline)?;
        let wanted = policies.into_keys().map(|name| (name, wanted.clone())).collect();
        let (reached, note, written) = self.plan_each(baseline, &wanted)?;
        let effective = reached.into_values().next().ok_or_else(no_policy)?;
        Ok(PlannedValue { effective, note, written })
    }

    fn drift(&self, baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        let known: Vec<Policies> = [baseline].into_iter().chain(written).map(from_json).collect::<Result<_, _>>()?;
        for (name, policy) in self.policies()? {
            let now = policy.now()?;
            let known_settings = || known.iter().filter_map(|policies| policies.get(&name));
            let fits = known_settings().any(|own| own.governor == now.governor)
                && known_settings().any(|own| (own.min_khz, own.max_khz) == (now.min_khz, now.max_khz))
                && known_settings().any(|own| own.set_khz == now.set_khz);
            if !fits && known_settings().next().is_some() {
                return Ok(Some(format!("somebody else set {name} to {}", describe(&now))));
            }
        }
        Ok(None)
    }

    fn apply(&self, written: &Json) -> Result<()> {
        let written: Policies = from_json(written)?;
        written.iter().try_for_each(|(name, own)| self.policy(name).set(own))
    }

    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>> {
        let baseline: Policies = from_json(baseline)?;
        let written: Vec<Policies> = written.iter().map(from_json).collect::<Result<_, _>>()?;
        let mut left = Vec::new();
        for (name, theirs) in &baseline {
            let policy = self.policy(name);
            let now = match policy.now() {
                Ok(now) => now,
                // An offline core has no policy; the kernel gives it the governor's defaults when it comes back.
                Err(error) => {
                    left.push(error.to_string());
                    continue;
                }
            };
            let mine = || written.iter().filter_map(|policies| policies.get(name));
            let governor = now.governor == theirs.governor || mine().any(|own| own.governor == now.governor);
            let (limits, wanted) = ((now.min_khz, now.max_khz), (theirs.min_khz, theirs.max_khz));
            let limits_are_ours = limits == wanted || mine().any(|own| (own.min_khz, own.max_khz) == limits);
            let mut back = theirs.clone();
            if !governor {
                left.push(format!("{name}: governor {} is somebody else's", now.governor));
                (back.governor, back.set_khz) = (now.governor.clone(), now.set_khz);
            }
            if !limits_are_ours {
                left.push(format!("{name}: {} to {} kHz is somebody else's", limits.0, limits.1));
                (back.min_khz, back.max_khz) = limits;
            }
            policy.set(&back)?;
            let after = policy.now()?;
            if (&after.governor, after.min_khz, after.max_khz) != (&back.governor, back.min_khz, back.max_khz) {
                return Err(other_settings(name, &after, &back));
            }
        }
        Ok(left)
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let written: Policies = from_json(written)?;
        let how: Vec<String> = written.iter().map(|(name, own)| self.policy(name).check(own)).collect::<Result<_>>()?;
        Ok(Reading { how: how.join("; "), ..self.read()? })
    }
}

#[cfg(test)]
#[path = "tests/cpu_frequency.rs"]
mod tests;
