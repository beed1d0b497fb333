//! CPU use and steal of the whole VM (/proc/stat), or of a cgroup against its tightest quota.
//!
//! The whole VM's clock ticks are 10 ms: at a period of 0.2 s utilisation has steps of 5% of one core.

use slackwater_messages::{Cpu, Sample};

use super::{Collector, NO_TIME, absent, seconds_between};
use crate::cgroup::{self, CpuFiles, Version};
use crate::config::Settings;
use crate::inputs::{Inputs, KeptFile, Reader};

/// Quotas and the number of CPUs change seldom: they are read again after this time.
const CORES_FRESH_NS: u64 = 1_000_000_000;

/// Opens the collector for the scope of the settings.
pub fn open(settings: &Settings, inputs: &Inputs) -> Box<dyn Collector> {
    let stat = KeptFile::new(inputs.proc.join("stat"));
    if settings.cpu.cgroup.is_empty() {
        let mut collector = System { stat, reader: Reader::default(), last: None };
        collector.collect(&mut Sample::default());
        Box::new(collector)
    } else {
        let cgroup = settings.cpu.cgroup.clone();
        let mut collector = Group {
            inputs: inputs.clone(),
            cgroup,
            stat,
            reader: Reader::default(),
            files: None,
            last: None,
            cores: None,
        };
        collector.collect(&mut Sample::default());
        Box::new(collector)
    }
}

/// Clock ticks of all CPUs since boot, from the first line of /proc/stat.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Ticks {
    idle: u64,
    steal: u64,
    total: u64,
    cores: u32,
}

/// Reads /proc/stat. Guest time stands within user time and is not counted again.
pub fn parse_stat(text: &str) -> Option<Ticks> {
    let mut fields = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().map(str::parse::<u64>);
    let mut ticks = Ticks::default();
    for place in 0..8 {
        let value = fields.next()?.ok()?;
        ticks.total += value;
        match place {
            3 | 4 => ticks.idle += value, // idle, iowait
            7 => ticks.steal = value,
            _ => {}
        }
    }
    let cores = text.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
    ticks.cores = u32::try_from(cores).ok().filter(|cores| *cores > 0)?;
    Some(ticks)
}

/// The whole VM. Stolen time counts as used, since the VM could not have used it: so full is 1.0 also beside a thief.
struct System {
    stat: KeptFile,
    reader: Reader,
    last: Option<Ticks>,
}

impl Collector for System {
    fn collect(&mut self, sample: &mut Sample) {
        let now = match self.stat.parse(&mut self.reader, parse_stat) {
            Ok(now) => now,
            Err(reason) => {
                self.last = None;
                return absent(sample, "cpu", reason);
            }
        };
        let mut cpu = Cpu { scope: "system".to_owned(), cores: Some(f64::from(now.cores)), ..Cpu::default() };
        match self.last.replace(now).map(|last| shares(last, now)) {
            None => {
                absent(sample, "cpu.utilisation", "there was no earlier reading");
                absent(sample, "cpu.steal", "there was no earlier reading");
            }
            Some(None) => {
                absent(sample, "cpu.utilisation", NO_TIME);
                absent(sample, "cpu.steal", NO_TIME);
            }
            Some(Some((utilisation, steal))) => {
                cpu.utilisation = Some(utilisation);
                cpu.steal = Some(steal);
            }
        }
        sample.cpu = Some(cpu);
    }
}

/// Shares of time that was not idle, and that was stolen. The kernel's idle and iowait can go back by a tick.
fn shares(last: Ticks, now: Ticks) -> Option<(f64, f64)> {
    let total = now.total.checked_sub(last.total).filter(|total| *total > 0)? as f64;
    let idle = now.idle.saturating_sub(last.idle) as f64;
    let steal = now.steal.saturating_sub(last.steal) as f64;
    Some(((1.0 - idle / total).clamp(0.0, 1.0), (steal / total).min(1.0)))
}

/// A cgroup.
struct Group {
    inputs: Inputs,
    cgroup: String,
    stat: KeptFile,
    reader: Reader,
    files: Option<(CpuFiles, KeptFile)>,
    last: Option<(u64, u64)>,
    cores: Option<(u64, f64)>,
}

impl Group {
    fn usage_ns(&mut self) -> Result<u64, String> {
        let (files, usage) = match &mut self.files {
            Some(found) => found,
            empty => {
                let files = cgroup::find_cpu(&self.inputs.cgroup, &self.cgroup)?;
                let usage = KeptFile::new(&files.usage);
                empty.insert((files, usage))
            }
        };
        let parse = match files.version {
            Version::V1 => cgroup::parse_usage_v1,
            Version::V2 => cgroup::parse_usage_v2,
        };
        usage.parse(&mut self.reader, parse)
    }

    /// The tightest quota, or the VM's cores where that is less.
    fn cores(&mut self, now_ns: u64) -> Result<f64, String> {
        if let Some((read_ns, cores)) = self.cores
            && now_ns.saturating_sub(read_ns) < CORES_FRESH_NS
        {
            return Ok(cores);
        }
        let online = f64::from(self.stat.parse(&mut self.reader, parse_stat)?.cores);
        let quota = self.files.as_ref().map_or(Ok(None), |(files, _)| cgroup::tightest_quota(files))?;
        let cores = quota.map_or(online, |quota| quota.min(online));
        self.cores = Some((now_ns, cores));
        Ok(cores)
    }
}

impl Collector for Group {
    fn collect(&mut self, sample: &mut Sample) {
        let now_ns = (self.inputs.monotonic_ns)();
        let usage_ns = match self.usage_ns() {
            Ok(usage_ns) => usage_ns,
            Err(reason) => {
                // It may come back somewhere else.
                self.files = None;
                self.last = None;
                self.cores = None;
                return absent(sample, "cpu", reason);
            }
        };
        let mut cpu = Cpu { scope: "cgroup".to_owned(), ..Cpu::default() };
        absent(sample, "cpu.steal", "a cgroup has no steal time; it is the whole VM's");
        let used = match self.last.replace((now_ns, usage_ns)) {
            None => Err("there was no earlier reading".to_owned()),
            Some((last_ns, last)) => match usage_ns.checked_sub(last) {
                None => Err(format!("the CPU time of cgroup {} went back: it was made anew", self.cgroup)),
                Some(_) if now_ns <= last_ns => Err(NO_TIME.to_owned()),
                Some(used_ns) => Ok(used_ns as f64 / 1e9 / seconds_between(last_ns, now_ns)),
            },
        };
        match self.cores(now_ns) {
            Ok(cores) => {
                cpu.cores = Some(cores);
                match used {
                    Ok(used) => cpu.utilisation = Some(used / cores),
                    Err(reason) => absent(sample, "cpu.utilisation", reason),
                }
            }
            Err(reason) => {
                absent(sample, "cpu.utilisation", reason.clone());
                absent(sample, "cpu.cores", reason);
            }
        }
        sample.cpu = Some(cpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::fixture::Fixture;

    const STAT: &str =
        "cpu  100 5 50 1000 20 3 2 10 7 0\ncpu0 50 0 0 0 0 0 0 0 0 0\ncpu1 1 0 0 0 0 0 0 0 0 0\nintr 5\n";

    fn collect(collector: &mut dyn Collector) -> Sample {
        let mut sample = Sample::default();
        collector.collect(&mut sample);
        sample
    }

    fn group(fixture: &Fixture) -> Box<dyn Collector> {
        let mut settings = Settings::default();
        settings.cpu.cgroup = "web/h1".to_owned();
        open(&settings, &fixture.inputs())
    }

    #[test]
    fn ticks_are_read_with_steal_and_without_counting_guests_twice() {
        let ticks = parse_stat(STAT).expect("read");
        assert_eq!(ticks, Ticks { idle: 1020, steal: 10, total: 1190, cores: 2 });
        for bad in ["", "cpu  1 2 3\ncpu0 1\n", "cpu  a b c d e f g h\ncpu0 1\n", "intr 5\n", "cpu  1 1 1 1 1 1 1 1\n"]
        {
            assert_eq!(parse_stat(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_vm_is_full_when_nothing_is_idle_also_beside_a_thief() {
        let fixture = Fixture::new(&[("proc/stat", STAT)]);
        let mut collector = open(&Settings::default(), &fixture.inputs());
        fixture.write("proc/stat", &STAT.replace("cpu  100 5 50 1000 20 3 2 10", "cpu  120 5 60 1000 20 3 2 20"));
        let cpu = collect(collector.as_mut()).cpu.expect("there");
        assert_eq!((cpu.utilisation, cpu.steal, cpu.cores), (Some(1.0), Some(0.25), Some(2.0)));
    }

    #[test]
    fn ticks_that_stand_still_or_go_back_are_no_zero() {
        let fixture = Fixture::new(&[("proc/stat", STAT)]);
        let mut collector = open(&Settings::default(), &fixture.inputs());
        for text in [STAT.to_owned(), STAT.replace("cpu  100", "cpu  50")] {
            fixture.write("proc/stat", &text);
            let sample = collect(collector.as_mut());
            assert_eq!(sample.cpu.expect("there").utilisation, None);
            assert!(sample.absent.contains_key("cpu.utilisation") && sample.absent.contains_key("cpu.steal"));
        }
        fixture.remove("proc/stat");
        fixture.write("proc/stat", "");
        let mut fresh = open(&Settings::default(), &fixture.inputs());
        let sample = collect(fresh.as_mut());
        assert!(sample.cpu.is_none() && sample.absent["cpu"].ends_with("stat: not in the expected form"));
    }

    #[test]
    fn a_cgroup_of_version_1_is_measured_against_its_quota() {
        let fixture = Fixture::new(&[
            ("proc/stat", STAT),
            ("cgroup/cpuacct/web/h1/cpuacct.usage", "1000000000\n"),
            ("cgroup/cpu/web/h1/cpu.cfs_quota_us", "40000\n"),
            ("cgroup/cpu/web/h1/cpu.cfs_period_us", "100000\n"),
        ]);
        let mut collector = group(&fixture);
        fixture.advance_s(0.25);
        fixture.write("cgroup/cpuacct/web/h1/cpuacct.usage", "1050000000\n");
        let sample = collect(collector.as_mut());
        let cpu = sample.cpu.expect("there");
        assert_eq!((cpu.scope.as_str(), cpu.cores, cpu.steal), ("cgroup", Some(0.4), None));
        assert!((cpu.utilisation.expect("there") - 0.5).abs() < 1e-9);
        assert!(sample.absent.contains_key("cpu.steal"));
    }

    #[test]
    fn a_cgroup_of_version_2_without_quota_may_use_all_cores() {
        let fixture = Fixture::new(&[
            ("proc/stat", STAT),
            ("cgroup/cgroup.controllers", "cpu\n"),
            ("cgroup/web/h1/cpu.stat", "usage_usec 1000000\n"),
            ("cgroup/web/h1/cpu.max", "max 100000\n"),
        ]);
        let mut collector = group(&fixture);
        fixture.advance_s(1.0);
        fixture.write("cgroup/web/h1/cpu.stat", "usage_usec 1500000\n");
        let cpu = collect(collector.as_mut()).cpu.expect("there");
        assert_eq!((cpu.cores, cpu.utilisation), (Some(2.0), Some(0.25)));
    }

    #[test]
    fn a_cgroup_that_is_removed_and_made_again_gives_reasons_and_then_values() {
        let fixture = Fixture::new(&[
            ("proc/stat", STAT),
            ("cgroup/cgroup.controllers", "cpu\n"),
            ("cgroup/web/h1/cpu.stat", "usage_usec 1000000\n"),
        ]);
        let mut collector = group(&fixture);
        fixture.advance_s(1.0);
        fixture.write("cgroup/web/h1/cpu.stat", "usage_usec 10\n");
        let sample = collect(collector.as_mut());
        assert_eq!(sample.cpu.expect("there").utilisation, None);
        assert_eq!(sample.absent["cpu.utilisation"], "the CPU time of cgroup web/h1 went back: it was made anew");
        fixture.advance_s(1.0);
        fixture.write("cgroup/web/h1/cpu.stat", "usage_usec 200010\n");
        assert_eq!(collect(collector.as_mut()).cpu.expect("there").utilisation, Some(0.1));

        let mut late = group(&Fixture::new(&[("proc/stat", STAT)]));
        let sample = collect(late.as_mut());
        assert!(sample.cpu.is_none() && sample.absent["cpu"].starts_with("cgroup web/h1: neither cpu.stat"));
    }
}
