//! `cpu.share`: the web server's share of CPU time, in percent of its baseline: the weight of its cgroup, and the quota
//! if there is one. For VMs, which mostly have no cpufreq.

use std::path::PathBuf;

use serde_json::Value as Json;
use slackwater_messages::Value;
use slackwater_node::cgroup::{AllowanceFiles, CpuAllowance, Quota};

use super::{Knob, Parts, PlannedValue, Reading, core_count, from_json, number, to_json, web_cgroup};
use crate::error::{Error, Result};

/// Key beside the written setting: its share of the baseline, in percent.
const PERCENT: &str = "percent";

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(CpuShare {
        root: parts.system.cgroup.clone(),
        name: parts.settings.cpu.cgroup.clone(),
        cores: core_count(),
    })
}

struct CpuShare {
    root: PathBuf,
    name: String,
    /// The machine's cores: no quota gives more than their time.
    cores: i64,
}

impl CpuShare {
    fn files(&self) -> Result<AllowanceFiles> {
        Ok(AllowanceFiles::find(&self.root, web_cgroup(&self.name, "share")?)?)
    }

    fn now(&self) -> Result<CpuAllowance> {
        Ok(self.files()?.read()?)
    }
}

fn describe(share: &CpuAllowance) -> String {
    let Quota { quota_us, period_us } = share.quota;
    let quota = quota_us.map_or("no quota".to_owned(), |us| format!("quota {us} of {period_us} us"));
    format!("weight {}, {quota}", share.weight)
}

impl Knob for CpuShare {
    fn reload_group(&self) -> &'static str {
        "cpu.share"
    }

    /// Without a lease the present setting is the baseline: 100%.
    fn read(&self) -> Result<Reading> {
        Ok(Reading { value: Value::Integer(100), how: describe(&self.now()?) })
    }

    fn baseline(&self) -> Result<Json> {
        self.now().map(|own| to_json(&own))
    }

    fn plan(&self, baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let baseline: CpuAllowance = from_json(baseline)?;
        let percent = number(wanted)?;
        if percent < 1 {
            return Err(Error::InvalidValue(format!("a share must be at least 1%, got {percent}")));
        }
        let weights = self.files()?.weights();
        let weight = (baseline.weight.saturating_mul(percent) / 100).clamp(*weights.start(), *weights.end());
        // The kernel takes no quota below 1 ms.
        let Quota { quota_us: before_us, period_us } = baseline.quota;
        let quota_us =
            before_us.map(|us| (us.saturating_mul(percent) / 100).clamp(1000, (self.cores * period_us).max(us)));
        let written = CpuAllowance { weight, quota: Quota { quota_us, period_us } };
        let reached = |now: i64, before: i64| now * 100 / before.max(1);
        let effective = reached(written.weight, baseline.weight);
        let by_quota = quota_us.zip(before_us).map(|(now, before)| reached(now, before));
        let note = match by_quota {
            Some(share) if share != percent => format!("the quota becomes {share}%, within {} cores", self.cores),
            _ => String::new(),
        };
        let effective = by_quota.unwrap_or(effective);
        let mut written = to_json(&written);
        written[PERCENT] = Json::from(effective);
        Ok(PlannedValue { effective: Value::Integer(effective), note, written })
    }

    fn drift(&self, _baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        let now = self.now()?;
        let known = written.iter().filter_map(|own| from_json::<CpuAllowance>(own).ok());
        let (weights, quotas): (Vec<_>, Vec<_>) = known.map(|own| (own.weight, own.quota)).unzip();
        let is_known = weights.contains(&now.weight) && quotas.contains(&now.quota);
        Ok((!is_known).then(|| format!("somebody else set {}", describe(&now))))
    }

    fn apply(&self, written: &Json) -> Result<()> {
        let (written, files): (CpuAllowance, _) = (from_json(written)?, self.files()?);
        files.write_weight(written.weight)?;
        if written.quota.quota_us != self.now()?.quota.quota_us {
            files.write_quota(written.quota)?;
        }
        Ok(())
    }

    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>> {
        let (files, now) = (self.files()?, self.now()?);
        let baseline: CpuAllowance = from_json(baseline)?;
        let written: Vec<CpuAllowance> = written.iter().map(from_json).collect::<Result<_, _>>()?;
        let mut left = Vec::new();
        if written.iter().any(|own| own.weight == now.weight) {
            files.write_weight(baseline.weight)?;
        } else if now.weight != baseline.weight {
            left.push(format!("weight {} is somebody else's", now.weight));
        }
        if written.iter().any(|own| own.quota == now.quota) {
            files.write_quota(baseline.quota)?;
        } else if now.quota != baseline.quota {
            left.push(format!("{} is somebody else's", describe(&now)));
        }
        Ok(left)
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let (own, now): (CpuAllowance, _) = (from_json(written)?, self.now()?);
        if now == own {
            let percent = written[PERCENT].as_i64().unwrap_or(100);
            Ok(Reading { value: Value::Integer(percent), how: describe(&now) })
        } else {
            Err(Error::NotInEffect(format!("it became {}, not {}", describe(&now), describe(&own))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn knob(fixture: &Fixture, name: &str) -> CpuShare {
        CpuShare { root: fixture.path("cgroup"), name: name.to_owned(), cores: 2 }
    }

    #[test]
    fn version_2_weight_and_quota_are_scaled_and_put_back() {
        let fixture = Fixture::new(&[("cgroup/w/cpu.weight", "100\n"), ("cgroup/w/cpu.max", "40000 100000\n")]);
        let knob = knob(&fixture, "w");
        let baseline = knob.baseline().expect("a value");
        let plan = knob.plan(&baseline, &Value::Integer(200)).expect("a plan");
        assert_eq!((plan.effective.clone(), plan.note.as_str()), (Value::Integer(200), ""));
        knob.apply(&plan.written).expect("the kernel takes it");
        assert_eq!(
            (fixture.read("cgroup/w/cpu.weight"), fixture.read("cgroup/w/cpu.max")),
            ("200".into(), "80000 100000".into())
        );
        assert_eq!(knob.verify(&plan.written).expect("the wanted value").how, "weight 200, quota 80000 of 100000 us");
        assert_eq!(knob.drift(&baseline, std::slice::from_ref(&plan.written)), Ok(None));
        assert_eq!(knob.restore(&baseline, std::slice::from_ref(&plan.written)), Ok(vec![]));
        let put_back = Ok(Some("somebody else set weight 100, quota 40000 of 100000 us".to_owned()));
        assert_eq!(knob.drift(&baseline, std::slice::from_ref(&plan.written)), put_back);
        assert_eq!(
            (fixture.read("cgroup/w/cpu.weight"), fixture.read("cgroup/w/cpu.max")),
            ("100".into(), "40000 100000".into())
        );
        let capped = knob.plan(&baseline, &Value::Integer(900)).expect("a plan");
        assert_eq!(
            (capped.effective, capped.note),
            (Value::Integer(500), "the quota becomes 500%, within 2 cores".to_owned())
        );
    }

    #[test]
    fn version_1_without_a_quota_scales_the_shares() {
        let fixture = Fixture::new(&[
            ("cgroup/cpu/w/cpu.shares", "1024\n"),
            ("cgroup/cpu/w/cpu.cfs_quota_us", "-1\n"),
            ("cgroup/cpu/w/cpu.cfs_period_us", "100000\n"),
        ]);
        let knob = knob(&fixture, "w");
        let baseline = knob.baseline().expect("a value");
        let plan = knob.plan(&baseline, &Value::Integer(50)).expect("a plan");
        knob.apply(&plan.written).expect("the kernel takes it");
        assert_eq!(fixture.read("cgroup/cpu/w/cpu.shares"), "512");
        assert_eq!(fixture.read("cgroup/cpu/w/cpu.cfs_quota_us"), "-1");
        fixture.write("cgroup/cpu/w/cpu.shares", "300\n");
        assert_eq!(
            knob.drift(&baseline, std::slice::from_ref(&plan.written)),
            Ok(Some("somebody else set weight 300, no quota".into()))
        );
        assert_eq!(knob.restore(&baseline, &[plan.written]), Ok(vec!["weight 300 is somebody else's".to_owned()]));
        assert_eq!(fixture.read("cgroup/cpu/w/cpu.shares"), "300");
    }

    #[test]
    fn without_a_cgroup_it_is_not_here_and_says_why() {
        let fixture = Fixture::new(&[]);
        assert!(knob(&fixture, "").read().unwrap_err().to_string().starts_with("cpu.cgroup is empty"));
        assert!(knob(&fixture, "w").read().unwrap_err().to_string().starts_with("cgroup w: neither cpu.weight"));
    }
}
