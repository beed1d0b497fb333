//! Putting back: leases that ended, whatever the cause.

use slackwater_messages::ChangeCause;

use super::{Engine, RESTORE_WAITS_S, RETRY_S, Reason};
use crate::error::Error;

impl Engine {
    /// Restores the leases of a reload group that ended. False when there was nothing to do.
    pub(super) fn restore_group(&mut self, group: &'static str) -> bool {
        let now_s = self.now_s();
        let of_group = |name: &String| self.knobs.get(name.as_str()).is_some_and(|knob| knob.reload_group() == group);
        let ended: Vec<String> = self
            .live
            .iter()
            .filter(|(name, live)| live.end.is_some() && live.next_try_s <= now_s && of_group(name))
            .map(|(name, _)| name.clone())
            .collect();
        let Some(first) = ended.first().and_then(|name| self.knobs.get(name.as_str())) else { return false };
        let last_s = self.committed_s.get(group).copied().unwrap_or(f64::NEG_INFINITY);
        let wait_s = last_s + first.min_interval_s().min(RESTORE_WAITS_S) - now_s;
        if wait_s > 0.0 {
            for name in &ended {
                if let Some(live) = self.live.get_mut(name) {
                    live.next_try_s = now_s + wait_s;
                }
            }
            return true;
        }
        let mut staged = Vec::new();
        for name in ended {
            let (Some(knob), Some(lease)) = (self.knobs.get(name.as_str()), self.state.leases.get(&name)) else {
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

    pub(super) fn restored(&mut self, name: &str, left: &[String]) {
        let Some(lease) = self.state.leases.remove(name) else { return };
        let live = self.live.remove(name).unwrap_or_default();
        // Nothing is put back without an end; what has none would be of a run that nobody knows.
        let end = live.end.unwrap_or_else(|| Reason::new(ChangeCause::EngineDied, String::new()));
        let mut reason = Reason::new(end.cause, format!("put back: {}", end.why));
        for change in left {
            reason.why = format!("{}; left alone: {change}", reason.why);
        }
        self.save_after();
        self.forget_reading(name);
        self.change(name, Some(lease.effective), Some(lease.before), reason, true, &lease.order_id);
    }

    pub(super) fn not_restored(&mut self, name: &str, error: &Error) {
        let (now_s, error) = (self.now_s(), error.to_string());
        let Some(live) = self.live.get_mut(name) else { return };
        live.next_try_s = now_s + RETRY_S;
        if live.last_error == error {
            return;
        }
        let why = format!("not put back yet: {error}; trying again every {RETRY_S} s");
        live.last_error = error;
        let lease = self.state.leases.get(name).cloned();
        let (effective, before, id) = match lease {
            Some(lease) => (Some(lease.effective), Some(lease.before), lease.order_id),
            None => (None, None, String::new()),
        };
        self.change(name, effective, before, Reason::new(ChangeCause::NotPutBack, why), false, &id);
    }

    /// Leases of knobs that the configuration no longer lists: recorded, and kept for when it does.
    pub(super) fn restore_unknown(&mut self) {
        let now_s = self.now_s();
        let unknown: Vec<String> = self
            .live
            .iter()
            .filter(|(name, live)| !self.knobs.contains_key(name.as_str()) && live.next_try_s <= now_s)
            .map(|(name, _)| name.clone())
            .collect();
        let message = "the configuration does not list this knob any more; list it again";
        for name in unknown {
            self.not_restored(&name, &Error::Unavailable(message.to_owned()));
        }
    }
}
