//! Restoring the knobs whose leases ended, whatever the cause.

use slackwater_messages::ChangeCause;

use super::phase::{ChangeReason, Phase};
use super::{Engine, RESTORE_WAITS_S, RETRY_S};
use crate::error::Error;

impl Engine {
    /// Restores the leases of a reload group that ended. False when there was nothing to do.
    pub(super) fn restore_group(&mut self, group: &'static str) -> bool {
        let now_s = self.now_s();
        let is_in_group = |name: &str| self.knobs.get(name).is_some_and(|knob| knob.reload_group() == group);
        let ended = self.due_endings(is_in_group);
        let Some(first) = ended.first().and_then(|name| self.knobs.get(name.as_str())) else { return false };
        let last_s = self.committed_s.get(group).copied().unwrap_or(f64::NEG_INFINITY);
        let wait_s = last_s + first.min_interval_s().min(RESTORE_WAITS_S) - now_s;
        if wait_s > 0.0 {
            for name in &ended {
                if let Some(ending) = self.phase(name).ending_mut() {
                    ending.next_try_s = now_s + wait_s;
                }
            }
            return true;
        }
        let mut staged = Vec::new();
        for name in ended {
            let (Some(knob), Some(lease)) = (self.knobs.get(name.as_str()), self.lease(&name)) else {
                continue;
            };
            match knob.restore(&lease.baseline, &lease.written) {
                Ok(left) => staged.push((name, left)),
                Err(error) => self.not_restored(&name, &error),
            }
        }
        let Some(knob) = staged.first().and_then(|(name, _)| self.knobs.get(name.as_str())) else { return true };
        let done = knob.commit(true);
        self.committed_s.insert(group, self.now_s());
        for (name, left) in staged {
            match &done {
                Ok(()) => self.restored(&name, &left),
                Err(error) => self.not_restored(&name, error),
            }
        }
        true
    }

    /// The knobs whose restore is due.
    fn due_endings(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let now_s = self.now_s();
        let is_due = |phase: &Phase| phase.ending().is_some_and(|ending| ending.next_try_s <= now_s);
        let due = self.phases.iter().filter(|(name, phase)| is_due(phase) && is_wanted(name));
        due.map(|(name, _)| name.clone()).collect()
    }

    fn restored(&mut self, name: &str, left: &[String]) {
        let Some((lease, mut reason)) = self.phase(name).put_back() else { return };
        reason.why = format!("put back: {}", reason.why);
        for change in left {
            reason.why = format!("{}; left alone: {change}", reason.why);
        }
        self.save_after();
        self.forget_reading(name);
        self.change(name, Some(lease.effective), Some(lease.before), reason, true, &lease.order_id);
    }

    fn not_restored(&mut self, name: &str, error: &Error) {
        let (now_s, error) = (self.now_s(), error.to_string());
        let Phase::Ending { lease, ending, .. } = self.phase(name) else { return };
        ending.next_try_s = now_s + RETRY_S;
        if ending.last_error == error {
            return;
        }
        let why = format!("not put back yet: {error}; trying again every {RETRY_S} s");
        ending.last_error = error;
        let lease = lease.clone();
        let reason = ChangeReason::new(ChangeCause::NotPutBack, why);
        self.change(name, Some(lease.effective), Some(lease.before), reason, false, &lease.order_id);
    }

    /// Records the leases of knobs that the configuration no longer lists. They are kept until it lists them again.
    pub(super) fn restore_unknown(&mut self) {
        let message = "the configuration does not list this knob any more; list it again";
        for name in self.due_endings(|name| !self.knobs.contains_key(name)) {
            self.not_restored(&name, &Error::Unavailable(message.to_owned()));
        }
    }
}
