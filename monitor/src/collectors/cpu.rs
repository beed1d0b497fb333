//! CPU time by kind of the whole VM (/proc/stat), and of a cgroup against its tightest quota, with its throttling.
//!
//! A clock tick of the whole VM is 10 ms, so at a period of 0.2 s its shares have steps of 5% of one core.

use std::path::PathBuf;

use slackwater_messages::{Cpu, Sample};

use slackwater_node::cgroup::{self, CpuFiles, Version};
use slackwater_node::list::parse_list;
use slackwater_node::system::System;

use super::metric::metrics;
use super::{Collector, CollectorKind, absent, first_read, put};
use crate::config::Settings;
use crate::counter_delta::{CounterDelta, GrowthLimit, if_counted};
use crate::kernel_file::{KeptFile, Reader};
use crate::reason::Reason;
use crate::ticks::{self, TickDelta, TickShares};

/// Quotas change seldom: they are read again after this time.
const QUOTA_FRESH_NS: u64 = 1_000_000_000;

/// Limit for CPU time while the number of CPUs is not known, and for throttled time, which is counted when it is over.
const NS_OF_ALL_CPUS: GrowthLimit = GrowthLimit::time(1e9).times(8192.0);
/// The shortest period of a quota is a millisecond.
const PERIODS: GrowthLimit = GrowthLimit::time(1e3);

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
    first_read(CpuUse {
        stat: KeptFile::new(system.proc.join("stat")),
        system: system.clone(),
        reader: Reader::default(),
        ticks: TickDelta::default(),
        group: (!settings.cpu.cgroup.is_empty()).then(|| CgroupUse::new(&settings.cpu.cgroup)),
    })
}

struct CpuUse {
    system: System,
    stat: KeptFile,
    reader: Reader,
    ticks: TickDelta,
    /// Whose utilisation is measured, instead of the VM's.
    group: Option<CgroupUse>,
}

/// From /proc/stat: the shares of this period, and the cores that are online.
struct Vm {
    kinds: Result<TickShares, Reason>,
    cores: f64,
}

impl CpuUse {
    fn vm(&mut self, now_ns: u64) -> Result<Vm, Reason> {
        let now = self.stat.read(&mut self.reader, ticks::parse_stat).inspect_err(|_| self.ticks.forget())?;
        let grown = self.ticks.advance(now_ns, &now);
        Ok(Vm { kinds: grown.and_then(|grown| Ok(ticks::kinds(grown)?)), cores: f64::from(now.cores) })
    }
}

impl Collector for CpuUse {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        let now_ns = (self.system.monotonic_ns)();
        let vm = self.vm(now_ns);
        let mut cpu = match &mut self.group {
            Some(group) => group.section(sample, &self.system, &mut self.reader, now_ns, &vm)?,
            None => whole(sample, vm.as_ref().map_err(Reason::clone)?),
        };
        let kinds = vm.and_then(|vm| vm.kinds);
        let share = |read: fn(&TickShares) -> f64| kinds.as_ref().map(read).map_err(Reason::clone);
        put!(sample, cpu.user, share(|kinds| kinds.user));
        put!(sample, cpu.system, share(|kinds| kinds.system));
        put!(sample, cpu.irq, share(|kinds| kinds.irq));
        put!(sample, cpu.iowait, share(|kinds| kinds.iowait));
        sample.cpu = Some(cpu);
        Ok(())
    }
}

/// The section of the whole VM, without the kinds.
fn whole(sample: &mut Sample, vm: &Vm) -> Cpu {
    let mut cpu = Cpu { scope: "system".to_owned(), cores: Some(vm.cores), ..Cpu::default() };
    put!(sample, cpu.utilisation, vm.kinds.as_ref().map(|kinds| kinds.used));
    put!(sample, cpu.steal, vm.kinds.as_ref().map(|kinds| kinds.steal));
    for name in ["cpu.throttled", "cpu.throttled_s_per_s"] {
        absent(sample, name, "`cpu.cgroup` names no cgroup");
    }
    cpu
}

/// The CPU time of a cgroup.
struct CgroupUse {
    cgroup: String,
    files: Option<(CpuFiles, KeptFile)>,
    usage: CounterDelta<1>,
    limit: Option<Limit>,
}

/// The CPU time that the cgroup may use.
struct Limit {
    read_ns: u64,
    /// The least of its tightest quota, the cores of its cpuset, and the VM's cores.
    cores: f64,
    /// The counts in the directory that sets the quota.
    throttling: Option<Throttling>,
}

struct Throttling {
    directory: PathBuf,
    stat: KeptFile,
    deltas: CounterDelta<3>,
}

impl CgroupUse {
    fn new(cgroup: &str) -> CgroupUse {
        CgroupUse { cgroup: cgroup.to_owned(), files: None, usage: CounterDelta::new([NS_OF_ALL_CPUS]), limit: None }
    }

    /// The cgroup's section, without the kinds.
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
                // The cgroup may come back somewhere else.
                *self = CgroupUse::new(&self.cgroup);
                return Err(reason);
            }
        };
        let mut cpu = Cpu { scope: "cgroup".to_owned(), ..Cpu::default() };
        absent(sample, "cpu.steal", "a cgroup has no steal time; it is the whole VM's");
        if let Ok(vm) = vm {
            self.usage.set_limits([GrowthLimit::time(1e9).times(vm.cores)]);
        }
        let used = self.usage.advance(now_ns, [Ok(usage_ns)]).per_s(0).map(|ns_per_s| ns_per_s / 1e9);
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
            Some(open) => open,
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
                let throttling = stale.and_then(|limit| limit.throttling);
                Limit {
                    read_ns: now_ns,
                    cores: quota.map_or(online, |(cores, _)| cores.min(online)),
                    throttling: quota.map(|(_, directory)| {
                        throttling.filter(|last| last.directory == directory).unwrap_or_else(|| Throttling {
                            directory: directory.to_owned(),
                            stat: KeptFile::new(directory.join("cpu.stat")),
                            deltas: CounterDelta::new([PERIODS, PERIODS, NS_OF_ALL_CPUS]),
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
                .map(|counters| deltas.advance(now_ns, counters.map(if_counted))),
        };
        let (share, s_per_s) = match delta {
            Ok(delta) => {
                let share = match (delta.by(0), delta.by(1)) {
                    (Ok(0), Ok(0)) => Err(Reason::from("no period of the quota ended: the cgroup was idle")),
                    (Ok(periods), Ok(throttled)) if throttled > periods => {
                        Err(format!("{throttled} periods were throttled of {periods} that ended").into())
                    }
                    (Ok(periods), Ok(throttled)) => Ok(throttled as f64 / periods as f64),
                    (Err(reason), _) | (_, Err(reason)) => Err(reason),
                };
                (share, delta.per_s(2).map(|ns_per_s| ns_per_s / 1e9))
            }
            Err(reason) => (Err(reason.clone()), Err(reason)),
        };
        put!(sample, cpu.throttled, share);
        put!(sample, cpu.throttled_s_per_s, s_per_s);
    }
}

/// A kind of CPU time in CPU seconds per second: its share of the whole VM times the VM's cores, where these are known.
fn vm_cpu(sample: &Sample, share: fn(&Cpu) -> Option<f64>) -> Option<f64> {
    let cpu = sample.cpu.as_ref().filter(|cpu| cpu.scope == "system")?;
    Some(share(cpu)? * cpu.cores?)
}

#[cfg(test)]
mod tests;
