//! `cpu.quota`: the web server's CPU time per second, in percent of one core: the quota of its cgroup. It replaces a
//! lower clock where there is no cpufreq; unlike a clock it stops the processes for a part of each period.

use std::path::PathBuf;

use serde_json::Value as Json;
use slackwater_messages::Value;
use slackwater_node::cgroup::{AllowanceFiles, Quota};

use super::{Knob, Parts, PlannedValue, Reading, core_count, from_json, number, to_json, web_cgroup};
use crate::error::{Error, Result};

/// The kernel takes no quota below 1 ms.
const LEAST_US: i64 = 1000;

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(quota_knob(parts))
}

/// The knob itself, for `cpu.policy`.
pub(super) fn quota_knob(parts: &Parts<'_>) -> CpuQuota {
    CpuQuota { root: parts.system.cgroup.clone(), name: parts.settings.cpu.cgroup.clone(), cores: core_count() }
}

pub(super) struct CpuQuota {
    root: PathBuf,
    name: String,
    /// The machine's cores: all of their time is the value without a quota.
    cores: i64,
}

impl CpuQuota {
    fn files(&self) -> Result<AllowanceFiles> {
        Ok(AllowanceFiles::find(&self.root, web_cgroup(&self.name, "quota")?)?)
    }

    fn now(&self) -> Result<Quota> {
        Ok(self.files()?.read()?.quota)
    }

    fn percent(&self, quota: Quota) -> i64 {
        quota.quota_us.map_or(100 * self.cores, |us| (us.saturating_mul(100) + quota.period_us / 2) / quota.period_us)
    }
}

fn describe(quota: Quota) -> String {
    let Quota { quota_us, period_us } = quota;
    quota_us.map_or("no quota".to_owned(), |us| format!("quota {us} of {period_us} us, no clock"))
}

impl Knob for CpuQuota {
    fn reload_group(&self) -> &'static str {
        "cpu.quota"
    }

    fn read(&self) -> Result<Reading> {
        let now = self.now()?;
        Ok(Reading { value: Value::Integer(self.percent(now)), how: describe(now) })
    }

    fn baseline(&self) -> Result<Json> {
        self.now().map(|own| to_json(&own))
    }

    /// Changes the quota and keeps its period.
    fn plan(&self, baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let Quota { period_us, .. } = from_json(baseline)?;
        let percent = number(wanted)?;
        if percent < 1 {
            return Err(Error::InvalidValue(format!("a quota must be at least 1% of a core, got {percent}")));
        }
        let most = 100 * self.cores;
        let quota_us = (percent.min(most).saturating_mul(period_us) / 100).max(LEAST_US);
        let written = Quota { quota_us: Some(quota_us), period_us };
        let effective = self.percent(written);
        let note = if effective == percent {
            String::new()
        } else {
            format!("the quota becomes {effective}%: it can be 1 ms in {period_us} us to {most}%")
        };
        Ok(PlannedValue { effective: Value::Integer(effective), note, written: to_json(&written) })
    }

    fn drift(&self, _baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        let now = self.now()?;
        let is_known = written.iter().filter_map(|own| from_json::<Quota>(own).ok()).any(|own| own == now);
        Ok((!is_known).then(|| format!("somebody else set {}", describe(now))))
    }

    fn apply(&self, written: &Json) -> Result<()> {
        Ok(self.files()?.write_quota(from_json(written)?)?)
    }

    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>> {
        let (files, now) = (self.files()?, self.now()?);
        let baseline: Quota = from_json(baseline)?;
        let written: Vec<Quota> = written.iter().map(from_json).collect::<Result<_, _>>()?;
        if written.contains(&now) {
            files.write_quota(baseline)?;
        } else if now != baseline {
            return Ok(vec![format!("{} is somebody else's", describe(now))]);
        }
        Ok(Vec::new())
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let (own, now): (Quota, _) = (from_json(written)?, self.now()?);
        if now == own {
            self.read()
        } else {
            Err(Error::NotInEffect(format!("it became {}, not {}", describe(now), describe(own))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn knob(fixture: &Fixture, name: &str) -> CpuQuota {
        CpuQuota { root: fixture.path("cgroup"), name: name.to_owned(), cores: 2 }
    }

    #[test]
    fn version_2_without_a_quota_gets_one_and_loses_it_again() {
        let fixture = Fixture::new(&[("cgroup/w/cpu.weight", "100\n"), ("cgroup/w/cpu.max", "max 50000\n")]);
        let knob = knob(&fixture, "w");
        assert_eq!(
            knob.read(),
            Ok(Reading { value: Value::Integer(200), how: "no quota".to_owned() }),
            "without a quota the value is that of all cores"
        );
        let baseline = knob.baseline().expect("a value");
        let plan = knob.plan(&baseline, &Value::Integer(120)).expect("a plan");
        assert_eq!((plan.effective.clone(), plan.note.as_str()), (Value::Integer(120), ""));
        knob.apply(&plan.written).expect("the kernel takes it");
        assert_eq!(fixture.read("cgroup/w/cpu.max"), "60000 50000");
        let reading = knob.verify(&plan.written).expect("the wanted value");
        assert_eq!(reading.how, "quota 60000 of 50000 us, no clock");
        assert_eq!(knob.drift(&baseline, std::slice::from_ref(&plan.written)), Ok(None));
        assert_eq!(knob.restore(&baseline, std::slice::from_ref(&plan.written)), Ok(vec![]));
        assert_eq!(fixture.read("cgroup/w/cpu.max"), "max 50000");
        let put_back = Ok(Some("somebody else set no quota".to_owned()));
        assert_eq!(knob.drift(&baseline, &[plan.written]), put_back);
    }

    #[test]
    fn version_1_keeps_its_period_and_what_somebody_else_set() {
        let fixture = Fixture::new(&[
            ("cgroup/cpu/w/cpu.shares", "1024\n"),
            ("cgroup/cpu/w/cpu.cfs_quota_us", "40000\n"),
            ("cgroup/cpu/w/cpu.cfs_period_us", "100000\n"),
        ]);
        let knob = knob(&fixture, "w");
        let baseline = knob.baseline().expect("a value");
        assert_eq!(knob.read().expect("a value").value, Value::Integer(40));
        let plan = knob.plan(&baseline, &Value::Integer(20)).expect("a plan");
        knob.apply(&plan.written).expect("the kernel takes it");
        assert_eq!(fixture.read("cgroup/cpu/w/cpu.cfs_quota_us"), "20000");
        fixture.write("cgroup/cpu/w/cpu.cfs_quota_us", "30000\n");
        let left = vec!["quota 30000 of 100000 us, no clock is somebody else's".to_owned()];
        assert_eq!(knob.restore(&baseline, &[plan.written]), Ok(left));
        assert_eq!(fixture.read("cgroup/cpu/w/cpu.cfs_quota_us"), "30000");
    }

    #[test]
    fn a_quota_stays_within_what_the_kernel_takes() {
        let fixture = Fixture::new(&[("cgroup/w/cpu.weight", "100\n"), ("cgroup/w/cpu.max", "max 10000\n")]);
        let knob = knob(&fixture, "w");
        let baseline = knob.baseline().expect("a value");
        let effective = |percent| knob.plan(&baseline, &Value::Integer(percent)).expect("a plan").effective;
        assert_eq!((effective(900), effective(1)), (Value::Integer(200), Value::Integer(10)));
        assert!(knob.plan(&baseline, &Value::Integer(0)).is_err());
    }

    #[test]
    fn without_a_cgroup_it_is_not_here_and_says_why() {
        let fixture = Fixture::new(&[]);
        assert!(knob(&fixture, "").read().unwrap_err().to_string().starts_with("cpu.cgroup is empty"));
    }
}
