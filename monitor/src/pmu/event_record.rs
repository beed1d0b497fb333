//! Whether an event counts, or why it has no count.

use crate::reason::Reason;

/// What is known of one event in a scope.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EventRecord {
    /// Targets on which it is open.
    pub opened: usize,
    /// Why it is not open on the others.
    pub refused: Option<String>,
    /// Its count since it was opened, not scaled.
    pub counted: u64,
    /// Time that it was on the hardware since then.
    pub running_ns: u64,
    /// Time that it should have been.
    pub enabled_ns: u64,
}

impl EventRecord {
    /// Why an event that can be encoded has no count on any of its `targets` targets; `None` when it counts, or had no
    /// chance yet.
    pub fn why_mute(&self, key: &str, targets: usize) -> Option<Reason> {
        match &self.refused {
            Some(reason) => Some(format!("{key}: {reason}").into()),
            None if self.opened < targets => Some(format!("{key}: open on {} of {targets} only", self.opened).into()),
            None if self.counted > 0 || self.running_ns == 0 => None,
            None => {
                Some(format!("{key} opens but has counted nothing in {:.1} s", self.running_ns as f64 / 1e9).into())
            }
        }
    }
}
