//! The events that are counted, and libpfm4's name for each of them on this CPU model.

use std::collections::BTreeMap;

use super::libpfm::{Encoding, Libpfm};
use crate::config::PMU_EVENTS;
use crate::reason::Reason;

/// An event that is counted. The order is that of the group: the last one is left out first where files are short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// CPU cycles that were not idle.
    Cycles,
    /// Retired instructions.
    Instructions,
    /// Accesses to a cache; which one depends on the CPU.
    CacheReferences,
    /// Accesses that the same cache could not answer.
    CacheMisses,
    /// Loads that the last-level cache could not answer.
    LlcLoadMisses,
    /// Cycles in which the core waited for memory or for other resources.
    StalledCycles,
}

/// Number of events.
pub const COUNT: usize = EVENTS.len();

/// All events with their generic libpfm4 names.
pub const EVENTS: [(Event, &str); 6] = [
    (Event::Cycles, "cycles"),
    (Event::Instructions, "instructions"),
    (Event::CacheReferences, "cache-references"),
    (Event::CacheMisses, "cache-misses"),
    (Event::LlcLoadMisses, "LLC-LOAD-MISSES"),
    (Event::StalledCycles, "stalled-cycles-backend"),
];

impl Event {
    /// Its name in the configuration and in `absent`.
    pub fn key(self) -> &'static str {
        PMU_EVENTS[self as usize]
    }
}

/// Events that a CPU model can count although its kernel has no generic event for them: (libpfm4's name of the model,
/// event, libpfm4's name of the event).
///
/// For AMD the kernel has no generic last-level event, so demand fills from memory are counted in its place. For Intel
/// it has no generic stall event since Skylake. Sources: the events tables of libpfm4 4.13;
/// arch/x86/events/{amd,intel}/core.c.
pub const MODELS: &[(&str, Event, &str)] = &[
    (
        "amd64_fam17h_zen2",
        Event::LlcLoadMisses,
        "DATA_CACHE_REFILLS_FROM_SYSTEM:LS_MABRESP_LCL_DRAM:LS_MABRESP_RMT_DRAM",
    ),
    ("amd64_fam19h_zen3", Event::LlcLoadMisses, "DEMAND_DATA_CACHE_FILLS_FROM_SYSTEM:MEM_IO_LCL:MEM_IO_RMT"),
    ("amd64_fam19h_zen4", Event::LlcLoadMisses, "DEMAND_DATA_CACHE_FILLS_FROM_SYSTEM:DRAM_IO_NEAR:DRAM_IO_FAR"),
    ("skl", Event::StalledCycles, "CYCLE_ACTIVITY:STALLS_TOTAL"),
    ("skx", Event::StalledCycles, "CYCLE_ACTIVITY:STALLS_TOTAL"),
    ("clx", Event::StalledCycles, "CYCLE_ACTIVITY:STALLS_TOTAL"),
    ("icl", Event::StalledCycles, "CYCLE_ACTIVITY:STALLS_TOTAL"),
    ("icx", Event::StalledCycles, "CYCLE_ACTIVITY:STALLS_TOTAL"),
    ("spr", Event::StalledCycles, "CYCLE_ACTIVITY:STALLS_TOTAL"),
];

/// An event as it is counted on this machine.
#[derive(Debug, Clone)]
pub struct WantedEvent {
    /// The event.
    pub event: Event,
    /// libpfm4's name.
    pub name: String,
    /// How the kernel is asked for it, or why it cannot be.
    pub encoding: Result<Encoding, Reason>,
}

/// The events that are to be counted. The configured name comes before the CPU model's, and that before the generic
/// one; an empty name leaves an event out.
pub fn wanted(configured: &BTreeMap<String, String>, libpfm: &Libpfm) -> Vec<WantedEvent> {
    let models = libpfm.models();
    let name_of = |event: Event, generic: &str| {
        configured
            .get(event.key())
            .cloned()
            .or_else(|| model_name(&models, event))
            .unwrap_or_else(|| generic.to_owned())
    };
    EVENTS
        .iter()
        .map(|(event, generic)| (*event, name_of(*event, generic)))
        .filter(|(_, name)| !name.is_empty())
        .map(|(event, name)| WantedEvent { event, encoding: libpfm.encode(&name), name })
        .collect()
}

/// The name of an event on the models that are present.
fn model_name(present: &[String], event: Event) -> Option<String> {
    let entry = MODELS.iter().find(|(model, known, _)| *known == event && present.iter().any(|name| name == model));
    entry.map(|(model, _, name)| format!("{model}::{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_model_has_its_own_names_and_other_models_the_generic_ones() {
        let zen = ["amd64_fam19h_zen4".to_owned()];
        let name = model_name(&zen, Event::LlcLoadMisses).expect("in the table");
        assert!(name.starts_with("amd64_fam19h_zen4::DEMAND_DATA_CACHE_FILLS"), "{name}");
        assert_eq!(model_name(&zen, Event::Cycles), None);
        assert_eq!(model_name(&["arm_n1".to_owned()], Event::LlcLoadMisses), None);
    }

    #[test]
    fn each_event_has_one_place_and_its_own_name() {
        for (place, (event, _)) in EVENTS.iter().enumerate() {
            assert_eq!(*event as usize, place);
            assert_eq!(EVENTS.iter().filter(|(other, _)| other.key() == event.key()).count(), 1);
        }
    }

    #[test]
    fn configured_names_come_first_and_an_empty_one_leaves_the_event_out() {
        let Ok(libpfm) = Libpfm::load() else {
            println!("skipped: libpfm4 is not there");
            return;
        };
        let configured = [("cycles", "cpu-clock"), ("cache_misses", ""), ("instructions", "no-such-event")]
            .map(|(key, name)| (key.to_owned(), name.to_owned()));
        let wanted = wanted(&configured.into(), &libpfm);
        assert_eq!(wanted.len(), COUNT - 1);
        assert_eq!((wanted[0].name.as_str(), wanted[0].encoding.is_ok()), ("cpu-clock", true));
        let error = wanted[1].encoding.as_ref().expect_err("no encoding");
        assert_eq!(error.text, "libpfm4 knows no event \"no-such-event\" here: event not found");
        assert!(wanted.iter().all(|wanted| wanted.event != Event::CacheMisses));
    }
}
