//! memcached on one connection, in text and binary: where messages start and end. Data is passed over, never kept.
//!
//! Where that is no longer known, the next message is searched for at the start of segments.

mod binary;
mod pairing;
mod text;

use std::collections::VecDeque;

use crate::direction::{Direction, Directions, HeadOutcome, Start};
use crate::figures::StatusClass;
use crate::ledger::Ledger;
use crate::method::Method;
use crate::piece::{Context, Moment, Piece, Side};
use pairing::{Answer, Request};

/// The longest head that is put together from several segments: multi-gets name many keys.
const LONGEST_HEAD: usize = 64 * 1024;

/// The result of reading a head.
enum Parsed<T> {
    Head(T),
    /// More bytes are needed.
    Short,
    /// These bytes are no head.
    Bad,
}

impl<T> Parsed<T> {
    fn map<U>(self, convert: impl FnOnce(T) -> U) -> Parsed<U> {
        match self {
            Parsed::Head(head) => Parsed::Head(convert(head)),
            Parsed::Short => Parsed::Short,
            Parsed::Bad => Parsed::Bad,
        }
    }
}

/// Whether a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyRule {
    Always,
    /// A quiet command: answered only when the result is unusual.
    Quiet,
    Never,
}

struct CommandHead<'a> {
    /// Bytes of the head.
    length: usize,
    /// Bytes that follow it.
    body: u64,
    method: Method,
    key: &'a [u8],
    reply: ReplyRule,
    /// Repeated in the response.
    token: Option<u64>,
}

struct ReplyHead {
    length: usize,
    body: u64,
    /// No other part of the same response follows.
    is_last: bool,
    status: u16,
    word: &'static str,
    class: StatusClass,
    token: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadState {
    /// A message starts here, or its head goes on.
    Head,
    /// Bytes of the present message's body that are still to come.
    Body(u64),
    /// Wait for a segment that starts a message.
    Search,
}

/// The dialogue of one connection.
pub struct Memcached {
    directions: Directions<ReadState>,
    /// Unanswered requests, in the order in which they were sent.
    requests: VecDeque<Request>,
    answer: Option<Answer>,
    /// The end of the last of `requests` has not arrived.
    open: bool,
    /// Requests may have been missed since the last one.
    gap: bool,
    /// Responses may have been missed since the last one.
    resync: bool,
}

impl Memcached {
    /// A connection whose beginning was not captured.
    pub fn new() -> Self {
        Self {
            directions: Directions::new(ReadState::Search),
            requests: VecDeque::new(),
            answer: None,
            open: false,
            gap: true,
            resync: true,
        }
    }

    /// The direction starts here.
    pub fn open(&mut self, side: Side) {
        self.direction(side).state = ReadState::Head;
        match side {
            Side::Client => self.gap = false,
            Side::Server => self.resync = false,
        }
    }

    /// Takes the next bytes of a direction; returns the number of bytes that were taken.
    pub fn read(&mut self, side: Side, piece: &Piece<'_>, context: &mut Context<'_>) -> u32 {
        let length = piece.bytes.len();
        let mut at = 0;
        while at < length {
            match self.direction(side).state {
                ReadState::Search if at == 0 && starts_message(side, piece.bytes) => {
                    self.direction(side).state = ReadState::Head
                }
                ReadState::Search => at = length,
                ReadState::Body(left) => {
                    let take = left.min((length - at) as u64);
                    at += take as usize;
                    self.pass(side, left, take, piece, at as u32, context);
                }
                ReadState::Head => match self.head(side, piece, at, context) {
                    Some(next) => at = next,
                    None => return at as u32,
                },
            }
        }
        if piece.cut > 0 {
            self.pass_over(side, piece.cut, Some(piece), context);
        }
        piece.length()
    }

    /// Takes `take` of the `left` bytes of a body; they reach up to the piece's byte `at`.
    fn pass(&mut self, side: Side, left: u64, take: u64, piece: &Piece<'_>, at: u32, context: &mut Context<'_>) {
        self.touch(side, piece, at);
        self.direction(side).state = ReadState::Body(left - take);
        if take == left {
            self.finish(side, true, context);
        }
    }

    /// Reads a head, or more of it, from position `at`; returns the position behind it, `None` to wait for the other
    /// direction.
    fn head(&mut self, side: Side, piece: &Piece<'_>, at: usize, context: &mut Context<'_>) -> Option<usize> {
        let bytes = &piece.bytes[at..];
        let mut held = std::mem::take(&mut self.direction(side).held);
        let before = held.len();
        let start = match self.direction(side).start {
            Some(start) if before > 0 => start,
            _ => Start { seq: piece.seq.wrapping_add(at as u32), ack: piece.ack, at: Moment::of(piece) },
        };
        let room = bytes.len().min(LONGEST_HEAD - before.min(LONGEST_HEAD));
        let taken = if before == 0 {
            self.message(side, start, bytes, piece, at, context)
        } else {
            held.extend_from_slice(&bytes[..room]);
            // A long head is read once it may be complete, not again with each segment.
            match may_be_complete(&held, before) {
                true => self.message(side, start, &held, piece, at.wrapping_sub(before), context),
                false => HeadOutcome::Short,
            }
        };
        match taken {
            HeadOutcome::Bytes(length) => {
                context.ledger.release(before);
                Some((at + length).saturating_sub(before))
            }
            HeadOutcome::Wait => {
                held.truncate(before);
                self.direction(side).held = held;
                None
            }
            HeadOutcome::Short if room == bytes.len() && before + room <= LONGEST_HEAD && context.ledger.hold(room) => {
                if before == 0 {
                    held.extend_from_slice(bytes);
                }
                let direction = self.direction(side);
                direction.held = held;
                direction.start = Some(start);
                Some(piece.bytes.len())
            }
            HeadOutcome::Short | HeadOutcome::Bad => {
                context.ledger.release(before);
                context.ledger.counts.malformed += 1;
                self.lose_framing(side, context);
                Some(piece.bytes.len())
            }
        }
    }

    /// Begins the message whose head is at the start of the bytes. These are the piece's bytes from `at` on.
    fn message(
        &mut self,
        side: Side,
        start: Start,
        bytes: &[u8],
        piece: &Piece<'_>,
        at: usize,
        context: &mut Context<'_>,
    ) -> HeadOutcome {
        match side {
            Side::Client => match request(bytes) {
                Parsed::Short => HeadOutcome::Short,
                Parsed::Bad => HeadOutcome::Bad,
                Parsed::Head(head) => {
                    let end = piece.seq.wrapping_add(at.wrapping_add(head.length) as u32);
                    let length = head.length;
                    self.begin_request(&head, start, end, piece, context);
                    HeadOutcome::Bytes(length)
                }
            },
            Side::Server => match reply(bytes) {
                Parsed::Short => HeadOutcome::Short,
                Parsed::Bad => HeadOutcome::Bad,
                Parsed::Head(head) => {
                    let end = piece.seq.wrapping_add(at.wrapping_add(head.length) as u32);
                    self.begin_answer(&head, start, end, piece, context)
                }
            },
        }
    }

    /// Passes over missing bytes of a direction.
    pub fn hole(&mut self, side: Side, length: u32, context: &mut Context<'_>) {
        self.pass_over(side, length, None, context);
    }

    /// Passes over bytes whose content was not captured. `source` is the piece from which they were cut; `None`: they
    /// were lost.
    fn pass_over(&mut self, side: Side, length: u32, source: Option<&Piece<'_>>, context: &mut Context<'_>) {
        let mut left = u64::from(length);
        while left > 0 {
            match self.direction(side).state {
                ReadState::Search => return,
                ReadState::Head => {
                    context.ledger.counts.lost_heads += 1;
                    self.directions.forget(side, context.ledger);
                    self.lose_framing(side, context);
                    return;
                }
                ReadState::Body(rest) => {
                    let take = rest.min(left);
                    left -= take;
                    if let Some(piece) = source {
                        self.touch(side, piece, piece.length() - left as u32);
                    }
                    self.direction(side).state = ReadState::Body(rest - take);
                    if take == rest {
                        self.finish(side, source.is_some(), context);
                    }
                }
            }
        }
    }

    /// Notes that position and framing of a direction are lost.
    pub fn lose(&mut self, side: Side, ledger: &mut Ledger) {
        self.directions.forget(side, ledger);
        self.direction(side).state = ReadState::Search;
        match side {
            Side::Client => self.lose_requests(),
            Side::Server => {
                self.resync = true;
                self.break_off(ledger);
            }
        }
    }

    /// Notes that it is not known any more where a message of this direction starts.
    fn lose_framing(&mut self, side: Side, context: &mut Context<'_>) {
        match side {
            Side::Client => self.lose_requests(),
            Side::Server => {
                self.resync = true;
                if self.answer.is_some() {
                    self.book(false, context);
                }
            }
        }
        self.direction(side).state = ReadState::Search;
    }

    fn lose_requests(&mut self) {
        if self.open
            && let Some(request) = self.requests.back_mut()
        {
            request.end_lost = true;
        }
        self.open = false;
        self.gap = true;
    }

    /// Notes that a direction ended.
    pub fn end(&mut self, side: Side, _seq: u32, context: &mut Context<'_>) {
        self.directions.forget(side, context.ledger);
        if side == Side::Server {
            self.break_off(context.ledger);
        }
    }

    /// Stops following the connection.
    pub fn close(&mut self, context: &mut Context<'_>) {
        self.directions.forget_all(context.ledger);
        self.break_off(context.ledger);
        self.give_up(self.requests.len(), context.ledger);
    }

    /// Number of the next bytes whose content does not matter.
    pub fn opaque(&self, side: Side) -> u64 {
        match self.directions.of(side).state {
            ReadState::Body(left) => left,
            ReadState::Head | ReadState::Search => 0,
        }
    }

    /// False when the server's last bytes belonged to no message.
    pub fn is_followed(&self) -> bool {
        self.directions.server.state != ReadState::Search || self.answer.is_some()
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.directions.held_bytes()
    }

    /// Requests whose response has not ended.
    pub fn waiting(&self) -> usize {
        self.requests.len() + usize::from(self.answer.as_ref().is_some_and(|answer| answer.request.is_some()))
    }

    fn direction(&mut self, side: Side) -> &mut Direction<ReadState> {
        self.directions.of_mut(side)
    }

    /// Extends the present message up to the piece's byte `at`.
    fn touch(&mut self, side: Side, piece: &Piece<'_>, at: u32) {
        let (now, end) = (Moment::of(piece), piece.seq.wrapping_add(at));
        match side {
            Side::Client if self.open => {
                if let Some(request) = self.requests.back_mut() {
                    (request.last, request.end) = (request.last.later(now), end);
                }
            }
            Side::Client => {}
            Side::Server => {
                if let Some(answer) = &mut self.answer {
                    (answer.last, answer.end) = (answer.last.later(now), end);
                }
            }
        }
    }
}

/// Whether a head that continues may be complete: a binary head always may, a text head when the new bytes end the
/// line.
fn may_be_complete(held: &[u8], before: usize) -> bool {
    matches!(held.first(), Some(&binary::REQUEST | &binary::RESPONSE))
        || memchr::memchr(b'\n', &held[before..]).is_some()
}

fn request(bytes: &[u8]) -> Parsed<CommandHead<'_>> {
    if bytes.first() == Some(&binary::REQUEST) { binary::request(bytes) } else { text::request(bytes) }
}

fn reply(bytes: &[u8]) -> Parsed<ReplyHead> {
    if bytes.first() == Some(&binary::RESPONSE) { binary::reply(bytes) } else { text::reply(bytes) }
}

/// Whether a segment certainly starts with a message.
fn starts_message(side: Side, bytes: &[u8]) -> bool {
    match side {
        Side::Client => matches!(request(bytes), Parsed::Head(_)),
        Side::Server => matches!(reply(bytes), Parsed::Head(_)),
    }
}
