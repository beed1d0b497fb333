//! The operating system as the programs see it: the roots of the kernel's trees, and the clocks. Tests point the roots
//! at trees of files and hold the clocks.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Pid;
use rustix::thread::sched_getaffinity;

/// The roots of the kernel's trees, and the clocks.
#[derive(Clone)]
pub struct System {
    /// Usually `/proc`.
    pub proc: PathBuf,
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
    /// Nanoseconds that only go forward, from an arbitrary start.
    pub monotonic_ns: Rc<dyn Fn() -> u64>,
    /// Nanoseconds since 1970, for labels and for the age of messages; never used for durations.
    pub wall_ns: Rc<dyn Fn() -> u64>,
    /// On how many CPUs the process with this id may run, by its affinity and its cpuset; `None` where it is gone.
    pub cpus_of: Rc<dyn Fn(u32) -> Option<u64>>,
}

impl System {
    /// This machine.
    pub fn machine() -> System {
        let start = Instant::now();
        System {
            proc: PathBuf::from("/proc"),
            sys: PathBuf::from("/sys"),
            cgroup: PathBuf::from("/sys/fs/cgroup"),
            monotonic_ns: Rc::new(move || nanoseconds(start.elapsed())),
            wall_ns: Rc::new(|| nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())),
            cpus_of: Rc::new(cpus_of),
        }
    }

    /// The time of `monotonic_ns` in seconds.
    pub fn monotonic_s(&self) -> f64 {
        (self.monotonic_ns)() as f64 / 1e9
    }

    /// The time of `wall_ns` in seconds.
    pub fn unix_s(&self) -> f64 {
        (self.wall_ns)() as f64 / 1e9
    }
}

fn cpus_of(process: u32) -> Option<u64> {
    let pid = Pid::from_raw(i32::try_from(process).ok()?)?;
    Some(u64::from(sched_getaffinity(Some(pid)).ok()?.count()))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
