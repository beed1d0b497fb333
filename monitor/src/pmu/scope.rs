//! The groups of one scope: they are opened, read each period, and opened again when the scope's targets have changed.

use std::io;

use slackwater_messages::AbsenceCause;
use slackwater_node::system::System;

use super::event_record::EventRecord;
use super::events::{COUNT, Event, WantedEvent};
use super::figures::Tally;
use super::fitting::fitting;
use super::group::{self, EventGroup, Opened, Options, Target};
use super::libpfm::Encoding;
use super::permission::{Permission, why_refused};
use super::targets::TargetSource;
use crate::reason::Reason;

/// After a failure it is tried again, each time after twice the time.
const RETRY_FIRST_NS: u64 = 5_000_000_000;
const RETRY_LONGEST_NS: u64 = 320_000_000_000;
/// A group that has not been on the hardware for this time is too large for the part of it that others leave free.
const STARVED_NS: u64 = 2_000_000_000;

/// The groups of one target, with the time that each has waited for the hardware.
struct TargetGroups {
    groups: Vec<(EventGroup, u64)>,
}

/// One scope.
pub struct Scope {
    name: &'static str,
    source: Box<dyn TargetSource>,
    system: System,
    wanted: Vec<WantedEvent>,
    options: Options,
    /// No more files than this.
    max_files: usize,
    opened: Vec<TargetGroups>,
    targets: usize,
    /// By event.
    records: [EventRecord; COUNT],
    /// Why nothing counts, and when to try again.
    failed: Option<(Reason, u64)>,
    retry_ns: u64,
}

impl Scope {
    /// Nothing is opened before the first `advance`.
    pub fn new(
        name: &'static str,
        source: Box<dyn TargetSource>,
        wanted: Vec<WantedEvent>,
        user_only: bool,
        max_files: usize,
        system: &System,
    ) -> Scope {
        let options = Options { user_only, inherit: source.inherits(), largest: COUNT };
        Scope {
            name,
            source,
            system: system.clone(),
            wanted,
            options,
            max_files,
            opened: Vec::new(),
            targets: 0,
            records: Default::default(),
            failed: None,
            retry_ns: RETRY_FIRST_NS,
        }
    }

    /// `system`, `cgroup` or `pid`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What is known of an event.
    pub fn record(&self, event: Event) -> &EventRecord {
        &self.records[event as usize]
    }

    /// The events that it counts.
    pub fn wanted(&self) -> &[WantedEvent] {
        &self.wanted
    }

    /// The number of targets that count, and of all targets.
    pub fn targets(&self) -> (usize, usize) {
        (self.opened.len(), self.targets)
    }

    /// The counts since the last call. At first, and after a change, it opens the events.
    ///
    /// # Errors
    /// Why nothing was counted.
    pub fn advance(&mut self) -> Result<Tally, Reason> {
        let (tally, is_broken) = self.read();
        let was_open = !self.opened.is_empty();
        let now_ns = (self.system.monotonic_ns)();
        if let Some((reason, retry_ns)) = &self.failed
            && now_ns < *retry_ns
        {
            return Err(reason.clone());
        }
        match self.source.look(is_broken || !was_open) {
            Err(reason) => {
                self.opened.clear();
                return Err(reason);
            }
            Ok(None) => {}
            Ok(Some(targets)) => self.open(&targets).inspect_err(|reason| {
                self.opened.clear();
                self.failed = Some((reason.clone(), now_ns.saturating_add(self.retry_ns)));
                self.retry_ns = (self.retry_ns * 2).min(RETRY_LONGEST_NS);
            })?,
        }
        if was_open { Ok(tally) } else { Err("counting has just begun".into()) }
    }

    /// Reads all groups, and says whether one can't be read any more or must be opened smaller.
    fn read(&mut self) -> (Tally, bool) {
        let mut tally = Tally::default();
        let mut is_broken = false;
        for target in &mut self.opened {
            for (place, (group, starved_ns)) in target.groups.iter_mut().enumerate() {
                let Ok(change) = group.advance() else {
                    is_broken = true;
                    continue;
                };
                tally.add(change.as_ref(), place == 0);
                let Some(change) = change else { continue };
                for (event, count) in &change.counts {
                    let record = &mut self.records[*event as usize];
                    record.counted = record.counted.saturating_add(*count);
                    record.running_ns += change.running_ns;
                    record.enabled_ns += change.enabled_ns;
                }
                *starved_ns = if change.running_ns > 0 { 0 } else { *starved_ns + change.enabled_ns };
                if *starved_ns > STARVED_NS && group.len() > 1 {
                    self.options.largest = smaller(group.len()).min(self.options.largest);
                    is_broken = true;
                }
            }
        }
        (tally, is_broken)
    }

    fn open(&mut self, targets: &[Target]) -> Result<(), Reason> {
        self.opened.clear();
        self.records = Default::default();
        self.targets = targets.len();
        let events: Vec<(Event, Encoding)> =
            self.wanted.iter().filter_map(|wanted| Some((wanted.event, wanted.encoding.clone().ok()?))).collect();
        if events.is_empty() {
            let reason = self.wanted.iter().find_map(|wanted| wanted.encoding.clone().err());
            return Err(reason.unwrap_or_else(|| "no events are configured".into()));
        }
        let (events, left_out, targets) = fitting(&events, targets, self.max_files)?;
        for event in left_out {
            self.records[*event as usize].refused = Some("left out: pmu.max_files is too small".to_owned());
        }
        for target in targets.iter().copied() {
            match self.open_target(&events, target) {
                Ok(opened) => {
                    for (event, error) in opened.refused {
                        self.records[event as usize].refused = Some(why_refused(&error));
                    }
                    for event in opened.groups.iter().flat_map(EventGroup::events) {
                        self.records[*event as usize].opened += 1;
                    }
                    if !opened.groups.is_empty() {
                        let groups = opened.groups.into_iter().map(|group| (group, 0)).collect();
                        self.opened.push(TargetGroups { groups });
                    }
                }
                // The thread ended since it was listed.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => self.targets -= 1,
                Err(error) => return Err(self.why_nothing(&error)),
            }
        }
        if self.opened.is_empty() {
            let hint = match targets.first() {
                Some(Target::Cgroup(..)) => {
                    " (or no controller was ever enabled above the cgroup: cgroup.subtree_control)"
                }
                _ => "",
            };
            let refused = self.records.iter().find_map(|record| record.refused.clone());
            return Err(refused.map_or_else(
                || Reason::from("what was to be counted has ended"),
                |refused| {
                    Reason::new(AbsenceCause::NoHardwareCounters, format!("no hardware counters: {refused}{hint}"))
                },
            ));
        }
        self.source.opened(self.options.inherit);
        (self.failed, self.retry_ns) = (None, RETRY_FIRST_NS);
        Ok(())
    }

    fn open_target(&mut self, events: &[(Event, Encoding)], target: Target) -> io::Result<Opened> {
        let opened = group::open(events, target, self.options)?;
        if opened.groups.is_empty() && self.options.inherit {
            // Before Linux 4.13 groups can't be inherited; the threads are then opened anew when there are new ones.
            let without = Options { inherit: false, ..self.options };
            let again = group::open(events, target, without)?;
            if !again.groups.is_empty() {
                self.options = without;
                return Ok(again);
            }
        }
        Ok(opened)
    }

    fn why_nothing(&self, error: &io::Error) -> Reason {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Permission::now(&self.system).denied(self.source.paranoid_needed()),
            Some(libc::ENOSYS) => Reason::new(AbsenceCause::NoPerfEvent, "this kernel has no perf_event"),
            _ => why_refused(error).into(),
        }
    }

    /// For each event, why it has no count: it can't be encoded or opened, or it never counts.
    pub fn mute(&self) -> [Option<Reason>; COUNT] {
        let mut mute = [const { None }; COUNT];
        for (event, _) in &super::events::EVENTS {
            let key = event.key();
            let record = &self.records[*event as usize];
            mute[*event as usize] = match self.wanted.iter().find(|wanted| wanted.event == *event) {
                None => Some(format!("{key} is left out in the configuration").into()),
                Some(WantedEvent { encoding: Err(reason), .. }) => Some(reason.clone()),
                Some(_) => record.why_mute(key, self.opened.len()),
            };
        }
        mute
    }

    /// Why the counts cover only a part of the scope.
    pub fn partial(&self) -> Option<String> {
        (self.opened.len() < self.targets)
            .then(|| format!("only {} of {} are counted: pmu.max_files", self.opened.len(), self.targets))
    }
}

/// The next smaller size of groups, which stand a better chance; cycles and instructions stay together as long as
/// possible.
fn smaller(size: usize) -> usize {
    if size > 2 { (size / 2).max(2) } else { 1 }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use slackwater_node::fixture::Fixture;

    type Answers = Rc<RefCell<Vec<Result<Option<Vec<Target>>, Reason>>>>;

    /// Gives prepared answers, then "nothing changed".
    struct Script(Answers);

    impl TargetSource for Script {
        fn look(&mut self, _is_closed: bool) -> Result<Option<Vec<Target>>, Reason> {
            self.0.borrow_mut().pop().unwrap_or(Ok(None))
        }
    }

    fn software(event: Event, name: &str, config: u64) -> WantedEvent {
        let encoding = Ok(Encoding { kind: 1, config, config1: 0, config2: 0 });
        WantedEvent { event, name: name.to_owned(), encoding }
    }

    fn scope(fixture: &Fixture, wanted: Vec<WantedEvent>, max_files: usize) -> (Scope, Answers) {
        let answers = Answers::default();
        let scope = Scope::new("pid", Box::new(Script(answers.clone())), wanted, false, max_files, &fixture.system());
        (scope, answers)
    }

    fn clocks() -> Vec<WantedEvent> {
        vec![software(Event::Cycles, "cpu-clock", 0), software(Event::Instructions, "task-clock", 1)]
    }

    /// Whether this process may at least count itself.
    fn may_count(reason: &str) -> bool {
        if reason != "counting has just begun" {
            println!("skipped: {reason}");
        }
        reason == "counting has just begun"
    }

    fn work() {
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 20 {
            std::hint::black_box(0);
        }
    }

    #[test]
    fn a_scope_counts_what_its_source_names_and_goes_on_without_what_is_not_there() {
        let fixture = Fixture::new(&[]);
        let mut wanted = clocks();
        wanted.push(software(Event::CacheMisses, "no-such", 9999));
        let (mut scope, answers) = scope(&fixture, wanted, 100);
        answers.borrow_mut().push(Ok(Some(vec![Target::Thread(0)])));
        if !may_count(&scope.advance().unwrap_err()) {
            return;
        }
        work();
        let tally = scope.advance().expect("counts");
        assert!(tally.sums[Event::Cycles as usize].count > 0.0 && tally.running_ns > 0, "{tally:?}");
        let mute = scope.mute();
        assert_eq!(mute[Event::Cycles as usize], None);
        let no_such = mute[Event::CacheMisses as usize].as_deref().expect("a reason");
        assert_eq!(no_such, "cache_misses: this machine's hardware or hypervisor does not offer it");
        assert!(mute[Event::CacheReferences as usize].as_deref().expect("a reason").contains("configuration"));
    }

    #[test]
    fn what_opens_but_never_counts_is_said() {
        let fixture = Fixture::new(&[]);
        let mut wanted = clocks();
        // Alignment faults do not happen here.
        wanted.push(software(Event::CacheMisses, "alignment-faults", 7));
        let (mut scope, answers) = scope(&fixture, wanted, 100);
        answers.borrow_mut().push(Ok(Some(vec![Target::Thread(0)])));
        if !may_count(&scope.advance().unwrap_err()) {
            return;
        }
        work();
        scope.advance().expect("counts");
        let reason = scope.mute()[Event::CacheMisses as usize].clone().expect("a reason");
        assert!(reason.starts_with("cache_misses opens but has counted nothing in 0.0"), "{reason}");
    }

    #[test]
    fn a_failure_is_tried_again_after_ever_longer_times() {
        let fixture = Fixture::new(&[]);
        let wanted = vec![software(Event::Cycles, "no-such", 9999)];
        let (mut scope, answers) = scope(&fixture, wanted, 100);
        let mut tries = 0;
        for _ in 0..40 {
            answers.borrow_mut().clear();
            answers.borrow_mut().push(Ok(Some(vec![Target::Thread(0)])));
            // Whether it is refused for the event or for the user differs.
            assert_ne!(scope.advance(), Err("counting has just begun".into()));
            tries += usize::from(answers.borrow().is_empty());
            fixture.advance_s(1.0);
        }
        // At 0, 5, 15 and 35 seconds.
        assert_eq!(tries, 4);
    }

    #[test]
    fn a_source_without_targets_gives_its_reason_and_closes_what_was_open() {
        let fixture = Fixture::new(&[]);
        let (mut scope, answers) = scope(&fixture, clocks(), 100);
        answers.borrow_mut().push(Ok(Some(vec![Target::Thread(0)])));
        if !may_count(&scope.advance().unwrap_err()) {
            return;
        }
        answers.borrow_mut().push(Err("all gone".into()));
        assert_eq!(scope.advance(), Err("all gone".into()));
        assert_eq!(scope.targets().0, 0);
        answers.borrow_mut().push(Ok(Some(vec![Target::Thread(0)])));
        assert_eq!(scope.advance(), Err("counting has just begun".into()));
        assert!(scope.advance().is_ok());
    }

    #[test]
    fn groups_that_starve_become_smaller_down_to_single_events() {
        assert_eq!([6, 4, 3, 2, 1].map(smaller), [3, 2, 2, 1, 1]);
    }

    #[test]
    fn a_part_of_the_threads_is_said_to_be_one() {
        let fixture = Fixture::new(&[]);
        let (mut scope, answers) = scope(&fixture, clocks(), 2);
        answers.borrow_mut().push(Ok(Some(vec![Target::Thread(0); 3])));
        if may_count(&scope.advance().unwrap_err()) {
            assert_eq!(scope.partial().as_deref(), Some("only 1 of 3 are counted: pmu.max_files"));
        }
    }

    #[test]
    fn without_an_encoding_the_reason_is_libpfms() {
        let fixture = Fixture::new(&[]);
        let mut wanted = clocks();
        for event in &mut wanted {
            event.encoding = Err("libpfm4 is not there".into());
        }
        let (mut scope, answers) = scope(&fixture, wanted, 100);
        answers.borrow_mut().push(Ok(Some(vec![Target::Thread(0)])));
        assert_eq!(scope.advance(), Err("libpfm4 is not there".into()));
    }
}
