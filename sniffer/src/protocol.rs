//! The protocols that are understood, each one line in a table, and what they get to see of a connection.

use crate::delay::Ledger;
use crate::http1::Http1;
use crate::memcached::Memcached;
use crate::unknown::Unknown;

/// A direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// From the client to the server.
    Client,
    /// From the server to the client.
    Server,
}

/// Bytes of one direction, in order; what a segment brought or what is left of it.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Sequence number of the first byte.
    pub seq: u32,
    /// What the sender had received when it sent this.
    pub ack: Option<u32>,
    /// When it was captured.
    pub time_ns: u64,
    /// In which frame.
    pub frame: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Bytes behind them that were on the wire and are not here: cut by the snap length, or of no interest.
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
    /// In nanoseconds since 1970.
    pub time_ns: u64,
    /// The frame's number.
    pub frame: u64,
}

impl Moment {
    /// When a piece was captured.
    pub fn of(piece: &Piece<'_>) -> Self {
        Self { time_ns: piece.time_ns, frame: piece.frame }
    }

    /// Pieces held back behind a hole come late: the one captured last completed the message.
    pub fn later(self, other: Self) -> Self {
        if other.time_ns >= self.time_ns { other } else { self }
    }
}

/// True when `a` is behind `b` in sequence space.
pub fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// A protocol.
pub struct Protocol {
    /// Its name, in the output and behind a port (`443:unknown`).
    pub name: &'static str,
    /// Ports that speak it when nothing else is said.
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

    /// What a port speaks when nothing else is said.
    pub fn of_port(port: u16) -> &'static Protocol {
        PROTOCOLS.iter().find(|protocol| protocol.ports.contains(&port)).unwrap_or(&PROTOCOLS[0])
    }
}

/// The table of protocols: a line here, a variant of `Dialogue` and a module make another one. The first is what a port
/// speaks that no line names.
pub static PROTOCOLS: &[Protocol] = &[
    Protocol { name: "http1", ports: &[80], start: || Dialogue::Http1(Http1::new()) },
    Protocol { name: "memcached", ports: &[11211], start: || Dialogue::Memcached(Box::new(Memcached::new())) },
    Protocol { name: "unknown", ports: &[443], start: || Dialogue::Unknown(Unknown::new()) },
];

/// What is said on one connection. An enum, not a trait object: connections lie in one block of memory.
pub enum Dialogue {
    /// HTTP/1.0 and 1.1.
    Http1(Http1),
    /// memcached, in text and binary. In a box: it is the largest, and its connections are few and last long.
    Memcached(Box<Memcached>),
    /// Any protocol in which client and server take turns.
    Unknown(Unknown),
}

/// What a dialogue may know and change beyond the bytes.
pub struct Context<'a> {
    /// The connection's number.
    pub stream: u64,
    /// Name of its protocol.
    pub protocol: &'static str,
    /// The client's bytes are here up to this sequence number; `None` before any was seen.
    pub client_next: Option<u32>,
    /// The server has received bytes of the client that are not here.
    pub client_is_behind: bool,
    /// Measure turns after a connection went over to another protocol.
    pub times_upgraded: bool,
    /// False: what is still missing will not come, decide now.
    pub patient: bool,
    /// The books.
    pub ledger: &'a mut Ledger,
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

    /// This direction starts here: it was opened with SYN.
    pub fn open(&mut self, side: Side) {
        each!(self, inner => inner.open(side))
    }

    /// The next bytes of a direction. Returns how many were taken; fewer than there are when the dialogue waits for
    /// bytes of the other direction, then the rest is to be offered again.
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

    /// The next bytes of a direction are missing for good.
    pub fn hole(&mut self, side: Side, length: u32, context: &mut Context<'_>) {
        each!(self, inner => inner.hole(side, length, context))
    }

    /// Position and framing of a direction are lost.
    pub fn lose(&mut self, side: Side, ledger: &mut Ledger) {
        each!(self, inner => inner.lose(side, ledger))
    }

    /// A direction ended in order, before sequence number `seq`.
    pub fn end(&mut self, side: Side, seq: u32, context: &mut Context<'_>) {
        each!(self, inner => inner.end(side, seq, context))
    }

    /// The connection is no longer followed.
    pub fn close(&mut self, context: &mut Context<'_>) {
        each!(self, inner => inner.close(context))
    }

    /// Nothing was captured for a while.
    pub fn rest(&mut self, context: &mut Context<'_>) {
        if let Dialogue::Unknown(unknown) = self {
            unknown.rest(context);
        }
    }

    /// How many of the next bytes may be anything: their content needn't be kept.
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
}
