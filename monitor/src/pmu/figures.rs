//! Turns a scope's counts into cycles per instruction, miss rates and the like. Pure.

use slackwater_messages::ScopeCounters;

use super::events::{COUNT, Event};
use super::group::GroupCounts;
use crate::reason::Reason;

/// Ratios over fewer instructions than this mean nothing.
const LEAST_INSTRUCTIONS: f64 = 10_000.0;

const NOT_EVERYWHERE: &str = "the counters were not on the hardware everywhere in this period";

/// One event, summed over the targets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EventSum {
    /// The count, scaled to the whole time.
    pub count: f64,
    /// Targets on which it counted.
    pub targets: u32,
}

/// A scope's counts in one period.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// The sum for each event.
    pub sums: [EventSum; COUNT],
    /// Time in which groups should have counted, over all of them.
    pub enabled_ns: u64,
    /// Time in which groups did count.
    pub running_ns: u64,
    /// CPU time of the counted targets: the time of their first groups.
    pub first_enabled_ns: u64,
    /// Groups whose counts are missing: they were not on the hardware at all, or their numbers went back.
    pub silent: u32,
}

impl Tally {
    /// Adds the counts of one group of a target; `None` means that its numbers went back.
    pub fn add(&mut self, change: Option<&GroupCounts>, is_first: bool) {
        let Some(change) = change else {
            self.silent += 1;
            return;
        };
        self.enabled_ns += change.enabled_ns;
        self.running_ns += change.running_ns;
        self.first_enabled_ns += if is_first { change.enabled_ns } else { 0 };
        match change.scale() {
            Some(scale) => {
                for (event, count) in &change.counts {
                    let sum = &mut self.sums[*event as usize];
                    sum.count += *count as f64 * scale;
                    sum.targets += 1;
                }
            }
            // A target that never ran on a CPU in this period (an idle cgroup) has nothing to count there.
            None => self.silent += u32::from(change.enabled_ns > 0),
        }
    }

    fn sum(&self, event: Event) -> EventSum {
        self.sums[event as usize]
    }
}

/// The inputs of a scope's figures beside its counts.
#[derive(Debug, Clone, Copy)]
pub struct ScopeContext<'a> {
    /// Length of the period.
    pub elapsed_s: f64,
    /// Why an event has no count, by event: not encodable, refused, or open and never counting.
    pub mute: &'a [Option<Reason>; COUNT],
    /// Why the counts cover only a part of the scope.
    pub partial: Option<&'a str>,
    /// Cycles per second of the time that CPUs were not idle.
    pub frequency_mhz: Result<f64, &'a str>,
}

/// The scope's section, and (field, reason) for each figure that is not in it.
pub fn figures(scope: &str, tally: &Tally, context: ScopeContext<'_>) -> (ScopeCounters, Vec<(&'static str, Reason)>) {
    let mut section = ScopeCounters { scope: scope.to_owned(), ..ScopeCounters::default() };
    let mut missing = Vec::new();
    let value = |event: Event| {
        let sum = tally.sum(event);
        match &context.mute[event as usize] {
            Some(reason) => Err(reason.clone()),
            None if sum.targets < tally.sum(Event::Instructions).targets => {
                Err(format!("{} was not on the hardware everywhere in this period", event.key()).into())
            }
            None => Ok(sum.count),
        }
    };
    let instructions = value(Event::Instructions).and_then(|count| {
        let enough = count >= LEAST_INSTRUCTIONS;
        if enough { Ok(count) } else { Err("next to nothing ran in this period".into()) }
    });
    let cycles = value(Event::Cycles)
        .and_then(|count| if count > 0.0 { Ok(count) } else { Err("next to nothing ran in this period".into()) });
    let per = |above: Result<f64, Reason>, below: &Result<f64, Reason>, factor: f64| {
        below.clone().and_then(|below| above.map(|above| above / below * factor))
    };
    let references = value(Event::CacheReferences)
        .and_then(|count| if count > 0.0 { Ok(count) } else { Err("the cache was not asked in this period".into()) });
    let rate = match context.partial {
        Some(reason) => Err(reason.into()),
        None if tally.silent > 0 => Err(NOT_EVERYWHERE.into()),
        None if context.elapsed_s <= 0.0 => Err("no time passed since the last reading".into()),
        None => value(Event::Instructions).map(|count| count / context.elapsed_s),
    };
    let running = match tally.enabled_ns {
        0 => Err("next to nothing ran in this period".into()),
        enabled_ns => Ok((tally.running_ns as f64 / enabled_ns as f64).min(1.0)),
    };
    let frequency = cycles.clone().and_then(|_| context.frequency_mhz.map_err(Reason::from));
    let mut put = |name: &'static str, place: &mut Option<f64>, value: Result<f64, Reason>| match value {
        Ok(value) => *place = Some(value),
        Err(reason) => missing.push((name, reason)),
    };
    put("cpi", &mut section.cpi, per(cycles.clone(), &instructions, 1.0));
    put("ipc", &mut section.ipc, per(instructions.clone(), &cycles, 1.0));
    put("cache_miss_rate", &mut section.cache_miss_rate, per(value(Event::CacheMisses), &references, 1.0));
    put("cache_mpki", &mut section.cache_mpki, per(value(Event::CacheMisses), &instructions, 1000.0));
    put("llc_load_mpki", &mut section.llc_load_mpki, per(value(Event::LlcLoadMisses), &instructions, 1000.0));
    put("stalled", &mut section.stalled, per(value(Event::StalledCycles), &cycles, 1.0));
    put("instructions_per_s", &mut section.instructions_per_s, rate);
    put("frequency_mhz", &mut section.frequency_mhz, frequency);
    put("running", &mut section.running, running);
    (section, missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::events::EVENTS;

    fn change(counts: [u64; COUNT], enabled_ns: u64, running_ns: u64) -> GroupCounts {
        let counts = EVENTS.iter().zip(counts).map(|((event, ..), count)| (*event, count)).collect();
        GroupCounts { enabled_ns, running_ns, counts }
    }

    fn context(mute: &[Option<Reason>; COUNT]) -> ScopeContext<'_> {
        ScopeContext { elapsed_s: 0.5, mute, partial: None, frequency_mhz: Ok(2000.0) }
    }

    const NONE_MUTE: [Option<Reason>; COUNT] = [const { None }; COUNT];

    #[test]
    fn counts_of_two_cpus_become_ratios_and_rates() {
        let mut tally = Tally::default();
        tally.add(Some(&change([3_000_000, 1_500_000, 20_000, 5_000, 3_000, 600_000], 100, 100)), true);
        tally.add(Some(&change([500_000, 250_000, 0, 0, 0, 50_000], 100, 50)), true);
        let (section, missing) = figures("system", &tally, context(&NONE_MUTE));
        assert!(missing.is_empty(), "{missing:?}");
        assert_eq!((section.scope.as_str(), section.cpi, section.ipc), ("system", Some(2.0), Some(0.5)));
        assert_eq!((section.cache_miss_rate, section.cache_mpki), (Some(0.25), Some(2.5)));
        assert_eq!((section.llc_load_mpki, section.stalled), (Some(1.5), Some(0.175)));
        assert_eq!((section.instructions_per_s, section.running), (Some(4_000_000.0), Some(0.75)));
        assert_eq!(section.frequency_mhz, Some(2000.0));
    }

    #[test]
    fn an_event_without_a_count_takes_its_figures_with_it_and_no_others() {
        let mut tally = Tally::default();
        tally.add(Some(&change([2_000_000, 1_000_000, 10, 5, 0, 0], 100, 100)), true);
        let mut mute = NONE_MUTE;
        mute[Event::LlcLoadMisses as usize] = Some("llc_load_misses is not there".into());
        mute[Event::CacheReferences as usize] = Some("cache_references is not there".into());
        let (section, missing) = figures("system", &tally, context(&mute));
        let expected = [
            ("cache_miss_rate", Reason::from("cache_references is not there")),
            ("llc_load_mpki", Reason::from("llc_load_misses is not there")),
        ];
        assert_eq!(missing, expected);
        assert_eq!((section.cpi, section.cache_mpki, section.stalled), (Some(2.0), Some(0.005), Some(0.0)));
    }

    #[test]
    fn a_group_that_was_not_on_the_hardware_gives_ratios_of_the_others_but_no_rate() {
        let mut tally = Tally::default();
        tally.add(Some(&change([2_000_000, 1_000_000, 0, 0, 0, 0], 100, 100)), true);
        tally.add(Some(&change([0; COUNT], 100, 0)), true);
        let (section, missing) = figures("system", &tally, context(&NONE_MUTE));
        assert_eq!((section.cpi, section.running, section.instructions_per_s), (Some(2.0), Some(0.5), None));
        assert!(missing.iter().any(|(name, reason)| *name == "instructions_per_s" && reason.contains("everywhere")));
        // Numbers that went back are no numbers either.
        let mut tally = Tally::default();
        tally.add(None, true);
        assert_eq!(tally.silent, 1);
    }

    #[test]
    fn an_idle_scope_has_no_ratios_but_a_rate_of_nothing() {
        let mut tally = Tally::default();
        tally.add(Some(&change([0; COUNT], 0, 0)), true);
        let (section, missing) = figures("cgroup", &tally, context(&NONE_MUTE));
        assert_eq!((section.cpi, section.instructions_per_s), (None, Some(0.0)));
        assert!(missing.iter().all(|(_, reason)| reason.contains("ran in this period") || reason.contains("asked")));
    }

    #[test]
    fn each_figure_is_there_or_has_its_reason() {
        let mute = std::array::from_fn(|_| Some(Reason::from("")));
        let context = ScopeContext { partial: Some("a part"), frequency_mhz: Err("no clock"), ..context(&mute) };
        let (section, missing) = figures("pid", &Tally::default(), context);
        let expected = ScopeCounters { scope: "pid".to_owned(), ..ScopeCounters::default() };
        assert_eq!((section, missing.len()), (expected, 9));
    }
}
