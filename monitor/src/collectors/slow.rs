//! Sections whose files are expensive to read, and are therefore read once a second. Their rates refer to that second,
//! and are repeated in the Samples until the next reading.

use std::rc::Rc;

use slackwater_messages::Sample;
use slackwater_node::system::System;

use super::Collector;
use crate::reason::Reason;

/// A little less than a second, since periods end early or late by a little.
const EVERY_NS: u64 = 950_000_000;

/// Whether a section is a new reading or a repeated one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Read for this Sample.
    Fresh,
    /// Read for an earlier Sample.
    Repeated,
}

/// Copies the section from the first Sample into the second.
pub type CopySection = fn(&Sample, &mut Sample, Freshness);

/// A collector that is read once a second.
pub struct Slow<C> {
    inner: C,
    monotonic_ns: Rc<dyn Fn() -> u64>,
    copy: CopySection,
    /// The time and the result of the last reading; at first `None`.
    last: Option<(u64, Sample, Result<(), Reason>)>,
}

impl<C: Collector + 'static> Slow<C> {
    /// Takes the collector's first reading now. The next reading is at the end of the first period, whatever its
    /// length.
    pub fn open(mut inner: C, system: &System, copy: CopySection) -> Box<dyn Collector> {
        let _ = inner.collect(&mut Sample::default());
        Box::new(Slow { inner, monotonic_ns: system.monotonic_ns.clone(), copy, last: None })
    }
}

impl<C: Collector> Collector for Slow<C> {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        let now_ns = (self.monotonic_ns)();
        let fresh = self.last.take().filter(|(read_ns, ..)| now_ns.saturating_sub(*read_ns) < EVERY_NS);
        let freshness = if fresh.is_some() { Freshness::Repeated } else { Freshness::Fresh };
        let (_, read, result) = self.last.insert(fresh.unwrap_or_else(|| {
            let mut read = Sample::default();
            let result = self.inner.collect(&mut read);
            (now_ns, read, result)
        }));
        result.clone()?;
        sample.absent.extend(read.absent.iter().map(|(name, reason)| (name.clone(), reason.clone())));
        sample.absence_causes.extend(read.absence_causes.iter().map(|(name, cause)| (name.clone(), *cause)));
        (self.copy)(read, sample, freshness);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_messages::Memory;
    use slackwater_node::fixture::Fixture;

    /// Counts its readings.
    struct Count(u64);

    impl Collector for Count {
        fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
            sample.memory = Some(Memory { oom_kills: Some(self.0), ..Memory::default() });
            sample.absent.insert("memory.available".to_owned(), format!("reading {}", self.0));
            self.0 += 1;
            Ok(())
        }
    }

    #[test]
    fn it_is_read_in_the_first_period_and_then_once_a_second() {
        let fixture = Fixture::new(&[]);
        let mut slow = Slow::open(Count(0), &fixture.system(), |from, to, freshness| {
            to.memory.clone_from(&from.memory);
            to.absent.insert("reading".to_owned(), format!("{freshness:?}"));
        });
        let mut readings = Vec::new();
        for _ in 0..12 {
            fixture.advance_s(0.2);
            let mut sample = Sample::default();
            slow.collect(&mut sample).expect("a section");
            let count = sample.memory.expect("a value").oom_kills.expect("a value");
            assert_eq!(sample.absent["memory.available"], format!("reading {count}"));
            readings.push((count, sample.absent["reading"] == "Fresh"));
        }
        let fresh: Vec<u64> = readings.iter().filter(|(_, is_fresh)| *is_fresh).map(|(count, _)| *count).collect();
        assert_eq!((fresh, readings[4], readings[5]), (vec![1, 2, 3], (1, false), (2, true)));
    }
}
