//! The door to Apache: its configuration as mod_info prints it, our drop-in file, graceful restarts, server-status.
//!
//! Apache itself reads the configuration (`-t -D DUMP_CONFIG`): conditions, variables and includes are its business.
//! Only the drop-in file is ever written; what it says *is* what we have turned.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use slackwater_messages::Value;
use slackwater_node::status::apache::Status;
use slackwater_node::status::http;

use crate::apache_config::{Line, Seen, parse_dump};
use crate::command;
use crate::config::ApacheSettings;
use crate::files;
use crate::knobs::{Knob, Plan, Reading};
use crate::world::{World, children, text, wait_for};

/// First line of our drop-in files.
pub const HEAD: &str = "# Written by slackwater-wsengine, which removes it again; changes here are lost.";
/// A graceful restart is done after this time, or has failed.
const RESTARTED_WITHIN_S: f64 = 10.0;
const STATUS_WITHIN: Duration = Duration::from_secs(2);
/// Just after a restart a child of before may still answer, with its own number of workers.
const AGREES_WITHIN_S: f64 = 3.0;

/// The door.
pub struct Apache {
    settings: ApacheSettings,
    proc: PathBuf,
    staged: RefCell<BTreeMap<&'static str, Option<String>>>,
}

impl Apache {
    /// The Apache of these settings.
    pub fn new(settings: &ApacheSettings, world: &World) -> Apache {
        Apache { settings: settings.clone(), proc: world.proc.clone(), staged: RefCell::default() }
    }

    fn drop_in(&self) -> &Path {
        Path::new(&self.settings.drop_in)
    }

    /// Tests the configuration (with `more` directives after it) and returns it.
    fn test(&self, more: Option<String>) -> Result<Seen, String> {
        let info = format!("LoadModule info_module \"{}\"", self.settings.info_module);
        let mut argv = self.settings.command.clone();
        argv.extend(["-t", "-D", "DUMP_CONFIG", "-C"].map(str::to_owned));
        argv.push(info);
        argv.extend(more.into_iter().flat_map(|directive| ["-c".to_owned(), directive]));
        let trouble = |said| format!("Apache's configuration does not pass its test: {said}");
        let dump = command::run(&argv).map_err(trouble)?.stdout;
        argv = self.settings.command.clone();
        argv.push("-V".to_owned());
        let version = command::run(&argv).map_err(trouble)?.stdout;
        let mpm =
            version.lines().find_map(|line| line.strip_prefix("Server MPM:")).map(|mpm| mpm.trim().to_lowercase());
        Ok(Seen { lines: parse_dump(&dump), mpm: mpm.ok_or("`apache2 -V` names no MPM")? })
    }

    /// The process that the PidFile names, if it is an Apache that runs.
    fn pid(&self, seen: &Seen) -> Result<u32, String> {
        let line = seen.last(&["PidFile"]).ok_or("Apache's configuration names no PidFile")?;
        let path = Path::new(&line.value);
        if !path.is_absolute() {
            return Err(format!("{}: PidFile must be a path from the root, got {:?}", line.place(), line.value));
        }
        let pid: u32 = text(path)
            .map_err(|error| format!("Apache does not run: {error}"))?
            .parse()
            .map_err(|_| format!("{} holds no process id", path.display()))?;
        let name = text(&self.proc.join(pid.to_string()).join("comm")).unwrap_or_default();
        if name.starts_with("apache") || name.starts_with("httpd") {
            return Ok(pid);
        }
        Err(format!("Apache does not run: {} names process {pid}, which is {name:?}", path.display()))
    }

    fn status(&self) -> Result<Status, String> {
        let url = &self.settings.status_url;
        let page = http::get(url, STATUS_WITHIN).map_err(|error| error.to_string())?;
        Status::parse(&page).ok_or_else(|| format!("{url}: no page of server-status?auto"))
    }

    /// What our drop-in file says; refuses a file that somebody else wrote.
    fn ours(&self) -> Result<BTreeMap<String, String>, String> {
        let Some(bytes) = files::contents(self.drop_in())? else { return Ok(BTreeMap::new()) };
        let text = String::from_utf8_lossy(&bytes);
        if !text.starts_with(HEAD) {
            return Err(format!("{} was written by somebody else; it is left alone", self.drop_in().display()));
        }
        let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn with_staged(&self, staged: &BTreeMap<&'static str, Option<String>>) -> Result<Option<String>, String> {
        let mut all = self.ours()?;
        for (name, value) in staged {
            match value {
                Some(value) => all.insert((*name).to_owned(), value.clone()),
                None => all.remove(*name),
            };
        }
        let lines: String = all.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
        Ok((!all.is_empty()).then(|| format!("{HEAD}\n{lines}")))
    }

    /// Writes what is staged, tests it and restarts gracefully; on failure all is as it was.
    fn change(&self) -> Result<(), String> {
        let staged = std::mem::take(&mut *self.staged.borrow_mut());
        let before = files::contents(self.drop_in())?;
        let mut restarted = false;
        let pid = self.pid(&self.test(None)?)?;
        self.has_room()?;
        if let Some(text) = self.with_staged(&staged)? {
            let next = files::prepare(self.drop_in(), text.as_bytes(), 0o644)?;
            if let Err(said) = self.test(Some(format!("Include \"{}\"", next.display()))) {
                files::discard(self.drop_in());
                return Err(said);
            }
            files::accept(self.drop_in())?;
        } else {
            files::remove(self.drop_in())?;
        }
        let tested = self.test(None).and_then(|seen| self.counts(&seen, &staged));
        let done = tested.and_then(|()| self.graceful(pid).inspect_err(|_| restarted = true));
        done.map_err(|said| match files::put_back(self.drop_in(), before.as_deref()) {
            Ok(()) if restarted => {
                self.graceful(pid).err().map_or(said.clone(), |more| format!("{said}; and then {more}"))
            }
            Ok(()) => said,
            Err(more) => format!("{said}; and then {more}"),
        })
    }

    /// Writes what is staged whether or not the site's configuration is fine, but restarts only if it is: Apache ends
    /// when it is told to restart with a configuration that it cannot read.
    fn put_back(&self) -> Result<(), String> {
        let staged = std::mem::take(&mut *self.staged.borrow_mut());
        match self.with_staged(&staged) {
            Ok(text) => files::put_back(self.drop_in(), text.as_deref().map(str::as_bytes))?,
            // Somebody else's file by now, so nothing of ours is in it.
            Err(_) if files::contents(self.drop_in())?.is_some() => {}
            Err(said) => return Err(said),
        }
        let seen = self.test(None).map_err(|said| format!("put back on disk, but Apache is not restarted: {said}"))?;
        match self.pid(&seen) {
            Ok(pid) => self.graceful(pid),
            // It reads its configuration when it starts.
            Err(_) => Ok(()),
        }
    }

    /// Whether each staged line is the one that counts.
    fn counts(&self, seen: &Seen, staged: &BTreeMap<&'static str, Option<String>>) -> Result<(), String> {
        for (name, value) in staged.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
            // MaxClients is an older name of MaxRequestWorkers, which Apache reads as the same.
            let names: &[&str] = if *name == "MaxRequestWorkers" { &[name, "MaxClients"] } else { &[name] };
            match seen.last(names) {
                Some(line) if line.file != self.settings.drop_in && seen.lines.iter().any(|l| self.is_ours(l)) => {
                    return Err(format!(
                        "{} sets {name} after our {}: include ours last",
                        line.place(),
                        self.settings.drop_in
                    ));
                }
                Some(line) if self.is_ours(line) && line.value.eq_ignore_ascii_case(value) => {}
                _ => {
                    return Err(format!(
                        "Apache's configuration does not include {0}: add `IncludeOptional {0}` at its end",
                        self.settings.drop_in
                    ));
                }
            }
        }
        Ok(())
    }

    fn is_ours(&self, line: &Line) -> bool {
        line.file == self.settings.drop_in
    }

    /// A graceful restart needs places in the scoreboard beside the processes that still finish requests.
    fn has_room(&self) -> Result<(), String> {
        if self.settings.status_url.is_empty() {
            return Ok(());
        }
        self.status().map_or(Ok(()), |status| status.has_room().map_err(|error| error.to_string()))
    }

    /// Whether the running Apache works on at most so many requests at once, as far as server-status shows it.
    ///
    /// # Errors
    /// Both numbers, where they stay different.
    pub fn runs_with(&self, workers: &Value) -> Result<(), String> {
        let Value::Integer(workers) = workers else { return Ok(()) };
        let mut last = Ok(());
        let agreed = wait_for(AGREES_WITHIN_S, || {
            last = self.status().map_or(Ok(()), |status| status.fits(*workers).map_err(|error| error.to_string()));
            last.is_ok().then_some(())
        });
        agreed.map_or(last, Ok)
    }

    /// Restarts gracefully and waits until it is seen: the generation in server-status, else children that are new.
    fn graceful(&self, pid: u32) -> Result<(), String> {
        let generation = |apache: &Apache| apache.status().ok().and_then(|status| status.generation);
        let before = if self.settings.status_url.is_empty() { None } else { generation(self) };
        let newest = |proc: &Path| children(proc, pid).into_iter().map(|(_, started)| started).max().unwrap_or(0);
        let (newest_before, known) = (newest(&self.proc), children(&self.proc, pid));
        let target = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no process id")?;
        kill_process(target, Signal::USR1).map_err(|error| format!("Apache ({pid}) cannot be signalled: {error}"))?;
        let seen = wait_for(RESTARTED_WITHIN_S, || {
            let restarted = match before {
                Some(before) => generation(self).is_some_and(|now| now > before),
                None => {
                    let new = children(&self.proc, pid).iter().any(|child| !known.contains(child));
                    new && newest(&self.proc) >= newest_before
                }
            };
            restarted.then_some(())
        });
        seen.ok_or_else(|| format!("Apache ({pid}) has not restarted within {RESTARTED_WITHIN_S} s of a SIGUSR1"))
    }
}

/// A knob that is one directive of Apache's configuration.
pub struct Directive {
    apache: Rc<Apache>,
    name: &'static str,
    names: Vec<&'static str>,
    effective: fn(&Seen) -> Result<Reading, String>,
    plan: fn(&Seen, &Value) -> Result<Plan, String>,
    /// Whether it is this value that runs.
    runs: fn(&Apache, &Value) -> Result<(), String>,
}

impl Directive {
    /// The knob of directive `name`, also known by `others`.
    pub fn new(
        apache: Rc<Apache>,
        name: &'static str,
        others: &[&'static str],
        effective: fn(&Seen) -> Result<Reading, String>,
        plan: fn(&Seen, &Value) -> Result<Plan, String>,
    ) -> Directive {
        Directive { apache, name, names: [&[name], others].concat(), effective, plan, runs: |_, _| Ok(()) }
    }

    /// The same, where the running Apache can be asked for the value.
    pub fn seen_running(self, runs: fn(&Apache, &Value) -> Result<(), String>) -> Directive {
        Directive { runs, ..self }
    }

    /// What the site itself says; null when it leaves the default.
    fn sites_own(&self, seen: &Seen) -> Json {
        let theirs = seen.without(&self.apache.settings.drop_in);
        theirs.last(&self.names).map_or(Json::Null, |line| Json::from(line.value.clone()))
    }
}

impl Knob for Directive {
    fn door(&self) -> &'static str {
        "apache"
    }

    fn min_interval_s(&self) -> f64 {
        self.apache.settings.reload_min_interval_s
    }

    fn read(&self) -> Result<Reading, String> {
        let seen = self.apache.test(None)?;
        self.apache.pid(&seen)?;
        let reading = (self.effective)(&seen)?;
        (self.runs)(&self.apache, &reading.value)?;
        Ok(reading)
    }

    fn baseline(&self) -> Result<Json, String> {
        let seen = self.apache.test(None)?;
        self.apache.pid(&seen)?;
        if self.apache.ours()?.contains_key(self.name) {
            return Err(format!(
                "{} sets {} already, which nothing of ours explains",
                self.apache.settings.drop_in, self.name
            ));
        }
        Ok(self.sites_own(&seen))
    }

    fn plan(&self, _baseline: &Json, wanted: &Value) -> Result<Plan, String> {
        (self.plan)(&self.apache.test(None)?, wanted)
    }

    fn drift(&self, baseline: &Json, ours: &[Json]) -> Result<Option<String>, String> {
        let drop_in = &self.apache.settings.drop_in;
        let in_file = match self.apache.ours() {
            Ok(all) => all.get(self.name).map_or(Json::Null, |value| Json::from(value.clone())),
            Err(said) => return Ok(Some(said)),
        };
        if !in_file.is_null() && !ours.contains(&in_file) {
            return Ok(Some(format!("{drop_in} says {in_file} for {}, which is not ours", self.name)));
        }
        let theirs = self.sites_own(&self.apache.test(None)?);
        let say = |value: &Json| value.as_str().map_or("the default".to_owned(), str::to_owned);
        if theirs != *baseline {
            let name = self.name;
            return Ok(Some(format!("the site's own {name} is {} now, it was {}", say(&theirs), say(baseline))));
        }
        Ok(None)
    }

    fn apply(&self, ours: &Json) -> Result<(), String> {
        let text = ours.as_str().ok_or("what was kept is no text")?;
        self.apache.staged.borrow_mut().insert(self.name, Some(text.to_owned()));
        Ok(())
    }

    fn restore(&self, _baseline: &Json, _ours: &[Json]) -> Result<Vec<String>, String> {
        self.apache.staged.borrow_mut().insert(self.name, None);
        Ok(Vec::new())
    }

    fn commit(&self, restoring: bool) -> Result<(), String> {
        if restoring { self.apache.put_back() } else { self.apache.change() }
    }

    fn verify(&self, ours: &Json) -> Result<Reading, String> {
        let seen = self.apache.test(None)?;
        let mut reading = (self.effective)(&seen)?;
        match seen.last(&self.names) {
            Some(line) if self.apache.is_ours(line) && Some(line.value.as_str()) == ours.as_str() => {}
            other => return Err(format!("{} is {:?} now", self.name, other.map(|line| &line.value))),
        }
        (self.runs)(&self.apache, &reading.value)?;
        if let Some(generation) = self.apache.status().ok().and_then(|status| status.generation) {
            reading.how.push_str(&format!(", in effect since generation {generation}"));
        }
        Ok(reading)
    }
}
