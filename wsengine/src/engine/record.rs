//! Changes: everything that is done or refused, with its reason.

use std::fmt::Display;

use ring::rand::{SecureRandom, SystemRandom};
use slackwater_messages::{Change, ChangeCause, VERSION, Value};

use super::{BY, Engine, REFUSALS, REFUSALS_WITHIN_S, Reason};
use crate::knobs::show;

/// Longest text of a Change, in characters: the controller refuses a longer one.
const LONGEST_TEXT: usize = 2000;

/// The text as a Change may carry it.
fn bounded(text: &str) -> String {
    text.chars().take(LONGEST_TEXT).collect()
}

fn bounded_value(value: Value) -> Value {
    if let Value::Word(word) = value { Value::Word(bounded(&word)) } else { value }
}

impl Engine {
    /// `follows` is the id of the refused Order; empty when it could not be believed.
    pub(super) fn refuse(&mut self, what: &str, value: Option<Value>, why: impl Display, follows: &str) {
        let now_s = self.now_s();
        if now_s - self.refusals.0 >= REFUSALS_WITHIN_S {
            let (_, more) = std::mem::replace(&mut self.refusals, (now_s, 0));
            if more > REFUSALS {
                tracing::warn!("{} more Orders were refused", more - REFUSALS);
            }
        }
        self.refusals.1 += 1;
        if self.refusals.1 > REFUSALS {
            return;
        }
        let before = self.lease(what).map(|lease| lease.effective.clone());
        self.change(what, before, value, Reason::new(ChangeCause::Refused, format!("refused: {why}")), false, follows);
    }

    /// Records a Change on disk and gives it to the bus.
    pub(super) fn change(
        &mut self,
        what: &str,
        before: Option<Value>,
        after: Option<Value>,
        reason: Reason,
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
            what: what.to_owned(),
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
        tracing::info!("{what} {before} -> {after}: {}", change.why);
        if let Err(error) = self.store.keep(&change) {
            tracing::error!("{error}");
        }
        (self.publish)(change);
    }
}
