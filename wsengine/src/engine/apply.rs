//! Carrying out Orders: one step for each knob, one commit for each reload group.

use slackwater_messages::{ChangeCause, Order, Value};

use super::{Engine, PendingOrder, Reason};
use crate::error::{Error, Result};
use crate::knobs::show;
use crate::state::Lease;

impl Engine {
    /// Carries out the Orders that wait for a reload group, if it may reload.
    pub(super) fn apply_group(&mut self, group: &'static str) {
        let now_s = self.now_s();
        let of_group: Vec<(&'static str, &PendingOrder)> = self
            .waiting
            .iter()
            .filter(|(name, _)| self.knobs.get(*name).is_some_and(|knob| knob.reload_group() == group))
            .map(|(name, waiting)| (*name, waiting))
            .collect();
        let is_open = of_group.iter().any(|(name, waiting)| self.apply_at_s(name, waiting) <= now_s);
        let due: Vec<&'static str> = of_group
            .into_iter()
            .filter(|(name, waiting)| is_open || self.only_renews(name, waiting))
            .map(|(name, _)| name)
            .collect();
        let mut staged = Vec::new();
        for name in due {
            let Some(waiting) = self.waiting.remove(name) else { continue };
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
                self.not_committed(name, &step);
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

    pub(super) fn only_renews(&self, name: &str, waiting: &PendingOrder) -> bool {
        self.state.leases.get(name).is_some_and(|lease| lease.wanted == waiting.value)
    }

    /// Plans an Order, puts its lease on disk and sets it. `None`: nothing is to be committed for it.
    pub(super) fn stage(&mut self, name: &'static str, waiting: PendingOrder) -> Result<Option<Step>> {
        let knob = &self.knobs[name];
        let before = self.state.leases.get(name).cloned();
        let renews = self.only_renews(name, &waiting);
        if let Some(lease) = &before {
            match knob.drift(&lease.baseline, &lease.written) {
                Ok(None) => {}
                Ok(Some(change)) => {
                    let why = self.give_way(name, &change, waiting.order.lease_s);
                    return Err(Error::SomeoneElse(why));
                }
                // A renewal changes nothing, so a configuration that is broken meanwhile does not stand against it.
                Err(_) if renews => {}
                Err(error) => return Err(error),
            }
        }
        let (order, value) = (waiting.order, waiting.value);
        let (mut lease, step) = match before.clone().filter(|_| renews) {
            Some(kept) => {
                let Lease { effective, before, baseline, written, .. } = kept;
                (Lease { effective, before, baseline, written, ..lease_of(&order, &value) }, None)
            }
            None => {
                let (baseline, stood) = match &before {
                    Some(lease) => (lease.baseline.clone(), lease.before.clone()),
                    None => (knob.baseline()?, knob.read()?.value),
                };
                let plan = knob.plan(&baseline, &value)?;
                let mut written = before.as_ref().map_or(Vec::new(), |lease| lease.written.clone());
                written.push(plan.written.clone());
                let effective = plan.effective;
                let lease = Lease { effective, before: stood, baseline, written, ..lease_of(&order, &value) };
                (lease, Some(Step { before: before.clone(), written: plan.written, note: plan.note }))
            }
        };
        lease.until_unix_s = (self.system.unix_s)() + waiting.until_s - self.now_s();
        self.state.leases.insert(name.to_owned(), lease);
        if let Err(error) = self.save_before() {
            self.forget(name, before);
            return Err(error);
        }
        self.live.entry(name.to_owned()).or_default().until_s = waiting.until_s;
        let Some(step) = step else { return Ok(None) };
        if let Err(error) = self.knobs[name].apply(&step.written) {
            self.not_applied(name, &step, error);
            return Ok(None);
        }
        Ok(Some(step))
    }

    pub(super) fn forget(&mut self, name: &str, before: Option<Lease>) {
        match before {
            Some(lease) => {
                self.state.leases.insert(name.to_owned(), lease);
            }
            None => {
                self.state.leases.remove(name);
                self.live.remove(name);
            }
        }
    }

    pub(super) fn applied(&mut self, name: &str, step: &Step, value: Value, how: &str) {
        let Some(lease) = self.state.leases.get_mut(name) else { return };
        lease.written = vec![step.written.clone()];
        lease.effective = value.clone();
        let lease = lease.clone();
        self.save_after();
        let asked = if lease.wanted == value { String::new() } else { format!(" (asked for {})", show(&lease.wanted)) };
        let note = if step.note.is_empty() { String::new() } else { format!("; {}", step.note) };
        let why = format!("{}{asked}{note}; {how}; for {} s, by {}", lease.reason, lease.lease_s, lease.by);
        let before = step.before.as_ref().map_or(lease.before, |before| before.effective.clone());
        self.change(name, Some(before), Some(value), Reason::new(ChangeCause::Ordered, why), true, &lease.order_id);
    }

    /// Setting failed half way: what stood before is set again, at once.
    pub(super) fn not_applied(&mut self, name: &str, step: &Step, error: Error) {
        self.refuse_applied(name, &error);
        let Some(lease) = self.state.leases.get(name) else { return };
        let knob = &self.knobs[name];
        let back = match step.before.as_ref().and_then(|before| before.written.last()) {
            Some(written) => knob.apply(written),
            None => knob.restore(&lease.baseline, &lease.written).map(|_| ()),
        };
        match back {
            Ok(()) => self.not_committed(name, step),
            failed => self.end_failed(name, &error.undone(failed)),
        }
    }

    /// All is as it was before the step.
    pub(super) fn not_committed(&mut self, name: &str, step: &Step) {
        self.forget(name, step.before.clone());
        self.save_after();
    }

    /// It is set, but it is not what was wanted: back to the baseline at the next tick.
    pub(super) fn end_failed(&mut self, name: &str, error: &Error) {
        if let Some(live) = self.live.get_mut(name) {
            let why = format!("an Order did not come to what it should: {error}");
            live.end = Some(Reason::new(ChangeCause::NotAsOrdered, why));
            live.next_try_s = 0.0;
        }
    }

    pub(super) fn refuse_applied(&mut self, name: &str, error: &Error) {
        let lease = self.state.leases.get(name);
        let (wanted, id) = lease.map(|lease| (lease.wanted.clone(), lease.order_id.clone())).unzip();
        self.refuse(name, wanted, error, &id.unwrap_or_default());
    }
}

/// The lease as an Order itself describes it.
fn lease_of(order: &Order, value: &Value) -> Lease {
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
        until_unix_s: 0.0,
    }
}

/// An Order that is being carried out.
pub(super) struct Step {
    before: Option<Lease>,
    written: serde_json::Value,
    note: String,
}
