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

#[cfg(test)]
mod tests {
    use rustix::thread::{CpuSet, gettid, sched_setaffinity};

    use super::*;

    #[test]
    fn the_cpus_of_a_process_are_those_of_its_affinity() {
        let own = std::thread::spawn(|| {
            let all = sched_getaffinity(None).expect("an affinity");
            let mut first = CpuSet::new();
            first.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("a CPU"));
            sched_setaffinity(None, &first).expect("a CPU of its own affinity");
            cpus_of(gettid().as_raw_nonzero().get().unsigned_abs())
        });
        assert_eq!(own.join().expect("the thread ends"), Some(1));
        assert_eq!(cpus_of(u32::MAX), None);
    }
}
