//! A server's processes: its main process by the pid file, processes by their titles, and children.

use std::fmt::Display;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use slackwater_node::files::text;
use slackwater_node::processes::{command_name, numbers, stat_fields};

use crate::error::{Error, Result};

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
/// When there is no such process, or this user may not signal it.
pub fn send_signal(pid: u32, signal: Signal, server: &str) -> Result<()> {
    let failed = |error: &dyn Display| Error::Process(format!("{server} ({pid}) cannot be signalled: {error}"));
    let target = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| failed(&"no process id"))?;
    kill_process(target, signal).map_err(|error| failed(&error))
}

/// The processes whose whole command line is this title.
pub fn processes_titled(proc: &Path, title: &str) -> Vec<u32> {
    let is_titled = |pid: &u32| {
        let line = std::fs::read(proc.join(pid.to_string()).join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).trim_matches('\0').trim() == title
    };
    numbers(proc).into_iter().flatten().filter(is_titled).collect()
}

/// Children of a process with the time of their start, in ticks since boot.
pub fn children(proc: &Path, parent: u32) -> Vec<(u32, u64)> {
    let child = |pid: u32| {
        let stat = text(&proc.join(pid.to_string()).join("stat")).ok()?;
        let mut fields = stat_fields(&stat)?;
        let is_alive = fields.next()? != "Z";
        let is_child = is_alive && fields.next()?.parse() == Ok(parent);
        is_child.then_some((pid, fields.nth(17)?.parse().ok()?))
    };
    numbers(proc).into_iter().flatten().filter_map(child).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    #[test]
    fn children_are_found_with_their_start_and_zombies_are_not() {
        let stat = |comm: &str, state: &str, ppid: u32, start: u64| {
            let zeros = "0 ".repeat(17);
            format!("9 ({comm}) {state} {ppid} {zeros}{start} 0 0\n")
        };
        let fixture = Fixture::new(&[
            ("proc/10/stat", &stat("apache2", "S", 1, 5)),
            ("proc/11/stat", &stat("a) (b", "S", 10, 77)),
            ("proc/12/stat", &stat("apache2", "Z", 10, 78)),
            ("proc/12/cmdline", "php-fpm: master process (/a.conf)\0\0\0"),
            ("proc/13/cmdline", "php-fpm: master process (/b.conf)\0"),
        ]);
        assert_eq!(children(&fixture.path("proc"), 10), [(11, 77)]);
        assert_eq!(processes_titled(&fixture.path("proc"), "php-fpm: master process (/a.conf)"), [12]);
    }
}
