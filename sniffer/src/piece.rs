//! The bytes of one direction of a connection, in order, as a protocol gets them.

use std::net::{IpAddr, SocketAddr};

use crate::ledger::Ledger;

/// A direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// From the client to the server.
    Client,
    /// From the server to the client.
    Server,
}

impl Side {
    /// The other direction.
    pub fn other(self) -> Self {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// Bytes of one direction, in order: a segment's payload, or the rest of it.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Sequence number of the first byte.
    pub seq: u32,
    /// The sequence number up to which the sender had received bytes when it sent this.
    pub ack: Option<u32>,
    /// When it was captured.
    pub time_ns: u64,
    /// The number of the frame that brought it.
    pub frame: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Number of bytes behind them that were on the wire and are not here: cut by the snap length, or not needed.
    pub cut: u32,
}

impl Piece<'_> {
    /// Bytes on the wire.
    pub fn length(&self) -> u32 {
        self.bytes.len() as u32 + self.cut
    }

    /// Sequence number behind the last byte.
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add(self.length())
    }

    /// The piece without its first bytes.
    pub fn from(mut self, skip: u32) -> Self {
        let in_bytes = (skip as usize).min(self.bytes.len());
        self.bytes = &self.bytes[in_bytes..];
        self.cut = self.cut.saturating_sub(skip - in_bytes as u32);
        self.seq = self.seq.wrapping_add(skip);
        self
    }
}

/// When and in which frame something was captured.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The frame's number.
    pub frame: u64,
}

impl Moment {
    /// When a piece was captured.
    pub fn of(piece: &Piece<'_>) -> Self {
        Self { time_ns: piece.time_ns, frame: piece.frame }
    }

    /// The later of two moments. Pieces that were held back behind a hole come late, and the piece captured last
    /// completed the message.
    pub fn later(self, other: Self) -> Self {
        if other.time_ns >= self.time_ns { other } else { self }
    }
}

/// Whether `a` is behind `b` in sequence space.
pub fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// Everything beside the bytes that a parser may read and change.
pub struct Context<'a> {
    /// The connection's number.
    pub stream: u64,
    /// Address and port of the client and of the server.
    pub ends: [(IpAddr, u16); 2],
    /// Name of its protocol.
    pub protocol: &'static str,
    /// The sequence number up to which the client's bytes were taken; `None` before any.
    pub client_next: Option<u32>,
    /// The server has received bytes of the client that were not captured so far.
    pub client_is_behind: bool,
    /// Bytes before these are missing, and the receiver has not acknowledged them. They may still arrive, so it is not
    /// known when a message that ends here became complete.
    pub is_late: bool,
    /// Measure turns after a connection changed to another protocol.
    pub times_upgraded: bool,
    /// False: missing bytes will not arrive, so decide now.
    pub patient: bool,
    /// Records the exchanges.
    pub ledger: &'a mut Ledger,
}

impl Context<'_> {
    /// The client's and the server's address.
    pub fn addresses(&self) -> [SocketAddr; 2] {
        self.ends.map(SocketAddr::from)
    }
}

/// Nanoseconds from one moment to another; `None` when they are in the wrong order, as when clocks differ.
pub fn between(from: Moment, to: Moment) -> Option<u64> {
    to.time_ns.checked_sub(from.time_ns)
}
