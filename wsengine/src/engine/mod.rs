//! Leases: at most one for each knob. An Order makes or renews one; its end, whatever the cause, restores the baseline.
//!
//! The engine's order of doing things keeps its promise through a crash: the lease with its baseline is on disk before
//! anything is changed, and leaves the disk after everything is put back. What is found there at a start is restored.

mod apply;
mod record;
mod report;
mod restore;

use std::collections::{BTreeMap, BTreeSet};

use slackwater_messages::{Change, ChangeCause, Order, Value};

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::knobs::{Knob, share_files};
use crate::order::{Context, is_release, judge};
use crate::state::{State, Store};
use crate::system::System;

/// Orders that come together share a reload: the first waits this long for the others.
const GATHER_S: f64 = 0.3;
/// A restore that failed is tried again after this time.
const RETRY_S: f64 = 2.0;
/// A restore waits for the shortest time between reloads, but not longer than this.
const RESTORE_WAITS_S: f64 = 5.0;
/// Refusals that are recorded in each `REFUSALS_WITHIN_S`; further ones are counted.
const REFUSALS: u32 = 20;
const REFUSALS_WITHIN_S: f64 = 10.0;
/// Who makes the Changes.
const BY: &str = "wsengine";

/// An accepted Order that is not carried out yet.
struct PendingOrder {
    order: Order,
    value: Value,
    until_s: f64,
    since_s: f64,
}

/// What is known of a lease while this process lives.
#[derive(Default)]
struct LiveLease {
    until_s: f64,
    /// Set when the lease must end before its time.
    end: Option<Reason>,
    next_try_s: f64,
    /// Of the restore, as far as it was recorded.
    last_error: String,
}

/// Why a lease ends, or a Change is made: for programs, and in words.
#[derive(Clone)]
struct Reason {
    cause: ChangeCause,
    why: String,
}

impl Reason {
    fn new(cause: ChangeCause, why: impl Into<String>) -> Reason {
        Reason { cause, why: why.into() }
    }
}

/// Carries out Orders.
pub struct Engine {
    settings: Settings,
    identity: Identity,
    system: System,
    knobs: BTreeMap<&'static str, Box<dyn Knob>>,
    store: Store,
    state: State,
    live: BTreeMap<String, LiveLease>,
    waiting: BTreeMap<&'static str, PendingOrder>,
    committed_s: BTreeMap<&'static str, f64>,
    /// Knobs that somebody else changed: Orders are refused until none has come for a lease.
    externally_controlled: BTreeMap<String, f64>,
    checked_s: f64,
    /// What each knob was when it was last read, while no Order was in force.
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
        let died = || Reason::new(ChangeCause::EngineDied, "the last run did not end well");
        let live = state
            .leases
            .keys()
            .map(|name| (name.clone(), LiveLease { end: Some(died()), ..LiveLease::default() }))
            .collect();
        let checked_s = (system.monotonic_s)();
        Ok(Engine {
            settings,
            identity,
            system,
            knobs: knobs.into_iter().collect(),
            store,
            state,
            live,
            waiting: BTreeMap::new(),
            committed_s: BTreeMap::new(),
            externally_controlled: BTreeMap::new(),
            checked_s,
            readings: BTreeMap::new(),
            read_s: f64::NEG_INFINITY,
            tried_s: f64::NEG_INFINITY,
            refusals: (0.0, 0),
            publish,
        })
    }

    fn now_s(&self) -> f64 {
        (self.system.monotonic_s)()
    }

    /// Whether nothing is changed, or about to be.
    pub fn is_idle(&self) -> bool {
        self.state.leases.is_empty() && self.waiting.is_empty()
    }

    /// Takes the bytes of an Order with their signature.
    pub fn order(&mut self, payload: &[u8], signature: Option<&str>) {
        let judged = judge(
            payload,
            signature,
            &Context {
                settings: &self.settings,
                identity: &self.identity,
                seen: &|id| self.state.seen.contains_key(id),
                now_unix_s: (self.system.unix_s)(),
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
                let waiting = PendingOrder {
                    order: accepted.order,
                    value: accepted.value,
                    until_s: now_s + accepted.left_s,
                    since_s: self.waiting.get(accepted.knob.name).map_or(now_s, |before| before.since_s),
                };
                let value = waiting.value.clone();
                let replaced = self.waiting.insert(accepted.knob.name, waiting);
                if let Some(replaced) = replaced.filter(|replaced| replaced.value != value) {
                    self.refuse(
                        accepted.knob.name,
                        Some(replaced.value),
                        "a later Order came before it was carried out",
                        &replaced.order.id,
                    );
                }
            }
        }
    }

    /// Notes an Order's id on disk, before anything is done for it: no crash makes it new again.
    fn remember(&mut self, id: &str) -> Result<()> {
        let now_unix_s = (self.system.unix_s)();
        self.state.seen.retain(|_, until| *until > now_unix_s);
        let longest_s = self.settings.orders.max_lease_s + self.settings.orders.clock_skew_s;
        self.state.seen.insert(id.to_owned(), now_unix_s + longest_s + 1.0);
        self.save_before()
    }

    /// Before anything is changed.
    fn save_before(&self) -> Result<()> {
        self.store.save(&self.state).map_err(|error| Error::State(format!("nothing is changed, since {error}")))
    }

    /// After it was changed: what the disk keeps for longer than it must is put back once more at a start, which does
    /// no harm.
    fn save_after(&self) {
        if let Err(error) = self.store.save(&self.state) {
            tracing::error!("{error}");
        }
    }

    /// What stands against an Order beside its own text.
    fn admit(&mut self, order: &Order) -> Result<()> {
        let refused = |why: &str| Err(Error::NotAdmitted(why.to_owned()));
        let now_s = self.now_s();
        if let Some(until_s) = self.externally_controlled.get_mut(&order.knob) {
            if now_s < *until_s {
                *until_s = now_s + order.lease_s;
                return refused("somebody else changed this setting in this episode: theirs holds");
            }
            self.externally_controlled.remove(&order.knob);
        }
        let given = [
            self.state.leases.get(&order.knob).map(|lease| lease.order_unix_s),
            self.waiting.get(order.knob.as_str()).map(|waiting| waiting.order.time_unix_s),
        ];
        if given.into_iter().flatten().any(|given| given > order.time_unix_s) {
            return refused("a later Order for this knob is in force");
        }
        let others = self.state.leases.keys().map(String::as_str).chain(self.waiting.keys().copied());
        if let Some(other) = others.into_iter().find(|other| share_files(other, &order.knob)) {
            return refused(&format!("`{other}` is set, which writes the same files"));
        }
        if self.live.get(&order.knob).is_some_and(|live| live.end.is_some()) {
            return refused("this knob is being put back");
        }
        Ok(())
    }

    /// The controller releases a knob: its lease ends now.
    fn release(&mut self, name: &'static str, order: &Order) {
        if let Some(waiting) = self.waiting.remove(name) {
            self.refuse(name, Some(waiting.value), "given back before it was carried out", &waiting.order.id);
        }
        let Some(live) = self.live.get_mut(name) else {
            self.refuse(name, Some(order.value.clone()), "it is not set", &order.id);
            return;
        };
        live.end = Some(Reason::new(ChangeCause::GivenBack, format!("given back by {}: {}", order.by, order.reason)));
        live.next_try_s = 0.0;
        // What follows is recorded as this Order's doing.
        if let Some(lease) = self.state.leases.get_mut(name) {
            lease.order_id.clone_from(&order.id);
        }
    }

    /// Ends all leases, with the reason.
    pub fn end_all(&mut self, cause: ChangeCause, why: &str) {
        for (name, waiting) in std::mem::take(&mut self.waiting) {
            self.refuse(name, Some(waiting.value), why, &waiting.order.id);
        }
        for live in self.live.values_mut() {
            live.end.get_or_insert_with(|| Reason::new(cause, why));
            live.next_try_s = 0.0;
        }
    }

    /// Does what is due. Returns the seconds until something may be due again.
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
        for live in self.live.values() {
            let due = if live.end.is_some() { now_s } else { live.until_s };
            next = next.min(due.max(live.next_try_s));
        }
        for (name, waiting) in &self.waiting {
            next = next.min(self.apply_at_s(name, waiting)).min(waiting.until_s);
        }
        // Waiting for a reload's interval at a restore is looked at again soon enough.
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
        let gone: Vec<&'static str> =
            self.waiting.iter().filter(|(_, waiting)| waiting.until_s <= now_s).map(|(name, _)| *name).collect();
        for name in gone {
            if let Some(waiting) = self.waiting.remove(name) {
                self.refuse(
                    name,
                    Some(waiting.value),
                    "its lease ended before the next reload was allowed",
                    &waiting.order.id,
                );
            }
        }
        for (name, live) in &mut self.live {
            if live.end.is_none() && live.until_s <= now_s {
                let lease_s = self.state.leases.get(name).map_or(0.0, |lease| lease.lease_s);
                let why = format!("the lease of {lease_s} s ended without a renewal");
                live.end = Some(Reason::new(ChangeCause::LeaseEnded, why));
                live.next_try_s = 0.0;
            }
        }
    }

    /// What is not kept up any more is put back.
    fn end_failures(&mut self) {
        for (name, live) in self.live.iter_mut().filter(|(_, live)| live.end.is_none()) {
            if let Some(why) = self.knobs.get(name.as_str()).and_then(|knob| knob.failure()) {
                live.end = Some(Reason::new(ChangeCause::NotAsOrdered, format!("it ended by itself: {why}")));
                live.next_try_s = 0.0;
            }
        }
    }

    /// Whether somebody else changed what we have set: theirs wins.
    fn look_for_others(&mut self) {
        let mut changed = Vec::new();
        for (name, lease) in &self.state.leases {
            let Some(knob) = self.knobs.get(name.as_str()) else { continue };
            let in_force = self.live.get(name).is_some_and(|live| live.end.is_none());
            // What cannot be read now is recorded at the restore.
            if in_force && let Ok(Some(change)) = knob.drift(&lease.baseline, &lease.written) {
                changed.push((name.clone(), change, lease.lease_s));
            }
        }
        for (name, change, lease_s) in changed {
            self.give_way(&name, &change, lease_s);
        }
    }

    /// Somebody else changed the setting: ends our lease and refuses Orders until the episode is over.
    fn give_way(&mut self, name: &str, change: &str, lease_s: f64) -> String {
        let why = format!("{change}: theirs holds");
        if let Some(live) = self.live.get_mut(name) {
            live.end = Some(Reason::new(ChangeCause::SomeoneElse, why.as_str()));
            live.next_try_s = 0.0;
        }
        self.externally_controlled.insert(name.to_owned(), self.now_s() + lease_s);
        why
    }
}

#[cfg(test)]
mod tests;
