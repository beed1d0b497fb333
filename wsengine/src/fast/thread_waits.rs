//! The input of `pareto`, read from the kernel: how long the web server's threads wait for a core, and how much CPU
//! time they take.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use slackwater_node::cgroup::find_processes;
use slackwater_node::files::text;
use slackwater_node::processes::{Schedstat, stat_fields, threads_named};

use crate::error::{Error, Result};

/// Threads that are read; further ones are left out.
const MOST_THREADS: usize = 2048;

/// Waits and CPU time of one period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waits {
    /// The longest of the threads' mean waits for a core, in ms.
    pub delay_ms: f64,
    /// CPU seconds per second.
    pub busy_cores: f64,
}

/// The web server's threads.
pub struct ThreadWaits {
    proc: PathBuf,
    /// The cgroup's list of its threads; `None`: by the names of processes.
    list: Option<PathBuf>,
    names: Vec<String>,
    before: BTreeMap<u32, Schedstat>,
    before_s: Option<f64>,
}

impl ThreadWaits {
    /// The threads of a cgroup; without a cgroup those of the processes with these names.
    ///
    /// # Errors
    /// When there is no such cgroup, or the kernel keeps no schedstat.
    pub fn open(proc: &Path, root: &Path, cgroup: &str, names: &[String]) -> Result<ThreadWaits> {
        if !proc.join("self/schedstat").is_file() {
            return Err(Error::Unavailable(
                "this kernel keeps no schedstat, so waits for a core are not known".to_owned(),
            ));
        }
        let list = if cgroup.is_empty() {
            None
        } else {
            let folder = find_processes(root, cgroup)?;
            Some(folder).map(|folder| {
                let v2 = folder.join("cgroup.threads");
                if v2.is_file() { v2 } else { folder.join("tasks") }
            })
        };
        let (before, before_s) = (BTreeMap::new(), None);
        Ok(ThreadWaits { proc: proc.to_owned(), list, names: names.to_vec(), before, before_s })
    }

    fn threads(&self) -> Result<Vec<u32>> {
        if let Some(list) = &self.list {
            return Ok(text(list)?.lines().filter_map(|line| line.parse().ok()).take(MOST_THREADS).collect());
        }
        Ok(threads_named(&self.proc, &self.names).into_iter().take(MOST_THREADS).collect())
    }

    /// The waits since the last call; `None` at the first call.
    ///
    /// # Errors
    /// When the threads cannot be listed.
    pub fn read(&mut self, now_s: f64) -> Result<Option<Waits>> {
        let read = |thread: u32| {
            let text = text(&self.proc.join(format!("{thread}/schedstat"))).ok()?;
            Some((thread, Schedstat::parse(&text)?))
        };
        // A thread that has ended meanwhile has none.
        let now: BTreeMap<u32, Schedstat> = self.threads()?.into_iter().filter_map(read).collect();
        let before = std::mem::replace(&mut self.before, now);
        let Some(before_s) = self.before_s.replace(now_s) else { return Ok(None) };
        let (mut delay_ns, mut busy_ns) = (0.0_f64, 0);
        for (thread, now) in &self.before {
            let last = before.get(thread).copied().unwrap_or_default();
            busy_ns += now.cpu_ns.saturating_sub(last.cpu_ns);
            let waited_ns = now.run_delay_ns.saturating_sub(last.run_delay_ns);
            delay_ns = delay_ns.max(waited_ns as f64 / now.turns.saturating_sub(last.turns).max(1) as f64);
        }
        let seconds = (now_s - before_s).max(1e-3);
        Ok(Some(Waits { delay_ms: delay_ns / 1e6, busy_cores: busy_ns as f64 / 1e9 / seconds }))
    }
}

/// The core that a thread ran on last.
pub fn core_of(proc: &Path, thread: u32) -> Option<u32> {
    let stat = text(&proc.join(thread.to_string()).join("stat")).ok()?;
    stat_fields(&stat)?.nth(36)?.parse().ok()
}
