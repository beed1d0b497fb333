//! The events and targets that can be opened with few files: each event on each CPU or thread takes one file.

use super::events::Event;
use super::group::Target;
use super::libpfm::Encoding;
use crate::reason::Reason;

/// Cycles and instructions, without which there are no figures.
const LEAST_EVENTS: usize = 2;

/// Events, those that are left out, and targets.
type Fit<'a> = (Vec<(Event, Encoding)>, Vec<&'a Event>, Vec<Target>);

/// The events and targets that fit into `max_files` files: fewer events on each CPU, or all events of some of the
/// threads.
///
/// # Errors
/// The number of files is too small for any figures.
pub fn fitting<'a>(events: &'a [(Event, Encoding)], targets: &[Target], max_files: usize) -> Result<Fit<'a>, Reason> {
    if events.len() * targets.len() <= max_files {
        return Ok((events.to_vec(), Vec::new(), targets.to_vec()));
    }
    let too_many = || {
        let least = LEAST_EVENTS.min(events.len()) * targets.len().min(1);
        format!("{} targets need more files than pmu.max_files = {max_files} (at least {least})", targets.len()).into()
    };
    if let Some(Target::Thread(_)) = targets.first() {
        let room = max_files / events.len();
        if room == 0 {
            return Err(too_many());
        }
        // Evenly from all of them, since those of one process follow each other.
        let some = (0..room).map(|place| targets[place * targets.len() / room]).collect();
        return Ok((events.to_vec(), Vec::new(), some));
    }
    let room = max_files / targets.len();
    if room < LEAST_EVENTS.min(events.len()) {
        return Err(too_many());
    }
    let left_out = events[room..].iter().map(|(event, _)| event).collect();
    Ok((events[..room].to_vec(), left_out, targets.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_mean_fewer_events_on_cpus_and_fewer_threads() {
        let encoding = Encoding { kind: 1, config: 0, config1: 0, config2: 0 };
        let three = [Event::Cycles, Event::Instructions, Event::CacheMisses].map(|event| (event, encoding));
        let cpus: Vec<Target> = (0..4).map(Target::Cpu).collect();
        let (kept, left_out, targets) = fitting(&three, &cpus, 11).expect("room for two");
        assert_eq!((kept.len(), left_out, targets.len()), (2, vec![&Event::CacheMisses], 4));
        assert!(fitting(&three, &cpus, 7).unwrap_err().contains("pmu.max_files = 7"));
        let threads: Vec<Target> = (0..100).map(Target::Thread).collect();
        let (kept, _, targets) = fitting(&three, &threads, 12).expect("room for some");
        assert_eq!((kept.len(), targets), (3, [0, 25, 50, 75].map(Target::Thread).to_vec()));
        assert!(fitting(&three, &threads, 2).is_err());
    }
}
