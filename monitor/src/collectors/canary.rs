//! The canary: what a probe of our own feels of the neighbours, where no hardware counter tells.

use std::fs;
use std::path::Path;

use slackwater_messages::{Counters, Sample};

use super::{Collector, absent};
use crate::config::Settings;
use crate::inputs::Inputs;
use crate::probe::Probe;

/// Working sets that are chosen by the L2 cache stay within this, in KiB.
const CHOSEN_KIB: std::ops::RangeInclusive<u32> = 2048..=4096;

/// Calibrates the probe, unless it is switched off.
pub fn open(settings: &Settings, inputs: &Inputs) -> Box<dyn Collector> {
    let probe = settings.canary.enabled.then(|| {
        Probe::new(match settings.canary.working_set_kib {
            0 => working_set_kib(l2_kib(&inputs.sys)),
            kib => kib,
        })
    });
    Box::new(Canary { probe, budget_ns: (settings.canary.max_cpu_share * settings.period_s * 1e9) as u64 })
}

/// Four times the L2 cache: more than it has places for, and little of a last-level cache.
fn working_set_kib(l2_kib: Option<u32>) -> u32 {
    l2_kib.map_or(*CHOSEN_KIB.start(), |l2| (4 * l2).clamp(*CHOSEN_KIB.start(), *CHOSEN_KIB.end()))
}

/// The first CPU's L2 cache, from /sys/devices/system/cpu/cpu0/cache.
fn l2_kib(sys: &Path) -> Option<u32> {
    let caches = fs::read_dir(sys.join("devices/system/cpu/cpu0/cache")).ok()?;
    let read = |cache: &Path, name: &str| fs::read_to_string(cache.join(name)).unwrap_or_default();
    let size = caches
        .flatten()
        .map(|entry| entry.path())
        .find(|cache| read(cache, "level").trim() == "2" && read(cache, "type").trim() != "Instruction")
        .map(|cache| read(&cache, "size"))?;
    size.trim().strip_suffix('K')?.parse().ok()
}

struct Canary {
    probe: Option<Probe>,
    budget_ns: u64,
}

impl Collector for Canary {
    fn collect(&mut self, sample: &mut Sample) {
        let Some(probe) = &mut self.probe else {
            if sample.counters.is_some() {
                return;
            }
            return absent(sample, "counters", "the canary is switched off in the configuration");
        };
        let run = probe.run(self.budget_ns);
        if sample.counters.is_some() {
            return;
        }
        if let Some(reason) = probe.why_no_slow_share() {
            absent(sample, "counters.cache_miss_rate", reason);
        }
        absent(sample, "counters.instructions_per_s", "only hardware counters tell it");
        sample.counters = Some(Counters {
            source: "canary".to_owned(),
            cpi: Some(run.cycles_per_load),
            cache_miss_rate: run.slow_share,
            wall_cpu_ratio: Some(run.wall_cpu_ratio),
            instructions_per_s: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::fixture::Fixture;

    #[test]
    fn the_working_set_follows_the_l2_cache_within_bounds() {
        let cache = "sys/devices/system/cpu/cpu0/cache";
        let fixture = Fixture::new(&[
            (&format!("{cache}/index1/level"), "1\n"),
            (&format!("{cache}/index1/size"), "32K\n"),
            (&format!("{cache}/index2/level"), "2\n"),
            (&format!("{cache}/index2/type"), "Unified\n"),
            (&format!("{cache}/index2/size"), "768K\n"),
        ]);
        assert_eq!(l2_kib(&fixture.path("sys")), Some(768));
        assert_eq!(l2_kib(&fixture.path("nowhere")), None);
        assert_eq!([None, Some(256), Some(768), Some(2048)].map(working_set_kib), [2048, 2048, 3072, 4096]);
    }

    #[test]
    fn a_canary_that_is_switched_off_says_so() {
        let mut settings = Settings::default();
        settings.canary.enabled = false;
        let mut sample = Sample::default();
        open(&settings, &Inputs::machine()).collect(&mut sample);
        assert!(sample.counters.is_none());
        assert_eq!(sample.absent["counters"], "the canary is switched off in the configuration");
    }

    #[test]
    fn each_value_of_the_canary_is_there_or_has_a_reason() {
        let mut sample = Sample::default();
        open(&Settings::default(), &Inputs::machine()).collect(&mut sample);
        let counters = sample.counters.expect("there");
        assert_eq!(counters.source, "canary");
        assert!(counters.cpi.is_some() && counters.wall_cpu_ratio.is_some());
        assert_eq!(counters.cache_miss_rate.is_none(), sample.absent.contains_key("counters.cache_miss_rate"));
        assert!(sample.absent.contains_key("counters.instructions_per_s"));
    }
}
