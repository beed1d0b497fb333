//! What protocols read of a connection have in common: two directions, each with the start of a head whose end has not
//! come.

use crate::ledger::Ledger;
use crate::piece::{Moment, Side};

/// Where a message starts.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    pub seq: u32,
    pub ack: Option<u32>,
    pub at: Moment,
}

/// One direction; `S` is what the protocol expects next.
pub struct Reader<S> {
    pub state: S,
    /// The start of a head whose end has not come.
    pub held: Vec<u8>,
    pub start: Option<Start>,
}

/// Both directions.
pub struct Readers<S> {
    pub client: Reader<S>,
    pub server: Reader<S>,
}

impl<S: Copy> Readers<S> {
    /// A connection that is met in the middle, in a state that looks for a message.
    pub fn new(searching: S) -> Self {
        let reader = || Reader { state: searching, held: Vec::new(), start: None };
        Self { client: reader(), server: reader() }
    }

    pub fn of(&self, side: Side) -> &Reader<S> {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    pub fn of_mut(&mut self, side: Side) -> &mut Reader<S> {
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

    /// The same for both directions.
    pub fn forget_all(&mut self, ledger: &mut Ledger) {
        self.forget(Side::Client, ledger);
        self.forget(Side::Server, ledger);
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.client.held.len() + self.server.held.len()
    }
}
