//! Why a thread that slept until a moment runs later than that: it waited in its own kernel's run queue, which the kernel
//! counts, or the timer itself came late, since the machine was not running.
//!
//! Idle CPUs need no separate treatment: a wait behind work of this machine counts as queue. Run delay is counted from
//! when the kernel puts the thread into the queue (`sched_info` of the kernel's kernel/sched/stats.h).

use std::path::Path;
use std::time::Instant;

use crate::counter_delta::GrowthLimit;
use crate::kernel_file::{KeptFile, Reader};
use crate::reason::Reason;
use slackwater_node::processes::Schedstat;

const NO_SCHEDSTAT: &str = "the kernel keeps no schedstat (CONFIG_SCHED_INFO)";

/// The scheduler's account of the thread that opened this.
pub struct Wakeups {
    file: KeptFile,
    reader: Reader,
    last: Option<(Schedstat, Instant)>,
}

/// The scheduler's counts between two readings, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduled {
    /// Time ready to run and not running.
    pub queued_ns: u64,
    /// Time running.
    pub cpu_ns: u64,
}

impl Wakeups {
    /// The account of the calling thread; `proc` is usually `/proc`.
    pub fn open(proc: &Path) -> Wakeups {
        let mut wakeups =
            Wakeups { file: KeptFile::new(proc.join("thread-self/schedstat")), reader: Reader::default(), last: None };
        // A missing file is reported with the first wake-up.
        let _ = wakeups.since_last();
        wakeups
    }

    /// The counts since the last call, at the cost of one system call.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn since_last(&mut self) -> Result<Scheduled, Reason> {
        let now = self.file.parse(&mut self.reader, Schedstat::parse)?;
        if now.turns == 0 {
            return Err(NO_SCHEDSTAT.into());
        }
        let (last, then) = self.last.replace((now, Instant::now())).unwrap_or((now, Instant::now()));
        let elapsed_s = then.elapsed().as_secs_f64();
        let grown = |last, now| GrowthLimit::time(1e9).grown(last, now, elapsed_s);
        Ok(Scheduled {
            queued_ns: grown(last.run_delay_ns, now.run_delay_ns)?,
            cpu_ns: grown(last.cpu_ns, now.cpu_ns)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    #[test]
    fn growth_between_two_readings_counts_and_a_kernel_without_the_account_is_named() {
        let fixture = Fixture::new(&[("proc/thread-self/schedstat", "500 70 3\n")]);
        let mut wakeups = Wakeups::open(&fixture.path("proc"));
        fixture.write("proc/thread-self/schedstat", "600 1070 4\n");
        assert_eq!(wakeups.since_last(), Ok(Scheduled { queued_ns: 1000, cpu_ns: 100 }));
        assert_eq!(wakeups.since_last(), Ok(Scheduled { queued_ns: 0, cpu_ns: 0 }));
        fixture.write("proc/thread-self/schedstat", "0 0 0\n");
        assert_eq!(wakeups.since_last(), Err(NO_SCHEDSTAT.into()));
        fixture.remove("proc/thread-self/schedstat");
        let mut missing = Wakeups::open(&fixture.path("proc"));
        assert!(missing.since_last().expect_err("a missing file").ends_with("thread-self/schedstat: is not there"));
    }

    #[test]
    fn a_thread_that_shares_its_core_waits_in_the_queue() {
        use std::sync::atomic::{AtomicBool, Ordering};
        static ENDS: AtomicBool = AtomicBool::new(false);
        let pin = || {
            let mut pinned = rustix::thread::CpuSet::new();
            let allowed = rustix::thread::sched_getaffinity(None).expect("an affinity");
            pinned.set((0..1024).find(|cpu| allowed.is_set(*cpu)).expect("a CPU"));
            rustix::thread::sched_setaffinity(None, &pinned).expect("the thread is pinned");
        };
        let spin = move || {
            pin();
            while !ENDS.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let busy = [std::thread::spawn(spin), std::thread::spawn(spin)];
        let waits = std::thread::spawn(move || {
            pin();
            let mut wakeups = Wakeups::open(Path::new("/proc"));
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            let mut queued_ns = 0;
            while queued_ns < 10_000_000 && std::time::Instant::now() < deadline {
                std::hint::black_box((0..100_000).sum::<u64>());
                queued_ns += wakeups.since_last().expect("schedstat").queued_ns;
            }
            queued_ns
        });
        let queued_ns = waits.join().expect("the thread ends");
        ENDS.store(true, Ordering::Relaxed);
        for thread in busy {
            thread.join().expect("the thread ends");
        }
        assert!(queued_ns >= 10_000_000, "{queued_ns}");
    }
}
