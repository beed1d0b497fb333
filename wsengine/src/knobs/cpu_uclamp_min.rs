//! `cpu.uclamp_min`: the least share of the highest clock that the web server's threads ask the kernel's `schedutil` for,
//! in percent: `cpu.uclamp.min` of its cgroup, on kernels that have it.

use std::path::PathBuf;

use serde_json::Value as Json;
use slackwater_messages::Value;
use slackwater_node::cgroup::find_uclamp_min;
use slackwater_node::files::{text, write_kernel};

use super::{Knob, Parts, PlannedValue, Reading, number, text_of, to_json, web_cgroup};
use crate::error::{Error, Result};

const MOST_PERCENT: i64 = 100;

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(UclampMin { root: parts.system.cgroup.clone(), name: parts.settings.cpu.cgroup.clone() })
}

struct UclampMin {
    root: PathBuf,
    name: String,
}

impl UclampMin {
    fn file(&self) -> Result<PathBuf> {
        Ok(find_uclamp_min(&self.root, web_cgroup(&self.name, "cpu.uclamp.min")?)?)
    }

    fn now(&self) -> Result<String> {
        Ok(text(&self.file()?)?)
    }

    fn write(&self, own: &str) -> Result<()> {
        Ok(write_kernel(&self.file()?, own)?)
    }

    fn reading(&self, now: &str) -> Result<Reading> {
        let message = || format!("{}: expected a percentage, got {now:?}", self.name);
        let percent = if now == "max" {
            MOST_PERCENT as f64
        } else {
            now.parse::<f64>().map_err(|_| Error::Unavailable(message()))?
        };
        Ok(Reading { value: Value::Integer(percent.round() as i64), how: format!("cpu.uclamp.min {now}") })
    }
}

impl Knob for UclampMin {
    fn reload_group(&self) -> &'static str {
        "cpu.uclamp_min"
    }

    fn read(&self) -> Result<Reading> {
        self.reading(&self.now()?)
    }

    fn baseline(&self) -> Result<Json> {
        self.now().map(|own| to_json(&own))
    }

    fn plan(&self, _baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let percent = number(wanted)?;
        let effective = percent.clamp(0, MOST_PERCENT);
        let note = if effective == percent { String::new() } else { format!("it can be 0 to {MOST_PERCENT} percent") };
        // As the kernel shows it.
        let written = if effective == MOST_PERCENT { "max".to_owned() } else { format!("{effective}.00") };
        Ok(PlannedValue { effective: Value::Integer(effective), note, written: to_json(&written) })
    }

    fn drift(&self, _baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        let now = self.now()?;
        let is_known = written.iter().any(|own| own.as_str() == Some(now.as_str()));
        Ok((!is_known).then(|| format!("somebody else set cpu.uclamp.min {now}")))
    }

    fn apply(&self, written: &Json) -> Result<()> {
        self.write(text_of(written)?)
    }

    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>> {
        let (now, baseline) = (self.now()?, text_of(baseline)?);
        if written.iter().any(|own| own.as_str() == Some(now.as_str())) {
            self.write(baseline)?;
        } else if now != baseline {
            return Ok(vec![format!("cpu.uclamp.min {now} is somebody else's")]);
        }
        Ok(Vec::new())
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let (own, now) = (text_of(written)?, self.now()?);
        if now == own {
            self.reading(&now)
        } else {
            Err(Error::NotInEffect(format!("cpu.uclamp.min became {now}, not {own}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    const FILE: &str = "cgroup/w/cpu.uclamp.min";

    fn knob(fixture: &Fixture, name: &str) -> UclampMin {
        UclampMin { root: fixture.path("cgroup"), name: name.to_owned() }
    }

    #[test]
    fn it_is_set_read_back_and_put_back() {
        let fixture = Fixture::new(&[(FILE, "0.00\n")]);
        let knob = knob(&fixture, "w");
        let baseline = knob.baseline().expect("a value");
        let plan = knob.plan(&baseline, &Value::Integer(40)).expect("a plan");
        knob.apply(&plan.written).expect("the kernel takes it");
        assert_eq!(fixture.read(FILE), "40.00");
        assert_eq!(knob.verify(&plan.written).expect("the wanted value").value, Value::Integer(40));
        assert_eq!(knob.drift(&baseline, std::slice::from_ref(&plan.written)), Ok(None));
        assert_eq!(knob.restore(&baseline, &[plan.written]), Ok(vec![]));
        assert_eq!(fixture.read(FILE), "0.00");
    }

    #[test]
    fn it_stays_within_what_the_kernel_takes() {
        let fixture = Fixture::new(&[(FILE, "12.50\n")]);
        let knob = knob(&fixture, "w");
        let plan = knob.plan(&Json::Null, &Value::Integer(250)).expect("a plan");
        assert_eq!((plan.effective, plan.note.as_str()), (Value::Integer(100), "it can be 0 to 100 percent"));
        knob.apply(&plan.written).expect("the kernel takes it");
        assert_eq!((fixture.read(FILE).as_str(), knob.read().expect("a value").value), ("max", Value::Integer(100)));
    }

    #[test]
    fn what_somebody_else_set_stays() {
        let fixture = Fixture::new(&[("cgroup/cpu/w/cpu.uclamp.min", "0.00\n")]);
        let knob = knob(&fixture, "w");
        let baseline = knob.baseline().expect("a value");
        let plan = knob.plan(&baseline, &Value::Integer(40)).expect("a plan");
        knob.apply(&plan.written).expect("the kernel takes it");
        fixture.write("cgroup/cpu/w/cpu.uclamp.min", "70.00\n");
        assert_eq!(
            knob.drift(&baseline, std::slice::from_ref(&plan.written)),
            Ok(Some("somebody else set cpu.uclamp.min 70.00".to_owned()))
        );
        let left = Ok(vec!["cpu.uclamp.min 70.00 is somebody else's".to_owned()]);
        assert_eq!(knob.restore(&baseline, &[plan.written]), left);
    }

    #[test]
    fn without_a_cgroup_or_the_kernels_file_it_says_why() {
        let fixture = Fixture::new(&[("cgroup/w/cpu.weight", "100\n")]);
        let why = |name: &str| knob(&fixture, name).read().unwrap_err().to_string();
        assert!(why("").starts_with("cpu.cgroup is empty"));
        assert!(why("w").contains("CONFIG_UCLAMP_TASK_GROUP"), "{}", why("w"));
    }
}
