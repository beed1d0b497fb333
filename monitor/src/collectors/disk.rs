//! The busiest disk, from /proc/diskstats, once a second.
//!
//! Form: the kernel's Documentation/admin-guide/iostats.rst: 14 fields, 18 since 4.18 (discards), 20 since 5.5 (flushes);
//! times are in milliseconds of 32 bits, sectors have 512 bytes. What counts as a disk has a device behind it
//! (/sys/block/NAME/device): partitions, loops, RAM disks and the layers of LVM and RAID, which repeat their disks'
//! work, do not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use slackwater_messages::{Disk, Sample};
use slackwater_node::system::System;

use super::metric::metrics;
use super::slow::Slow;
use super::{Collector, CollectorKind, absent, put};
use crate::config::Settings;
use crate::counter_delta::{Count, CounterDelta, Delta, GrowthLimit};
use crate::kernel_file::{KeptFile, Reader};
use crate::reason::Reason;

const SECTOR_BYTES: u64 = 512;
/// The time of a request is counted when the request ends, and many may end at once.
const REQUEST_MS: GrowthLimit = GrowthLimit::time(1e3).times(1e6);
const MOST: [GrowthLimit; 6] =
    [GrowthLimit::EVENTS, REQUEST_MS, GrowthLimit::BYTES, GrowthLimit::BYTES, GrowthLimit::time(1e3), REQUEST_MS];
/// Most disks that are named because their lines are not understood.
const MOST_FAULTS: usize = 4;

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "disk",
    open,
    metrics: metrics! {
        Gauge "disk_busy_ratio" "Of the busiest disk: share of time with requests." => |s| s.disk.as_ref()?.busy;
        Gauge "disk_queue_requests" "Of the busiest disk: mean number of requests waiting or served." => |s| s.disk.as_ref()?.queue;
    },
};

/// Opens the collector.
fn open(_settings: &Settings, system: &System) -> Box<dyn Collector> {
    let collector = Disks {
        stats: KeptFile::list(system.proc.join("diskstats")),
        system: system.clone(),
        reader: Reader::default(),
        disks: HashMap::new(),
    };
    Slow::open(collector, system, |from, to, _| to.disk.clone_from(&from.disk))
}

/// Since boot: requests ended, milliseconds that they took, bytes read, bytes written, milliseconds with a request,
/// and the same times the number of requests.
type Counters = [Count; 6];

/// The name in a line of /proc/diskstats; `None` in other lines.
pub fn name_in(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().nth(2)
}

/// The counters of a line.
///
/// # Errors
/// The line's fault.
pub fn parse_line(line: &str) -> Result<Counters, String> {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let count = fields.clone().count();
    if !matches!(count, 11 | 15 | 17..) {
        return Err(format!("its line has {count} numbers, and kernels give 11, 15 or 17"));
    }
    let mut values = [0_u64; 11];
    for (value, field) in values.iter_mut().zip(&mut fields) {
        *value = field.parse().map_err(|_| format!("{field:?} in its line is no number"))?;
    }
    let [reads, _, sectors_read, read_ms, writes, _, sectors_written, write_ms, _, busy_ms, queue_ms] = values;
    let checked = |number: Option<u64>| number.ok_or_else(|| Reason::from("the numbers of its line are too large"));
    Ok([
        checked(reads.checked_add(writes)),
        checked(read_ms.checked_add(write_ms)),
        checked(sectors_read.checked_mul(SECTOR_BYTES)),
        checked(sectors_written.checked_mul(SECTOR_BYTES)),
        Ok(busy_ms),
        Ok(queue_ms),
    ])
}

/// Whether this is a disk with a device behind it. Optical drives are left out: no web server waits for them.
fn is_disk(sys: &Path, name: &str) -> bool {
    !name.starts_with("sr") && sys.join("block").join(name.replace('/', "!")).join("device").exists()
}

struct KnownDisk {
    is_disk: bool,
    seen_ns: u64,
    deltas: CounterDelta<6>,
}

struct Disks {
    system: System,
    stats: KeptFile,
    reader: Reader,
    disks: HashMap<String, KnownDisk>,
}

/// One reading: the busiest disk, and the faults in the lines of others.
struct DiskLook {
    busiest: Option<(String, Delta<6>)>,
    faults: BTreeMap<String, String>,
}

impl Disks {
    /// Finds the disk that had requests for the longest time; among equals the one that moved most bytes, then the
    /// first. A disk whose line is not understood is left out.
    fn look(&mut self) -> Result<DiskLook, Reason> {
        let now_ns = (self.system.monotonic_ns)();
        let (disks, sys) = (&mut self.disks, &self.system.sys);
        let look = self.stats.read(&mut self.reader, |text| {
            let (mut faults, mut names) = (BTreeMap::new(), HashSet::new());
            let mut lines: Vec<(&str, Delta<6>)> = Vec::new();
            for line in text.lines() {
                let Some(name) = name_in(line) else { continue };
                if !disks.contains_key(name) {
                    let new =
                        KnownDisk { is_disk: is_disk(sys, name), seen_ns: now_ns, deltas: CounterDelta::new(MOST) };
                    disks.insert(name.to_owned(), new);
                }
                let Some(disk) = disks.get_mut(name) else { continue };
                disk.seen_ns = now_ns;
                let is_repeated = !names.insert(name);
                if !disk.is_disk {
                    continue;
                }
                let counters = if is_repeated { Err("two lines have its name".to_owned()) } else { parse_line(line) };
                match counters {
                    Ok(counters) => lines.push((name, disk.deltas.advance(now_ns, counters))),
                    Err(fault) => {
                        disk.deltas.forget();
                        faults.insert(name.to_owned(), fault);
                    }
                }
            }
            let mut busiest: Option<((u64, u64), &str, Delta<6>)> = None;
            for (name, delta) in lines.into_iter().filter(|(name, _)| !faults.contains_key(*name)) {
                let by = |place| delta.by(place).unwrap_or_default();
                let rank = (by(4), by(2).saturating_add(by(3)));
                if busiest.as_ref().is_none_or(|(highest, ..)| rank > *highest) {
                    busiest = Some((rank, name, delta));
                }
            }
            Ok(DiskLook { busiest: busiest.map(|(_, name, delta)| (name.to_owned(), delta)), faults })
        });
        // After a disk was unplugged, its name may go to another one.
        self.disks.retain(|_, disk| disk.seen_ns == now_ns);
        look
    }
}

impl Collector for Disks {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        let DiskLook { busiest, faults } = self.look().inspect_err(|_| self.disks.clear())?;
        let path = self.stats.path().display();
        let described: Vec<String> =
            faults.iter().take(MOST_FAULTS).map(|(name, fault)| format!("{name}: {fault}")).collect();
        let (device, delta) = match busiest {
            Some(busiest) => busiest,
            None if faults.is_empty() => return Err(format!("{path}: no disk with a device behind it").into()),
            None => return Err(format!("{path}: {}", described.join("; ")).into()),
        };
        if !described.is_empty() {
            absent(sample, "disk.others", format!("{path}: {}", described.join("; ")));
        }
        let mut disk = Disk { device, ..Disk::default() };
        // The kernel's clock and ours are read a moment apart, so a share can come out above 1.
        put!(sample, disk.busy, delta.ms_share(4).map(|share| share.min(1.0)));
        put!(sample, disk.queue, delta.ms_share(5));
        put!(sample, disk.read_bytes_per_s, delta.per_s(2));
        put!(sample, disk.written_bytes_per_s, delta.per_s(3));
        let wait_ms = match (delta.by(0), delta.by(1)) {
            (Ok(0), _) => Err("no request ended in this period".into()),
            (Ok(requests), Ok(ms)) => Ok(ms as f64 / requests as f64),
            (Err(reason), _) | (_, Err(reason)) => Err(reason),
        };
        put!(sample, disk.wait_ms, wait_ms);
        sample.disk = Some(disk);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn stats(vda: [u64; 6], sdb: [u64; 6]) -> String {
        let line = |name: &str, [requests, ms, read, written, busy_ms, queue_ms]: [u64; 6], rest: &str| {
            format!(" 8 0 {name} {requests} 0 {read} {ms} 0 0 {written} 0 0 {busy_ms} {queue_ms}{rest}\n")
        };
        let busy = line("loop0", [9_000_000; 6], "");
        busy.clone()
            + &line("vda", vda, " 0 0 0 0 0 0")
            + &line("vda1", [8_000_000; 6], " 0 0 0 0")
            + &line("sdb", sdb, " 0 0 0 0")
    }

    fn fixture(text: &str) -> Fixture {
        let fixture = Fixture::new(&[("proc/diskstats", text)]);
        for file in ["vda/device/type", "sdb/device/type", "loop0/size", "sr0/device/type"] {
            fixture.write(&format!("sys/block/{file}"), "0\n");
        }
        fixture
    }

    #[test]
    fn the_busiest_disk_is_named_and_partitions_and_loops_are_none() {
        let fixture = fixture(&stats([100, 1000, 0, 8, 500, 600], [10, 10, 10, 10, 10, 10]));
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(0.5);
        fixture.write("proc/diskstats", &stats([110, 1020, 0, 1032, 600, 800], [11, 10, 10, 10, 40, 40]));
        let sample = collector.sample();
        let expected = Disk {
            device: "vda".to_owned(),
            busy: Some(0.2),
            queue: Some(0.4),
            read_bytes_per_s: Some(0.0),
            written_bytes_per_s: Some(1_048_576.0),
            wait_ms: Some(2.0),
        };
        assert_eq!((sample.disk, sample.absent.len()), (Some(expected), 0));
    }

    #[test]
    fn a_disk_at_rest_waits_for_nothing() {
        let fixture = fixture(&stats([1; 6], [1; 6]));
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(0.2);
        let sample = collector.sample();
        let disk = sample.disk.expect("a value");
        assert_eq!((disk.device.as_str(), disk.busy, disk.wait_ms), ("vda", Some(0.0), None));
        assert_eq!(sample.absent["disk.wait_ms"], "no request ended in this period");
    }

    #[test]
    fn times_that_wrap_and_a_disk_that_is_plugged_in_again_give_reasons() {
        let fixture = fixture(&stats([1, 1, 1, 1, 4_294_967_290, 4_294_967_290], [1; 6]));
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(0.2);
        fixture.write("proc/diskstats", &stats([2, 2, 2, 2, 4, 4], [1; 6]));
        let sample = collector.sample();
        let disk = sample.disk.expect("a value");
        assert_eq!((disk.device.as_str(), disk.busy, disk.queue), ("vda", None, None));
        assert!(sample.absent["disk.busy"].starts_with("the counter went back"));
        assert_eq!(disk.wait_ms, Some(1.0));
    }

    #[test]
    fn without_a_disk_there_is_a_reason() {
        let bare = Fixture::new(&[("proc/diskstats", " 7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n")]);
        let sample = COLLECTOR.open(&Settings::default(), &bare.system()).sample();
        assert!(sample.absent["disk"].ends_with("diskstats: no disk with a device behind it"), "{:?}", sample.absent);
        let odd = fixture(" 8 0 vda 1 2 3\n");
        let sample = COLLECTOR.open(&Settings::default(), &odd.system()).sample();
        assert!(
            sample.absent["disk"].ends_with("diskstats: vda: its line has 3 numbers, and kernels give 11, 15 or 17"),
            "{sample:?}"
        );
    }

    #[test]
    fn a_line_that_is_not_understood_hides_its_own_disk_only() {
        let good = stats([1; 6], [1; 6]);
        for (odd, fault) in [
            (good.replace("sdb 1 0", "sdb x 0"), "sdb: \"x\" in its line is no number"),
            (good.replace("sdb 1 0", "sdb -1 0"), "sdb: \"-1\" in its line is no number"),
            (format!("{good} 8 1 sdb 7 0 0 0 0 0 0 0 0 0 0\n"), "sdb: two lines have its name"),
            (
                good.replace("loop0 9000000", "loop0 ?").replace("sdb 1 0", "sdb"),
                "sdb: its line has 13 numbers, and kernels give 11, 15 or 17",
            ),
        ] {
            let fixture = fixture(&good);
            let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
            fixture.advance_s(0.2);
            fixture.write("proc/diskstats", &odd);
            let sample = collector.sample();
            assert_eq!(
                sample.disk.as_ref().map(|disk| (disk.device.as_str(), disk.busy)),
                Some(("vda", Some(0.0))),
                "{odd}"
            );
            assert!(sample.absent["disk.others"].ends_with(fault), "{sample:?}");
        }
    }

    #[test]
    fn a_disk_that_was_busy_for_longer_than_the_time_that_passed_is_not_believed() {
        let fixture = fixture(&stats([1; 6], [1; 6]));
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(1.0);
        fixture.write("proc/diskstats", &stats([2, 2, 2, 2, 60_001, 2], [1; 6]));
        let sample = collector.sample();
        assert!(sample.absent["disk.busy"].starts_with("the counter leapt"), "{sample:?}");
    }
}
