//! `batch.running`: whether the batch jobs beside the web server run (`on`), or the kernel's freezer stops all
//! processes of their cgroup (`off`).

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use slackwater_messages::Value;
use slackwater_node::cgroup::FreezerFiles;
use slackwater_node::files::text;
use slackwater_node::processes::named;

use super::{Knob, Parts, PlannedValue, Reading, from_json, show, to_json};
use crate::error::{Error, Result};
use crate::wait::wait_for;

/// The kernel stops a process at its next return to user space, which takes longer while the process waits for a disk.
const STOPS_WITHIN_S: f64 = 2.0;
const ON: &str = "on";
const OFF: &str = "off";

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(BatchRunning {
        proc: parts.system.proc.clone(),
        root: parts.system.cgroup.clone(),
        name: parts.settings.batch.cgroup.clone(),
        servers: parts.settings.cpu.processes.clone(),
    })
}

/// The knob's own form: whether the cgroup is told to stop.
struct BatchRunning {
    proc: PathBuf,
    root: PathBuf,
    name: String,
    /// Command names of the web server's processes.
    servers: Vec<String>,
}

impl BatchRunning {
    fn files(&self) -> Result<FreezerFiles> {
        Ok(FreezerFiles::find(&self.root, &self.name)?)
    }

    fn is_told_to_stop(&self) -> Result<bool> {
        Ok(self.files()?.is_told_to_stop()?)
    }

    /// Refuses a cgroup with this process in it, which could not let itself run again, or with the web server, which
    /// must never be stopped.
    fn nobody_else_is_in_it(&self) -> Result<()> {
        let ours = Path::new(self.name.trim_matches('/'));
        let is_in_it = |process: &str| {
            let cgroups = text(&self.proc.join(process).join("cgroup")).unwrap_or_default();
            // "5:freezer:/batch.slice/job" in version 1, "0::/batch.slice/job" in version 2.
            cgroups.lines().any(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let controllers = parts.next().unwrap_or_default();
                let path = parts.next().unwrap_or_default().trim_start_matches('/');
                (controllers.is_empty() || controllers == "freezer") && Path::new(path).starts_with(ours)
            })
        };
        let refused = |who: &str| {
            Err(Error::Unavailable(format!("cgroup {} is not stopped: {who} is in it, or below it", self.name)))
        };
        if is_in_it("self") {
            return refused("slackwater-wsengine itself");
        }
        match named(&self.proc, &self.servers).into_iter().find(|pid| is_in_it(&pid.to_string())) {
            Some(pid) => refused(&format!("process {pid} of the web server")),
            None => Ok(()),
        }
    }

    fn word(stop: bool) -> &'static str {
        if stop { OFF } else { ON }
    }
}

impl Knob for BatchRunning {
    fn reload_group(&self) -> &'static str {
        "batch.running"
    }

    fn read(&self) -> Result<Reading> {
        let files = self.files()?;
        let stop = files.is_told_to_stop()?;
        let does = if files.has_stopped()? { "stands still" } else { "runs" };
        Ok(Reading { value: Value::Word(Self::word(stop).to_owned()), how: format!("cgroup {} {does}", self.name) })
    }

    fn baseline(&self) -> Result<Json> {
        self.is_told_to_stop().map(|stop| to_json(&stop))
    }

    fn plan(&self, _baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let stop = match show(wanted).as_str() {
            ON => false,
            OFF => true,
            other => return Err(Error::InvalidValue(format!("batch jobs are `on` or `off`, got `{other}`"))),
        };
        if stop {
            self.nobody_else_is_in_it()?;
        }
        Ok(PlannedValue { effective: wanted.clone(), note: String::new(), written: to_json(&stop) })
    }

    fn drift(&self, _baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        let now = self.is_told_to_stop()?;
        let is_known = written.iter().filter_map(Json::as_bool).any(|own| own == now);
        Ok((!is_known).then(|| format!("somebody else set cgroup {} to {}", self.name, Self::word(now))))
    }

    fn apply(&self, written: &Json) -> Result<()> {
        Ok(self.files()?.write(from_json(written)?)?)
    }

    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>> {
        // There are only two states: if the present one is not ours, it is the baseline.
        let now = self.is_told_to_stop()?;
        if written.iter().filter_map(Json::as_bool).any(|own| own == now) {
            self.files()?.write(from_json(baseline)?)?;
        }
        Ok(Vec::new())
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let (files, stop): (_, bool) = (self.files()?, from_json(written)?);
        let became = |stop: bool| Error::NotInEffect(format!("cgroup {} became {}", self.name, Self::word(stop)));
        if files.is_told_to_stop()? != stop {
            return Err(became(!stop));
        }
        let stopped = || files.has_stopped().ok().filter(|stopped| *stopped);
        if stop && wait_for(STOPS_WITHIN_S, stopped).is_none() {
            let message = format!("not all processes of cgroup {} stood still within {STOPS_WITHIN_S} s", self.name);
            return Err(Error::NotInEffect(message));
        }
        self.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn knob(fixture: &Fixture) -> BatchRunning {
        BatchRunning {
            proc: fixture.path("proc"),
            root: fixture.path("cgroup"),
            name: "b".to_owned(),
            servers: vec!["apache2".to_owned()],
        }
    }

    fn word(word: &str) -> Value {
        Value::Word(word.to_owned())
    }

    #[test]
    fn it_is_stopped_seen_and_let_run_again() {
        let fixture = Fixture::new(&[("cgroup/b/cgroup.freeze", "0\n"), ("cgroup/b/cgroup.events", "frozen 0\n")]);
        let knob = knob(&fixture);
        let baseline = knob.baseline().expect("a value");
        let plan = knob.plan(&baseline, &word("off")).expect("a plan");
        knob.apply(&plan.written).expect("the kernel takes it");
        assert_eq!(fixture.read("cgroup/b/cgroup.freeze"), "1");
        let slow = knob.verify(&plan.written).unwrap_err().to_string();
        assert_eq!(slow, "not all processes of cgroup b stood still within 2 s");
        fixture.write("cgroup/b/cgroup.events", "populated 1\nfrozen 1\n");
        let reading = knob.verify(&plan.written).expect("the wanted value");
        assert_eq!(reading, Reading { value: word("off"), how: "cgroup b stands still".to_owned() });
        assert_eq!(knob.drift(&baseline, std::slice::from_ref(&plan.written)), Ok(None));
        assert_eq!(knob.restore(&baseline, std::slice::from_ref(&plan.written)), Ok(vec![]));
        assert_eq!(fixture.read("cgroup/b/cgroup.freeze"), "0");
        let change = knob.drift(&baseline, &[plan.written]).expect("a reading").expect("a change");
        assert_eq!(change, "somebody else set cgroup b to on");
    }

    #[test]
    fn a_cgroup_with_the_web_server_or_with_us_in_it_is_never_stopped() {
        let fixture = Fixture::new(&[("cgroup/freezer/b/freezer.state", "THAWED\n"), ("proc/7/comm", "apache2\n")]);
        let knob = knob(&fixture);
        let why = || knob.plan(&Json::Null, &word("off")).unwrap_err().to_string();
        fixture.write("proc/7/cgroup", "6:freezer:/b/jobs\n0::/\n");
        assert_eq!(why(), "cgroup b is not stopped: process 7 of the web server is in it, or below it");
        fixture.write("proc/7/cgroup", "6:freezer:/bb\n5:cpu:/b\n0::/\n");
        assert!(knob.plan(&Json::Null, &word("off")).is_ok(), "the cpu controller's tree stops nobody");
        fixture.write("proc/self/cgroup", "0::/b\n");
        assert_eq!(why(), "cgroup b is not stopped: slackwater-wsengine itself is in it, or below it");
        assert!(knob.plan(&Json::Null, &word("on")).is_ok());
        assert!(knob.plan(&Json::Null, &word("no")).unwrap_err().to_string().contains("`on` or `off`, got `no`"));
    }

    #[test]
    fn without_a_freezer_it_says_why() {
        let fixture = Fixture::new(&[]);
        assert!(knob(&fixture).read().unwrap_err().to_string().starts_with("cgroup b: neither cgroup.freeze"));
    }
}
