//! Hardware counters of the configured scopes, where the machine has them.

use slackwater_messages::AbsenceCause::{ContainerForbids, MayNotCount};
use slackwater_messages::{Counters, Sample};
use slackwater_node::system::System;

use super::metric::metrics;
use super::{Collector, CollectorKind, absent};
use crate::config::Settings;
use crate::counter_delta::seconds_between;
use crate::kernel_file::{KeptFile, Reader};
use crate::pmu::figures::{ScopeContext, Tally, figures};
use crate::pmu::scope::Scope;
use crate::pmu::{self, events::Event};
use crate::reason::Reason;
use crate::ticks::{self, TickDelta};

/// Least CPU time over which the frequency of the whole VM is computed, because CPU time is counted in clock ticks.
const LEAST_BUSY_S: f64 = 0.5;
/// Time after which a frequency is forgotten.
const FREQUENCY_FRESH_NS: u64 = 30_000_000_000;

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "pmu",
    open,
    metrics: metrics! {
        Gauge "cycles_per_instruction" "From hardware counters." => |s| cpi_of(s, "pmu");
        Gauge "cache_miss_ratio" "From hardware counters: misses over references." => |s| s.counters.as_ref().filter(|c| c.source == "pmu")?.cache_miss_rate;
    },
};

/// Opens the events; a scope that fails is tried again later.
fn open(settings: &Settings, system: &System) -> Box<dyn Collector> {
    let mut scopes = pmu::scopes(settings, system);
    for scope in scopes.iter_mut().flatten() {
        match scope.advance() {
            Err(reason) if matches!(reason.cause, Some(MayNotCount | ContainerForbids)) => {
                tracing::warn!("hardware counters, {}: {reason}", scope.name());
            }
            _ => {}
        }
    }
    let clock = BusyClock::new(KeptFile::new(system.proc.join("stat")));
    let last_ns = (system.monotonic_ns)();
    Box::new(Pmu { scopes, system: system.clone(), clock, last_ns })
}

struct Pmu {
    scopes: Result<Vec<Scope>, Reason>,
    system: System,
    clock: BusyClock,
    last_ns: u64,
}

impl Collector for Pmu {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        let scopes = self.scopes.as_mut().map_err(|reason| reason.clone())?;
        let now_ns = (self.system.monotonic_ns)();
        let elapsed_s = seconds_between(std::mem::replace(&mut self.last_ns, now_ns), now_ns);
        let mut reasons: Vec<(String, Reason)> = Vec::new();
        for scope in scopes {
            let tally = match scope.advance() {
                Ok(tally) => tally,
                Err(reason) => {
                    reasons.push((format!("pmu.{}", scope.name()), reason));
                    continue;
                }
            };
            let frequency_mhz = if scope.name() == "system" {
                self.clock.frequency_mhz(&tally, now_ns)
            } else {
                own_frequency_mhz(&tally)
            };
            let (mute, partial) = (scope.mute(), scope.partial());
            let context = ScopeContext { elapsed_s, mute: &mute, partial: partial.as_deref(), frequency_mhz };
            let (section, missing) = figures(scope.name(), &tally, context);
            reasons.extend(missing.into_iter().map(|(field, why)| (format!("pmu.{}.{field}", scope.name()), why)));
            sample.pmu.push(section);
        }
        match sample.pmu.iter().rev().find(|section| section.cpi.is_some()) {
            Some(narrowest) => {
                let counters = Counters {
                    source: "pmu".to_owned(),
                    cpi: narrowest.cpi,
                    cache_miss_rate: narrowest.cache_miss_rate,
                    wall_cpu_ratio: None,
                    instructions_per_s: narrowest.instructions_per_s,
                };
                let scope = narrowest.scope.clone();
                for field in ["cache_miss_rate", "instructions_per_s"] {
                    let from = format!("pmu.{scope}.{field}");
                    if let Some((_, why)) = reasons.iter().find(|(name, _)| *name == from) {
                        absent(sample, &format!("counters.{field}"), why);
                    }
                }
                absent(sample, "counters.wall_cpu_ratio", "only the canary tells it");
                sample.counters = Some(counters);
            }
            // All scopes have the same reason, which is given once.
            None if sample.pmu.is_empty() && reasons.windows(2).all(|pair| pair[0].1 == pair[1].1) => {
                return reasons.into_iter().next().map_or(Ok(()), |(_, reason)| Err(reason));
            }
            None => {}
        }
        for (name, reason) in reasons {
            absent(sample, &name, reason);
        }
        Ok(())
    }
}

/// The frequency of a cgroup or of threads, whose groups are enabled while they are on a CPU.
fn own_frequency_mhz(tally: &Tally) -> Result<f64, &'static str> {
    match tally.first_enabled_ns {
        0 => Err("next to nothing ran in this period"),
        cpu_ns => Ok(tally.sums[Event::Cycles as usize].count * 1000.0 / cpu_ns as f64),
    }
}

/// The clock of a VM's CPUs while they are not idle.
struct BusyClock {
    stat: KeptFile,
    reader: Reader,
    ticks: TickDelta,
    cycles: f64,
    busy_s: f64,
    /// The last frequency in MHz, and when it was computed.
    last: Option<(f64, u64)>,
}

impl BusyClock {
    fn new(stat: KeptFile) -> BusyClock {
        BusyClock { stat, reader: Reader::default(), ticks: TickDelta::default(), cycles: 0.0, busy_s: 0.0, last: None }
    }

    fn frequency_mhz(&mut self, tally: &Tally, now_ns: u64) -> Result<f64, &'static str> {
        let ticks = self.stat.read(&mut self.reader, ticks::parse_stat).map_err(|_| "/proc/stat cannot be read")?;
        if let Ok(grown) = self.ticks.advance(now_ns, &ticks) {
            self.busy_s += ticks::running(grown) as f64 / rustix::param::clock_ticks_per_second() as f64;
            self.cycles += tally.sums[Event::Cycles as usize].count;
        }
        if tally.silent > 0 {
            (self.cycles, self.busy_s) = (0.0, 0.0);
        }
        if self.busy_s >= LEAST_BUSY_S {
            self.last = Some((self.cycles / self.busy_s / 1e6, now_ns));
            (self.cycles, self.busy_s) = (0.0, 0.0);
        }
        match self.last {
            Some((mhz, computed_ns)) if now_ns.saturating_sub(computed_ns) < FREQUENCY_FRESH_NS => Ok(mhz),
            _ => Err("too little ran to tell"),
        }
    }
}

/// The cycles per instruction from this source; values of different sources are not comparable.
fn cpi_of(sample: &Sample, source: &str) -> Option<f64> {
    sample.counters.as_ref().filter(|counters| counters.source == source)?.cpi
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::figures::EventSum;
    use slackwater_node::fixture::Fixture;

    #[test]
    fn counters_without_a_scope_say_so() {
        let mut settings = Settings::default();
        let reason = |settings: &Settings| {
            let mut sample = Sample::default();
            COLLECTOR.open(settings, &System::machine()).collect(&mut sample);
            assert!(sample.pmu.is_empty() && sample.counters.is_none());
            sample.absent["pmu"].clone()
        };
        settings.pmu.scopes = vec!["cgroup".to_owned()];
        let reason = reason(&settings);
        assert!(reason.starts_with("no scope is configured") || reason.starts_with("libpfm4"), "{reason}");
    }

    #[test]
    fn each_scope_of_this_machine_has_counters_or_a_reason() {
        let mut settings = Settings::default();
        settings.pmu.scopes = ["pid", "system"].map(str::to_owned).to_vec();
        settings.processes.names = vec!["no-such-name".to_owned()];
        let mut collector = COLLECTOR.open(&settings, &System::machine());
        let mut sample = Sample::default();
        collector.collect(&mut sample);
        if let Some(reason) = sample.absent.get("pmu") {
            assert!(reason.starts_with("libpfm4"), "{reason}");
            return;
        }
        assert_eq!(sample.absent["pmu.pid"], "no process is named no-such-name");
        assert_ne!(sample.absent.contains_key("pmu.system"), sample.pmu.iter().any(|scope| scope.scope == "system"));
        assert_eq!(sample.counters.is_some(), sample.pmu.iter().any(|scope| scope.cpi.is_some()));
    }

    #[test]
    fn the_frequency_is_that_of_enough_cpu_time() {
        const S: u64 = 1_000_000_000;
        let fixture = Fixture::new(&[("proc/stat", "cpu  100 0 0 500 0 0 0 9 0 0\ncpu0 1\n")]);
        let mut clock = BusyClock::new(KeptFile::new(fixture.path("proc/stat")));
        let mut tally = Tally::default();
        tally.sums[Event::Cycles as usize] = EventSum { count: 1e9, targets: 1 };
        assert_eq!(clock.frequency_mhz(&tally, 0), Err("too little ran to tell"));
        fixture.write("proc/stat", "cpu  110 5 5 500 0 3 2 9 0 0\ncpu0 1\n");
        assert_eq!(clock.frequency_mhz(&tally, S), Err("too little ran to tell"));
        fixture.write("proc/stat", "cpu  135 5 5 500 9 3 2 9 0 0\ncpu0 1\n");
        // 2e9 cycles in 50 ticks of 10 ms.
        assert_eq!(clock.frequency_mhz(&tally, 2 * S), Ok(4000.0));
        assert_eq!(clock.frequency_mhz(&tally, 3 * S), Ok(4000.0));
        assert!(clock.frequency_mhz(&tally, FREQUENCY_FRESH_NS + 2 * S).is_err());
        fixture.write("proc/stat", "none\n");
        assert!(clock.frequency_mhz(&tally, 3).is_err());
    }
}
