//! Leases: at most one for each knob. An Order makes or renews a lease; its end, whatever the cause, restores the
//! baseline.
//!
//! This holds through a crash: the lease with its baseline is on disk before anything is changed, and is removed after
//! everything is put back. Leases that are on disk at a start are restored.

mod apply;
mod phase;
mod record;
mod report;
mod restore;

use std::collections::{BTreeMap, BTreeSet};

use slackwater_messages::{Change, ChangeCause, Order, Value};
use slackwater_node::system::System;

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::knobs::{Knob, share_files};
use crate::order::{OrderContext, is_release, judge};
use crate::state::{Lease, State, Store};
use phase::{ChangeReason, Ending, Free, PendingOrder, Phase};

/// Orders that arrive together share a reload: the first waits this long for others.
const GATHER_S: f64 = 0.3;
/// A restore that failed is tried again after this time.
const RETRY_S: f64 = 2.0;
/// A restore waits for the shortest time between reloads, but not longer than this.
const RESTORE_WAITS_S: f64 = 5.0;
/// Most refusals that are recorded in each `REFUSALS_WITHIN_S`; further ones are only counted.
const MOST_REFUSALS: u32 = 20;
const REFUSALS_WITHIN_S: f64 = 10.0;
/// Why an Order for a knob that somebody else changed is refused.
const THEIRS_HOLDS: &str = "somebody else changed this setting in this episode: theirs holds";
/// The maker of the Changes, for their field `by`.
const BY: &str = "wsengine";

/// Carries out Orders.
pub struct Engine {
    settings: Settings,
    identity: Identity,
    system: System,
    knobs: BTreeMap<&'static str, Box<dyn Knob>>,
    store: Store,
    /// By knob; also for knobs that the configuration no longer lists, while they hold a lease.
    phases: BTreeMap<String, Phase>,
    /// Ids of Orders that arrived, with the wall time until which they are remembered.
    order_ids: BTreeMap<String, f64>,
    /// When each reload group was last committed.
    committed_s: BTreeMap<&'static str, f64>,
    checked_s: f64,
    /// The value of each knob when it was last read, while no Order was in force.
    readings: BTreeMap<&'static str, Result<Value>>,
    read_s: f64,
    tried_s: f64,
    refusals: (f64, u32),
    publish: Box<dyn FnMut(Change)>,
}

impl Engine {
    /// An engine for these knobs; leases that the state still holds are restored in the first [`Engine::tick`].
    ///
    /// # Errors
    /// A state that cannot be read.
    pub fn open(
        settings: Settings,
        identity: Identity,
        system: System,
        knobs: Vec<(&'static str, Box<dyn Knob>)>,
        store: Store,
        publish: Box<dyn FnMut(Change)>,
    ) -> Result<Engine> {
        let state = store.load()?;
        let died = || Ending::new(ChangeReason::new(ChangeCause::EngineDied, "the last run did not end well"));
        let put_back = |lease| Phase::Ending { lease: Box::new(lease), ending: died(), then: Free::Idle };
        let phases = state.leases.into_iter().map(|(name, lease)| (name, put_back(lease))).collect();
        let checked_s = system.monotonic_s();
        Ok(Engine {
            settings,
            identity,
            system,
            knobs: knobs.into_iter().collect(),
            store,
            phases,
            order_ids: state.order_ids,
            committed_s: BTreeMap::new(),
            checked_s,
            readings: BTreeMap::new(),
            read_s: f64::NEG_INFINITY,
            tried_s: f64::NEG_INFINITY,
            refusals: (0.0, 0),
            publish,
        })
    }

    fn now_s(&self) -> f64 {
        self.system.monotonic_s()
    }

    /// Whether no knob is changed, or about to be.
    pub fn is_idle(&self) -> bool {
        self.phases.values().all(|phase| phase.lease().is_none() && phase.waiting().is_none())
    }

    fn phase(&mut self, name: &str) -> &mut Phase {
        self.phases.entry(name.to_owned()).or_default()
    }

    fn lease(&self, name: &str) -> Option<&Lease> {
        self.phases.get(name)?.lease()
    }

    /// Takes the bytes of an Order with their signature.
    pub fn order(&mut self, payload: &[u8], signature: Option<&str>) {
        let judged = judge(
            payload,
            signature,
            &OrderContext {
                settings: &self.settings,
                identity: &self.identity,
                is_repeated: &|id| self.order_ids.contains_key(id),
                now_unix_s: self.system.unix_s(),
            },
        );
        match judged {
            Err(refused) => {
                let mut why = refused.why.to_string();
                if let Some(id) = &refused.id
                    && let Err(error) = self.remember(id)
                {
                    why = format!("{why}; {error}");
                }
                self.refuse(&refused.what, refused.value, why, refused.id.as_deref().unwrap_or_default());
            }
            Ok(accepted) => {
                let (name, id) = (accepted.knob.name, accepted.order.id.clone());
                if let Err(why) = self.remember(&id).and_then(|()| self.admit(&accepted.order)) {
                    self.refuse(name, Some(accepted.value), why, &id);
                    return;
                }
                if is_release(&accepted.value) {
                    self.release(name, &accepted.order);
                    return;
                }
                let now_s = self.now_s();
                let (value, until_s) = (accepted.value.clone(), now_s + accepted.left_s);
                let phase = self.phase(name);
                let since_s = phase.waiting().map_or(now_s, |earlier| earlier.since_s);
                let earlier =
                    phase.wait(PendingOrder { order: accepted.order, value: accepted.value, until_s, since_s });
                if let Some(earlier) = earlier.filter(|earlier| earlier.value != value) {
                    self.refuse_waiting(name, earlier, "a later Order came before it was carried out");
                }
            }
        }
    }

    /// Notes an Order's id on disk, before anything is done for it: no crash makes it new again.
    fn remember(&mut self, id: &str) -> Result<()> {
        let now_unix_s = self.system.unix_s();
        self.order_ids.retain(|_, until| *until > now_unix_s);
        let longest_s = self.settings.orders.max_lease_s + self.settings.orders.clock_skew_s;
        self.order_ids.insert(id.to_owned(), now_unix_s + longest_s + 1.0);
        self.save_before()
    }

    fn state(&self) -> State {
        let leases = self.phases.iter().filter_map(|(name, phase)| Some((name.clone(), phase.lease()?.clone())));
        State::new(leases.collect(), self.order_ids.clone())
    }

    /// Saves the state before anything is changed.
    fn save_before(&self) -> Result<()> {
        self.store.save(&self.state()).map_err(|error| Error::State(format!("nothing is changed, since {error}")))
    }

    /// Saves the state after a change. If that fails, the next start puts a setting back once more, which does no harm.
    fn save_after(&self) {
        if let Err(error) = self.store.save(&self.state()) {
            tracing::error!("{error}");
        }
    }

    /// Refuses an Order for reasons that lie in the engine's state, not in its text.
    fn admit(&mut self, order: &Order) -> Result<()> {
        let refused = |why: &str| Err(Error::NotAdmitted(why.to_owned()));
        let now_s = self.now_s();
        let phase = self.phases.entry(order.knob.clone()).or_default();
        if let Some(until_s) = phase.theirs_until_s().filter(|until_s| now_s < **until_s) {
            *until_s = now_s + order.lease_s;
            return refused(THEIRS_HOLDS);
        }
        let earlier_orders =
            [phase.lease().map(|lease| lease.order_unix_s), phase.waiting().map(|waiting| waiting.order.time_unix_s)];
        if earlier_orders.into_iter().flatten().any(|time_unix_s| time_unix_s > order.time_unix_s) {
            return refused("a later Order for this knob is in force");
        }
        if phase.ending().is_some() {
            return refused("this knob is being put back");
        }
        let mut busy = self.phases.iter().filter(|(_, phase)| phase.lease().is_some() || phase.waiting().is_some());
        if let Some((other, _)) = busy.find(|(other, _)| share_files(other, &order.knob)) {
            return refused(&format!("`{other}` is set, which writes the same files"));
        }
        Ok(())
    }

    /// Ends the lease of a knob that the controller releases.
    fn release(&mut self, name: &'static str, order: &Order) {
        if let Some(waiting) = self.phase(name).take_waiting() {
            self.refuse_waiting(name, waiting, "given back before it was carried out");
        }
        let phase = self.phase(name);
        let Phase::Held { lease, .. } = phase else {
            self.refuse(name, Some(order.value.clone()), "it is not set", &order.id);
            return;
        };
        // The Changes that follow name this Order.
        lease.order_id.clone_from(&order.id);
        phase.end(ChangeReason::new(ChangeCause::GivenBack, format!("given back by {}: {}", order.by, order.reason)));
    }

    /// Ends all leases, with the reason.
    pub fn end_all(&mut self, cause: ChangeCause, why: &str) {
        self.refuse_all_waiting(|_| true, why);
        for phase in self.phases.values_mut() {
            phase.end(ChangeReason::new(cause, why));
            if let Some(ending) = phase.ending_mut() {
                ending.next_try_s = f64::NEG_INFINITY;
            }
        }
    }

    fn refuse_waiting(&mut self, name: &str, waiting: PendingOrder, why: &str) {
        self.refuse(name, Some(waiting.value), why, &waiting.order.id);
    }

    fn refuse_all_waiting(&mut self, is_refused: impl Fn(&PendingOrder) -> bool, why: &str) {
        let refused: Vec<(String, PendingOrder)> = self
            .phases
            .iter_mut()
            .filter(|(_, phase)| phase.waiting().is_some_and(&is_refused))
            .filter_map(|(name, phase)| Some((name.clone(), phase.take_waiting()?)))
            .collect();
        for (name, waiting) in refused {
            self.refuse_waiting(&name, waiting, why);
        }
    }

    /// Carries out everything that is due. Returns the seconds until the next tick.
    pub fn tick(&mut self) -> f64 {
        if self.now_s() - self.checked_s >= self.settings.check_every_s {
            self.look_for_others();
            self.checked_s = self.now_s();
        }
        self.drop_expired();
        self.end_failures();
        let groups: BTreeSet<&'static str> = self.knobs.values().map(|knob| knob.reload_group()).collect();
        for group in groups {
            if !self.restore_group(group) {
                self.apply_group(group);
            }
        }
        self.restore_unknown();
        self.next_s()
    }

    fn next_s(&self) -> f64 {
        let now_s = self.now_s();
        let mut next = self.checked_s + self.settings.check_every_s;
        for (name, phase) in &self.phases {
            next = next.min(match phase {
                Phase::Free(_) => f64::INFINITY,
                Phase::Held { until_s, .. } => *until_s,
                Phase::Ending { ending, .. } => ending.next_try_s,
            });
            let ready_s = phase.ready().map_or(f64::INFINITY, |order| self.apply_at_s(name, order));
            next = next.min(ready_s).min(phase.waiting().map_or(f64::INFINITY, |order| order.until_s));
        }
        // A restore that waits for the interval between reloads is tried again within a second.
        (next - now_s).clamp(0.02, 1.0)
    }

    fn apply_at_s(&self, name: &str, waiting: &PendingOrder) -> f64 {
        let Some(knob) = self.knobs.get(name) else { return waiting.since_s };
        let interval_s = knob.min_interval_s();
        if interval_s == 0.0 && knob.reload_group() == name {
            return waiting.since_s;
        }
        let last_s = self.committed_s.get(knob.reload_group()).copied().unwrap_or(f64::NEG_INFINITY);
        (waiting.since_s + GATHER_S).max(last_s + interval_s)
    }

    fn drop_expired(&mut self) {
        let now_s = self.now_s();
        let why = "its lease ended before the next reload was allowed";
        self.refuse_all_waiting(|waiting| waiting.until_s <= now_s, why);
        for phase in self.phases.values_mut() {
            if let Phase::Held { lease, until_s, .. } = phase
                && *until_s <= now_s
            {
                let why = format!("the lease of {} s ended without a renewal", lease.lease_s);
                phase.end(ChangeReason::new(ChangeCause::LeaseEnded, why));
            }
        }
    }

    /// Ends the leases of knobs that no longer maintain their setting.
    fn end_failures(&mut self) {
        for (name, phase) in &mut self.phases {
            if let Phase::Held { .. } = phase
                && let Some(why) = self.knobs.get(name.as_str()).and_then(|knob| knob.failure())
            {
                phase.end(ChangeReason::new(ChangeCause::NotAsOrdered, format!("it ended by itself: {why}")));
            }
        }
    }

    /// Gives way where somebody else changed a setting of ours.
    fn look_for_others(&mut self) {
        let mut changed = Vec::new();
        for (name, phase) in &self.phases {
            // A setting that cannot be read now is reported at the restore.
            if let (Phase::Held { lease, .. }, Some(knob)) = (phase, self.knobs.get(name.as_str()))
                && let Ok(Some(change)) = knob.drift(&lease.baseline, &lease.written)
            {
                changed.push((name.clone(), change, lease.lease_s));
            }
        }
        for (name, change, lease_s) in changed {
            self.give_way(&name, &change, lease_s);
        }
    }

    /// Ends our lease, because somebody else changed the setting, and refuses Orders until the episode is over.
    fn give_way(&mut self, name: &str, change: &str, lease_s: f64) -> String {
        let why = format!("{change}: theirs holds");
        let until_s = self.now_s() + lease_s;
        let waiting = self.phase(name).give_way(ChangeReason::new(ChangeCause::SomeoneElse, why.as_str()), until_s);
        if let Some(waiting) = waiting {
            self.refuse_waiting(name, waiting, &why);
        }
        why
    }
}

#[cfg(test)]
mod tests;
