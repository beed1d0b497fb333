//! Which processes are the web server's: those with one of the names, or those of a cgroup and the ones below it.
//!
//! Looking through /proc is the most expensive part of the monitor on a machine with many processes. So a process's
//! name is read when the process is new (and again soon, since a fork is named after its parent until it calls exec),
//! and later only now and then.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use slackwater_messages::AbsenceCause::NoProcess;
use slackwater_node::cgroup;
use slackwater_node::processes::{kept_name, numbers};
use slackwater_node::system::System;

use crate::config::ProcessSettings;
use crate::kernel_file::Reader;
use crate::reason::Reason;

/// A name counts as settled after this many looks.
pub const LOOKS: u8 = 3;
/// Settled names are read again in one of this many scans.
const ROUNDS: u32 = 16;

/// Finds the processes, once a scan.
pub struct Finder {
    proc: PathBuf,
    cgroups: PathBuf,
    names: Vec<String>,
    cgroup: String,
    known: HashMap<u32, KnownProcess>,
    round: u32,
    reader: Reader,
}

#[derive(Clone, Copy)]
struct KnownProcess {
    matches: bool,
    looks: u8,
    round: u32,
}

impl Finder {
    /// Nothing is read yet.
    pub fn new(settings: &ProcessSettings, system: &System) -> Finder {
        Finder {
            proc: system.proc.clone(),
            cgroups: system.cgroup.clone(),
            names: settings.names.iter().map(|name| kept_name(name).to_owned()).collect(),
            cgroup: settings.cgroup.clone(),
            known: HashMap::new(),
            round: 0,
            reader: Reader::default(),
        }
    }

    /// The present processes, in order.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(&mut self) -> Result<Vec<u32>, Reason> {
        let mut pids = if self.cgroup.is_empty() { self.by_name()? } else { self.by_cgroup()? };
        pids.sort_unstable();
        pids.dedup();
        if !pids.is_empty() {
            return Ok(pids);
        }
        Err(match self.cgroup.as_str() {
            "" if self.names.is_empty() => Reason::from("no process names are configured"),
            "" => Reason::new(NoProcess, format!("no process is named {}", self.names.join(" or "))),
            cgroup => Reason::new(NoProcess, format!("cgroup {cgroup} holds no process")),
        })
    }

    fn by_name(&mut self) -> Result<Vec<u32>, Reason> {
        self.round = self.round.wrapping_add(1);
        let mut matching = Vec::new();
        for pid in numbers(&self.proc).map_err(|error| Reason::of_file(&self.proc, &error))? {
            let known = self.known.entry(pid).or_insert(KnownProcess { matches: false, looks: 0, round: 0 });
            if known.looks < LOOKS || known.matches || pid % ROUNDS == self.round % ROUNDS {
                // A process that ended meanwhile has no name.
                let file = File::open(self.proc.join(pid.to_string()).join("comm"));
                let name = file.and_then(|file| self.reader.read(&file).map(|name| name.trim_end_matches('\n')));
                known.matches = name.is_ok_and(|name| self.names.iter().any(|wanted| wanted == name));
                known.looks = known.looks.saturating_add(1);
            }
            known.round = self.round;
            if known.matches {
                matching.push(pid);
            }
        }
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
        Ok(matching)
    }

    fn by_cgroup(&self) -> Result<Vec<u32>, Reason> {
        let top = cgroup::find_processes(&self.cgroups, &self.cgroup)?;
        let mut pids = Vec::new();
        collect_processes(&top, &mut pids);
        Ok(pids)
    }
}

/// Adds the processes of a cgroup and of the cgroups below it. A cgroup that vanishes meanwhile holds none. 0 stands
/// for a process outside our PID namespace.
fn collect_processes(directory: &Path, pids: &mut Vec<u32>) {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid != 0));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_processes(&entry.path(), pids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn named(fixture: &Fixture, names: &[&str]) -> Finder {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Finder::new(&ProcessSettings { names, cgroup: String::new() }, &fixture.system())
    }

    #[test]
    fn processes_are_found_by_the_name_that_the_kernel_keeps() {
        let fixture = Fixture::new(&[
            ("proc/12/comm", "apache2\n"),
            ("proc/7/comm", "a-very-long-nam\n"),
            ("proc/8/comm", "apache2x\n"),
            ("proc/self/comm", "apache2\n"),
        ]);
        assert_eq!(named(&fixture, &["apache2", "a-very-long-name-indeed"]).find(), Ok(vec![7, 12]));
        assert_eq!(
            named(&fixture, &["nginx", "httpd"]).find(),
            Err(Reason::new(NoProcess, "no process is named nginx or httpd"))
        );
    }

    #[test]
    fn a_process_that_calls_exec_later_is_found_and_one_that_vanishes_is_forgotten() {
        let fixture = Fixture::new(&[("proc/12/comm", "sh\n")]);
        let mut finder = named(&fixture, &["apache2"]);
        assert!(finder.find().is_err());
        fixture.write("proc/12/comm", "apache2\n");
        assert_eq!(finder.find(), Ok(vec![12]));
        fixture.remove("proc/12");
        assert!(finder.find().is_err());
        assert!(finder.known.is_empty());
    }

    #[test]
    fn a_settled_name_is_read_again_within_some_scans() {
        let fixture = Fixture::new(&[("proc/12/comm", "sh\n")]);
        let mut finder = named(&fixture, &["apache2"]);
        for _ in 0..10 {
            assert!(finder.find().is_err());
        }
        fixture.write("proc/12/comm", "apache2\n");
        assert!((0..ROUNDS).any(|_| finder.find().is_ok()));
    }

    #[test]
    fn a_cgroup_counts_with_the_ones_below_it() {
        let fixture = Fixture::new(&[
            ("cgroup/cpu/web/cgroup.procs", "5\n0\n"),
            ("cgroup/cpu/web/php/pool/cgroup.procs", "9\n7\n"),
            ("cgroup/cpu/other/cgroup.procs", "1\n"),
            ("cgroup/cpu/empty/cgroup.procs", ""),
        ]);
        let find = |cgroup: &str| {
            let settings = ProcessSettings { names: vec!["ignored".to_owned()], cgroup: cgroup.to_owned() };
            Finder::new(&settings, &fixture.system()).find()
        };
        assert_eq!(find("/web"), Ok(vec![5, 7, 9]));
        assert_eq!(find("empty"), Err(Reason::new(NoProcess, "cgroup empty holds no process")));
        assert!(find("gone").unwrap_err().starts_with("cgroup gone: no cgroup.procs below"));
    }
}
