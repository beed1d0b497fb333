//! One direction of a connection: its position, and the segments held back behind a hole.

use crate::piece::Piece;

/// How much later than a packet that refers to it (an acknowledgement, a response) a segment may be captured, because
/// the queues of a network card are read one after the other.
pub const DISORDER_NS: u64 = 10_000_000;

/// How long to wait for a retransmission while the receiver has not acknowledged the missing bytes.
const RETRANSMISSION_NS: u64 = 5_000_000_000;

/// Most bytes and segments held back in one direction.
const MOST_HELD_BYTES: usize = 128 * 1024;
const MOST_HELD_SEGMENTS: usize = 256;

/// A segment held back.
pub struct Held {
    pub seq: u32,
    pub ack: Option<u32>,
    pub time_ns: u64,
    pub frame: u64,
    pub bytes: Box<[u8]>,
    pub cut: u32,
}

impl Held {
    pub fn piece(&self) -> Piece<'_> {
        Piece {
            seq: self.seq,
            ack: self.ack,
            time_ns: self.time_ns,
            frame: self.frame,
            bytes: &self.bytes,
            cut: self.cut,
        }
    }
}

/// One direction.
#[derive(Default)]
pub struct Half {
    /// Sequence number of the next byte, once a byte was captured.
    pub next: Option<u32>,
    /// Sequence number of SYN.
    pub opening: Option<u32>,
    /// Sequence number of FIN.
    pub fin: Option<u32>,
    /// Everything up to FIN was captured.
    pub ended: bool,
    /// The sequence number that the receiver has acknowledged.
    pub acked: Option<u32>,
    /// Since when more is acknowledged than was captured.
    pub ahead_since: Option<u64>,
    /// Since when the dialogue waits for the other direction.
    pub waits_since: Option<u64>,
    /// The end of a hole that was given up before the receiver acknowledged it.
    pub unfilled: Option<u32>,
    /// Segments held back, by sequence number.
    pub held: Vec<Held>,
    pub held_bytes: usize,
}

impl Half {
    pub fn is_ahead(&self) -> bool {
        self.acked.zip(self.next).is_some_and(|(acked, next)| acked.wrapping_sub(next) as i32 > 0)
    }

    pub fn acknowledge(&mut self, ack: u32, now: u64) {
        if self.acked.is_none_or(|acked| ack.wrapping_sub(acked) as i32 > 0) {
            self.acked = Some(ack);
        }
        if self.ahead_since.is_none() && self.is_ahead() {
            self.ahead_since = Some(now);
        }
    }

    pub fn advance(&mut self, next: u32) {
        self.next = Some(next);
        if self.ahead_since.is_some() && !self.is_ahead() {
            self.ahead_since = None;
        }
    }

    /// Whether the receiver has acknowledged everything before `seq`.
    pub fn covers(&self, seq: u32) -> bool {
        self.acked.is_some_and(|acked| acked.wrapping_sub(seq) as i32 >= 0)
    }

    /// Whether missing bytes may still arrive.
    pub fn is_late(&self) -> bool {
        self.unfilled.is_some_and(|end| !self.covers(end))
    }

    /// Starts the direction anew behind a SYN.
    pub fn open(&mut self, seq: u32) {
        self.opening = Some(seq);
        self.advance(seq.wrapping_add(1));
    }

    /// Whether too much is held back to hold more.
    pub fn is_full(&self) -> bool {
        self.held.len() > MOST_HELD_SEGMENTS || self.held_bytes > MOST_HELD_BYTES
    }

    /// Whether the hole before the first held segment will not be filled any more.
    pub fn is_lost(&self, now: u64) -> bool {
        let Some(first) = self.held.first() else { return false };
        let covered = self.covers(first.seq);
        let since = self.ahead_since.filter(|_| covered).map_or(first.time_ns, |ahead| ahead.min(first.time_ns));
        let patience = if covered { DISORDER_NS } else { RETRANSMISSION_NS };
        self.is_full() || now.saturating_sub(since) >= patience
    }
}
