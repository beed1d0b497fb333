//! Whether there may be other processes or threads than before. /proc/stat has the number that the kernel made since
//! boot; while none was made and none of the known ones ended, looking through /proc again would find the same ones.

use slackwater_node::system::System;

use crate::kernel_file::{KeptFile, Reader};
use crate::processes::LOOKS;

/// A look is due after this time also without a new process: an old one may have moved into a cgroup or taken another
/// name.
const LOOK_EVERY_NS: u64 = 5_000_000_000;

/// Decides when to look.
pub struct ProcessWatch {
    stat: KeptFile,
    made: Option<u64>,
    looks_left: u8,
    looked_ns: u64,
}

impl ProcessWatch {
    /// Nothing is read yet.
    pub fn new(system: &System) -> ProcessWatch {
        ProcessWatch { stat: KeptFile::new(system.proc.join("stat")), made: None, looks_left: 0, looked_ns: 0 }
    }

    /// Whether a look may find other processes than the last one; always where the kernel does not count. A new process
    /// is worth several looks, since it changes its name and its cgroup soon after it was made.
    pub fn is_look_due(&mut self, reader: &mut Reader, now_ns: u64) -> bool {
        let made = self.stat.parse(reader, parse_made).ok();
        if made.is_none() || made != self.made {
            self.made = made;
            self.looks_left = LOOKS;
        }
        if self.looks_left == 0 && now_ns.saturating_sub(self.looked_ns) < LOOK_EVERY_NS {
            return false;
        }
        self.looks_left = self.looks_left.saturating_sub(1);
        self.looked_ns = now_ns;
        true
    }

    /// Makes the next look due, because one of the known processes or threads ended.
    pub fn one_ended(&mut self) {
        self.looks_left = self.looks_left.max(1);
    }
}

/// Processes and threads made since boot.
fn parse_made(stat: &str) -> Option<u64> {
    stat.rsplit_once("\nprocesses ")?.1.lines().next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    const S: u64 = 1_000_000_000;

    fn stat(made: u64) -> String {
        format!("cpu  1 2 3\nctxt 5\nbtime 7\nprocesses {made}\nprocs_running 2\n")
    }

    #[test]
    fn a_look_is_due_some_times_after_a_fork_after_an_end_and_now_and_then() {
        let fixture = Fixture::new(&[("proc/stat", &stat(100))]);
        let (mut process_watch, mut reader) = (ProcessWatch::new(&fixture.system()), Reader::default());
        let mut due = |process_watch: &mut ProcessWatch, at_s: [u64; 5]| {
            at_s.map(|s| process_watch.is_look_due(&mut reader, s * S))
        };
        assert_eq!(due(&mut process_watch, [1, 2, 3, 4, 5]), [true, true, true, false, false]);
        fixture.write("proc/stat", &stat(101));
        assert_eq!(due(&mut process_watch, [6, 7, 8, 9, 10]), [true, true, true, false, false]);
        process_watch.one_ended();
        assert_eq!(due(&mut process_watch, [11, 12, 13, 16, 17]), [true, false, false, true, false]);
    }

    #[test]
    fn where_the_kernel_does_not_count_a_look_is_always_due() {
        let fixture = Fixture::new(&[("proc/stat", "cpu  1 2 3\n")]);
        let (mut process_watch, mut reader) = (ProcessWatch::new(&fixture.system()), Reader::default());
        assert!((1..20).all(|s| process_watch.is_look_due(&mut reader, s * S)));
        fixture.remove("proc/stat");
        let mut process_watch = ProcessWatch::new(&fixture.system());
        assert!((1..20).all(|s| process_watch.is_look_due(&mut reader, s * S)));
    }

    #[test]
    fn a_thread_that_this_machine_makes_is_counted() {
        let system = System::machine();
        let made = || std::fs::read_to_string(system.proc.join("stat")).ok().and_then(|text| parse_made(&text));
        let before = made().expect("a count");
        std::thread::spawn(|| ()).join().expect("the thread ends");
        assert!(made().expect("a count") > before);
    }
}
