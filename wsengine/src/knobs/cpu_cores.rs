//! `cpu.cores`: on how many cores the web server may run: the cpuset of its cgroup, else its processes' affinity.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use slackwater_messages::Value;
use slackwater_node::cgroup;
use slackwater_node::files::{text, write_kernel};
use slackwater_node::list::parse_list;
use slackwater_node::processes::threads_named;

use super::{Knob, Parts, PlannedValue, Reading, from_json, number, to_json};
use crate::error::{Error, Result};

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    let cpu = &parts.settings.cpu;
    if cpu.cgroup.is_empty() { Box::new(affinity(parts)) } else { Box::new(cpuset(parts)) }
}

/// The knob as [`make`] makes it, for several threads.
pub(super) fn shared(parts: &Parts<'_>) -> Arc<dyn Knob + Send + Sync> {
    let cpu = &parts.settings.cpu;
    if cpu.cgroup.is_empty() { Arc::new(affinity(parts)) } else { Arc::new(cpuset(parts)) }
}

fn affinity(parts: &Parts<'_>) -> Cores<Affinity> {
    let (proc, sys) = (parts.system.proc.clone(), parts.system.sys.clone());
    Cores(Affinity { proc, sys, names: parts.settings.cpu.processes.clone() })
}

fn cpuset(parts: &Parts<'_>) -> Cores<Cpuset> {
    Cores(Cpuset { root: parts.system.cgroup.clone(), name: parts.settings.cpu.cgroup.clone(), last_first: false })
}

/// The knob for the batch jobs beside the web server. They get the last cores, so that they share few with the web
/// server.
pub(super) fn batch_cores(root: PathBuf, name: String) -> impl Knob {
    Cores(Cpuset { root, name, last_first: true })
}

/// A list of cores that the kernel keeps: of a cgroup, or of threads.
trait CoreControl {
    /// The present cores of each part: of the cgroup, or of each thread.
    fn now(&self) -> Result<CoreLists>;
    /// The cores that may be set.
    fn possible(&self) -> Result<Vec<u32>>;
    /// Sets the cores of these parts; parts that are gone are skipped.
    fn set(&self, parts: &CoreLists) -> Result<()>;
    /// The kernel's list in words, for messages.
    fn name(&self) -> String;
    /// Whether the last cores stay when there are to be fewer, instead of the first.
    fn last_first(&self) -> bool {
        false
    }
}

/// Lists of cores, as the kernel writes them, by thread id; the cgroup's under 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CoreLists(BTreeMap<u32, String>);

struct Cores<P>(P);

fn numbers(list: &str) -> Result<Vec<u32>> {
    parse_list(list).ok_or_else(|| Error::Unavailable(format!("expected a list of cores, got {list:?}")))
}

fn write_list(cores: &[u32]) -> String {
    cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

impl<P: CoreControl> Cores<P> {
    fn count(&self, own: &CoreLists) -> Result<i64> {
        let mut cores: Vec<u32> = Vec::new();
        for list in own.0.values() {
            cores.extend(if list.is_empty() { self.0.possible()? } else { numbers(list)? });
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(cores.len() as i64)
    }
}

fn same(a: &str, b: &str) -> bool {
    a == b || parse_list(a).is_some_and(|list| Some(list) == parse_list(b))
}

impl<P: CoreControl> Knob for Cores<P> {
    fn reload_group(&self) -> &'static str {
        "cpu.cores"
    }

    fn read(&self) -> Result<Reading> {
        Ok(Reading { value: Value::Integer(self.count(&self.0.now()?)?), how: self.0.name() })
    }

    fn baseline(&self) -> Result<Json> {
        self.0.now().map(|own| to_json(&own))
    }

    /// Keeps the present cores as far as possible, and adds others in their order (`last_first`: from the last one on).
    fn plan(&self, baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let baseline: CoreLists = from_json(baseline)?;
        let wanted = number(wanted)?;
        if wanted < 1 {
            return Err(Error::InvalidValue(format!("at least one core is needed, got {wanted}")));
        }
        let mut possible = self.0.possible()?;
        let mut cores: Vec<u32> = Vec::new();
        for list in baseline.0.values() {
            cores.extend(numbers(list)?);
        }
        if self.0.last_first() {
            possible.reverse();
            cores.reverse();
        }
        cores.extend(&possible);
        let mut chosen: Vec<u32> = Vec::new();
        for core in cores.into_iter().filter(|core| possible.contains(core)) {
            if chosen.len() as i64 == wanted {
                break;
            }
            if !chosen.contains(&core) {
                chosen.push(core);
            }
        }
        chosen.sort_unstable();
        let list = write_list(&chosen);
        let note =
            if (chosen.len() as i64) < wanted { format!("only the cores {list} are available") } else { String::new() };
        let written = CoreLists(baseline.0.keys().map(|part| (*part, list.clone())).collect());
        Ok(PlannedValue { effective: Value::Integer(chosen.len() as i64), note, written: to_json(&written) })
    }

    fn drift(&self, _baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        let written: Vec<CoreLists> = written.iter().map(from_json).collect::<Result<_, _>>()?;
        for (part, list) in &self.0.now()?.0 {
            // New threads inherit the cores of the threads that started them.
            let written_for_part = |own: &CoreLists| own.0.get(part).or(own.0.values().next()).cloned();
            if !written.iter().filter_map(written_for_part).any(|own| same(&own, list)) {
                return Ok(Some(format!("somebody else set the cores {list} for {}", self.0.name())));
            }
        }
        Ok(None)
    }

    fn apply(&self, written: &Json) -> Result<()> {
        let written: CoreLists = from_json(written)?;
        let list = written.0.values().next().cloned().unwrap_or_default();
        // Including threads that were started since the plan.
        let now = self.0.now()?;
        self.0.set(&CoreLists(now.0.keys().map(|part| (*part, list.clone())).collect()))
    }

    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>> {
        let baseline: CoreLists = from_json(baseline)?;
        let written: Vec<CoreLists> = written.iter().map(from_json).collect::<Result<_, _>>()?;
        let usual = baseline.0.values().next().cloned().unwrap_or_default();
        let (mut back, mut left) = (BTreeMap::new(), Vec::new());
        for (part, list) in self.0.now()?.0 {
            let theirs = baseline.0.get(&part).unwrap_or(&usual);
            if written.iter().any(|own| own.0.values().next().is_some_and(|written| same(written, &list))) {
                back.insert(part, theirs.clone());
            } else if !same(theirs, &list) {
                left.push(format!("the cores {list} are somebody else's"));
            }
        }
        left.dedup();
        self.0.set(&CoreLists(back)).map(|()| left)
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let written: CoreLists = from_json(written)?;
        let list = written.0.values().next().cloned().unwrap_or_default();
        let now = self.0.now()?;
        match now.0.values().find(|have| !same(have, &list)) {
            None => self.read(),
            Some(other) => Err(Error::NotInEffect(format!("the cores became {other:?}, not {list:?}"))),
        }
    }
}

struct Cpuset {
    root: PathBuf,
    name: String,
    last_first: bool,
}

impl Cpuset {
    fn file(&self) -> Result<PathBuf> {
        Ok(cgroup::find_cpuset(&self.root, &self.name)?)
    }
}

impl CoreControl for Cpuset {
    fn now(&self) -> Result<CoreLists> {
        Ok(CoreLists([(0, text(&self.file()?)?)].into()))
    }

    /// The cores of the cgroup above.
    fn possible(&self) -> Result<Vec<u32>> {
        let own = self.file()?;
        let above = own.parent().and_then(|folder| folder.parent()).map(|folder| folder.join("cpuset.cpus"));
        let list = above.and_then(|above| cgroup::effective_cores(&above).ok()).filter(|list| !list.is_empty());
        match list {
            Some(list) => numbers(&list),
            None => numbers(&cgroup::effective_cores(&own)?),
        }
    }

    fn set(&self, parts: &CoreLists) -> Result<()> {
        let path = self.file()?;
        parts.0.values().try_for_each(|list| {
            if !list.is_empty() {
                return Ok(write_kernel(&path, list)?);
            }
            // A line end sets an empty list, because the kernel does not see a write of nothing. While processes are in
            // the cgroup the kernel refuses an empty list; all cores of the cgroup above have the same effect.
            write_kernel(&path, "\n").or_else(|_| Ok(write_kernel(&path, &write_list(&self.possible()?))?))
        })
    }

    fn name(&self) -> String {
        format!("the cpuset of cgroup {}", self.name)
    }

    fn last_first(&self) -> bool {
        self.last_first
    }
}

struct Affinity {
    proc: PathBuf,
    sys: PathBuf,
    names: Vec<String>,
}

impl Affinity {
    fn threads(&self) -> Vec<u32> {
        threads_named(&self.proc, &self.names)
    }
}

fn thread(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

impl CoreControl for Affinity {
    fn now(&self) -> Result<CoreLists> {
        let cores = |id: u32| {
            let set = sched_getaffinity(thread(id)).ok()?;
            let has = |core: &u32| set.is_set(*core as usize);
            Some((id, write_list(&(0..CpuSet::MAX_CPU as u32).filter(has).collect::<Vec<_>>())))
        };
        let lists: BTreeMap<u32, String> = self.threads().into_iter().filter_map(cores).collect();
        if lists.is_empty() {
            return Err(Error::Unavailable(format!("no process is called {}", self.names.join(" or "))));
        }
        Ok(CoreLists(lists))
    }

    fn possible(&self) -> Result<Vec<u32>> {
        numbers(&text(&self.sys.join("devices/system/cpu/online"))?)
    }

    fn set(&self, parts: &CoreLists) -> Result<()> {
        for (id, list) in &parts.0 {
            let mut set = CpuSet::new();
            for core in numbers(list)? {
                set.set(core as usize);
            }
            match sched_setaffinity(thread(*id), &set) {
                // A thread that has ended meanwhile needs no cores.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => {
                    let message = format!("thread {id} does not take the cores {list}: {error}");
                    return Err(Error::NotInEffect(message));
                }
            }
        }
        Ok(())
    }

    fn name(&self) -> String {
        format!("the affinity of {}", self.names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn knob(fixture: &Fixture) -> Cores<Cpuset> {
        Cores(Cpuset { root: fixture.path("cgroup"), name: "web".to_owned(), last_first: false })
    }

    fn trees() -> [Fixture; 2] {
        [
            Fixture::new(&[("cgroup/cpuset.cpus.effective", "0-3\n"), ("cgroup/web/cpuset.cpus", "2\n")]),
            Fixture::new(&[("cgroup/cpuset/cpuset.cpus", "0-3\n"), ("cgroup/cpuset/web/cpuset.cpus", "2\n")]),
        ]
    }

    #[test]
    fn a_cpuset_of_either_version_grows_and_is_put_back() {
        for (fixture, path) in trees().iter().zip(["cgroup/web/cpuset.cpus", "cgroup/cpuset/web/cpuset.cpus"]) {
            let knob = knob(fixture);
            assert_eq!(knob.read().expect("a value").value, Value::Integer(1));
            let baseline = knob.baseline().expect("a value");
            let plan = knob.plan(&baseline, &Value::Integer(3)).expect("a plan");
            knob.apply(&plan.written).expect("the kernel takes it");
            assert_eq!(fixture.read(path), "0,1,2");
            assert_eq!(knob.verify(&plan.written).expect("the wanted value").value, Value::Integer(3));
            assert_eq!(knob.drift(&baseline, std::slice::from_ref(&plan.written)), Ok(None));
            assert_eq!(knob.restore(&baseline, std::slice::from_ref(&plan.written)), Ok(vec![]));
            assert_eq!(fixture.read(path), "2");
            let change = knob.drift(&baseline, &[plan.written]).expect("a reading").expect("a change");
            assert_eq!(change, "somebody else set the cores 2 for the cpuset of cgroup web");
        }
    }

    #[test]
    fn batch_jobs_have_the_last_cores_and_get_their_own_back() {
        for (fixture, path) in trees().iter().zip(["cgroup/web/cpuset.cpus", "cgroup/cpuset/web/cpuset.cpus"]) {
            fixture.write(path, "0-3\n");
            let knob = batch_cores(fixture.path("cgroup"), "web".to_owned());
            let baseline = knob.baseline().expect("a value");
            let plan = |count| knob.plan(&baseline, &Value::Integer(count)).expect("a plan");
            let (three, one) = (plan(3), plan(1));
            knob.apply(&three.written).expect("the kernel takes it");
            assert_eq!(fixture.read(path), "1,2,3");
            knob.apply(&one.written).expect("the kernel takes it");
            assert_eq!(fixture.read(path), "3");
            assert_eq!(knob.restore(&baseline, &[three.written, one.written]), Ok(vec![]));
            assert_eq!(fixture.read(path), "0-3");
        }
    }

    #[test]
    fn cores_that_are_not_there_are_not_promised_and_somebody_elses_stay() {
        let [fixture, _] = trees();
        let knob = knob(&fixture);
        let baseline = knob.baseline().expect("a value");
        let plan = knob.plan(&baseline, &Value::Integer(9)).expect("a plan");
        assert_eq!((plan.effective, plan.note.as_str()), (Value::Integer(4), "only the cores 0,1,2,3 are available"));
        fixture.write("cgroup/web/cpuset.cpus", "1\n");
        let change = knob.drift(&baseline, std::slice::from_ref(&plan.written)).expect("a reading").expect("a change");
        assert_eq!(change, "somebody else set the cores 1 for the cpuset of cgroup web");
        assert_eq!(knob.restore(&baseline, &[plan.written]), Ok(vec!["the cores 1 are somebody else's".to_owned()]));
        assert_eq!(fixture.read("cgroup/web/cpuset.cpus"), "1");
    }

    #[test]
    fn the_affinity_of_real_threads_is_set_and_put_back() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let place = Affinity { proc: "/proc".into(), sys: "/sys".into(), names: vec![] };
        let whole = sched_getaffinity(thread(child.id())).expect("its cores");
        let first = (0..CpuSet::MAX_CPU).find(|core| whole.is_set(*core)).expect("one CPU");
        let set = place.set(&CoreLists([(child.id(), first.to_string())].into()));
        let narrowed = sched_getaffinity(thread(child.id())).map(|set| set.count());
        child.kill().expect("the process is killed");
        child.wait().expect("the process ends");
        assert_eq!((set, narrowed), (Ok(()), Ok(1)));
        assert_eq!(place.now().unwrap_err().to_string(), "no process is called ");
    }
}
