//! Groups of events, which the kernel puts onto the hardware together and which are read at one moment.
//!
//! Source: perf_event_open(2).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

use perf_event_open_sys as sys;
use sys::bindings::{self, perf_event_attr};

use super::events::{COUNT, Event};
use super::libpfm::Encoding;

/// Whose events are counted: everything on a CPU, a cgroup on a CPU, or a thread on all CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All that runs on this CPU.
    Cpu(i32),
    /// The cgroup with this open directory (first number), on this CPU (second number).
    Cgroup(i32, i32),
    /// This thread.
    Thread(i32),
}

/// How events are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether the kernel's own work is left out.
    pub user_only: bool,
    /// Whether threads and processes that a thread starts later count with it.
    pub inherit: bool,
    /// The most events in one group.
    pub largest: usize,
}

/// The counts of one group between two readings.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupCounts {
    /// Time in which the group should have counted.
    pub enabled_ns: u64,
    /// Time in which it did count.
    pub running_ns: u64,
    /// The events' counts, not scaled.
    pub counts: Vec<(Event, u64)>,
}

impl GroupCounts {
    /// The factor for the counts; `None` when the group was never on the hardware.
    pub fn scale(&self) -> Option<f64> {
        (self.running_ns > 0).then(|| self.enabled_ns as f64 / self.running_ns as f64)
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
struct GroupReading {
    enabled_ns: u64,
    running_ns: u64,
    counts: Vec<u64>,
}

/// Parses the kernel's answer for PERF_FORMAT_GROUP with both times: number of events, times, counts.
fn parse(words: &[u64]) -> Option<GroupReading> {
    let (&[number, enabled_ns, running_ns], counts) = words.split_first_chunk::<3>()?;
    let counts = counts.get(..usize::try_from(number).ok()?)?.to_vec();
    Some(GroupReading { enabled_ns, running_ns, counts })
}

/// The growth between two readings; `None` when a number went back, so that it is not known.
fn between(last: &GroupReading, now: &GroupReading) -> Option<(u64, u64, Vec<u64>)> {
    // A counter that wraps makes a small step forward; a very large step is a step back.
    let step = |from: u64, to: u64| Some(to.wrapping_sub(from)).filter(|step| *step < u64::MAX / 2);
    let counts = last.counts.iter().zip(&now.counts).map(|(from, to)| step(*from, *to)).collect::<Option<Vec<_>>>()?;
    let (enabled_ns, running_ns) = (step(last.enabled_ns, now.enabled_ns)?, step(last.running_ns, now.running_ns)?);
    Some((enabled_ns, running_ns, counts))
}

/// One group of events on one target.
pub struct EventGroup {
    /// The first one is the leader; closing the files ends the counting.
    files: Vec<File>,
    events: Vec<Event>,
    last: GroupReading,
}

impl EventGroup {
    /// The number of its events, each of which holds a file.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether it has no events; a group that was opened has some.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Its events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The counts since the last call; `None` when the numbers went back.
    ///
    /// # Errors
    /// The CPU, cgroup or thread is gone, so the kernel counts no more.
    pub fn advance(&mut self) -> io::Result<Option<GroupCounts>> {
        let now = self.read()?;
        let last = std::mem::replace(&mut self.last, now);
        Ok(between(&last, &self.last).map(|(enabled_ns, running_ns, counts)| GroupCounts {
            enabled_ns,
            running_ns,
            counts: self.events.iter().copied().zip(counts).collect(),
        }))
    }

    fn read(&self) -> io::Result<GroupReading> {
        let mut bytes = [0; (3 + COUNT) * 8];
        let length = (&self.files[0]).read(&mut bytes)?;
        let mut words = [0; 3 + COUNT];
        for (word, chunk) in words.iter_mut().zip(bytes[..length].chunks_exact(8)) {
            *word = u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
        }
        parse(&words[..length / 8]).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    }

    fn enable(&self) -> io::Result<()> {
        // SAFETY: the file is an open event; the request takes a number.
        let done = unsafe { sys::ioctls::ENABLE(self.files[0].as_raw_fd(), bindings::PERF_IOC_FLAG_GROUP) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The groups of one target, and the events that the kernel refused there.
pub struct Opened {
    /// As few groups as the hardware allows.
    pub groups: Vec<EventGroup>,
    /// The refused events, each with the kernel's error.
    pub refused: Vec<(Event, io::Error)>,
}

/// Opens events on a target and lets them count. An event that does not fit into a group starts the next one.
///
/// # Errors
/// No event can be opened: permission is missing, the target is gone, or there are no more files.
pub fn open(events: &[(Event, Encoding)], target: Target, options: Options) -> io::Result<Opened> {
    let mut groups: Vec<EventGroup> = Vec::new();
    let mut refused = Vec::new();
    for (event, encoding) in events {
        let open_under = |leader: Option<&File>| open_event(encoding, target, options, leader);
        let joined = match groups.last_mut().filter(|group| group.len() < options.largest) {
            Some(group) => match open_under(group.files.first()) {
                Ok(file) => {
                    group.files.push(file);
                    group.events.push(*event);
                    true
                }
                Err(error) if concerns_all(&error, true) => return Err(error),
                Err(_) => false,
            },
            None => false,
        };
        if joined {
            continue;
        }
        match open_under(None) {
            Ok(file) => {
                groups.push(EventGroup { files: vec![file], events: vec![*event], last: GroupReading::default() })
            }
            Err(error) if concerns_all(&error, !groups.is_empty()) => return Err(error),
            Err(error) => refused.push((*event, error)),
        }
    }
    for group in &mut groups {
        group.enable()?;
        group.last = group.read()?;
    }
    Ok(Opened { groups, refused })
}

/// Whether the next event could not be opened either. A missing permission is no such error once other events are open,
/// since not all events need it.
fn concerns_all(error: &io::Error, others_are_open: bool) -> bool {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::EMFILE | libc::ENFILE | libc::EBADF) => true,
        Some(libc::EACCES | libc::EPERM | libc::ENOSYS) => !others_are_open,
        _ => false,
    }
}

fn open_event(encoding: &Encoding, target: Target, options: Options, leader: Option<&File>) -> io::Result<File> {
    let mut attr = perf_event_attr { size: size_of::<perf_event_attr>() as u32, ..perf_event_attr::default() };
    attr.type_ = encoding.kind;
    attr.config = encoding.config;
    attr.config1 = encoding.config1;
    attr.config2 = encoding.config2;
    attr.read_format = u64::from(
        bindings::PERF_FORMAT_GROUP
            | bindings::PERF_FORMAT_TOTAL_TIME_ENABLED
            | bindings::PERF_FORMAT_TOTAL_TIME_RUNNING,
    );
    // The others count when their leader does.
    attr.set_disabled(u64::from(leader.is_none()));
    attr.set_inherit(u64::from(options.inherit));
    attr.set_exclude_kernel(u64::from(options.user_only));
    attr.set_exclude_hv(u64::from(options.user_only));
    let (pid, cpu, flag) = match target {
        Target::Cpu(cpu) => (-1, cpu, 0),
        Target::Cgroup(directory, cpu) => (directory, cpu, bindings::PERF_FLAG_PID_CGROUP),
        Target::Thread(thread) => (thread, -1, 0),
    };
    let flags = bindings::PERF_FLAG_FD_CLOEXEC | flag;
    let group = leader.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: the struct is zeroed but for the fields set above, carries its size and asks for counting only.
    let file = unsafe { sys::perf_event_open(&raw mut attr, pid, cpu, group, flags.into()) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it, and nobody else knows of it.
    Ok(unsafe { File::from_raw_fd(file) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFTWARE: u32 = bindings::PERF_TYPE_SOFTWARE;
    const HERE: Target = Target::Thread(0);

    fn software(event: Event, config: u32) -> (Event, Encoding) {
        (event, Encoding { kind: SOFTWARE, config: u64::from(config), config1: 0, config2: 0 })
    }

    /// The CPU clock as cycles, the task clock as instructions.
    fn clocks() -> [(Event, Encoding); 2] {
        [
            software(Event::Cycles, bindings::PERF_COUNT_SW_CPU_CLOCK),
            software(Event::Instructions, bindings::PERF_COUNT_SW_TASK_CLOCK),
        ]
    }

    fn options() -> Options {
        Options { user_only: false, inherit: false, largest: COUNT }
    }

    /// Opens the events on this thread; where that is not allowed it prints why the test is skipped.
    fn opened(events: &[(Event, Encoding)], options: Options) -> Option<Opened> {
        open(events, HERE, options).map_err(|error| println!("skipped: perf_event_open: {error}")).ok()
    }

    /// Uses so much CPU time, however long that takes.
    fn work(for_ns: u64) {
        let used_ns = || crate::timer::clock_ns(rustix::thread::ClockId::ThreadCPUTime);
        let until_ns = used_ns() + for_ns;
        while used_ns() < until_ns {
            std::hint::black_box(0);
        }
    }

    #[test]
    fn the_words_of_a_group_are_number_times_and_counts() {
        let reading = parse(&[2, 100, 50, 7, 8, 99]).expect("a whole reading");
        assert_eq!(reading, GroupReading { enabled_ns: 100, running_ns: 50, counts: vec![7, 8] });
        for cut in [&[][..], &[1, 2], &[2, 100, 50, 7], &[u64::MAX, 1, 1, 1]] {
            assert_eq!(parse(cut), None, "{cut:?}");
        }
    }

    #[test]
    fn counters_that_pass_their_end_go_on_and_those_that_go_back_say_nothing() {
        let reading = |enabled_ns, count| GroupReading { enabled_ns, running_ns: enabled_ns, counts: vec![count] };
        assert_eq!(between(&reading(5, 10), &reading(9, 25)), Some((4, 4, vec![15])));
        assert_eq!(between(&reading(5, u64::MAX - 9), &reading(9, 5)), Some((4, 4, vec![15])));
        assert_eq!(between(&reading(5, 25), &reading(9, 10)), None);
        assert_eq!(between(&reading(9, 10), &reading(5, 25)), None);
    }

    #[test]
    fn counts_of_part_of_the_time_are_scaled_to_the_whole() {
        let change = |running_ns| GroupCounts { enabled_ns: 1000, running_ns, counts: vec![(Event::Cycles, 30)] };
        assert_eq!((change(1000).scale(), change(250).scale(), change(0).scale()), (Some(1.0), Some(4.0), None));
    }

    #[test]
    fn a_group_counts_this_thread_and_its_members_are_read_together() {
        let Some(mut opened) = opened(&clocks(), options()) else { return };
        assert_eq!((opened.groups.len(), opened.groups[0].len(), opened.refused.len()), (1, 2, 0));
        work(20_000_000);
        let change = opened.groups[0].advance().expect("a reading").expect("counters that grew");
        assert!(change.enabled_ns > 0 && change.scale() == Some(1.0), "{change:?}");
        let [(Event::Cycles, cpu_ns), (Event::Instructions, task_ns)] = change.counts[..] else {
            panic!("{change:?}");
        };
        // Both count this thread's time; they are started one after the other.
        assert!(cpu_ns > 0 && cpu_ns.abs_diff(task_ns) < 1 + cpu_ns / 2, "{change:?}");
        let again = opened.groups[0].advance().expect("a reading").expect("counters that grew");
        assert!(again.enabled_ns < change.enabled_ns, "only what is new counts: {again:?} after {change:?}");
    }

    #[test]
    fn an_event_that_is_not_there_leaves_the_others_counting() {
        let [first, second] = clocks();
        let none = (Event::CacheMisses, Encoding { kind: SOFTWARE, config: 9999, config1: 0, config2: 0 });
        let Some(opened) = opened(&[first, none, second], options()) else { return };
        assert_eq!(opened.groups[0].events(), [Event::Cycles, Event::Instructions]);
        let [(Event::CacheMisses, error)] = &opened.refused[..] else { panic!("{:?}", opened.refused) };
        assert!(matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)), "{error}");
    }

    #[test]
    fn groups_are_no_larger_than_asked() {
        let Some(opened) = opened(&clocks(), Options { largest: 1, ..options() }) else { return };
        assert_eq!(opened.groups.iter().map(EventGroup::len).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn a_thread_that_is_gone_is_an_error_of_all() {
        let error = open(&clocks(), Target::Thread(i32::MAX), options()).err().expect("no such thread");
        assert!(matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EACCES | libc::EPERM)), "{error}");
    }

    #[test]
    fn inherited_counts_hold_what_a_thread_started_later_did() {
        let Some(mut opened) = opened(&clocks(), Options { inherit: true, ..options() }) else { return };
        std::thread::spawn(|| work(50_000_000)).join().expect("the thread ends");
        let change = opened.groups[0].advance().expect("a reading").expect("counters that grew");
        assert!(change.counts[1].1 > 1_000_000, "the other thread's time is there: {change:?}");
    }
}
