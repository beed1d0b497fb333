//! One TCP connection: puts the segments of both directions in order and finds where bytes are missing (RFC 9293).
//!
//! A segment in order goes to the dialogue straight from the packet. A segment behind a hole is held back until the
//! hole is filled, or is certain to stay because the receiver acknowledged the missing bytes, or because time or room
//! ran out.

use std::net::IpAddr;

use crate::foreign::Listening;
use crate::half::{DISORDER_NS, Half, Held};
use crate::key::Key;
use crate::ledger::Ledger;
use crate::piece::{Context, Moment, Piece, Side};
use crate::preamble::Preamble;
use crate::protocol::{Dialogue, Protocol};
use crate::segment::Segment;

/// A segment that is farther from the expected position belongs to another connection, because no window is as large.
const FARTHEST: u32 = 1 << 26;

/// The fate of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentFate {
    /// The connection took it.
    Taken,
    /// The segment opens another connection between the same ports.
    Reopens,
}

/// The context for the dialogue; a macro, because the dialogue is borrowed at the same time.
macro_rules! context {
    ($connection:expr, $is_late:expr, $patient:expr, $ledger:expr) => {
        Context {
            stream: $connection.stream,
            ends: $connection.ends(),
            is_late: $is_late,
            protocol: $connection.dialogue.name(),
            client_next: $connection.client.next,
            client_is_behind: $connection.client.is_ahead(),
            times_upgraded: $connection.times_upgraded,
            patient: $patient,
            ledger: $ledger,
        }
    };
}

/// A connection.
pub struct Connection {
    /// Its number as in Wireshark.
    pub stream: u64,
    /// When its last packet was captured.
    pub last_ns: u64,
    /// Its key in the table.
    pub key: Key,
    /// The key's client is the server, and the key's server the client.
    pub swapped: bool,
    /// A packet with payload was captured.
    pub has_payload: bool,
    reset: bool,
    client: Half,
    server: Half,
    times_upgraded: bool,
    preamble: Preamble,
    listening: Listening,
    dialogue: Dialogue,
}

impl Connection {
    /// A connection without any packet so far.
    pub fn new(stream: u64, key: Key, swapped: bool, protocol: &Protocol, times_upgraded: bool) -> Self {
        Self {
            stream,
            last_ns: 0,
            key,
            swapped,
            has_payload: false,
            reset: false,
            client: Half::default(),
            server: Half::default(),
            times_upgraded,
            preamble: Preamble::Awaited,
            listening: Listening::new(),
            dialogue: protocol.start(),
        }
    }

    fn ends(&self) -> [(IpAddr, u16); 2] {
        let Key { server, client } = self.key;
        if self.swapped { [server, client] } else { [client, server] }
    }

    /// Whether both sides have ended, or the connection was reset.
    pub fn is_closed(&self) -> bool {
        self.reset || (self.client.ended && self.server.ended)
    }

    /// Requests that wait while the connection is open.
    pub fn in_flight(&self) -> u64 {
        if self.is_closed() { 0 } else { self.dialogue.waiting() as u64 }
    }

    /// When the oldest request without any byte of a response ended, while the connection is open.
    pub fn oldest_unanswered(&self) -> Option<Moment> {
        if self.is_closed() { None } else { self.dialogue.oldest_unanswered() }
    }

    /// Whether segments are held back, about which time alone may decide.
    pub fn is_stuck(&self) -> bool {
        !self.client.held.is_empty() || !self.server.held.is_empty()
    }

    /// Bytes held back: segments and starts of heads.
    pub fn held_bytes(&self) -> usize {
        self.client.held_bytes + self.server.held_bytes + self.dialogue.held_bytes()
    }

    /// Takes a segment that `side` sent.
    pub fn take(
        &mut self,
        side: Side,
        segment: &Segment<'_>,
        time_ns: u64,
        frame: u64,
        ledger: &mut Ledger,
    ) -> SegmentFate {
        if segment.syn && !self.opens(side, segment, ledger) {
            return SegmentFate::Reopens;
        }
        self.last_ns = time_ns;
        let (half, other) = match side {
            Side::Client => (&mut self.client, &mut self.server),
            Side::Server => (&mut self.server, &mut self.client),
        };
        if let Some(ack) = segment.ack {
            other.acknowledge(ack, time_ns);
        }
        let seq = segment.seq.wrapping_add(u32::from(segment.syn));
        let length = segment.payload.len() as u32 + segment.cut;
        if half.next.is_none() && !segment.rst {
            half.advance(seq);
        }
        if segment.rst {
            self.reset = true;
        } else {
            if segment.fin {
                half.fin.get_or_insert(seq.wrapping_add(length));
            }
            if length > 0 {
                self.has_payload = true;
                let bytes = segment.payload;
                self.arrive(side, Piece { seq, ack: segment.ack, time_ns, frame, bytes, cut: segment.cut }, ledger);
            }
        }
        self.proceed(time_ns, true, ledger);
        SegmentFate::Taken
    }

    /// Takes a SYN; false if it belongs to another connection between the same ports.
    fn opens(&mut self, side: Side, segment: &Segment<'_>, ledger: &mut Ledger) -> bool {
        let (half, other) = match side {
            Side::Client => (&mut self.client, &mut self.server),
            Side::Server => (&mut self.server, &mut self.client),
        };
        if half.opening == Some(segment.seq) {
            ledger.counts.retransmitted += 1;
            return true;
        }
        // Two SYNs belong together if one acknowledges the other, possibly with the bytes in it (TCP Fast Open).
        let acknowledges = |ack: u32, seq: u32, end: u32| {
            ack.wrapping_sub(seq.wrapping_add(1)) <= end.wrapping_sub(seq.wrapping_add(1))
        };
        let end = segment.seq.wrapping_add(1 + segment.payload.len() as u32 + segment.cut);
        let belongs = match segment.ack {
            Some(ack) => other
                .opening
                .map_or(other.next.is_none(), |seq| acknowledges(ack, seq, other.next.unwrap_or(seq.wrapping_add(1)))),
            None => other.next.is_none() || half.acked.is_some_and(|acked| acknowledges(acked, segment.seq, end)),
        };
        if half.next.is_some() || !belongs {
            return false;
        }
        half.open(segment.seq);
        self.dialogue.open(side);
        if let (Some(ack), None) = (segment.ack, other.next) {
            other.open(ack.wrapping_sub(1));
            self.dialogue.open(side.other());
            self.listening.open();
        } else if side == Side::Server {
            self.listening.open();
        }
        true
    }

    fn arrive(&mut self, side: Side, piece: Piece<'_>, ledger: &mut Ledger) {
        let half = self.half(side);
        let next = half.next.unwrap_or(piece.seq);
        let ahead = piece.seq.wrapping_sub(next);
        let behind = next.wrapping_sub(piece.seq);
        if ahead.min(behind) > FARTHEST {
            ledger.counts.holes += 1;
            self.drop_held(side, ledger);
            self.listening.lose();
            if side == Side::Client {
                self.preamble.lose();
            }
            self.dialogue.lose(side, ledger);
            self.half(side).advance(piece.seq);
            self.pass_on(side, piece, true, ledger);
        } else if ahead == 0 {
            self.pass_on(side, piece, true, ledger);
        } else if (ahead as i32) > 0 {
            self.hold(side, piece, ledger);
        } else {
            // A keep-alive probe repeats one byte on purpose.
            let is_probe = piece.length() == 1 && behind == 1;
            ledger.counts.retransmitted += u64::from(!is_probe);
            if piece.length() > behind {
                self.pass_on(side, piece.from(behind), true, ledger);
            }
        }
    }

    fn half(&mut self, side: Side) -> &mut Half {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// Gives bytes in order to the dialogue; bytes that it does not take now are held back.
    fn pass_on(&mut self, side: Side, piece: Piece<'_>, patient: bool, ledger: &mut Ledger) {
        self.reset = false;
        let is_late = self.half(side).is_late();
        let mut context = context!(self, is_late, patient, ledger);
        let taken = match side {
            Side::Client => {
                self.listening.ask(&piece);
                self.preamble.read(&piece, &mut self.dialogue, &mut context)
            }
            Side::Server => self.dialogue.read(side, &piece, &mut context),
        };
        if side == Side::Server && taken == piece.length() {
            let (port, protocol) = (context.ends[1].1, context.protocol);
            let is_message = self.dialogue.is_followed();
            self.listening.answer(&piece, is_message, port, protocol, &mut ledger.ports);
        }
        let half = self.half(side);
        half.advance(piece.seq.wrapping_add(taken));
        if taken < piece.length() {
            half.waits_since.get_or_insert(piece.time_ns);
            self.hold(side, piece.from(taken), ledger);
        } else {
            half.waits_since = None;
        }
    }

    /// Holds a segment back, with its bytes only if they will matter.
    fn hold(&mut self, side: Side, piece: Piece<'_>, ledger: &mut Ledger) {
        let opaque = self.dialogue.opaque(side);
        let half = self.half(side);
        let to_end = u64::from(piece.end().wrapping_sub(half.next.unwrap_or(piece.seq)));
        let place = half.held.partition_point(|held| (held.seq.wrapping_sub(piece.seq) as i32) < 0);
        if half.held.get(place).is_some_and(|held| held.seq == piece.seq && held.piece().length() >= piece.length()) {
            ledger.counts.retransmitted += 1;
            return;
        }
        let keeps = if to_end <= opaque { 0 } else { piece.bytes.len() };
        // With no memory left the content is lost, but the length of the segment is kept.
        let keeps = if ledger.hold(keeps) { keeps } else { 0 };
        half.held_bytes += keeps;
        half.held.insert(
            place,
            Held {
                seq: piece.seq,
                ack: piece.ack,
                time_ns: piece.time_ns,
                frame: piece.frame,
                bytes: piece.bytes[..keeps].into(),
                cut: piece.length() - keeps as u32,
            },
        );
    }

    /// Continues with the segments held back, as far as they are in order or the holes are certain to stay.
    pub fn proceed(&mut self, now: u64, patient: bool, ledger: &mut Ledger) {
        for side in [Side::Client, Side::Server] {
            while self.proceed_by_one_step(side, now, patient, ledger) {}
            let half = self.half(side);
            if !half.ended && half.fin.is_some() && half.fin == half.next {
                half.ended = true;
                let seq = half.next.unwrap_or_default();
                let is_late = half.is_late();
                let mut context = context!(self, is_late, patient, ledger);
                self.dialogue.end(side, seq, &mut context);
            }
        }
    }

    /// Passes over a hole, or passes on a segment; false when there is nothing more to do for now.
    fn proceed_by_one_step(&mut self, side: Side, now: u64, patient: bool, ledger: &mut Ledger) -> bool {
        let half = self.half(side);
        let (Some(first), Some(next)) = (half.held.first(), half.next) else { return false };
        let ahead = first.seq.wrapping_sub(next);
        if (ahead as i32) > 0 {
            if patient && !half.is_lost(now) {
                return false;
            }
            let end = first.seq;
            half.unfilled = (!half.covers(end)).then_some(end);
            let is_late = half.is_late();
            half.advance(end);
            ledger.counts.holes += 1;
            self.listening.lose();
            let ahead = if side == Side::Client { self.preamble.hole(ahead) } else { ahead };
            let mut context = context!(self, is_late, patient, ledger);
            if ahead > 0 {
                self.dialogue.hole(side, ahead, &mut context);
            }
            return true;
        }
        let waited = half.waits_since.map_or(0, |since| now.saturating_sub(since));
        let patient = patient && waited < DISORDER_NS && !half.is_full();
        let held = half.held.remove(0);
        half.held_bytes -= held.bytes.len();
        ledger.release(held.bytes.len());
        let piece = held.piece();
        let behind = next.wrapping_sub(piece.seq);
        if piece.length() <= behind {
            return true;
        }
        self.pass_on(side, piece.from(behind), patient, ledger);
        self.half(side).waits_since.is_none()
    }

    /// Decides what a time without packets decides.
    pub fn on_idle(&mut self, ledger: &mut Ledger) {
        let mut context = context!(self, false, true, ledger);
        self.dialogue.on_idle(&mut context);
    }

    fn drop_held(&mut self, side: Side, ledger: &mut Ledger) {
        let half = self.half(side);
        ledger.release(half.held_bytes);
        half.held_bytes = 0;
        half.held.clear();
        half.waits_since = None;
    }

    /// Sequence numbers behind the last captured bytes of the key's client and of the key's server.
    pub fn ends_at(&self) -> [Option<u32>; 2] {
        if self.swapped { [self.server.next, self.client.next] } else { [self.client.next, self.server.next] }
    }

    /// Stops following the connection, and decides everything that is undecided.
    pub fn close(&mut self, ledger: &mut Ledger) {
        self.proceed(u64::MAX, false, ledger);
        self.drop_held(Side::Client, ledger);
        self.drop_held(Side::Server, ledger);
        let mut context = context!(self, false, false, ledger);
        self.dialogue.close(&mut context);
    }
}
