//! Many processes and many threads: their cost in opened and read files.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use slackwater_messages::Sample;
use slackwater_monitor::collectors::{ActiveCollector, sched};
use slackwater_monitor::config::Settings;
use slackwater_node::system::System;

/// A tree in memory, if there is such a file system, and a clock.
struct Tree {
    root: tempfile::TempDir,
    now_ns: Rc<Cell<u64>>,
}

impl Tree {
    fn new() -> Tree {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Tree { root: root.expect("a temporary directory"), now_ns: Rc::new(Cell::new(1_000_000_000)) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    fn thread(&self, pid: u32, tid: u32, cpu_ms: u64) {
        self.write(&format!("proc/{pid}/task/{tid}/schedstat"), &format!("{}000000 0 {cpu_ms}\n", cpu_ms));
        let status = format!("voluntary_ctxt_switches:\t{cpu_ms}\nnonvoluntary_ctxt_switches:\t0\n");
        self.write(&format!("proc/{pid}/task/{tid}/status"), &status);
    }

    fn open(&self) -> ActiveCollector {
        let (clock, root) = (self.now_ns.clone(), self.root.path());
        let system = System {
            proc: root.join("proc"),
            sys: root.join("sys"),
            cgroup: root.join("cgroup"),
            monotonic_ns: Rc::new(move || clock.get()),
            wall_ns: Rc::new(|| 0),
            cpus_of: Rc::new(|_| Some(1)),
        };
        sched::COLLECTOR.open(&Settings::default(), &system)
    }

    /// The Sample after so many milliseconds, and the number of reads by this thread meanwhile.
    fn step(&self, collector: &mut ActiveCollector, ms: u64) -> (Sample, u64) {
        self.now_ns.set(self.now_ns.get() + ms * 1_000_000);
        let mut sample = Sample::default();
        let before = reads();
        collector.collect(&mut sample);
        (sample, reads() - before)
    }
}

/// How often this thread has called read and its like.
fn reads() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").expect("the kernel counts what a thread reads");
    let count = io.lines().find_map(|line| line.strip_prefix("syscr: ")).expect("syscr");
    count.parse().expect("a number")
}

/// Files below the folder that this process has open.
fn open_below(folder: &Path) -> usize {
    let entries = fs::read_dir("/proc/self/fd").expect("the list of open files");
    entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|file| file.starts_with(folder))
        .count()
}

#[test]
fn among_ten_thousand_processes_only_some_names_are_read_again() {
    const PROCESSES: u32 = 10_000;
    let tree = Tree::new();
    for pid in 1..=PROCESSES {
        tree.write(&format!("proc/{pid}/comm"), if pid % 1000 == 0 { "apache2\n" } else { "sh\n" });
    }
    for pid in (1000..=PROCESSES).step_by(1000) {
        tree.thread(pid, pid, 100);
    }
    let mut collector = tree.open();
    // Names settle in three scans, one a second.
    let (sample, _) = tree.step(&mut collector, 1001);
    assert_eq!(sample.sched.expect("a value").processes, Some(10));
    tree.step(&mut collector, 1001);
    for _ in 0..16 {
        let (sample, reads) = tree.step(&mut collector, 1001);
        let sched = sample.sched.expect("a value");
        assert_eq!((sched.processes, sched.threads, sched.cpu_s_per_s), (Some(10), Some(10), Some(0.0)));
        // A sixteenth of the names (each is read in two calls), the ten that match, and their ten threads.
        assert!(reads < 2 * u64::from(PROCESSES) / 16 + 100, "{reads} reads with a scan");
        let (_, reads) = tree.step(&mut collector, 200);
        assert!(reads <= 20, "{reads} reads without a scan");
    }
}

#[test]
fn of_more_threads_than_files_may_stay_open_all_are_measured() {
    const THREADS: u32 = 700;
    let tree = Tree::new();
    tree.write("proc/50/comm", "apache2\n");
    (50..50 + THREADS).for_each(|tid| tree.thread(50, tid, 100));
    let mut collector = tree.open();
    assert_eq!(open_below(tree.root.path()), 512);
    for step in 1..=3 {
        (50..50 + THREADS).for_each(|tid| tree.thread(50, tid, 100 + 2 * step));
        let (sample, reads) = tree.step(&mut collector, 200);
        let sched = sample.sched.expect("a value");
        assert_eq!(sched.threads, Some(u64::from(THREADS)));
        // 2 ms each in 200 ms.
        assert!((sched.cpu_s_per_s.expect("a value") - 7.0).abs() < 1e-9, "{sched:?}");
        assert!(open_below(tree.root.path()) <= 512);
        // Each thread once, and the kinds of switches of a few; counting reads a little too.
        assert!(reads <= u64::from(THREADS) + 20, "{reads} reads");
        assert!((sched.voluntary_switches_per_s.expect("a value") - 7000.0).abs() < 1e-6, "{sched:?}");
    }
    // All are gone before the next scan.
    fs::remove_dir_all(tree.path("proc/50")).expect("the file is removed");
    let (sample, _) = tree.step(&mut collector, 1001);
    assert_eq!(sample.absent["sched"], "no process is named apache2 or php-fpm8.2");
    assert_eq!(open_below(tree.root.path()), 0);
}

#[test]
fn a_process_that_ends_between_the_list_and_its_reading_is_no_error() {
    let tree = Tree::new();
    for pid in [20, 30, 40] {
        tree.write(&format!("proc/{pid}/comm"), "apache2\n");
        tree.thread(pid, pid, 100);
    }
    // Listed, but its tasks are gone; and one whose task is listed, but not its files.
    fs::remove_dir_all(tree.path("proc/20/task")).expect("the file is removed");
    fs::remove_file(tree.path("proc/30/task/30/schedstat")).expect("the file is removed");
    let mut collector = tree.open();
    let (sample, _) = tree.step(&mut collector, 200);
    let sched = sample.sched.expect("a value");
    assert_eq!((sched.threads, sched.cpu_s_per_s), (Some(1), Some(0.0)));
}
