//! Code that `http1` and `memcached` share: the two directions of a connection, each with the start of a head whose end
//! has not arrived; lines; the outcome of reading a head.

use crate::ledger::Ledger;
use crate::piece::{Moment, Side};

/// The outcome of reading the head of a message.
pub enum HeadOutcome {
    /// The message began; the head took this many bytes.
    Bytes(usize),
    /// More bytes are needed.
    Short,
    /// Bytes of the other direction are needed first.
    Wait,
    /// These bytes are no head.
    Bad,
}

/// The first line without its line end, and the position of the next line.
pub fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let text = &bytes[..end];
    Some((text.strip_suffix(b"\r").unwrap_or(text), end + 1))
}

/// Where a message starts.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    pub seq: u32,
    pub ack: Option<u32>,
    pub at: Moment,
}

/// One direction; `S` is the state of the protocol's parser.
pub struct Direction<S> {
    pub state: S,
    /// The start of a head whose end has not arrived.
    pub held: Vec<u8>,
    pub start: Option<Start>,
}

/// Both directions.
pub struct Directions<S> {
    pub client: Direction<S>,
    pub server: Direction<S>,
}

impl<S: Copy> Directions<S> {
    /// A connection whose beginning was not captured; `searching` is the state that looks for the next message.
    pub fn new(searching: S) -> Self {
        let direction = || Direction { state: searching, held: Vec::new(), start: None };
        Self { client: direction(), server: direction() }
    }

    pub fn of(&self, side: Side) -> &Direction<S> {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    pub fn of_mut(&mut self, side: Side) -> &mut Direction<S> {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// Forgets the start of a head; returns how many bytes of it there were.
    pub fn forget(&mut self, side: Side, ledger: &mut Ledger) -> usize {
        let held = std::mem::take(&mut self.of_mut(side).held);
        ledger.release(held.len());
        held.len()
    }

    /// Calls `forget` for both directions.
    pub fn forget_all(&mut self, ledger: &mut Ledger) {
        self.forget(Side::Client, ledger);
        self.forget(Side::Server, ledger);
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.client.held.len() + self.server.held.len()
    }
}
