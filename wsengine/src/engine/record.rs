//! Changes: a record of everything that is done or refused, with the reason.

use std::fmt::Display;

use ring::rand::{SecureRandom, SystemRandom};
use slackwater_messages::{Change, ChangeCause, VERSION, Value};

use super::{BY, ChangeReason, Engine, MOST_REFUSALS, REFUSALS_WITHIN_S};
use crate::knobs::show;

/// Longest text of a Change, in characters: the controller refuses a longer one.
const LONGEST_TEXT: usize = 2000;

/// The text, cut to the length that a Change may have.
fn bounded(text: &str) -> String {
    text.chars().take(LONGEST_TEXT).collect()
}

fn bounded_value(value: Value) -> Value {
    if let Value::Word(word) = value { Value::Word(bounded(&word)) } else { value }
}

impl Engine {
    /// Records the refusal of an Order for `knob`. `follows` is the Order's id; empty when the Order is not signed.
    pub(super) fn refuse(&mut self, knob: &str, value: Option<Value>, why: impl Display, follows: &str) {
        let now_s = self.now_s();
        if now_s - self.refusals.0 >= REFUSALS_WITHIN_S {
            let (_, count) = std::mem::replace(&mut self.refusals, (now_s, 0));
            if count > MOST_REFUSALS {
                tracing::warn!("{} more Orders were refused", count - MOST_REFUSALS);
            }
        }
        self.refusals.1 += 1;
        if self.refusals.1 > MOST_REFUSALS {
            return;
        }
        let before = self.lease(knob).map(|lease| lease.effective.clone());
        self.change(
            knob,
            before,
            value,
            ChangeReason::new(ChangeCause::Refused, format!("refused: {why}")),
            false,
            follows,
        );
    }

    /// Records a Change on disk and publishes it.
    pub(super) fn change(
        &mut self,
        knob: &str,
        before: Option<Value>,
        after: Option<Value>,
        reason: ChangeReason,
        applied: bool,
        follows: &str,
    ) {
        let mut id = [0_u8; 8];
        if SystemRandom::new().fill(&mut id).is_err() {
            id = (self.system.unix_s().to_bits()).to_be_bytes();
        }
        let change = Change {
            v: VERSION,
            id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
            pool: self.settings.pool.clone(),
            time_unix_s: self.system.unix_s(),
            what: knob.to_owned(),
            target: self.settings.node.clone(),
            before: before.map(bounded_value),
            after: after.map(bounded_value),
            why: bounded(&reason.why),
            by: BY.to_owned(),
            applied,
            rt_p95_ms: None,
            rt_p95_predicted_ms: None,
            follows: follows.to_owned(),
            since_unix_s: None,
            cause: Some(reason.cause),
        };
        let value = |value: &Option<Value>| value.as_ref().map_or("-".to_owned(), show);
        let (before, after) = (value(&change.before), value(&change.after));
        tracing::info!("{knob} {before} -> {after}: {}", change.why);
        if let Err(error) = self.store.keep(&change) {
            tracing::error!("{error}");
        }
        (self.publish)(change);
    }
}
