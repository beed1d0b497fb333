//! How many of the threads' turns on a core ended voluntarily, and how many because the core was taken away.
//!
//! The number of turns comes from schedstat, which is read anyway. Only /proc/PID/task/TID/status has their kinds, and
//! that file takes some 15 times longer to open and read. So it is read of at most [`MOST_LOOKS`] threads that had a
//! turn in the period, of the next ones in the next period, and the split of their turns stands for all. With as few
//! threads at work the split is exact.

use std::fs::File;
use std::path::Path;

use crate::counter_delta::GrowthLimit;
use crate::kernel_file::Reader;

/// Threads whose kinds of switches are looked at in one period.
pub const MOST_LOOKS: usize = 4;
/// New threads that are looked at as soon as they are found; the others get their first look with their first turn.
pub const MOST_FIRST_LOOKS: usize = 64;
/// The longest time between two looks at one thread, in which a counter may have grown.
const LONGEST_S: f64 = 3600.0;

/// The ends of a thread's turns since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Switches {
    /// Ends because it waited for something.
    pub voluntary: u64,
    /// Ends because its core was taken away.
    pub involuntary: u64,
}

/// Reads the `status` beside a thread's schedstat file.
pub fn read(reader: &mut Reader, schedstat: &Path) -> Option<Switches> {
    let file = File::open(schedstat.with_file_name("status")).ok()?;
    parse_status(reader.read(&file).ok()?)
}

/// Reads the last two lines of a status file.
pub fn parse_status(text: &str) -> Option<Switches> {
    // Searched from the end: the file has some 60 lines.
    let value = |name: &str| -> Option<u64> {
        text.lines().rev().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    Some(Switches { voluntary: value("voluntary_ctxt_switches:")?, involuntary: value("nonvoluntary_ctxt_switches:")? })
}

/// How the turns of a period divide.
#[derive(Default)]
pub struct Split {
    voluntary: u64,
    involuntary: u64,
    next: usize,
}

impl Split {
    /// Chooses the threads to look at among those that had a turn. Of the threads looked at `before`, each is chosen
    /// again as periods go by; at least one place is for a `new` one.
    pub fn choose<T: Copy>(&mut self, before: &[T], new: &[T]) -> Vec<T> {
        let count = before.len().min(MOST_LOOKS - new.len().min(1));
        let from = if before.is_empty() { 0 } else { self.next % before.len() };
        self.next = from + count;
        let before = before.iter().cycle().skip(from).take(count);
        before.chain(new.iter().take(MOST_LOOKS - count)).copied().collect()
    }

    /// Counts what one thread had between two looks, if both succeeded and it is still the same thread.
    pub fn add(&mut self, last: Option<Switches>, now: Option<Switches>) {
        let Some((last, now)) = last.zip(now) else { return };
        // When it was looked at last is not kept: the time that passed was an hour at most.
        let grown = |last, now| GrowthLimit::EVENTS.grown(last, now, LONGEST_S).ok();
        let grown = grown(last.voluntary, now.voluntary).zip(grown(last.involuntary, now.involuntary));
        if let Some((voluntary, involuntary)) = grown {
            self.voluntary = self.voluntary.saturating_add(voluntary);
            self.involuntary = self.involuntary.saturating_add(involuntary);
        }
    }

    /// Splits `turns` turns into those that ended voluntarily and the others, and begins a new period.
    ///
    /// # Errors
    /// Why that is not known.
    pub fn take(&mut self, turns: u64) -> Result<(f64, f64), &'static str> {
        let (voluntary, involuntary) =
            (std::mem::take(&mut self.voluntary) as f64, std::mem::take(&mut self.involuntary) as f64);
        let looked_at = voluntary + involuntary;
        match turns {
            0 => Ok((0.0, 0.0)),
            _ if looked_at == 0.0 => Err("no status of a thread that had a turn was read twice yet"),
            turns => Ok((turns as f64 * voluntary / looked_at, turns as f64 * involuntary / looked_at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switches(voluntary: u64, involuntary: u64) -> Option<Switches> {
        Some(Switches { voluntary, involuntary })
    }

    #[test]
    fn the_last_lines_of_status_are_read() {
        let text =
            "Name:\tapache2\nMems_allowed_list:\t0\nvoluntary_ctxt_switches:\t15\nnonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(parse_status(text), switches(15, 4));
        for bad in ["", "Name:\tvoluntary_ctxt_switches\n", "voluntary_ctxt_switches:\tx\n"] {
            assert_eq!(parse_status(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn each_thread_comes_to_its_turn() {
        let mut split = Split::default();
        let threads: Vec<u32> = (0..20).collect();
        let mut looks = vec![0; 20];
        for _ in 0..5 {
            let chosen = split.choose(&threads, &[]);
            assert_eq!(chosen.len(), MOST_LOOKS);
            chosen.iter().for_each(|thread| looks[*thread as usize] += 1);
        }
        assert_eq!(looks, [1; 20]);
        assert_eq!(split.choose(&[7, 8, 9], &[]).len(), 3);
        assert!(split.choose(&[0; 0], &[]).is_empty());
    }

    #[test]
    fn threads_that_were_not_looked_at_before_get_a_place_and_all_that_is_left() {
        let mut split = Split::default();
        let threads: Vec<u32> = (0..20).collect();
        assert_eq!(split.choose(&threads, &[97, 98]), [0, 1, 2, 97]);
        assert_eq!(split.choose(&[5, 6], &threads).len(), MOST_LOOKS);
        assert_eq!(split.choose(&[0; 0], &[97, 98]), [97, 98]);
    }

    #[test]
    fn the_turns_divide_as_those_of_the_threads_that_were_looked_at() {
        let mut split = Split::default();
        split.add(switches(10, 10), switches(13, 10));
        split.add(switches(5, 5), switches(5, 6));
        assert_eq!(split.take(40), Ok((30.0, 10.0)));
        assert_eq!(split.take(0), Ok((0.0, 0.0)));
        split.add(None, switches(1, 1));
        split.add(switches(9, 9), switches(1, 10)); // another thread with its number
        assert_eq!(split.take(5), Err("no status of a thread that had a turn was read twice yet"));
    }
}
