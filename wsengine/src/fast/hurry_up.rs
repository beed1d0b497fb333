//! `hurry-up`: a clock for each thread, which depends on whether and for how long it is in the hot function. Source and
//! reasons are in `lab/slackwater_lab/governor/policies/hurry_up.py`, whose cores are threads here: a thread is on one
//! core at a time.

use std::collections::BTreeMap;

/// A thread entered or left the hot function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotEvent {
    /// The thread's id.
    pub thread: u32,
    /// Time on the loop's clock.
    pub time_s: f64,
    /// Whether the thread entered; otherwise it left.
    pub entered: bool,
}

/// The rule with its state.
#[derive(Debug)]
pub struct HurryUp {
    /// Low, then mid where there are three states, then high.
    clocks: Vec<i64>,
    after_s: f64,
    /// When each thread entered; `None`: it is outside.
    entered_s: BTreeMap<u32, Option<f64>>,
}

impl HurryUp {
    /// `clocks`: low and high, or low, mid and high. `after_s`: a thread gets the high clock after this time inside.
    pub fn new(clocks: Vec<i64>, after_s: f64) -> HurryUp {
        HurryUp { clocks, after_s, entered_s: BTreeMap::new() }
    }

    /// Takes the events since the last call.
    pub fn see(&mut self, events: &[HotEvent]) {
        for event in events {
            let enters = event.entered || !self.entered_s.contains_key(&event.thread);
            self.entered_s.insert(event.thread, enters.then_some(event.time_s));
        }
    }

    /// Forgets the threads that are outside: their next event is that they enter.
    pub fn forget_outside(&mut self) {
        self.entered_s.retain(|_, entered_s| entered_s.is_some());
    }

    /// The clock of a thread.
    pub fn clock(&self, thread: u32, now_s: f64) -> i64 {
        let (low, high) = (self.clocks[0], self.clocks[self.clocks.len() - 1]);
        match self.entered_s.get(&thread).copied().flatten() {
            None => low,
            Some(entered_s) if self.clocks.len() == 2 || now_s - entered_s >= self.after_s => high,
            Some(_) => self.clocks[1],
        }
    }

    /// The threads that are in the hot function, and their clocks.
    pub fn hot(&self, now_s: f64) -> Vec<(u32, i64)> {
        let inside = self.entered_s.iter().filter(|(_, entered_s)| entered_s.is_some());
        inside.map(|(thread, _)| (*thread, self.clock(*thread, now_s))).collect()
    }
}
