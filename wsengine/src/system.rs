//! The system: roots of the kernel's trees, clocks and processes. Tests point the roots at trees of files.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use slackwater_node::files::text;

use crate::error::{Error, Result};

/// Where to look, and what time it is.
#[derive(Clone)]
pub struct System {
    /// Usually `/proc`.
    pub proc: PathBuf,
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
    /// Seconds that only go forward, from an arbitrary start.
    pub monotonic_s: Rc<dyn Fn() -> f64>,
    /// Seconds since 1970: to judge an Order's age, and as a label.
    pub unix_s: Rc<dyn Fn() -> f64>,
}

impl System {
    /// This machine.
    pub fn machine() -> System {
        let start = Instant::now();
        System {
            proc: PathBuf::from("/proc"),
            sys: PathBuf::from("/sys"),
            cgroup: PathBuf::from("/sys/fs/cgroup"),
            monotonic_s: Rc::new(move || start.elapsed().as_secs_f64()),
            unix_s: Rc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()),
        }
    }
}

/// Tries every 20 ms until there is an answer; `None` when there was none within `seconds`.
pub fn wait_for<T>(seconds: f64, mut answer: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        if let Some(found) = answer() {
            return Some(found);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The process that a server's pid file names, if its command name starts with one of `names`. `server` is for messages.
///
/// # Errors
/// When the server does not run.
pub fn pid_in_file(proc: &Path, file: &Path, server: &str, names: &[&str]) -> Result<u32> {
    let stopped = |error: &dyn Display| Error::Unavailable(format!("{server} does not run: {error}"));
    let text = text(file).map_err(|error| stopped(&error))?;
    let no_pid = |_| Error::Unavailable(format!("{} holds no process id", file.display()));
    let pid: u32 = text.parse().map_err(no_pid)?;
    let name = command_name(proc, pid);
    if names.iter().any(|start| name.starts_with(start)) {
        return Ok(pid);
    }
    Err(stopped(&format!("{} names process {pid}, which is {name:?}", file.display())))
}

/// Sends a signal to a process. `server` is for messages.
///
/// # Errors
/// When there is no such process, or it is not ours to signal.
pub fn send_signal(pid: u32, signal: Signal, server: &str) -> Result<()> {
    let failed = |error: &dyn Display| Error::Process(format!("{server} ({pid}) cannot be signalled: {error}"));
    let target = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| failed(&"no process id"))?;
    kill_process(target, signal).map_err(|error| failed(&error))
}

fn command_name(proc: &Path, pid: u32) -> String {
    text(&proc.join(pid.to_string()).join("comm")).unwrap_or_default()
}

/// The processes whose command name is one of `names` (of 15 characters, as the kernel keeps them).
pub fn processes_named(proc: &Path, names: &[String]) -> Vec<u32> {
    let mut found: Vec<u32> = std::fs::read_dir(proc)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let name = command_name(proc, *pid);
            names.iter().any(|wanted| wanted.chars().take(15).eq(name.chars()))
        })
        .collect();
    found.sort_unstable();
    found
}

/// Children of a process with the time of their start, in ticks since boot.
pub fn children(proc: &Path, parent: u32) -> Vec<(u32, u64)> {
    let child = |pid: u32| {
        let stat = text(&proc.join(pid.to_string()).join("stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let alive = *fields.first()? != "Z";
        let is_child = alive && fields.get(1)?.parse() == Ok(parent);
        is_child.then_some((pid, fields.get(19)?.parse().ok()?))
    };
    std::fs::read_dir(proc)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| child(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

#[cfg(test)]
pub(crate) mod fixture {
    //! A tree of files and a clock that a test moves.

    use std::cell::Cell;
    use std::ops::Deref;
    use std::rc::Rc;

    use slackwater_node::fixture;

    use super::System;

    pub(crate) struct Fixture {
        files: fixture::Fixture,
        now_s: Rc<Cell<f64>>,
    }

    impl Deref for Fixture {
        type Target = fixture::Fixture;

        fn deref(&self) -> &fixture::Fixture {
            &self.files
        }
    }

    impl Fixture {
        pub(crate) fn new(files: &[(&str, &str)]) -> Fixture {
            Fixture { files: fixture::Fixture::new(files), now_s: Rc::new(Cell::new(100.0)) }
        }

        pub(crate) fn advance_s(&self, seconds: f64) {
            self.now_s.set(self.now_s.get() + seconds);
        }

        pub(crate) fn system(&self) -> System {
            let (monotonic, wall) = (self.now_s.clone(), self.now_s.clone());
            System {
                proc: self.path("proc"),
                sys: self.path("sys"),
                cgroup: self.path("cgroup"),
                monotonic_s: Rc::new(move || monotonic.get()),
                unix_s: Rc::new(move || wall.get() + 1_795_000_000.0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_found_with_their_start_and_zombies_are_not() {
        let stat = |comm: &str, state: &str, ppid: u32, start: u64| {
            let zeros = "0 ".repeat(17);
            format!("9 ({comm}) {state} {ppid} {zeros}{start} 0 0\n")
        };
        let fixture = fixture::Fixture::new(&[
            ("proc/10/stat", &stat("apache2", "S", 1, 5)),
            ("proc/11/stat", &stat("a) (b", "S", 10, 77)),
            ("proc/12/stat", &stat("apache2", "Z", 10, 78)),
            ("proc/11/comm", "apache2\n"),
            ("proc/self/comm", "apache2\n"),
        ]);
        assert_eq!(children(&fixture.path("proc"), 10), [(11, 77)]);
        assert_eq!(processes_named(&fixture.path("proc"), &["apache2".to_owned()]), [11]);
    }
}
