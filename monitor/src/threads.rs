//! The threads of the web server's processes, with the CPU time, run delay and turns of each since its last reading,
//! from /proc/PID/task/TID/schedstat.
//!
//! Reading a hundred files is expensive, and most threads sleep. While all threads of a process sleep, neither their
//! files change nor the process's CPU time, which one system call reads. So the files are read only when that time has
//! moved. The kernel counts a turn when it begins, and its CPU time from the next clock tick or from the turn's end on.
//! So a turn that began within a tick before the reading may be counted a period later, but is never lost.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use slackwater_node::processes::{Schedstat, numbers};
use slackwater_node::system::System;

use crate::counter_delta::GrowthLimit;
use crate::kernel_file::Reader;
use crate::switches::{self, Switches};

/// The files of this many threads stay open (the usual limit for a process is 1024); the rest are opened each time.
const KEPT_FILES: usize = 512;

/// A thread's run delay comes all at once when its wait ends; a longer one means another thread.
const LONGEST_WAIT_S: f64 = 60.0;

/// While no requests come in, a process that used no CPU time for this long is asked for it only at this interval.
const RESTS_NS: u64 = 950_000_000;

/// Process and thread.
pub type Id = (u32, u32);

/// The sums over all threads since the last reading.
#[derive(Debug, Default, PartialEq)]
pub struct ThreadTotals {
    /// The sum over the threads whose times are known.
    pub sum: Schedstat,
    /// The number of threads whose times are known.
    pub measured: usize,
    /// Whether the kernel keeps these numbers.
    pub is_kept: bool,
    /// Whether one of the known threads is gone.
    pub one_ended: bool,
    /// Threads that had a turn, whose switches were looked at before.
    pub turns: Vec<Id>,
    /// Threads that had a turn, whose switches were never looked at.
    pub turns_new: Vec<Id>,
}

/// All known threads, by process.
pub struct Threads {
    proc: PathBuf,
    /// CPU time in nanoseconds of all threads of a process, also of those that ended; `None` where it is not known.
    cpu_ns_of: Box<dyn Fn(u32) -> Option<u64>>,
    reader: Reader,
    processes: HashMap<u32, Process>,
    totals: ThreadTotals,
}

#[derive(Default)]
struct Process {
    threads: HashMap<u32, Thread>,
    /// Its CPU time when the threads were last read; none while one of them was never read.
    cpu_ns: Option<u64>,
    /// When it was last asked for its CPU time, and when that was last found to have moved.
    asked_ns: u64,
    moved_ns: u64,
    is_kept: bool,
    scan_ns: u64,
}

impl Process {
    /// Whether it used no CPU time for a while and was asked not long ago.
    fn rests(&self, now_ns: u64) -> bool {
        let is_within = |then_ns: u64| now_ns.saturating_sub(then_ns) < RESTS_NS;
        self.cpu_ns.is_some() && !is_within(self.moved_ns) && is_within(self.asked_ns)
    }

    /// Takes in the process's CPU time and returns whether it moved, or may have moved.
    fn moved(&mut self, cpu_ns: Option<u64>, now_ns: u64) -> bool {
        let has_moved = cpu_ns.is_none() || cpu_ns != self.cpu_ns;
        self.cpu_ns = cpu_ns;
        self.asked_ns = now_ns;
        if has_moved {
            self.moved_ns = now_ns;
        }
        has_moved
    }
}

/// The numbers of one thread. A file that stays open is this thread's own: a new thread with the same number has
/// another.
struct Thread {
    file: Option<File>,
    last: Option<Schedstat>,
    switches: Option<Switches>,
    scan_ns: u64,
}

impl Thread {
    /// The thread's times and turns since the last call. They are not known at first, and when the numbers went back
    /// because another thread has this number now. An error means that the thread is gone.
    fn advance(
        &mut self,
        reader: &mut Reader,
        path: impl FnOnce() -> PathBuf,
        elapsed_s: f64,
    ) -> Result<Option<Schedstat>, ()> {
        let text = match &self.file {
            Some(file) => reader.read(file),
            None => File::open(path()).and_then(|file| reader.read(&file)),
        };
        let now = text.ok().and_then(Schedstat::parse).ok_or(())?;
        let last = self.last.replace(now);
        Ok(last.and_then(|last| {
            let time = GrowthLimit::time(1e9);
            Some(Schedstat {
                cpu_ns: time.grown(last.cpu_ns, now.cpu_ns, elapsed_s).ok()?,
                run_delay_ns: time.grown(last.run_delay_ns, now.run_delay_ns, elapsed_s + LONGEST_WAIT_S).ok()?,
                turns: GrowthLimit::EVENTS.grown(last.turns, now.turns, elapsed_s).ok()?,
            })
        }))
    }
}

fn tasks(proc: &Path, pid: u32) -> PathBuf {
    proc.join(pid.to_string()).join("task")
}

fn schedstat(proc: &Path, (pid, tid): Id) -> PathBuf {
    tasks(proc, pid).join(tid.to_string()).join("schedstat")
}

/// A process's CPU time. Its clock is made as `clock_getcpuclockid(3)` does: the PID's complement, with 2 for the
/// scheduler's count.
fn cpu_ns_of(pid: u32) -> Option<u64> {
    let clock = (!i32::try_from(pid).ok()? << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` only.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) } != 0;
    let (s, ns) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
    (!failed).then_some(s * 1_000_000_000 + ns)
}

impl Threads {
    /// No thread is known yet.
    pub fn new(system: &System) -> Threads {
        // The PIDs of a /proc of another PID namespace mean other processes to the system call.
        let own = std::process::id().to_string();
        let is_ours = fs::read_link(system.proc.join("self")).is_ok_and(|link| link == Path::new(&own));
        Threads {
            proc: system.proc.clone(),
            cpu_ns_of: Box::new(move |pid| if is_ours { cpu_ns_of(pid) } else { None }),
            reader: Reader::default(),
            processes: HashMap::new(),
            totals: ThreadTotals::default(),
        }
    }

    /// The number of known threads.
    pub fn len(&self) -> usize {
        self.processes.values().map(|process| process.threads.len()).sum()
    }

    /// Whether no thread is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks for the threads of these processes and returns how many of the processes exist. Known threads keep their
    /// numbers.
    pub fn scan(&mut self, pids: &[u32], now_ns: u64) -> u64 {
        let mut files = KEPT_FILES.saturating_sub(self.len());
        let mut first_looks = switches::MOST_FIRST_LOOKS;
        let mut alive = 0;
        for pid in pids {
            let tasks = tasks(&self.proc, *pid);
            // A process that ended since it was listed has no threads.
            let Ok(metadata) = fs::metadata(&tasks) else { continue };
            let process = self.processes.entry(*pid).or_default();
            // The kernel shows one link for each thread, and two of the directory's own.
            if metadata.nlink() == 2 + process.threads.len() as u64 {
                process.scan_ns = now_ns;
                alive += 1;
                continue;
            }
            let Ok(tids) = numbers(&tasks) else { continue };
            alive += 1;
            process.scan_ns = now_ns;
            for tid in tids {
                let thread = process.threads.entry(tid).or_insert_with(|| {
                    let path = schedstat(&self.proc, (*pid, tid));
                    let file = if files > 0 { File::open(&path).ok() } else { None };
                    files = files.saturating_sub(1);
                    let switches = if first_looks > 0 { switches::read(&mut self.reader, &path) } else { None };
                    first_looks = first_looks.saturating_sub(1);
                    process.cpu_ns = None;
                    Thread { file, last: None, switches, scan_ns: now_ns }
                });
                thread.scan_ns = now_ns;
            }
            process.threads.retain(|_, thread| thread.scan_ns == now_ns);
        }
        self.processes.retain(|_, process| process.scan_ns == now_ns);
        alive
    }

    /// The totals since the last call, `elapsed_s` ago. A thread whose CPU time grew by more is taken for another
    /// thread. While it `is_quiet`, the CPU time of a process that slept for a second is counted up to a second late.
    pub fn read(&mut self, now_ns: u64, elapsed_s: f64, is_quiet: bool) -> &ThreadTotals {
        let (reader, proc) = (&mut self.reader, &self.proc);
        let ThreadTotals { mut turns, mut turns_new, .. } = std::mem::take(&mut self.totals);
        turns.clear();
        turns_new.clear();
        let mut totals = ThreadTotals { turns, turns_new, ..ThreadTotals::default() };
        for (pid, process) in &mut self.processes {
            let rests = is_quiet && process.rests(now_ns);
            // The CPU time is read before the files, so that a change in between is found the next time.
            if rests || !process.moved((self.cpu_ns_of)(*pid), now_ns) {
                totals.measured += process.threads.len();
                totals.is_kept |= process.is_kept;
                continue;
            }
            process.threads.retain(|tid, thread| {
                let id = (*pid, *tid);
                let Ok(advance) = thread.advance(reader, || schedstat(proc, id), elapsed_s) else {
                    totals.one_ended = true;
                    return false;
                };
                process.is_kept |= thread.last != Some(Schedstat::default());
                if let Some(times) = advance {
                    totals.sum.cpu_ns += times.cpu_ns;
                    totals.sum.run_delay_ns += times.run_delay_ns;
                    totals.sum.turns += times.turns;
                    totals.measured += 1;
                    if times.turns > 0 {
                        let list = if thread.switches.is_some() { &mut totals.turns } else { &mut totals.turns_new };
                        list.push(id);
                    }
                }
                true
            });
            totals.is_kept |= process.is_kept;
        }
        self.totals = totals;
        &self.totals
    }

    /// The switches of a thread at the last look, and now.
    pub fn look(&mut self, id: Id) -> (Option<Switches>, Option<Switches>) {
        let thread = self.processes.get_mut(&id.0).and_then(|process| process.threads.get_mut(&id.1));
        let Some(thread) = thread else { return (None, None) };
        let now = switches::read(&mut self.reader, &schedstat(&self.proc, id));
        (std::mem::replace(&mut thread.switches, now), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;
    use std::cell::Cell;
    use std::rc::Rc;

    const LONGEST_S: f64 = 1.0;

    fn write(fixture: &Fixture, tid: u32, text: &str) {
        fixture.write(&format!("proc/10/task/{tid}/schedstat"), text);
    }

    #[test]
    fn files_are_read_only_when_the_process_used_cpu_time() {
        let fixture = Fixture::new(&[]);
        write(&fixture, 10, "1 1 1\n");
        write(&fixture, 11, "1 1 1\n");
        let clock = Rc::new(Cell::new(2));
        let shown = Rc::clone(&clock);
        let mut threads =
            Threads { cpu_ns_of: Box::new(move |_| Some(shown.get())), ..Threads::new(&fixture.system()) };
        assert_eq!(threads.scan(&[10, 20], 1), 1);
        assert_eq!(threads.read(1, LONGEST_S, false), &ThreadTotals { is_kept: true, ..ThreadTotals::default() });

        write(&fixture, 11, "5 3 2\n");
        let asleep = ThreadTotals { measured: 2, is_kept: true, ..ThreadTotals::default() };
        assert_eq!(threads.read(1, LONGEST_S, false), &asleep, "its clock stands still: not looked at");
        clock.set(6);
        let ThreadTotals { sum, measured, turns_new, .. } = threads.read(1, LONGEST_S, false);
        assert_eq!((sum, *measured), (&Schedstat { cpu_ns: 4, run_delay_ns: 2, turns: 1 }, 2));
        assert_eq!(turns_new, &[(10, 11)]);
        assert_eq!(threads.read(1, LONGEST_S, false), &asleep);

        write(&fixture, 12, "9 9 9\n");
        threads.scan(&[10], 2);
        assert_eq!(threads.read(1, LONGEST_S, false).measured, 2, "the new one is read at once");
        write(&fixture, 12, "10 9 10\n");
        clock.set(7);
        assert_eq!(threads.read(1, LONGEST_S, false).sum.cpu_ns, 1);
    }

    #[test]
    fn while_nothing_comes_in_processes_that_sleep_are_asked_once_a_second_and_nothing_is_lost() {
        let fixture = Fixture::new(&[]);
        write(&fixture, 10, "1 1 1\n");
        let (clock, asked) = (Rc::new(Cell::new(2)), Rc::new(Cell::new(0)));
        let (shown, count) = (Rc::clone(&clock), Rc::clone(&asked));
        let cpu_ns_of = move |_| {
            count.set(count.get() + 1);
            Some(shown.get())
        };
        let mut threads = Threads { cpu_ns_of: Box::new(cpu_ns_of), ..Threads::new(&fixture.system()) };
        threads.scan(&[10], 1);
        let mut read = |tenths: u64, is_quiet| {
            let totals = threads.read(tenths * 100_000_000, LONGEST_S, is_quiet);
            (asked.take(), totals.measured, totals.sum.cpu_ns)
        };
        assert_eq!(read(1, true), (1, 0, 0), "its first reading");
        assert_eq!([read(3, true), read(9, true)], [(1, 1, 0); 2], "it stands still, but not for long");
        assert_eq!([read(11, true), read(13, true)], [(0, 1, 0); 2], "it rests");
        write(&fixture, 10, "5 3 2\n");
        clock.set(6);
        assert_eq!([read(18, true), read(20, true)], [(0, 1, 0), (1, 1, 4)]);
        assert_eq!([read(23, true), read(31, true), read(33, true)], [(1, 1, 0), (0, 1, 0), (1, 1, 0)]);
        assert_eq!(read(34, false), (1, 1, 0), "a request came in");
    }

    #[test]
    fn what_a_real_thread_had_is_told_whole_however_seldom_its_file_is_read() {
        let system = System::machine();
        let pid = std::process::id();
        let (wake, woken) = std::sync::mpsc::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel::<(u32, u64)>();
        let worker = std::thread::spawn(move || {
            while woken.recv().is_ok() {
                let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
                let until = std::time::Instant::now() + std::time::Duration::from_millis(20);
                while std::time::Instant::now() < until {
                    std::hint::spin_loop();
                }
                let cpu_ns = crate::timer::clock_ns(rustix::thread::ClockId::ThreadCPUTime);
                sender.send((tid, cpu_ns)).expect("the test listens");
            }
        });
        let turn = || {
            wake.send(()).expect("the worker listens");
            receiver.recv().expect("the worker answers")
        };
        let (tid, first_ns) = turn();
        let mut threads = Threads::new(&system);
        assert_eq!(threads.scan(&[pid], 1), 1);
        threads.read(1, 1e9, false);
        let of_worker = |threads: &Threads| threads.processes[&pid].threads[&tid].last.expect("a reading").cpu_ns;
        for number in 0..4 {
            let now_ns = if number == 0 { first_ns } else { turn().1 };
            // Until the kernel has counted the turn, which it does at its end or at a clock tick.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while of_worker(&threads) < now_ns && std::time::Instant::now() < deadline {
                threads.read(1, 1e9, false);
            }
            assert!(of_worker(&threads) >= now_ns);
        }
        drop(wake);
        worker.join().expect("the worker ends");
    }
}
