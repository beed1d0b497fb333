//! Memory pressure and page faults of the whole VM, from /proc/meminfo and /proc/vmstat, once a second.
//!
//! Forms: the kernel's Documentation/filesystems/proc.rst, and include/linux/vm_event_item.h for the names: `allocstall`
//! stands once for each zone since 4.12, `oom_kill` is there since 4.13.

use slackwater_messages::{Memory, Sample};
use slackwater_node::system::System;

use super::metric::{count, metrics};
use super::slow::{Freshness, Slow};
use super::{Collector, CollectorKind, absent, put};
use crate::config::Settings;
use crate::counter_delta::{Count, CounterDelta, GrowthLimit, if_counted};
use crate::kernel_file::{KeptFile, Reader};
use crate::reason::Reason;

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "memory",
    open,
    metrics: metrics! {
        Gauge "memory_available_ratio" "Share of memory that is free or can be freed without swapping." => |s| s.memory.as_ref()?.available;
        Rate "memory_faults" ["kind" = "minor"] "Page faults." => |s| s.memory.as_ref()?.minor_faults_per_s;
        Rate "memory_faults" ["kind" = "major"] "" => |s| s.memory.as_ref()?.major_faults_per_s;
        Rate "memory_swapped_pages" "In and out." => |s| s.memory.as_ref()?.swapped_pages_per_s;
        Rate "memory_direct_reclaims" "Times that a task had to free memory itself." => |s| s.memory.as_ref()?.direct_reclaims_per_s;
        Count "memory_oom_kills" "Processes killed for their memory." => |s| count(s.memory.as_ref()?.oom_kills);
    },
};

/// Opens the collector.
fn open(_settings: &Settings, system: &System) -> Box<dyn Collector> {
    let collector = MemoryPages {
        meminfo: KeptFile::new(system.proc.join("meminfo")),
        vmstat: KeptFile::list(system.proc.join("vmstat")),
        system: system.clone(),
        reader: Reader::default(),
        deltas: CounterDelta::new([GrowthLimit::EVENTS; 5]),
    };
    Slow::open(collector, system, |from, to, reading| {
        to.memory.clone_from(&from.memory);
        // A count must not be given twice.
        if let (Some(memory), Freshness::Repeated) = (&mut to.memory, reading)
            && memory.oom_kills.take().is_some()
        {
            absent(to, "memory.oom_kills", "counted once a second");
        }
    })
}

/// 4 PiB, which is all that 52 bits of address reach; no processor addresses more.
const MOST_KIB: u64 = 1 << 42;

/// Share of memory that is available, from /proc/meminfo.
///
/// # Errors
/// The text's fault.
pub fn parse_available(text: &str) -> Result<f64, String> {
    let kib = |name: &str| -> Result<u64, String> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let line = lines.next().ok_or_else(|| format!("no {name}"))?.trim();
        if lines.next().is_some() {
            return Err(format!("two lines of {name}"));
        }
        let (number, unit) = line.split_once(' ').unwrap_or((line, ""));
        let kib = number.parse().map_err(|_| format!("{name} is {number:?}, no number"))?;
        match unit.trim() {
            "kB" if kib <= MOST_KIB => Ok(kib),
            "kB" => Err(format!("{name} is {kib} kB, and no machine has so much: it stands for no limit")),
            unit => Err(format!("{name} is in {unit:?}, where kB was expected")),
        }
    };
    match (kib("MemTotal")?, kib("MemAvailable")?) {
        (total, available) if total == 0 || available > total => {
            Err(format!("{available} KiB of {total} are available"))
        }
        (total, available) => Ok(available as f64 / total as f64),
    }
}

/// Minor faults, major faults, pages swapped, direct reclaims, OOM kills since boot, from /proc/vmstat. A count whose
/// line is not understood is absent.
pub fn parse_vmstat(text: &str) -> [Count; 5] {
    let mut sums: [(Option<Count>, &str); 5] = [const { (None, "") }; 5];
    for line in text.lines() {
        let (name, number) = line.split_once(' ').unwrap_or((line, ""));
        let place = match name {
            "pgfault" => 0,
            "pgmajfault" => 1,
            "pswpin" | "pswpout" => 2,
            "oom_kill" => 4,
            _ if name.starts_with("allocstall") => 3,
            _ => continue,
        };
        let (sum, last) = &mut sums[place];
        let value = number.trim().parse::<u64>().map_err(|_| Reason::from(format!("{name} is {number:?}, no number")));
        let new_sum = match (sum.take(), value) {
            (None, value) => value,
            (Some(_), Ok(_)) if *last == name => Err(format!("two lines of {name} in /proc/vmstat").into()),
            (Some(Ok(sum)), Ok(value)) => sum.checked_add(value).ok_or_else(|| format!("{name} is too large").into()),
            (Some(Err(reason)), _) | (_, Err(reason)) => Err(reason),
        };
        (*sum, *last) = (Some(new_sum), name);
    }
    let [faults, major, swapped, reclaims, kills] = sums.map(|(count, _)| count.unwrap_or_else(|| if_counted(None)));
    // `pgfault` counts the major ones too.
    let minor = faults.and_then(|faults| {
        let too_many = || Reason::from("more major faults than faults");
        faults.checked_sub(major.clone()?).ok_or_else(too_many)
    });
    [minor, major, swapped, reclaims, kills]
}

struct MemoryPages {
    system: System,
    meminfo: KeptFile,
    vmstat: KeptFile,
    reader: Reader,
    deltas: CounterDelta<5>,
}

impl Collector for MemoryPages {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        let available = self.meminfo.read(&mut self.reader, parse_available);
        let counters = self.vmstat.read(&mut self.reader, |text| Ok(parse_vmstat(text)));
        let has_no_counter = counters.as_ref().map_or(true, |counters| counters.iter().all(Result::is_err));
        if let (Err(reason), true) = (&available, has_no_counter) {
            self.deltas.forget();
            return Err(reason.clone());
        }
        let mut memory = Memory::default();
        put!(sample, memory.available, available);
        let delta = match counters {
            Ok(counters) => Ok(self.deltas.advance((self.system.monotonic_ns)(), counters)),
            Err(reason) => {
                self.deltas.forget();
                Err(reason)
            }
        };
        let delta = delta.as_ref().map_err(Reason::clone);
        let per_s = |place| delta.clone()?.per_s(place);
        put!(sample, memory.minor_faults_per_s, per_s(0));
        put!(sample, memory.major_faults_per_s, per_s(1));
        put!(sample, memory.swapped_pages_per_s, per_s(2));
        put!(sample, memory.direct_reclaims_per_s, per_s(3));
        put!(sample, memory.oom_kills, delta.and_then(|delta| delta.by(4)));
        sample.memory = Some(memory);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    250 kB\n";
    const VMSTAT: &str = "nr_free_pages 992567\npswpin 10\npswpout 20\nallocstall_dma 0\nallocstall_normal 7\n\
                          pgfault 5000\npgmajfault 40\noom_kill 1\n";

    #[test]
    fn faults_swapping_and_reclaims_are_counted_over_the_period() {
        let fixture = Fixture::new(&[("proc/meminfo", MEMINFO), ("proc/vmstat", VMSTAT)]);
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(0.5);
        let later = VMSTAT
            .replace("pgfault 5000", "pgfault 5105")
            .replace("pgmajfault 40", "pgmajfault 45")
            .replace("pswpout 20", "pswpout 22")
            .replace("allocstall_dma 0", "allocstall_dma 3")
            .replace("oom_kill 1", "oom_kill 2");
        fixture.write("proc/vmstat", &later);
        let sample = collector.sample();
        let expected = Memory {
            available: Some(0.25),
            minor_faults_per_s: Some(200.0),
            major_faults_per_s: Some(10.0),
            swapped_pages_per_s: Some(4.0),
            direct_reclaims_per_s: Some(6.0),
            oom_kills: Some(1),
        };
        assert_eq!((sample.memory, sample.absent.len()), (Some(expected.clone()), 0));

        fixture.advance_s(0.2);
        let sample = collector.sample();
        assert_eq!(sample.memory, Some(Memory { oom_kills: None, ..expected }));
        assert_eq!(sample.absent["memory.oom_kills"], "counted once a second");
    }

    #[test]
    fn what_an_old_kernel_does_not_count_and_what_went_back_has_a_reason() {
        let old = "pgfault 5000\npgmajfault 40\nallocstall 9\n";
        let fixture = Fixture::new(&[("proc/meminfo", "MemTotal: 9 kB\nMemFree: 1 kB\n"), ("proc/vmstat", old)]);
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(0.2);
        fixture.write("proc/vmstat", "pgfault 4000\npgmajfault 3\nallocstall 9\n");
        let sample = collector.sample();
        let memory = sample.memory.expect("a value");
        assert_eq!(memory, Memory { direct_reclaims_per_s: Some(0.0), ..Memory::default() });
        assert_eq!(sample.absent["memory.oom_kills"], "this kernel does not count it");
        assert!(sample.absent["memory.minor_faults_per_s"].starts_with("the counter went back"));
        assert!(sample.absent["memory.available"].ends_with("meminfo: no MemAvailable"));
    }

    #[test]
    fn strange_text_is_refused() {
        for bad in ["", "pgfault\n", "pgfault x\n", "pgfault -1\n", "nr_free_pages 1\n"] {
            assert!(parse_vmstat(bad).iter().all(Result::is_err), "{bad:?}");
        }
        for (bad, fault) in [
            ("", "no MemTotal"),
            ("MemTotal: 0 kB\nMemAvailable: 0 kB\n", "0 KiB of 0 are available"),
            ("MemTotal: 5 kB\nMemAvailable: 6 kB\n", "6 KiB of 5 are available"),
            ("MemTotal: kB\nMemAvailable: 1 kB\n", "MemTotal is \"kB\", no number"),
            ("MemTotal: 5 B\nMemAvailable: 1 kB\n", "MemTotal is in \"B\", where kB was expected"),
            ("MemTotal: 5 kB\nMemAvailable: 1\n", "MemAvailable is in \"\", where kB was expected"),
            (
                // The value in containers without a limit.
                "MemTotal: 9007199254740991 kB\nMemAvailable: 9007199254740991 kB\n",
                "MemTotal is 9007199254740991 kB, and no machine has so much: it stands for no limit",
            ),
            ("MemTotal: 5 kB\nMemTotal: 9 kB\nMemAvailable: 1 kB\n", "two lines of MemTotal"),
        ] {
            assert_eq!(parse_available(bad), Err(fault.to_owned()), "{bad:?}");
        }
    }

    #[test]
    fn a_line_that_is_not_understood_hides_what_it_counts() {
        let [minor, major, swapped, reclaims, kills] = parse_vmstat(&VMSTAT.replace("pswpin 10", "pswpin ten"));
        assert_eq!((minor, major, reclaims, kills), (Ok(4960), Ok(40), Ok(7), Ok(1)));
        assert_eq!(swapped, Err("pswpin is \"ten\", no number".into()));
        let [minor, major, ..] = parse_vmstat(&VMSTAT.replace("pgfault 5000\n", "pgfault 5000\npgfault 9000\n"));
        assert_eq!((minor, major), (Err("two lines of pgfault in /proc/vmstat".into()), Ok(40)));
    }
}
