//! The report on our knobs, by which the controller decides which Orders to send: values, bounds, leases.

use slackwater_messages::{KnobCause, KnobState, Knobs, VERSION};

use super::phase::{Free, Phase};
use super::{Engine, THEIRS_HOLDS};
use crate::knobs::{KNOBS, share_files};

/// Time between two readings of a knob that is not changed; a reading may start programs.
const READ_EVERY_S: f64 = 600.0;
/// Time after which a knob that could not be read is tried again.
const TRY_EVERY_S: f64 = 60.0;

impl Engine {
    /// The knobs as they are now.
    pub fn report(&mut self) -> Knobs {
        self.read_idle();
        let knobs = KNOBS.iter().filter(|kind| self.knobs.contains_key(kind.name)).map(|kind| self.state_of(kind.name));
        let waiting = self.phases.values().filter_map(Phase::waiting);
        Knobs {
            v: VERSION,
            node: self.settings.node.clone(),
            pool: self.settings.pool.clone(),
            time_unix_s: self.system.unix_s(),
            kind: self.settings.kind.clone(),
            knobs: knobs.collect(),
            waiting: Some(waiting.map(|waiting| waiting.order.id.clone()).collect()),
        }
    }

    /// Forgets the value of a knob, so that it is read again for the next report.
    pub(super) fn forget_reading(&mut self, name: &str) {
        self.readings.remove(name);
    }

    fn read_idle(&mut self) {
        let now_s = self.now_s();
        let (read_is_due, try_is_due) = (now_s - self.read_s >= READ_EVERY_S, now_s - self.tried_s >= TRY_EVERY_S);
        if read_is_due {
            self.read_s = now_s;
        }
        if try_is_due {
            self.tried_s = now_s;
        }
        for (name, knob) in &self.knobs {
            // While another knob's lease writes the same files, they do not hold this knob's own value.
            let mut leased = self.phases.iter().filter(|(_, phase)| phase.lease().is_some());
            let is_idle = !leased.any(|(leased, _)| leased == name || share_files(leased, name));
            let is_known = match self.readings.get(name) {
                Some(Ok(_)) => true,
                Some(Err(_)) => !try_is_due,
                None => false,
            };
            if is_idle && (read_is_due || !is_known) {
                let read = knob.baseline().and_then(|_| knob.read()).map(|reading| reading.value);
                self.readings.insert(name, read);
            }
        }
    }

    fn state_of(&self, name: &'static str) -> KnobState {
        let mut state = KnobState { name: name.to_owned(), ..KnobState::default() };
        if let Some(kind) = KNOBS.iter().find(|kind| kind.name == name) {
            let allowed = (kind.allowed)(&self.settings);
            (state.lowest, state.highest) = allowed.bounds().unzip();
            state.words = allowed.words().into_iter().map(str::to_owned).collect();
        }
        // A knob reloads a server if it shares its group with others, or may not commit at any time.
        state.reloads =
            self.knobs.get(name).is_some_and(|knob| knob.reload_group() != name || knob.min_interval_s() > 0.0);
        let phase = self.phases.get(name);
        if let Some(lease) = phase.and_then(Phase::lease) {
            state.value = Some(lease.effective.clone());
            state.baseline = Some(lease.before.clone());
            state.order.clone_from(&lease.order_id);
            state.by.clone_from(&lease.by);
            match phase {
                Some(Phase::Held { until_s, .. }) => state.left_s = Some((until_s - self.now_s()).max(0.0)),
                Some(Phase::Ending { ending, .. }) => {
                    (state.left_s, state.cause) = (Some(0.0), Some(KnobCause::Ending));
                    state.why.clone_from(&ending.reason.why);
                }
                _ => {}
            }
            return state;
        }
        match self.readings.get(name) {
            Some(Ok(value)) => (state.value, state.baseline) = (Some(value.clone()), Some(value.clone())),
            Some(Err(error)) => (state.cause, state.why) = (Some(KnobCause::Unreadable), error.to_string()),
            None => (state.cause, state.why) = (Some(KnobCause::NotRead), "not read yet".to_owned()),
        }
        if let Some(Phase::Free(Free::TheirsHolds { until_s })) = phase
            && self.now_s() < *until_s
        {
            (state.cause, state.why) = (Some(KnobCause::SomeoneElse), THEIRS_HOLDS.to_owned());
        }
        state
    }
}
