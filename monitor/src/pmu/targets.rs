//! The targets of a scope, and whether they have changed since its events were opened: CPUs come and go, a cgroup is
//! made anew, processes start others.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::time::ClockId;
use slackwater_messages::AbsenceCause;
use slackwater_node::list::parse_list;
use slackwater_node::processes::{numbers, stat_fields};
use slackwater_node::system::System;

use super::group::Target;
use crate::config::ProcessSettings;
use crate::kernel_file::{KeptFile, Reader};
use crate::processes::Finder;
use crate::reason::Reason;
use crate::timer::clock_ns;

/// Processes and threads are looked for again after this time, or after `SCAN_SHARE` times what looking took.
const SCAN_EVERY_NS: u64 = 1_000_000_000;
/// Looking takes at most one part in this many of one core.
const SCAN_SHARE: u64 = 500;
/// The kernel counts the start of threads in this unit.
const TICK_NS: u64 = 10_000_000;

/// Finds the targets that are to be counted.
pub trait TargetSource {
    /// The targets, when they differ from those that count already; all of them are then opened again. `None`: those
    /// that count may go on. `is_closed`: nothing counts at the moment.
    ///
    /// # Errors
    /// Why there is nothing to count.
    fn look(&mut self, is_closed: bool) -> Result<Option<Vec<Target>>, Reason>;

    /// Called when the targets of the last look have been opened; `_inherits`: the kernel counts their children with
    /// them.
    fn opened(&mut self, _inherits: bool) {}

    /// Whether a thread's new children are counted with it, as far as the kernel can.
    fn inherits(&self) -> bool {
        false
    }

    /// The highest `kernel.perf_event_paranoid` that allows counting without capabilities.
    fn paranoid_needed(&self) -> i32 {
        0
    }
}

/// All CPUs that are online.
pub struct CpuTargets {
    online: KeptFile,
    reader: Reader,
    opened: Vec<i32>,
}

impl CpuTargets {
    /// Nothing is read yet.
    pub fn new(system: &System) -> CpuTargets {
        let online = KeptFile::new(system.sys.join("devices/system/cpu/online"));
        CpuTargets { online, reader: Reader::default(), opened: Vec::new() }
    }

    /// The CPUs, when they differ from those of the last call.
    fn changed(&mut self) -> Result<Option<&[i32]>, Reason> {
        let now = self.online.parse(&mut self.reader, parse_cpu_list)?;
        let is_same = now == self.opened;
        self.opened = now;
        Ok((!is_same).then_some(self.opened.as_slice()))
    }
}

impl TargetSource for CpuTargets {
    fn look(&mut self, is_closed: bool) -> Result<Option<Vec<Target>>, Reason> {
        if is_closed {
            self.opened.clear();
        }
        Ok(self.changed()?.map(|cpus| cpus.iter().map(|cpu| Target::Cpu(*cpu)).collect()))
    }
}

/// The CPUs of a list, as perf_event_open takes them; a machine has at least one.
fn parse_cpu_list(text: &str) -> Option<Vec<i32>> {
    let cpus = parse_list(text)?;
    if cpus.is_empty() { None } else { cpus.into_iter().map(|cpu| i32::try_from(cpu).ok()).collect() }
}

/// A cgroup on each CPU.
pub struct CgroupTargets {
    cpus: CpuTargets,
    candidates: Vec<PathBuf>,
    name: String,
    opened: Option<(File, (u64, u64))>,
}

impl CgroupTargets {
    /// The cgroup `name`, relative to the root of its tree.
    pub fn new(name: &str, system: &System) -> CgroupTargets {
        let inner = name.trim_matches('/');
        // In version 1 the controller has a tree of its own; in version 2 it belongs to each cgroup.
        let candidates =
            ["perf_event", "", "unified"].iter().map(|tree| system.cgroup.join(tree).join(inner)).collect();
        CgroupTargets { cpus: CpuTargets::new(system), candidates, name: name.to_owned(), opened: None }
    }

    fn directory(&self) -> Result<&Path, Reason> {
        let directory = self.candidates.iter().find(|path| path.join("cgroup.procs").is_file());
        directory.map(PathBuf::as_path).ok_or_else(|| {
            let text = format!("cgroup {}: not below perf_event/, nor in version 2's tree", self.name);
            Reason::new(AbsenceCause::NoCgroup, text)
        })
    }
}

impl TargetSource for CgroupTargets {
    fn look(&mut self, is_closed: bool) -> Result<Option<Vec<Target>>, Reason> {
        let path = self.directory()?.to_owned();
        let unreadable = |error| Reason::of_file(&path, &error);
        let metadata = fs::metadata(&path).map_err(unreadable)?;
        let identity = (metadata.dev(), metadata.ino());
        let is_another = self.opened.as_ref().is_none_or(|(_, opened)| *opened != identity);
        if is_another {
            self.opened = Some((File::open(&path).map_err(unreadable)?, identity));
        }
        if is_closed || is_another {
            self.cpus.opened.clear();
        }
        let directory = self.opened.as_ref().map_or(-1, |(file, _)| file.as_raw_fd());
        Ok(self.cpus.changed()?.map(|cpus| cpus.iter().map(|cpu| Target::Cgroup(directory, *cpu)).collect()))
    }
}

/// The threads of the web server's processes, and what they start.
pub struct ThreadTargets {
    proc: PathBuf,
    finder: Finder,
    monotonic_ns: std::rc::Rc<dyn Fn() -> u64>,
    /// (process, thread) that count, by themselves or with the thread that started them.
    counted: HashSet<(u32, u32)>,
    opened_boot_ns: u64,
    opened: usize,
    /// Whether the last scan found targets.
    last_scan: Result<(), Reason>,
    scan_at_ns: u64,
}

impl ThreadTargets {
    /// Nothing is read yet.
    pub fn new(settings: &ProcessSettings, system: &System) -> ThreadTargets {
        ThreadTargets {
            proc: system.proc.clone(),
            finder: Finder::new(settings, system),
            monotonic_ns: system.monotonic_ns.clone(),
            counted: HashSet::new(),
            opened_boot_ns: 0,
            opened: 0,
            last_scan: Ok(()),
            scan_at_ns: 0,
        }
    }

    fn threads(&mut self) -> Result<Vec<(u32, u32)>, Reason> {
        let mut threads = Vec::new();
        for process in self.finder.find()? {
            // A process that ended since it was listed has no threads.
            let tasks = numbers(&self.proc.join(process.to_string()).join("task"));
            threads.extend(tasks.into_iter().flatten().map(|thread| (process, thread)));
        }
        if threads.is_empty() { Err("the web server's processes have ended".into()) } else { Ok(threads) }
    }

    /// Whether a new thread counts already, with the one that started it.
    fn is_inherited(&self, process: u32, thread: u32) -> bool {
        let stat = self.proc.join(format!("{process}/task/{thread}/stat"));
        // A thread that is gone again need not be opened.
        let Some((parent, start_ns)) = fs::read_to_string(stat).ok().and_then(|text| parse_thread(&text)) else {
            return true;
        };
        let is_known = |process: u32| self.counted.iter().any(|(known, _)| *known == process);
        start_ns > self.opened_boot_ns && (is_known(process) || is_known(parent))
    }

    fn scan(&mut self, is_closed: bool) -> Result<Option<Vec<Target>>, Reason> {
        let now = self.threads()?;
        let mut all_count = !is_closed;
        for (process, thread) in &now {
            if all_count && !self.counted.contains(&(*process, *thread)) {
                all_count = self.is_inherited(*process, *thread);
                self.counted.insert((*process, *thread));
            }
        }
        self.counted.retain(|known| now.contains(known));
        // Files of threads that are gone are given back once they are many.
        let is_lean = self.opened <= 8 || self.counted.len() * 2 >= self.opened;
        if all_count && is_lean {
            return Ok(None);
        }
        self.counted = now.iter().copied().collect();
        // A thread that starts before these are open is not counted with them.
        self.opened_boot_ns = u64::MAX;
        self.opened = now.len();
        let target = |(_, thread): &(u32, u32)| Target::Thread(i32::try_from(*thread).unwrap_or(i32::MAX));
        Ok(Some(now.iter().map(target).collect()))
    }
}

impl TargetSource for ThreadTargets {
    fn look(&mut self, is_closed: bool) -> Result<Option<Vec<Target>>, Reason> {
        let now_ns = (self.monotonic_ns)();
        if now_ns < self.scan_at_ns {
            return self.last_scan.clone().map(|()| None);
        }
        let targets = self.scan(is_closed);
        self.last_scan = targets.as_ref().map(|_| ()).map_err(Clone::clone);
        let took_ns = (self.monotonic_ns)().saturating_sub(now_ns);
        self.scan_at_ns = now_ns + SCAN_EVERY_NS.max(took_ns.saturating_mul(SCAN_SHARE));
        targets
    }

    fn opened(&mut self, inherits: bool) {
        self.opened_boot_ns = if inherits { boot_ns() } else { u64::MAX };
    }

    fn inherits(&self) -> bool {
        true
    }

    fn paranoid_needed(&self) -> i32 {
        1
    }
}

/// The parent and the start (since boot) from /proc/PID/task/TID/stat.
fn parse_thread(text: &str) -> Option<(u32, u64)> {
    let mut fields = stat_fields(text)?;
    let parent = fields.nth(1)?.parse().ok()?;
    let start: u64 = fields.nth(17)?.parse().ok()?;
    Some((parent, start.saturating_mul(TICK_NS)))
}

fn boot_ns() -> u64 {
    clock_ns(ClockId::Boottime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn stat(parent: u32, start_ticks: u64) -> String {
        format!("7 (a) (b c) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start_ticks} 0 0\n")
    }

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_cpu_list("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse_cpu_list("0\n"), Some(vec![0]));
        assert_eq!((parse_cpu_list(""), parse_cpu_list("0-x")), (None, None));
    }

    #[test]
    fn cpus_are_opened_anew_when_one_comes_or_goes() {
        let fixture = Fixture::new(&[("sys/devices/system/cpu/online", "0-1\n")]);
        let mut cpus = CpuTargets::new(&fixture.system());
        assert_eq!(cpus.look(true), Ok(Some(vec![Target::Cpu(0), Target::Cpu(1)])));
        assert_eq!(cpus.look(false), Ok(None));
        fixture.write("sys/devices/system/cpu/online", "1\n");
        assert_eq!(cpus.look(false), Ok(Some(vec![Target::Cpu(1)])));
        assert_eq!(cpus.look(true), Ok(Some(vec![Target::Cpu(1)])), "what was closed is opened again");
    }

    #[test]
    fn a_cgroup_of_either_version_is_found_and_opened_anew_when_it_was_made_anew() {
        for place in ["cgroup/perf_event/web/a", "cgroup/web/a", "cgroup/unified/web/a"] {
            let procs = format!("{place}/cgroup.procs");
            let fixture = Fixture::new(&[("sys/devices/system/cpu/online", "0\n"), (&procs, "")]);
            let mut cgroup = CgroupTargets::new("/web/a", &fixture.system());
            assert!(
                matches!(cgroup.look(true).expect("the cgroup").as_deref(), Some([Target::Cgroup(_, 0)])),
                "{place}"
            );
            assert_eq!(cgroup.look(false), Ok(None));
            fixture.remove(place);
            assert!(cgroup.look(false).unwrap_err().starts_with("cgroup /web/a: not below"));
            fixture.write(&procs, "");
            assert!(cgroup.look(false).expect("the cgroup").is_some(), "{place}");
        }
    }

    #[test]
    fn threads_that_a_counted_one_started_count_with_it_and_others_make_all_open_anew() {
        let old = boot_ns() / TICK_NS - 1000;
        let young = boot_ns() / TICK_NS + 100_000;
        let fixture = Fixture::new(&[("proc/5/comm", "apache2\n"), ("proc/5/task/5/stat", &stat(1, old))]);
        let mut threads = ThreadTargets::new(&ProcessSettings::default(), &fixture.system());
        let mut look = |is_closed| {
            fixture.advance_s(2.0);
            let targets = threads.look(is_closed);
            threads.opened(true);
            targets
        };
        assert_eq!(look(true), Ok(Some(vec![Target::Thread(5)])));
        assert_eq!(look(false), Ok(None));
        // A thread of it, a child, and the child's child.
        fixture.write("proc/5/task/6/stat", &stat(1, young));
        for (process, parent) in [("7", 5), ("8", 7)] {
            fixture.write(&format!("proc/{process}/comm"), "apache2\n");
            fixture.write(&format!("proc/{process}/task/{process}/stat"), &stat(parent, young));
            assert_eq!(look(false), Ok(None), "{process}");
        }
        // A child that began before the counting, and one of somebody else's.
        for (process, parent, start) in [("9", 5, old), ("10", 1, young)] {
            fixture.write(&format!("proc/{process}/comm"), "apache2\n");
            fixture.write(&format!("proc/{process}/task/{process}/stat"), &stat(parent, start));
            let targets = look(false).expect("processes").expect("other targets");
            assert!(targets.contains(&Target::Thread(process.parse().expect("a number"))), "{targets:?}");
            assert_eq!(look(false), Ok(None));
        }
        fixture.remove("proc");
        fixture.write("proc/1/comm", "init\n");
        assert_eq!(look(false), Err(Reason::new(AbsenceCause::NoProcess, "no process is named apache2 or php-fpm8.2")));
    }

    #[test]
    fn between_two_scans_nothing_is_looked_for() {
        let fixture = Fixture::new(&[("proc/5/comm", "apache2\n"), ("proc/5/task/5/stat", &stat(1, 1))]);
        let mut threads = ThreadTargets::new(&ProcessSettings::default(), &fixture.system());
        assert!(threads.look(true).expect("threads").is_some());
        fixture.remove("proc/5");
        fixture.advance_s(0.5);
        assert_eq!(threads.look(false), Ok(None));
        fixture.advance_s(0.6);
        assert!(threads.look(false).is_err());
        fixture.advance_s(0.5);
        assert!(threads.look(true).is_err(), "the reason stays");
    }

    #[test]
    fn files_of_threads_that_are_gone_are_given_back() {
        let fixture = Fixture::new(&[("proc/5/comm", "apache2\n"), ("proc/5/task/5/stat", &stat(1, 1))]);
        for thread in 10..30 {
            fixture.write(&format!("proc/5/task/{thread}/stat"), &stat(1, 1));
        }
        let mut threads = ThreadTargets::new(&ProcessSettings::default(), &fixture.system());
        assert_eq!(threads.look(true).expect("threads").map(|targets| targets.len()), Some(21));
        for thread in 10..30 {
            fixture.remove(&format!("proc/5/task/{thread}"));
        }
        fixture.advance_s(2.0);
        assert_eq!(threads.look(false), Ok(Some(vec![Target::Thread(5)])));
    }
}
