//! The cores' clock and their thermal throttling, from /sys/devices/system/cpu.
//!
//! Forms: the kernel's Documentation/admin-guide/pm/cpufreq.rst (`scaling_cur_freq` in kHz) and
//! Documentation/ABI/testing/sysfs-devices-system-cpu (`thermal_throttle/core_throttle_count`). Virtual machines mostly
//! have neither. Kernels before 5.18 wait 10 ms for a core whose clock was last read more than a second ago, so it is
//! read in each period.

use std::path::Path;

use slackwater_messages::{Frequency, Sample};
use slackwater_node::system::System;

use super::metric::metrics;
use super::{Collector, CollectorKind, first_read, put};
use crate::config::Settings;
use crate::counter_delta::{Count, CounterDelta, GrowthLimit};
use crate::kernel_file::{KeptFile, Reader};
use crate::reason::Reason;

/// Most cores that are read, evenly spread on bigger machines: each costs an open file and some microseconds.
const MOST_CORES: usize = 16;

/// Valid clocks of a core.
const KHZ: std::ops::RangeInclusive<u64> = 1..=20_000_000;

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "frequency",
    open,
    metrics: metrics! {
        Gauge "core_frequency_hertz" "Mean clock of the cores." => |s| Some(s.frequency.as_ref()?.mean_mhz? * 1e6);
    },
};

/// Finds the cores' files.
fn open(_settings: &Settings, system: &System) -> Box<dyn Collector> {
    let cpus = system.sys.join("devices/system/cpu");
    let kept = |inside: &str| spread(files(&cpus, inside)).into_iter().map(KeptFile::new).collect();
    first_read(CoreClocks {
        clocks: kept("cpufreq/scaling_cur_freq"),
        throttles: kept("thermal_throttle/core_throttle_count"),
        cpus: cpus.display().to_string(),
        system: system.clone(),
        reader: Reader::default(),
        deltas: CounterDelta::new([GrowthLimit::EVENTS]),
    })
}

/// The files of this name of all cores, in the cores' order.
fn files(cpus: &Path, inside: &str) -> Vec<std::path::PathBuf> {
    let mut numbered: Vec<_> = std::fs::read_dir(cpus)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number: u32 = entry.file_name().to_str()?.strip_prefix("cpu")?.parse().ok()?;
            let file = entry.path().join(inside);
            file.is_file().then_some((number, file))
        })
        .collect();
    numbered.sort_unstable();
    numbered.into_iter().map(|(_, file)| file).collect()
}

fn spread<T>(all: Vec<T>) -> Vec<T> {
    let step = all.len().div_ceil(MOST_CORES).max(1);
    all.into_iter().step_by(step).collect()
}

struct CoreClocks {
    clocks: Vec<KeptFile>,
    throttles: Vec<KeptFile>,
    cpus: String,
    system: System,
    reader: Reader,
    deltas: CounterDelta<1>,
}

impl CoreClocks {
    /// Mean and lowest clock in MHz, without cores that were taken offline.
    fn mhz(&mut self) -> Result<(f64, f64), Reason> {
        let (mut sum, mut lowest, mut cores) = (0.0, f64::INFINITY, 0);
        let mut failed = None;
        for file in &mut self.clocks {
            match file.parse(&mut self.reader, |text| text.trim().parse::<u64>().ok().filter(|khz| KHZ.contains(khz))) {
                Ok(khz) => {
                    sum += khz as f64 / 1e3;
                    lowest = lowest.min(khz as f64 / 1e3);
                    cores += 1;
                }
                Err(reason) => failed = Some(reason),
            }
        }
        if cores == 0 {
            return Err(failed.unwrap_or_else(|| {
                format!("{}: no cpufreq; the kernel or the hypervisor shows no clock", self.cpus).into()
            }));
        }
        Ok((sum / f64::from(cores), lowest))
    }

    fn throttles(&mut self) -> Count {
        if self.throttles.is_empty() {
            return Err(format!("{}: no thermal_throttle; the hypervisor or the CPU shows none", self.cpus).into());
        }
        let mut sum = 0_u64;
        for file in &mut self.throttles {
            let count = file.parse(&mut self.reader, |text| text.trim().parse::<u64>().ok())?;
            sum = sum.checked_add(count).ok_or("the counts of the cores are too large")?;
        }
        Ok(sum)
    }
}

impl Collector for CoreClocks {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        let (mhz, throttles) = (self.mhz(), self.throttles());
        if let (Err(reason), Err(_)) = (&mhz, &throttles) {
            return Err(reason.clone());
        }
        let mut frequency = Frequency::default();
        put!(sample, frequency.mean_mhz, mhz.as_ref().map(|(mean, _)| *mean));
        put!(sample, frequency.lowest_mhz, mhz.as_ref().map(|(_, lowest)| *lowest));
        let now_ns = (self.system.monotonic_ns)();
        let per_s = self.deltas.advance(now_ns, [throttles]).per_s(0);
        put!(sample, frequency.throttles_per_s, per_s);
        sample.frequency = Some(frequency);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    #[test]
    fn mean_lowest_and_throttling_are_of_all_cores() {
        let fixture = Fixture::new(&[]);
        let core = |number: u32, khz: u64, throttles: u64| {
            let cpu = format!("sys/devices/system/cpu/cpu{number}");
            fixture.write(&format!("{cpu}/cpufreq/scaling_cur_freq"), &format!("{khz}\n"));
            fixture.write(&format!("{cpu}/thermal_throttle/core_throttle_count"), &format!("{throttles}\n"));
        };
        core(0, 3_000_000, 5);
        core(1, 1_000_000, 0);
        fixture.write("sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "9\n");
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(0.5);
        core(1, 1_500_000, 4);
        let sample = collector.sample();
        let expected = Frequency { mean_mhz: Some(2250.0), lowest_mhz: Some(1500.0), throttles_per_s: Some(8.0) };
        assert_eq!((sample.frequency, sample.absent.len()), (Some(expected), 0));
    }

    #[test]
    fn a_core_that_is_taken_offline_leaves_the_others() {
        let fixture = Fixture::new(&[
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2000000\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "<unknown>\n"),
        ]);
        let sample = COLLECTOR.open(&Settings::default(), &fixture.system()).sample();
        assert_eq!(sample.frequency.expect("a value").mean_mhz, Some(2000.0));
        assert!(sample.absent["frequency.throttles_per_s"].contains("no thermal_throttle"));
    }

    #[test]
    fn a_vm_without_either_says_so() {
        let sample = COLLECTOR.open(&Settings::default(), &Fixture::new(&[]).system()).sample();
        assert!(sample.frequency.is_none());
        assert!(sample.absent["frequency"].contains("no cpufreq; the kernel or the hypervisor shows no clock"));
    }

    #[test]
    fn of_many_cores_some_are_looked_at() {
        assert_eq!(spread((0..16).collect::<Vec<_>>()).len(), 16);
        assert_eq!(spread((0..40).collect::<Vec<_>>()), [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39]);
        assert_eq!(spread(Vec::<u8>::new()), [0; 0]);
    }
}
