//! The messages on the bus: `Sample`, `Change` and `Knobs` (sent by nodes), `Order`, `Weight` and `Ask` (received), `Verdict`
//! and `Cycle`.
//!
//! Their types are generated from `schema/*.json` (`build.rs`); the golden examples in `schema/examples/` are read by the
//! tests of both languages. Unknown fields are tolerated, a wrong type is refused with the field's name. A field that the
//! schema does not require and that has its default value is left out when a message is written, and so is a number that
//! is none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The types of `schema/*.json`; fields and words without a comment mean what their name says.
#[allow(missing_docs)]
mod generated {
    use super::{BTreeMap, Deserialize, Serialize, Value};

    include!(concat!(env!("OUT_DIR"), "/messages.rs"));

    fn is_default<T: Default + PartialEq>(value: &T) -> bool {
        *value == T::default()
    }

    /// Whether a value is absent or no number, such as NaN, which JSON cannot write and readers refuse.
    fn is_no_number(value: &Option<f64>) -> bool {
        !value.is_some_and(f64::is_finite)
    }
}

pub use generated::*;

/// The version of the messages that this code writes.
pub const VERSION: i64 = 1;

/// A message that does not follow its schema.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MessageError(String);

/// A number or a word: the value of a knob.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
    /// A word.
    Word(String),
}

impl ChangeCause {
    /// Whether a wsengine's Change of this cause puts a knob back.
    pub fn is_put_back(self) -> bool {
        use ChangeCause::{ByHand, EngineDied, EngineEnded, GivenBack, LeaseEnded, NotAsOrdered, SomeoneElse};
        matches!(self, GivenBack | LeaseEnded | NotAsOrdered | ByHand | EngineEnded | EngineDied | SomeoneElse)
    }
}

/// Reads a message from JSON; the error names the field that is wrong and what was expected.
pub fn decode<T: for<'de> Deserialize<'de>>(data: &[u8]) -> Result<T, MessageError> {
    let mut reader = serde_json::Deserializer::from_slice(data);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        MessageError(format!("{}: {}", path, error.into_inner()))
    })
}

/// The message as JSON; absent values are left out.
///
/// # Panics
/// Never for the messages of this crate: their maps have string keys.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages are plain data")
}

/// The message in MessagePack, as maps with the fields' names: it is shorter and faster to read. Its first byte is
/// never that of JSON.
///
/// # Panics
/// Never for the messages of this crate: all that they hold has a place in MessagePack.
pub fn encode_binary<T: Serialize>(message: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(message).expect("messages are plain data")
}

/// Whether a name is safe in the bus's subjects and in HAProxy's command language.
pub fn is_name(text: &str) -> bool {
    let part_is_safe = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b':' | b'-'))
    };
    text.len() <= 128 && !text.starts_with(':') && text.split('.').all(part_is_safe)
}
