//! Applying Orders: one step for each knob, one commit for each reload group.

use slackwater_messages::{ChangeCause, Order, Value};

use super::Engine;
use super::phase::{ChangeReason, PendingOrder, Phase};
use crate::error::{Error, Result};
use crate::knobs::show;
use crate::state::Lease;

impl Engine {
    /// Applies the Orders that wait for a reload group, if it may reload.
    pub(super) fn apply_group(&mut self, group: &'static str) {
        let now_s = self.now_s();
        let ready: Vec<(&'static str, bool, bool)> = self
            .knobs
            .iter()
            .filter(|(_, knob)| knob.reload_group() == group)
            .filter_map(|(name, _)| {
                let phase = self.phases.get(*name)?;
                let order = phase.ready()?;
                Some((*name, self.apply_at_s(name, order) <= now_s, renews(phase, order)))
            })
            .collect();
        let is_open = ready.iter().any(|(_, is_due, _)| *is_due);
        let mut staged = Vec::new();
        for (name, _, _) in ready.into_iter().filter(|(_, _, renews)| is_open || *renews) {
            let Some(waiting) = self.phase(name).take_waiting() else { continue };
            let (value, id) = (waiting.value.clone(), waiting.order.id.clone());
            match self.stage(name, waiting) {
                Ok(Some(step)) => staged.push((name, step)),
                Ok(None) => {}
                Err(error) => self.refuse(name, Some(value), error, &id),
            }
        }
        let Some(knob) = staged.first().and_then(|(name, _)| self.knobs.get(name)) else { return };
        let done = knob.commit(false);
        self.committed_s.insert(group, self.now_s());
        for (name, step) in staged {
            if let Err(error) = &done {
                self.refuse_applied(name, error);
                self.not_committed(name, step);
                continue;
            }
            match self.knobs[name].verify(&step.written) {
                Ok(reading) => self.applied(name, &step, reading.value, &reading.how),
                Err(error) => {
                    self.refuse_applied(name, &error);
                    self.end_failed(name, &error);
                }
            }
        }
    }

    /// Plans an Order, puts its lease on disk and sets its value. `None`: there is nothing to commit.
    fn stage(&mut self, name: &'static str, waiting: PendingOrder) -> Result<Option<Step>> {
        let knob = &self.knobs[name];
        let before = self.phases.get(name).cloned().unwrap_or_default();
        let renews = renews(&before, &waiting);
        if let Some(lease) = before.lease() {
            match knob.drift(&lease.baseline, &lease.written) {
                Ok(None) => {}
                Ok(Some(change)) => {
                    let why = self.give_way(name, &change, waiting.order.lease_s);
                    return Err(Error::SomeoneElse(why));
                }
                // A renewal changes nothing, so it is accepted even when the configuration is broken meanwhile.
                Err(_) if renews => {}
                Err(error) => return Err(error),
            }
        }
        let PendingOrder { order, value, until_s, .. } = waiting;
        let until_unix_s = self.system.unix_s() + until_s - self.now_s();
        let (lease, step) = match before.lease().cloned() {
            Some(Lease { effective, before, baseline, written, .. }) if renews => {
                (Lease { effective, before, baseline, written, ..lease_of(&order, &value, until_unix_s) }, None)
            }
            lease => {
                let (baseline, original, mut written) = match lease {
                    Some(lease) => (lease.baseline, lease.before, lease.written),
                    None => (knob.baseline()?, knob.read()?.value, Vec::new()),
                };
                let plan = knob.plan(&baseline, &value)?;
                written.push(plan.written.clone());
                let effective = plan.effective;
                let lease =
                    Lease { effective, before: original, baseline, written, ..lease_of(&order, &value, until_unix_s) };
                (lease, Some((plan.written, plan.note)))
            }
        };
        self.phases.insert(name.to_owned(), Phase::Held { lease: Box::new(lease), until_s, next: None });
        if let Err(error) = self.save_before() {
            self.phases.insert(name.to_owned(), before);
            return Err(error);
        }
        let Some((written, note)) = step else { return Ok(None) };
        let step = Step { before, written, note };
        if let Err(error) = self.knobs[name].apply(&step.written) {
            self.not_applied(name, step, error);
            return Ok(None);
        }
        Ok(Some(step))
    }

    fn applied(&mut self, name: &str, step: &Step, value: Value, how: &str) {
        let Phase::Held { lease, .. } = self.phase(name) else { return };
        lease.written = vec![step.written.clone()];
        lease.effective = value.clone();
        let lease = lease.clone();
        self.save_after();
        let wanted =
            if lease.wanted == value { String::new() } else { format!(" (asked for {})", show(&lease.wanted)) };
        let note = if step.note.is_empty() { String::new() } else { format!("; {}", step.note) };
        let why = format!("{}{wanted}{note}; {how}; for {} s, by {}", lease.reason, lease.lease_s, lease.by);
        let before = step.before.lease().map_or(lease.before, |before| before.effective.clone());
        self.change(
            name,
            Some(before),
            Some(value),
            ChangeReason::new(ChangeCause::Ordered, why),
            true,
            &lease.order_id,
        );
    }

    /// Sets the earlier value again at once, after setting failed half way.
    fn not_applied(&mut self, name: &str, step: Step, error: Error) {
        self.refuse_applied(name, &error);
        let Some(lease) = self.lease(name) else { return };
        let knob = &self.knobs[name];
        let back = match step.before.lease().and_then(|before| before.written.last()) {
            Some(written) => knob.apply(written),
            None => knob.restore(&lease.baseline, &lease.written).map(|_| ()),
        };
        match back {
            Ok(()) => self.not_committed(name, step),
            failed => self.end_failed(name, &error.undone(failed)),
        }
    }

    /// Notes that everything is as it was before the step.
    fn not_committed(&mut self, name: &str, step: Step) {
        self.phases.insert(name.to_owned(), step.before);
        self.save_after();
    }

    /// Ends the lease of an Order whose setting is not in effect; the next tick restores the baseline.
    fn end_failed(&mut self, name: &str, error: &Error) {
        let why = format!("the Order did not take effect: {error}");
        self.phase(name).end(ChangeReason::new(ChangeCause::NotAsOrdered, why));
    }

    fn refuse_applied(&mut self, name: &str, error: &Error) {
        let lease = self.lease(name);
        let (wanted, id) = lease.map(|lease| (lease.wanted.clone(), lease.order_id.clone())).unzip();
        self.refuse(name, wanted, error, &id.unwrap_or_default());
    }
}

/// Whether an Order asks for the value that is already set.
fn renews(phase: &Phase, order: &PendingOrder) -> bool {
    phase.lease().is_some_and(|lease| lease.wanted == order.value)
}

/// The lease with the fields that the Order itself gives.
fn lease_of(order: &Order, value: &Value, until_unix_s: f64) -> Lease {
    Lease {
        order_id: order.id.clone(),
        by: order.by.clone(),
        reason: order.reason.clone(),
        order_unix_s: order.time_unix_s,
        wanted: value.clone(),
        effective: value.clone(),
        before: value.clone(),
        baseline: serde_json::Value::Null,
        written: Vec::new(),
        lease_s: order.lease_s,
        until_unix_s,
    }
}

/// An Order that is being applied.
struct Step {
    /// The knob's phase before it.
    before: Phase,
    written: serde_json::Value,
    note: String,
}
