//! Processes and their threads, as /proc lists them.

use std::io;
use std::path::Path;

use crate::files::text;

/// The kernel keeps this much of a command's name.
const NAME_BYTES: usize = 15;

/// The files of a folder whose names are numbers: the processes in `/proc`, the threads in `/proc/PID/task`.
///
/// # Errors
/// When the folder cannot be read.
pub fn numbers(folder: &Path) -> io::Result<impl Iterator<Item = u32> + use<>> {
    let entries = std::fs::read_dir(folder)?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// A command's name as far as the kernel keeps it.
pub fn kept_name(name: &str) -> &str {
    let end = (0..=NAME_BYTES.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or_default()]
}

/// The name of a process's command; empty when the process has ended.
pub fn command_name(proc: &Path, pid: u32) -> String {
    text(&proc.join(pid.to_string()).join("comm")).unwrap_or_default()
}

/// The processes whose command has one of these names, in order.
pub fn named(proc: &Path, names: &[String]) -> Vec<u32> {
    let is_named = |pid: &u32| {
        let name = command_name(proc, *pid);
        names.iter().any(|wanted| kept_name(wanted) == name)
    };
    let mut pids: Vec<u32> = numbers(proc).into_iter().flatten().filter(is_named).collect();
    pids.sort_unstable();
    pids
}

/// The threads of the processes whose command has one of these names.
pub fn threads_named(proc: &Path, names: &[String]) -> Vec<u32> {
    let tasks = |pid: u32| numbers(&proc.join(pid.to_string()).join("task")).into_iter().flatten();
    named(proc, names).into_iter().flat_map(tasks).collect()
}

/// The scheduler's account of a thread since its start, from its file `schedstat`.
///
/// Form: the kernel's Documentation/scheduler/sched-stats.rst.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Schedstat {
    /// CPU time.
    pub cpu_ns: u64,
    /// Time for which the thread was ready to run and did not run.
    pub run_delay_ns: u64,
    /// Turns on a core.
    pub turns: u64,
}

impl Schedstat {
    /// Reads the text of the file.
    pub fn parse(text: &str) -> Option<Schedstat> {
        let mut fields = text.split_ascii_whitespace().map_while(|field| field.parse().ok());
        Some(Schedstat { cpu_ns: fields.next()?, run_delay_ns: fields.next()?, turns: fields.next()? })
    }
}

/// The fields of a file `stat` of a process or thread from its state on, which is field 3 in proc(5). The name before
/// them may hold spaces and brackets.
pub fn stat_fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn processes_and_threads_are_known_by_the_name_that_the_kernel_keeps() {
        let fixture = Fixture::new(&[
            ("proc/12/comm", "apache2\n"),
            ("proc/12/task/12/comm", "apache2\n"),
            ("proc/12/task/14/comm", "apache2\n"),
            ("proc/7/comm", "a-very-long-nam\n"),
            ("proc/8/comm", "apache2x\n"),
            ("proc/self/comm", "apache2\n"),
        ]);
        let names = ["apache2", "a-very-long-name-indeed"].map(str::to_owned);
        assert_eq!(named(&fixture.path("proc"), &names), [7, 12]);
        let mut threads = threads_named(&fixture.path("proc"), &names);
        threads.sort_unstable();
        assert_eq!(threads, [12, 14]);
        assert_eq!(kept_name("prozeß-müller-x"), "prozeß-müller");
    }

    #[test]
    fn a_schedstat_is_three_numbers_and_the_fields_of_a_stat_stand_behind_any_name() {
        assert_eq!(Schedstat::parse("5 7 2\n"), Some(Schedstat { cpu_ns: 5, run_delay_ns: 7, turns: 2 }));
        for bad in ["", "5", "5 7", "-5 7 2", "a b c"] {
            assert_eq!(Schedstat::parse(bad), None, "{bad:?}");
        }
        let fields = stat_fields("9 (a) (b) S 1 5\n").expect("a name");
        assert_eq!(fields.collect::<Vec<_>>(), ["S", "1", "5"]);
        assert!(stat_fields("9 a S 1").is_none());
    }
}
