//! Leases: at most one for each knob. An Order makes or renews one; its end, whatever the cause, restores the baseline.
//!
//! The engine's order of doing things keeps its promise through a crash: the lease with its baseline is on disk before
//! anything is changed, and leaves the disk after everything is put back. What is found there at a start is restored.

use std::collections::BTreeMap;

use ring::rand::{SecureRandom, SystemRandom};
use slackwater_messages::{Change, Order, VERSION, Value};

use crate::config::{PROGRAM, Settings};
use crate::identity::Identity;
use crate::knobs::{Knob, show};
use crate::order::{Circumstances, judge};
use crate::state::{Lease, State, Store};
use crate::world::World;

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
struct Waiting {
    order: Order,
    value: Value,
    until_s: f64,
    since_s: f64,
}

/// What is known of a lease while this process lives.
#[derive(Default)]
struct Live {
    until_s: f64,
    /// Set when the lease must end before its time, with the reason.
    end: Option<String>,
    next_try_s: f64,
    said: String,
}

/// Carries out Orders.
pub struct Engine {
    settings: Settings,
    identity: Identity,
    world: World,
    knobs: BTreeMap<&'static str, Box<dyn Knob>>,
    store: Store,
    state: State,
    live: BTreeMap<String, Live>,
    waiting: BTreeMap<&'static str, Waiting>,
    committed_s: BTreeMap<&'static str, f64>,
    /// Knobs that somebody else changed: Orders are refused until none has come for a lease.
    yielded: BTreeMap<String, f64>,
    checked_s: f64,
    refusals: (f64, u32),
    publish: Box<dyn FnMut(Change)>,
}

impl Engine {
    /// An engine for these knobs; what the state says is turned is restored in the first [`Engine::turn`].
    ///
    /// # Errors
    /// A state that cannot be read.
    pub fn open(
        settings: Settings,
        identity: Identity,
        world: World,
        knobs: Vec<(&'static str, Box<dyn Knob>)>,
        store: Store,
        publish: Box<dyn FnMut(Change)>,
    ) -> Result<Engine, String> {
        let state = store.load()?;
        let crashed = |_: &String| Live { end: Some("the last run did not end well".to_owned()), ..Live::default() };
        let live = state.leases.keys().map(|name| (name.clone(), crashed(name))).collect();
        let checked_s = (world.monotonic_s)();
        Ok(Engine {
            settings,
            identity,
            world,
            knobs: knobs.into_iter().collect(),
            store,
            state,
            live,
            waiting: BTreeMap::new(),
            committed_s: BTreeMap::new(),
            yielded: BTreeMap::new(),
            checked_s,
            refusals: (0.0, 0),
            publish,
        })
    }

    fn now_s(&self) -> f64 {
        (self.world.monotonic_s)()
    }

    /// Whether anything is turned, or about to be.
    pub fn is_idle(&self) -> bool {
        self.state.leases.is_empty() && self.waiting.is_empty()
    }

    /// Takes the bytes of an Order with their signature.
    pub fn order(&mut self, payload: &[u8], signature: Option<&str>) {
        let judged = judge(
            payload,
            signature,
            &Circumstances {
                settings: &self.settings,
                identity: &self.identity,
                seen: &|id| self.state.seen.contains_key(id),
                now_unix_s: (self.world.unix_s)(),
            },
        );
        match judged {
            Err(refused) => {
                let mut why = refused.why;
                if let Some(id) = &refused.id
                    && let Err(said) = self.remember(id)
                {
                    why = format!("{why}; {said}");
                }
                self.refuse(&refused.what, refused.value, &why);
            }
            Ok(accepted) => {
                if let Err(why) = self.remember(&accepted.order.id).and_then(|()| self.admit(&accepted.order)) {
                    self.refuse(accepted.knob.name, Some(accepted.value), &why);
                    return;
                }
                let now_s = self.now_s();
                let waiting = Waiting {
                    order: accepted.order,
                    value: accepted.value,
                    until_s: now_s + accepted.left_s,
                    since_s: self.waiting.get(accepted.knob.name).map_or(now_s, |before| before.since_s),
                };
                self.waiting.insert(accepted.knob.name, waiting);
            }
        }
    }

    /// Notes an Order's id on disk, before anything is done for it: no crash makes it new again.
    fn remember(&mut self, id: &str) -> Result<(), String> {
        let now_unix_s = (self.world.unix_s)();
        self.state.seen.retain(|_, until| *until > now_unix_s);
        let longest_s = self.settings.orders.max_lease_s + self.settings.orders.clock_skew_s;
        self.state.seen.insert(id.to_owned(), now_unix_s + longest_s + 1.0);
        self.save()
    }

    fn save(&self) -> Result<(), String> {
        self.store.save(&self.state).map_err(|said| format!("nothing is changed, since {said}"))
    }

    /// What stands against an Order beside its own text.
    fn admit(&mut self, order: &Order) -> Result<(), String> {
        let now_s = self.now_s();
        if let Some(until_s) = self.yielded.get_mut(&order.knob) {
            if now_s < *until_s {
                *until_s = now_s + order.lease_s;
                return Err("somebody else changed this setting in this episode: theirs holds".to_owned());
            }
            self.yielded.remove(&order.knob);
        }
        let given = [
            self.state.leases.get(&order.knob).map(|lease| lease.order_unix_s),
            self.waiting.get(order.knob.as_str()).map(|waiting| waiting.order.time_unix_s),
        ];
        if given.into_iter().flatten().any(|given| given > order.time_unix_s) {
            return Err("a later Order for this knob is in force".to_owned());
        }
        if self.live.get(&order.knob).is_some_and(|live| live.end.is_some()) {
            return Err("this knob is being put back".to_owned());
        }
        Ok(())
    }

    /// Ends all leases, with the reason.
    pub fn end_all(&mut self, why: &str) {
        for (name, waiting) in std::mem::take(&mut self.waiting) {
            self.refuse(name, Some(waiting.value), why);
        }
        for live in self.live.values_mut() {
            live.end.get_or_insert_with(|| why.to_owned());
            live.next_try_s = 0.0;
        }
    }

    /// Does what is due. Returns the seconds until something may be due again.
    pub fn turn(&mut self) -> f64 {
        if self.now_s() - self.checked_s >= self.settings.check_every_s {
            self.look_for_others();
            self.checked_s = self.now_s();
        }
        self.drop_expired();
        let mut doors: Vec<&'static str> = self.knobs.values().map(|knob| knob.door()).collect();
        doors.sort_unstable();
        doors.dedup();
        for door in doors {
            if !self.restore_door(door) {
                self.apply_door(door);
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

    fn apply_at_s(&self, name: &str, waiting: &Waiting) -> f64 {
        let Some(knob) = self.knobs.get(name) else { return waiting.since_s };
        let interval_s = knob.min_interval_s();
        if interval_s == 0.0 && knob.door() == name {
            return waiting.since_s;
        }
        let last_s = self.committed_s.get(knob.door()).copied().unwrap_or(f64::NEG_INFINITY);
        (waiting.since_s + GATHER_S).max(last_s + interval_s)
    }

    fn drop_expired(&mut self) {
        let now_s = self.now_s();
        let gone: Vec<&'static str> =
            self.waiting.iter().filter(|(_, waiting)| waiting.until_s <= now_s).map(|(name, _)| *name).collect();
        for name in gone {
            if let Some(waiting) = self.waiting.remove(name) {
                self.refuse(name, Some(waiting.value), "its lease ended before the next reload was allowed");
            }
        }
        for (name, live) in &mut self.live {
            if live.end.is_none() && live.until_s <= now_s {
                let lease_s = self.state.leases.get(name).map_or(0.0, |lease| lease.lease_s);
                live.end = Some(format!("the lease of {lease_s} s ended without a renewal"));
                live.next_try_s = 0.0;
            }
        }
    }

    /// Whether somebody else changed what we turned: theirs wins.
    fn look_for_others(&mut self) {
        let mut changed = Vec::new();
        for (name, lease) in &self.state.leases {
            let Some(knob) = self.knobs.get(name.as_str()) else { continue };
            let in_force = self.live.get(name).is_some_and(|live| live.end.is_none());
            // What cannot be told now is told at the restore.
            if in_force && let Ok(Some(said)) = knob.drift(&lease.baseline, &lease.ours) {
                changed.push((name.clone(), said, lease.lease_s));
            }
        }
        for (name, said, lease_s) in changed {
            self.give_way(&name, &said, lease_s);
        }
    }

    /// Restores the leases of a door that ended. False when there was nothing to do.
    fn restore_door(&mut self, door: &'static str) -> bool {
        let now_s = self.now_s();
        let of_door = |name: &String| self.knobs.get(name.as_str()).is_some_and(|knob| knob.door() == door);
        let ended: Vec<String> = self
            .live
            .iter()
            .filter(|(name, live)| live.end.is_some() && live.next_try_s <= now_s && of_door(name))
            .map(|(name, _)| name.clone())
            .collect();
        let Some(first) = ended.first().and_then(|name| self.knobs.get(name.as_str())) else { return false };
        let last_s = self.committed_s.get(door).copied().unwrap_or(f64::NEG_INFINITY);
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
            match knob.restore(&lease.baseline, &lease.ours) {
                Ok(left) => staged.push((name, left)),
                Err(said) => self.not_restored(&name, &said),
            }
        }
        let Some(knob) = staged.first().and_then(|(name, _)| self.knobs.get(name.as_str())) else { return true };
        let done = knob.commit(true);
        self.committed_s.insert(door, self.now_s());
        for (name, left) in staged {
            match &done {
                Ok(()) => self.restored(&name, &left),
                Err(said) => self.not_restored(&name, said),
            }
        }
        true
    }

    fn restored(&mut self, name: &str, left: &[String]) {
        let Some(lease) = self.state.leases.remove(name) else { return };
        let live = self.live.remove(name).unwrap_or_default();
        let mut why = format!("put back: {}", live.end.unwrap_or_default());
        for said in left {
            why = format!("{why}; left alone: {said}");
        }
        // A lease that stays on disk for now is restored once more at the next start, which does no harm.
        if let Err(said) = self.save() {
            eprintln!("{PROGRAM}: {said}");
        }
        self.change(name, Some(lease.effective), Some(lease.before), why, true);
    }

    fn not_restored(&mut self, name: &str, said: &str) {
        let now_s = self.now_s();
        let Some(live) = self.live.get_mut(name) else { return };
        live.next_try_s = now_s + RETRY_S;
        if live.said == said {
            return;
        }
        said.clone_into(&mut live.said);
        let why = format!("not put back yet: {said}; trying again every {RETRY_S} s");
        let lease = self.state.leases.get(name).cloned();
        self.change(
            name,
            lease.as_ref().map(|lease| lease.effective.clone()),
            lease.map(|lease| lease.before),
            why,
            false,
        );
    }

    /// Leases of knobs that the configuration no longer lists: said, and kept for when it does.
    fn restore_unknown(&mut self) {
        let now_s = self.now_s();
        let unknown: Vec<String> = self
            .live
            .iter()
            .filter(|(name, live)| !self.knobs.contains_key(name.as_str()) && live.next_try_s <= now_s)
            .map(|(name, _)| name.clone())
            .collect();
        for name in unknown {
            self.not_restored(&name, "the configuration does not list this knob any more; list it again");
        }
    }

    /// Carries out the Orders that wait for a door, if it may be used.
    fn apply_door(&mut self, door: &'static str) {
        let now_s = self.now_s();
        let of_door: Vec<(&'static str, &Waiting)> = self
            .waiting
            .iter()
            .filter(|(name, _)| self.knobs.get(*name).is_some_and(|knob| knob.door() == door))
            .map(|(name, waiting)| (*name, waiting))
            .collect();
        let is_open = of_door.iter().any(|(name, waiting)| self.apply_at_s(name, waiting) <= now_s);
        let due: Vec<&'static str> = of_door
            .into_iter()
            .filter(|(name, waiting)| is_open || self.only_renews(name, waiting))
            .map(|(name, _)| name)
            .collect();
        let mut staged = Vec::new();
        for name in due {
            let Some(waiting) = self.waiting.remove(name) else { continue };
            let value = waiting.value.clone();
            match self.stage(name, waiting) {
                Ok(Some(step)) => staged.push((name, step)),
                Ok(None) => {}
                Err(said) => self.refuse(name, Some(value), &said),
            }
        }
        let Some(knob) = staged.first().and_then(|(name, _)| self.knobs.get(name)) else { return };
        let done = knob.commit(false);
        self.committed_s.insert(door, self.now_s());
        for (name, step) in staged {
            if let Err(said) = &done {
                self.refuse_applied(name, said);
                self.not_committed(name, &step);
                continue;
            }
            match self.knobs[name].verify(&step.ours) {
                Ok(reading) => self.applied(name, &step, reading.value, &reading.how),
                Err(said) => {
                    self.refuse_applied(name, &said);
                    self.end_failed(name, &said);
                }
            }
        }
    }

    fn only_renews(&self, name: &str, waiting: &Waiting) -> bool {
        self.state.leases.get(name).is_some_and(|lease| lease.wanted == waiting.value)
    }

    /// Plans an Order, puts its lease on disk and sets it. `None`: nothing is to be committed for it.
    fn stage(&mut self, name: &'static str, waiting: Waiting) -> Result<Option<Step>, String> {
        let knob = &self.knobs[name];
        let before = self.state.leases.get(name).cloned();
        let renews = self.only_renews(name, &waiting);
        if let Some(lease) = &before {
            match knob.drift(&lease.baseline, &lease.ours) {
                Ok(None) => {}
                Ok(Some(said)) => return Err(self.give_way(name, &said, waiting.order.lease_s)),
                // A renewal changes nothing, so a configuration that is broken meanwhile does not stand against it.
                Err(_) if renews => {}
                Err(said) => return Err(said),
            }
        }
        let (order, value) = (waiting.order, waiting.value);
        let (mut lease, step) = match before.clone().filter(|_| renews) {
            Some(kept) => {
                let Lease { effective, before, baseline, ours, .. } = kept;
                (Lease { effective, before, baseline, ours, ..lease_of(&order, &value) }, None)
            }
            None => {
                let (baseline, stood) = match &before {
                    Some(lease) => (lease.baseline.clone(), lease.before.clone()),
                    None => (knob.baseline()?, knob.read()?.value),
                };
                let plan = knob.plan(&baseline, &value)?;
                let mut ours = before.as_ref().map_or(Vec::new(), |lease| lease.ours.clone());
                ours.push(plan.ours.clone());
                let effective = plan.effective;
                let lease = Lease { effective, before: stood, baseline, ours, ..lease_of(&order, &value) };
                (lease, Some(Step { before: before.clone(), ours: plan.ours, note: plan.note }))
            }
        };
        lease.until_unix_s = (self.world.unix_s)() + waiting.until_s - self.now_s();
        self.state.leases.insert(name.to_owned(), lease);
        if let Err(said) = self.save() {
            self.forget(name, before);
            return Err(said);
        }
        self.live.entry(name.to_owned()).or_default().until_s = waiting.until_s;
        let Some(step) = step else { return Ok(None) };
        if let Err(said) = self.knobs[name].apply(&step.ours) {
            self.not_applied(name, &step, &said);
            return Ok(None);
        }
        Ok(Some(step))
    }

    /// Somebody else changed the setting: ends our lease and refuses Orders until the episode is over.
    fn give_way(&mut self, name: &str, said: &str, lease_s: f64) -> String {
        let why = format!("{said}: theirs holds");
        if let Some(live) = self.live.get_mut(name) {
            live.end = Some(why.clone());
            live.next_try_s = 0.0;
        }
        self.yielded.insert(name.to_owned(), self.now_s() + lease_s);
        why
    }

    fn forget(&mut self, name: &str, before: Option<Lease>) {
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

    fn applied(&mut self, name: &str, step: &Step, value: Value, how: &str) {
        let Some(lease) = self.state.leases.get_mut(name) else { return };
        lease.ours = vec![step.ours.clone()];
        lease.effective = value.clone();
        let lease = lease.clone();
        if let Err(said) = self.save() {
            eprintln!("{PROGRAM}: {said}");
        }
        let asked = if lease.wanted == value { String::new() } else { format!(" (asked for {})", show(&lease.wanted)) };
        let note = if step.note.is_empty() { String::new() } else { format!("; {}", step.note) };
        let why = format!("{}{asked}{note}; {how}; for {} s, by {}", lease.reason, lease.lease_s, lease.by);
        let before = step.before.as_ref().map_or(lease.before, |before| before.effective.clone());
        self.change(name, Some(before), Some(value), why, true);
    }

    /// Setting failed half way: what stood before is set again, at once.
    fn not_applied(&mut self, name: &str, step: &Step, said: &str) {
        self.refuse_applied(name, said);
        let Some(lease) = self.state.leases.get(name) else { return };
        let knob = &self.knobs[name];
        let back = match step.before.as_ref().and_then(|before| before.ours.last()) {
            Some(ours) => knob.apply(ours),
            None => knob.restore(&lease.baseline, &lease.ours).map(|_| ()),
        };
        match back {
            Ok(()) => self.not_committed(name, step),
            Err(more) => self.end_failed(name, &format!("{said}; and then {more}")),
        }
    }

    /// All is as it was before the step.
    fn not_committed(&mut self, name: &str, step: &Step) {
        self.forget(name, step.before.clone());
        if let Err(said) = self.save() {
            eprintln!("{PROGRAM}: {said}");
        }
    }

    /// It is set, but it is not what was wanted: back to the baseline in the next turn.
    fn end_failed(&mut self, name: &str, said: &str) {
        if let Some(live) = self.live.get_mut(name) {
            live.end = Some(format!("an Order did not come to what it should: {said}"));
            live.next_try_s = 0.0;
        }
    }

    fn refuse_applied(&mut self, name: &str, said: &str) {
        let wanted = self.state.leases.get(name).map(|lease| lease.wanted.clone());
        self.refuse(name, wanted, said);
    }

    fn refuse(&mut self, what: &str, value: Option<Value>, why: &str) {
        let now_s = self.now_s();
        if now_s - self.refusals.0 >= REFUSALS_WITHIN_S {
            let (_, more) = std::mem::replace(&mut self.refusals, (now_s, 0));
            if more > REFUSALS {
                eprintln!("{PROGRAM}: {} more Orders were refused", more - REFUSALS);
            }
        }
        self.refusals.1 += 1;
        if self.refusals.1 > REFUSALS {
            return;
        }
        let before = self.state.leases.get(what).map(|lease| lease.effective.clone());
        self.change(what, before, value, format!("refused: {why}"), false);
    }

    /// Records a Change on disk and gives it to the bus.
    fn change(&mut self, what: &str, before: Option<Value>, after: Option<Value>, why: String, applied: bool) {
        let mut id = [0_u8; 8];
        if SystemRandom::new().fill(&mut id).is_err() {
            id = ((self.world.unix_s)().to_bits()).to_be_bytes();
        }
        let change = Change {
            v: VERSION,
            id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
            pool: self.settings.pool.clone(),
            time_unix_s: (self.world.unix_s)(),
            what: what.to_owned(),
            target: self.settings.node.clone(),
            before,
            after,
            why,
            by: BY.to_owned(),
            applied,
        };
        let value = |value: &Option<Value>| value.as_ref().map_or("-".to_owned(), show);
        let (before, after) = (value(&change.before), value(&change.after));
        eprintln!("{PROGRAM}: {what} {before} -> {after}: {}", change.why);
        if let Err(said) = self.store.keep(&change) {
            eprintln!("{PROGRAM}: {said}");
        }
        (self.publish)(change);
    }
}

/// What an Order itself says of its lease.
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
        ours: Vec::new(),
        lease_s: order.lease_s,
        until_unix_s: 0.0,
    }
}

/// An Order that is being carried out.
struct Step {
    before: Option<Lease>,
    ours: serde_json::Value,
    note: String,
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
