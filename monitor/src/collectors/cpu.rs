//! CPU time by kind of the whole VM (/proc/stat), and of a cgroup against its tightest quota, with its throttling.
//!
//! The whole VM's clock ticks are 10 ms: at a period of 0.2 s its shares have steps of 5% of one core.

use std::path::PathBuf;

use slackwater_messages::{Cpu, Sample};

use slackwater_node::cgroup::{self, CpuFiles, Version};
use slackwater_node::list::parse_list;

use super::metric::metrics;
use super::{Collector, CollectorKind, absent, first_read, put};
use crate::config::Settings;
use crate::counter_delta::CounterDelta;
use crate::reason::Reason;
use crate::system::{KeptFile, Reader, System};
use crate::ticks::{self, Kinds, Ticks};

/// Quotas change seldom: they are read again after this time.
const QUOTA_FRESH_NS: u64 = 1_000_000_000;

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "cpu",
    open,
    metrics: metrics! {
        Gauge "cpu_utilisation_ratio" "CPU time over what the scope may use, stolen time included." => |s| s.cpu.as_ref()?.utilisation;
        Gauge "cpu_steal_ratio" "Share of the CPU time that the hypervisor gave to others." => |s| s.cpu.as_ref()?.steal;
        Gauge "cpu_cores" "What a utilisation of 1 means." => |s| s.cpu.as_ref()?.cores;
        Rate "cpu_used_seconds" "CPU time used by the scope, stolen time included." => |s| { let cpu = s.cpu.as_ref()?; Some(cpu.utilisation? * cpu.cores?) };
        Rate "cpu_seconds" ["mode" = "user"] "CPU time of the whole VM by kind." => |s| vm_cpu(s, |cpu| cpu.user);
        Rate "cpu_seconds" ["mode" = "system"] "" => |s| vm_cpu(s, |cpu| cpu.system);
        Rate "cpu_seconds" ["mode" = "irq"] "" => |s| vm_cpu(s, |cpu| cpu.irq);
        Rate "cpu_seconds" ["mode" = "iowait"] "" => |s| vm_cpu(s, |cpu| cpu.iowait);
        Rate "cpu_seconds" ["mode" = "steal"] "" => |s| vm_cpu(s, |cpu| cpu.steal);
        Rate "cpu_throttled_seconds" "Time for which the cgroup was throttled, summed over its cores." => |s| s.cpu.as_ref()?.throttled_s_per_s;
    },
};

/// Opens the collector for the scope of the settings.
fn open(settings: &Settings, system: &System) -> Box<dyn Collector> {
    first_read(Use {
        stat: KeptFile::new(system.proc.join("stat")),
        system: system.clone(),
        reader: Reader::default(),
        last: None,
        group: (!settings.cpu.cgroup.is_empty()).then(|| Group::new(&settings.cpu.cgroup)),
    })
}

struct Use {
    system: System,
    stat: KeptFile,
    reader: Reader,
    last: Option<Ticks>,
    /// Whose utilisation is measured, instead of the VM's.
    group: Option<Group>,
}

/// From /proc/stat: the shares of this period, and the cores that are online.
struct Vm {
    kinds: Result<Kinds, &'static str>,
    cores: f64,
}

impl Use {
    fn vm(&mut self) -> Result<Vm, Reason> {
        let now = match self.stat.parse(&mut self.reader, ticks::parse_stat) {
            Ok(now) => now,
            Err(reason) => {
                self.last = None;
                return Err(reason);
            }
        };
        let last = self.last.replace(now).ok_or("there was no earlier reading");
        Ok(Vm { kinds: last.and_then(|last| ticks::kinds(&last, &now)), cores: f64::from(now.cores) })
    }
}

impl Collector for Use {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        let now_ns = (self.system.monotonic_ns)();
        let vm = self.vm();
        let mut cpu = match &mut self.group {
            Some(group) => group.section(sample, &self.system, &mut self.reader, now_ns, &vm)?,
            None => whole(sample, vm.as_ref().map_err(Reason::clone)?),
        };
        let kinds = vm.and_then(|vm| vm.kinds.map_err(Reason::from));
        let share = |of: fn(&Kinds) -> f64| kinds.as_ref().map(of).map_err(Reason::clone);
        put!(sample, cpu.user, share(|kinds| kinds.user));
        put!(sample, cpu.system, share(|kinds| kinds.system));
        put!(sample, cpu.irq, share(|kinds| kinds.irq));
        put!(sample, cpu.iowait, share(|kinds| kinds.iowait));
        sample.cpu = Some(cpu);
        Ok(())
    }
}

/// The section of the whole VM, but for the kinds.
fn whole(sample: &mut Sample, vm: &Vm) -> Cpu {
    let mut cpu = Cpu { scope: "system".to_owned(), cores: Some(vm.cores), ..Cpu::default() };
    put!(sample, cpu.utilisation, vm.kinds.map(|kinds| kinds.used));
    put!(sample, cpu.steal, vm.kinds.map(|kinds| kinds.steal));
    for name in ["cpu.throttled", "cpu.throttled_s_per_s"] {
        absent(sample, name, "`cpu.cgroup` names no cgroup");
    }
    cpu
}

/// A cgroup.
struct Group {
    cgroup: String,
    files: Option<(CpuFiles, KeptFile)>,
    usage: CounterDelta<1>,
    limit: Option<Limit>,
}

/// What the cgroup may use.
struct Limit {
    read_ns: u64,
    /// The tightest quota, the cores of its cpuset or the VM's, whatever is less.
    cores: f64,
    /// The counts of the directory that sets the quota.
    throttling: Option<Throttling>,
}

struct Throttling {
    directory: PathBuf,
    stat: KeptFile,
    deltas: CounterDelta<3>,
}

impl Group {
    fn new(cgroup: &str) -> Group {
        Group { cgroup: cgroup.to_owned(), files: None, usage: CounterDelta::default(), limit: None }
    }

    /// The cgroup's section, but for the kinds.
    fn section(
        &mut self,
        sample: &mut Sample,
        system: &System,
        reader: &mut Reader,
        now_ns: u64,
        vm: &Result<Vm, Reason>,
    ) -> Result<Cpu, Reason> {
        let usage_ns = match self.usage_ns(system, reader) {
            Ok(usage_ns) => usage_ns,
            Err(reason) => {
                // It may come back somewhere else.
                *self = Group::new(&self.cgroup);
                return Err(reason);
            }
        };
        let mut cpu = Cpu { scope: "cgroup".to_owned(), ..Cpu::default() };
        absent(sample, "cpu.steal", "a cgroup has no steal time; it is the whole VM's");
        let used = self.usage.advance(now_ns, [Some(usage_ns)]).per_s(0).map(|ns_per_s| ns_per_s / 1e9);
        match self.limit(system, now_ns, vm) {
            Ok(limit) => {
                cpu.cores = Some(limit.cores);
                put!(sample, cpu.utilisation, used.map(|used| used / limit.cores));
                limit.throttling(sample, &mut cpu, reader, now_ns);
            }
            Err(reason) => {
                for name in ["cpu.utilisation", "cpu.cores", "cpu.throttled", "cpu.throttled_s_per_s"] {
                    absent(sample, name, reason.clone());
                }
            }
        }
        Ok(cpu)
    }

    fn usage_ns(&mut self, system: &System, reader: &mut Reader) -> Result<u64, Reason> {
        let (files, usage) = match &mut self.files {
            Some(found) => found,
            empty => {
                let files = cgroup::find_cpu(&system.cgroup, &self.cgroup)?;
                let usage = KeptFile::new(&files.usage);
                empty.insert((files, usage))
            }
        };
        let parse = match files.version {
            Version::V1 => cgroup::parse_usage_v1,
            Version::V2 => cgroup::parse_usage_v2,
        };
        usage.parse(reader, parse)
    }

    fn limit(&mut self, system: &System, now_ns: u64, vm: &Result<Vm, Reason>) -> Result<&mut Limit, Reason> {
        let limit = match self.limit.take() {
            Some(limit) if now_ns.saturating_sub(limit.read_ns) < QUOTA_FRESH_NS => limit,
            stale => {
                let online = vm.as_ref().map_err(Reason::clone)?.cores;
                let cpuset =
                    cgroup::find_cpuset(&system.cgroup, &self.cgroup).and_then(|path| cgroup::effective_cores(&path));
                let allowed = cpuset.ok().and_then(|list| parse_list(&list)).filter(|cores| !cores.is_empty());
                let online = allowed.map_or(online, |cores| online.min(cores.len() as f64));
                let quota = self.files.as_ref().map_or(Ok(None), |(files, _)| cgroup::tightest_quota(files))?;
                let counted = stale.and_then(|limit| limit.throttling);
                Limit {
                    read_ns: now_ns,
                    cores: quota.map_or(online, |(cores, _)| cores.min(online)),
                    throttling: quota.map(|(_, directory)| {
                        counted.filter(|counted| counted.directory == directory).unwrap_or_else(|| Throttling {
                            directory: directory.to_owned(),
                            stat: KeptFile::new(directory.join("cpu.stat")),
                            deltas: CounterDelta::default(),
                        })
                    }),
                }
            }
        };
        Ok(self.limit.insert(limit))
    }
}

impl Limit {
    fn throttling(&mut self, sample: &mut Sample, cpu: &mut Cpu, reader: &mut Reader, now_ns: u64) {
        let delta = match &mut self.throttling {
            None => Err("neither the cgroup nor one above it has a quota".into()),
            Some(Throttling { stat, deltas, .. }) => stat
                .parse(reader, cgroup::parse_throttling)
                .inspect_err(|_| deltas.forget())
                .map(|counters| deltas.advance(now_ns, counters)),
        };
        let (share, s_per_s) = match delta {
            Ok(delta) => {
                let share = match (delta.by[0], delta.by[1]) {
                    (Ok(0), Ok(0)) => Err(Reason::from("no period of the quota ended: the cgroup was idle")),
                    (Ok(periods), Ok(throttled)) => Ok((throttled as f64 / periods as f64).min(1.0)),
                    (Err(reason), _) | (_, Err(reason)) => Err(reason.into()),
                };
                (share, delta.per_s(2).map(|ns_per_s| ns_per_s / 1e9).map_err(Reason::from))
            }
            Err(reason) => (Err(reason.clone()), Err(reason)),
        };
        put!(sample, cpu.throttled, share);
        put!(sample, cpu.throttled_s_per_s, s_per_s);
    }
}

/// The kinds of CPU time are shares of the whole VM: they become seconds where its cores are known.
fn vm_cpu(sample: &Sample, share: fn(&Cpu) -> Option<f64>) -> Option<f64> {
    let cpu = sample.cpu.as_ref().filter(|cpu| cpu.scope == "system")?;
    Some(share(cpu)? * cpu.cores?)
}

#[cfg(test)]
mod tests {
    use slackwater_messages::AbsenceCause;

    use super::*;
    use crate::collectors::Active;
    use crate::system::fixture::Fixture;

    const STAT: &str =
        "cpu  100 5 50 1000 20 3 2 10 7 0\ncpu0 50 0 0 0 0 0 0 0 0 0\ncpu1 1 0 0 0 0 0 0 0 0 0\nintr 5\n";

    fn group(fixture: &Fixture) -> Active {
        let mut settings = Settings::default();
        settings.cpu.cgroup = "web/h1".to_owned();
        COLLECTOR.open(&settings, &fixture.system())
    }

    #[test]
    fn the_vm_is_full_when_nothing_is_idle_also_beside_a_thief() {
        let fixture = Fixture::new(&[("proc/stat", STAT)]);
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.write("proc/stat", &STAT.replace("cpu  100 5 50 1000 20 3 2 10", "cpu  120 5 60 1000 20 3 2 20"));
        let cpu = collector.sample().cpu.expect("there");
        assert_eq!((cpu.utilisation, cpu.steal, cpu.cores), (Some(1.0), Some(0.25), Some(2.0)));
        assert_eq!((cpu.user, cpu.system, cpu.irq, cpu.iowait), (Some(0.5), Some(0.25), Some(0.0), Some(0.0)));
    }

    #[test]
    fn ticks_that_stand_still_or_go_back_are_no_zero() {
        let fixture = Fixture::new(&[("proc/stat", STAT)]);
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        for text in [STAT.to_owned(), STAT.replace("cpu  100", "cpu  50")] {
            fixture.write("proc/stat", &text);
            let sample = collector.sample();
            assert_eq!(sample.cpu.expect("there").utilisation, None);
            assert!(sample.absent.contains_key("cpu.utilisation") && sample.absent.contains_key("cpu.steal"));
        }
        fixture.remove("proc/stat");
        fixture.write("proc/stat", "");
        let mut fresh = COLLECTOR.open(&Settings::default(), &fixture.system());
        let sample = fresh.sample();
        assert!(sample.cpu.is_none() && sample.absent["cpu"].ends_with("stat: not in the expected form"));
    }

    #[test]
    fn a_cgroup_of_version_1_is_measured_against_its_quota() {
        let fixture = Fixture::new(&[
            ("proc/stat", STAT),
            ("cgroup/cpuacct/web/h1/cpuacct.usage", "1000000000\n"),
            ("cgroup/cpu/web/h1/cpu.cfs_quota_us", "40000\n"),
            ("cgroup/cpu/web/h1/cpu.cfs_period_us", "100000\n"),
            ("cgroup/cpu/web/h1/cpu.stat", "nr_periods 10\nnr_throttled 2\nthrottled_time 1000000\n"),
        ]);
        let mut collector = group(&fixture);
        fixture.advance_s(0.25);
        fixture.write("proc/stat", &STAT.replace("cpu  100 5 50", "cpu  110 5 80"));
        fixture.write("cgroup/cpu/web/h1/cpu.stat", "nr_periods 14\nnr_throttled 3\nthrottled_time 51000000\n");
        fixture.write("cgroup/cpuacct/web/h1/cpuacct.usage", "1050000000\n");
        let sample = collector.sample();
        let cpu = sample.cpu.expect("there");
        assert_eq!((cpu.scope.as_str(), cpu.cores, cpu.steal), ("cgroup", Some(0.4), None));
        assert!((cpu.utilisation.expect("there") - 0.5).abs() < 1e-9);
        assert!(sample.absent.contains_key("cpu.steal"));
        assert_eq!((cpu.throttled, cpu.throttled_s_per_s), (Some(0.25), Some(0.2)));
        assert_eq!((cpu.user, cpu.system), (Some(0.25), Some(0.75)));
    }

    #[test]
    fn throttling_is_that_of_the_cgroup_above_which_sets_the_tightest_quota() {
        let stat = |throttled: u64| {
            format!("usage_usec 9\nnr_periods {}\nnr_throttled {throttled}\nthrottled_usec 50000\n", throttled + 2)
        };
        let fixture = Fixture::new(&[
            ("proc/stat", STAT),
            ("cgroup/cgroup.controllers", "cpu\n"),
            ("cgroup/web/cpu.max", "40000 100000\n"),
            ("cgroup/web/cpu.stat", &stat(5)),
            ("cgroup/web/h1/cpu.max", "max 100000\n"),
            ("cgroup/web/h1/cpu.stat", &stat(0)),
        ]);
        let mut collector = group(&fixture);
        fixture.advance_s(0.5);
        let sample = collector.sample();
        assert_eq!(sample.absent["cpu.throttled"], "no period of the quota ended: the cgroup was idle");
        assert_eq!(sample.cpu.expect("there").throttled_s_per_s, Some(0.0));
        fixture.advance_s(1.5);
        fixture.write("cgroup/web/cpu.stat", &stat(9));
        assert_eq!(collector.sample().cpu.expect("there").throttled, Some(1.0));
        fixture.advance_s(1.5);
        fixture.write("cgroup/web/cpu.stat", &stat(3));
        let sample = collector.sample();
        assert_eq!(sample.cpu.expect("there").throttled, None);
        assert!(sample.absent["cpu.throttled"].starts_with("the counter went back"));
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
        let cpu = collector.sample().cpu.expect("there");
        assert_eq!((cpu.cores, cpu.utilisation, cpu.throttled), (Some(2.0), Some(0.25), None));
    }

    #[test]
    fn a_cgroup_may_use_the_cores_of_its_cpuset() {
        let fixture = Fixture::new(&[
            ("proc/stat", STAT),
            ("cgroup/cpuacct/web/h1/cpuacct.usage", "1000000000\n"),
            ("cgroup/cpuset/web/h1/cpuset.cpus", "0-1\n"),
        ]);
        let mut collector = group(&fixture);
        fixture.advance_s(1.5);
        fixture.write("cgroup/cpuacct/web/h1/cpuacct.usage", "1750000000\n");
        let cpu = collector.sample().cpu.expect("there");
        assert_eq!((cpu.cores, cpu.utilisation), (Some(2.0), Some(0.25)));
        fixture.write("cgroup/cpuset/web/h1/cpuset.cpus", "1\n");
        fixture.advance_s(1.5);
        fixture.write("cgroup/cpuacct/web/h1/cpuacct.usage", "2500000000\n");
        let cpu = collector.sample().cpu.expect("there");
        assert_eq!((cpu.cores, cpu.utilisation), (Some(1.0), Some(0.5)));
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
        let sample = collector.sample();
        assert_eq!(sample.cpu.expect("there").utilisation, None);
        assert_eq!(sample.absent["cpu.utilisation"], "the counter went back: it wrapped or began anew");
        fixture.advance_s(1.0);
        fixture.write("cgroup/web/h1/cpu.stat", "usage_usec 200010\n");
        assert_eq!(collector.sample().cpu.expect("there").utilisation, Some(0.1));

        let mut late = group(&Fixture::new(&[("proc/stat", STAT)]));
        let sample = late.sample();
        assert!(sample.cpu.is_none() && sample.absent["cpu"].starts_with("cgroup web/h1: neither cpu.stat"));
        assert_eq!(sample.absence_causes["cpu"], AbsenceCause::NoCgroup);
    }
}
