//! Run delay: how long the web server's threads were ready to run and did not, and how often they gave up their core or
//! lost it, summed over `threads`. Each turn on a core ends with a switch; `switches` finds out of which kind.

use slackwater_messages::{Sample, Sched};
use slackwater_node::system::System;

use super::metric::{count, metrics};
use super::{Collector, CollectorKind, absent, first_read, is_quiet, put};
use crate::config::Settings;
use crate::counter_delta::{NO_TIME, seconds_between};
use crate::kernel_file::Reader;
use crate::process_watch::ProcessWatch;
use crate::processes::Finder;
use crate::reason::Reason;
use crate::switches::Split;
use crate::threads::Threads;

/// Time between two scans for processes and threads, if there may be others than before; at least `SCAN_SHARE` times
/// the duration of the last scan.
const SCAN_EVERY_NS: u64 = 1_000_000_000;
/// Scans take one part in this many of one core, unless that would delay a scan for longer than `SCAN_LATEST_NS`.
const SCAN_SHARE: u64 = 5000;
const SCAN_LATEST_NS: u64 = 30_000_000_000;
/// The same after a scan that found other processes than the one before, or after the end of a known one: a web server
/// that is reloaded gets its new processes within some seconds, and until they are found their CPU time is not counted.
const SCAN_LATEST_AFTER_CHANGE_NS: u64 = 2_000_000_000;
/// CPU seconds per second of the web server below which run delay per CPU second is meaningless.
const LEAST_CPU_S_PER_S: f64 = 0.001;

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "sched",
    open,
    metrics: metrics! {
        Gauge "web_processes" "Processes of the web server." => |s| count(s.sched.as_ref()?.processes);
        Gauge "web_threads" "Their threads." => |s| count(s.sched.as_ref()?.threads);
        Rate "web_cpu_seconds" "CPU time of the web server's processes." => |s| s.sched.as_ref()?.cpu_s_per_s;
        Rate "web_run_delay_seconds" "Time for which their threads were runnable and did not run." => |s| s.sched.as_ref()?.run_delay_s_per_s;
        Rate "web_context_switches" ["kind" = "voluntary"] "Times that their threads waited, or had to." => |s| s.sched.as_ref()?.voluntary_switches_per_s;
        Rate "web_context_switches" ["kind" = "involuntary"] "" => |s| s.sched.as_ref()?.involuntary_switches_per_s;
    },
};

/// Opens the collector.
fn open(settings: &Settings, system: &System) -> Box<dyn Collector> {
    first_read(WebThreads {
        system: system.clone(),
        finder: Finder::new(&settings.processes, system),
        process_watch: ProcessWatch::new(system),
        reader: Reader::default(),
        threads: Threads::new(system),
        split: Split::default(),
        processes: Ok(0),
        cpus: None,
        pids: Vec::new(),
        scanned_ns: 0,
        scan_at_ns: 0,
        last_ns: 0,
    })
}

struct WebThreads {
    system: System,
    finder: Finder,
    process_watch: ProcessWatch,
    reader: Reader,
    threads: Threads,
    split: Split,
    processes: Result<u64, Reason>,
    /// CPUs that the first of them which is still there may run on.
    cpus: Option<u64>,
    /// Those that the last scan found.
    pids: Vec<u32>,
    scanned_ns: u64,
    scan_at_ns: u64,
    last_ns: u64,
}

impl WebThreads {
    /// Scans for processes and threads, if there may be others than before.
    fn scan(&mut self, now_ns: u64) {
        if now_ns < self.scan_at_ns {
            return;
        }
        self.scan_at_ns = now_ns + SCAN_EVERY_NS;
        if !self.process_watch.is_look_due(&mut self.reader, now_ns) {
            return;
        }
        let processes = self.finder.find();
        let alive = self.threads.scan(processes.as_deref().unwrap_or_default(), now_ns);
        let pids = processes.clone().unwrap_or_default();
        let latest_ns = if pids == self.pids { SCAN_LATEST_NS } else { SCAN_LATEST_AFTER_CHANGE_NS };
        self.cpus = pids.iter().find_map(|pid| (self.system.cpus_of)(*pid));
        self.pids = pids;
        self.processes = processes.map(|_| alive);
        let took_ns = (self.system.monotonic_ns)().saturating_sub(now_ns);
        self.scanned_ns = now_ns;
        self.scan_at_ns = now_ns + took_ns.saturating_mul(SCAN_SHARE).clamp(SCAN_EVERY_NS, latest_ns);
    }

    /// Has a scan soon, because one of the known processes or threads ended.
    fn one_ended(&mut self) {
        self.process_watch.one_ended();
        self.scan_at_ns = self.scan_at_ns.min(self.scanned_ns + SCAN_LATEST_AFTER_CHANGE_NS);
    }
}

impl Collector for WebThreads {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        self.scan((self.system.monotonic_ns)());
        let read_ns = (self.system.monotonic_ns)();
        let last_ns = std::mem::replace(&mut self.last_ns, read_ns);
        // A process that rested was read up to a second earlier.
        let longest_s = seconds_between(last_ns, read_ns) + 1.0;
        let totals = self.threads.read(read_ns, longest_s, is_quiet(sample));
        let (sum, measured, is_kept) = (totals.sum, totals.measured, totals.is_kept);
        let looks = self.split.choose(&totals.turns, &totals.turns_new);
        if totals.one_ended {
            self.one_ended();
        }
        let processes = self.processes.clone()?;
        let threads = self.threads.len();
        let mut sched =
            Sched { processes: Some(processes), threads: Some(threads as u64), cpus: self.cpus, ..Sched::default() };
        if self.cpus.is_none() {
            absent(sample, "sched.cpus", "the CPUs of no process can be read");
        }
        let reason = if threads == 0 {
            // Scan again at once, because the web server may have been restarted.
            self.one_ended();
            self.scan_at_ns = 0;
            Some("no thread of the processes has a readable schedstat")
        } else if !is_kept {
            Some("the kernel keeps no schedstat (CONFIG_SCHED_INFO)")
        } else if measured == 0 {
            Some("the threads were first seen in this period, or their counts went back or leapt")
        } else if read_ns <= last_ns {
            Some(NO_TIME)
        } else {
            None
        };
        if let Some(reason) = reason {
            for name in [
                "cpu_s_per_s",
                "run_delay_s_per_s",
                "run_delay_per_cpu_s",
                "voluntary_switches_per_s",
                "involuntary_switches_per_s",
            ] {
                absent(sample, &format!("sched.{name}"), reason);
            }
        } else {
            let elapsed_s = seconds_between(last_ns, read_ns);
            for id in looks {
                let (last, now) = self.threads.look(id);
                self.split.add(last, now);
            }
            let switches = self.split.take(sum.turns);
            let switches = switches.map(|(voluntary, lost)| (voluntary / elapsed_s, lost / elapsed_s));
            let (voluntary, lost) = (switches.map(|(voluntary, _)| voluntary), switches.map(|(_, lost)| lost));
            put!(sample, sched.voluntary_switches_per_s, voluntary);
            put!(sample, sched.involuntary_switches_per_s, lost);
            let cpu_s_per_s = sum.cpu_ns as f64 / 1e9 / elapsed_s;
            sched.cpu_s_per_s = Some(cpu_s_per_s);
            sched.run_delay_s_per_s = Some(sum.run_delay_ns as f64 / 1e9 / elapsed_s);
            if cpu_s_per_s < LEAST_CPU_S_PER_S {
                absent(sample, "sched.run_delay_per_cpu_s", "the processes used next to no CPU");
            } else {
                sched.run_delay_per_cpu_s = Some(sum.run_delay_ns as f64 / sum.cpu_ns as f64);
            }
        }
        sample.sched = Some(sched);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
