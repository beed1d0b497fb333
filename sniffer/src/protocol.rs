//! The table of the protocols that are understood, one line each.

use crate::http1::Http1;
use crate::ledger::Ledger;
use crate::memcached::Memcached;
use crate::piece::{Context, Moment, Piece, Side};
use crate::unknown::Unknown;

/// A protocol.
pub struct Protocol {
    /// Its name in the output, and behind a port (`443:unknown`).
    pub name: &'static str,
    /// Ports that speak it by default.
    pub ports: &'static [u16],
    /// Starts to follow a connection.
    start: fn() -> Dialogue,
}

impl Protocol {
    /// Starts to follow a connection.
    pub fn start(&self) -> Dialogue {
        (self.start)()
    }

    /// The protocol of this name.
    pub fn named(name: &str) -> Option<&'static Protocol> {
        PROTOCOLS.iter().find(|protocol| protocol.name == name)
    }

    /// The protocol that a port speaks by default.
    pub fn of_port(port: u16) -> &'static Protocol {
        PROTOCOLS.iter().find(|protocol| protocol.ports.contains(&port)).unwrap_or(&PROTOCOLS[0])
    }
}

/// The table of protocols. A further protocol takes a line here, a variant of `Dialogue` and a module. Ports that no
/// line names speak the first.
pub static PROTOCOLS: &[Protocol] = &[
    Protocol { name: "http1", ports: &[80], start: || Dialogue::Http1(Http1::new()) },
    Protocol { name: "memcached", ports: &[11211], start: || Dialogue::Memcached(Box::new(Memcached::new())) },
    Protocol { name: "unknown", ports: &[443], start: || Dialogue::Unknown(Unknown::new()) },
];

/// The parser of one connection. An enum, not a trait object: connections lie in one block of memory.
pub enum Dialogue {
    /// HTTP/1.0 and 1.1.
    Http1(Http1),
    /// memcached, in text and binary. It is boxed because it is the largest, and its connections are few and last long.
    Memcached(Box<Memcached>),
    /// Any protocol in which client and server take turns.
    Unknown(Unknown),
}

/// Calls the method of the connection's protocol.
macro_rules! each {
    ($dialogue:expr, $inner:ident => $call:expr) => {
        match $dialogue {
            Dialogue::Http1($inner) => $call,
            Dialogue::Memcached($inner) => $call,
            Dialogue::Unknown($inner) => $call,
        }
    };
}

impl Dialogue {
    /// The protocol's name.
    pub fn name(&self) -> &'static str {
        match self {
            Dialogue::Http1(_) => PROTOCOLS[0].name,
            Dialogue::Memcached(_) => PROTOCOLS[1].name,
            Dialogue::Unknown(_) => PROTOCOLS[2].name,
        }
    }

    /// Starts a direction, which was opened with SYN.
    pub fn open(&mut self, side: Side) {
        each!(self, inner => inner.open(side))
    }

    /// Takes the next bytes of a direction; returns the number of bytes that were taken. When the dialogue waits for
    /// bytes of the other direction it takes fewer than there are, and the rest is to be offered again.
    pub fn read(&mut self, side: Side, piece: &Piece<'_>, context: &mut Context<'_>) -> u32 {
        let taken = each!(self, inner => inner.read(side, piece, context));
        if context.times_upgraded
            && let Dialogue::Http1(http) = self
            && http.is_over()
        {
            *self = Dialogue::Unknown(Unknown::new());
        }
        taken
    }

    /// Passes over bytes of a direction that are missing for good.
    pub fn hole(&mut self, side: Side, length: u32, context: &mut Context<'_>) {
        each!(self, inner => inner.hole(side, length, context))
    }

    /// Notes that position and framing of a direction are lost.
    pub fn lose(&mut self, side: Side, ledger: &mut Ledger) {
        each!(self, inner => inner.lose(side, ledger))
    }

    /// Notes that a direction ended in order, before sequence number `seq`.
    pub fn end(&mut self, side: Side, seq: u32, context: &mut Context<'_>) {
        each!(self, inner => inner.end(side, seq, context))
    }

    /// Stops following the connection.
    pub fn close(&mut self, context: &mut Context<'_>) {
        each!(self, inner => inner.close(context))
    }

    /// Decides what a time without packets decides.
    pub fn on_idle(&mut self, context: &mut Context<'_>) {
        if let Dialogue::Unknown(unknown) = self {
            unknown.on_idle(context);
        }
    }

    /// False when the server's last bytes belonged to no message.
    pub fn is_followed(&self) -> bool {
        match self {
            Dialogue::Http1(http) => http.is_followed(),
            Dialogue::Memcached(memcached) => memcached.is_followed(),
            Dialogue::Unknown(_) => true,
        }
    }

    /// Number of the next bytes whose content does not matter and needn't be kept.
    pub fn opaque(&self, side: Side) -> u64 {
        each!(self, inner => inner.opaque(side))
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        match self {
            Dialogue::Http1(http) => http.held_bytes(),
            Dialogue::Memcached(memcached) => memcached.held_bytes(),
            Dialogue::Unknown(_) => 0,
        }
    }

    /// Requests whose response has not ended.
    pub fn waiting(&self) -> usize {
        each!(self, inner => inner.waiting())
    }

    /// When the oldest request without any byte of a response ended.
    pub fn oldest_unanswered(&self) -> Option<Moment> {
        each!(self, inner => inner.oldest_unanswered())
    }
}
