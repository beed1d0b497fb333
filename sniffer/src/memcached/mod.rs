//! memcached on one connection, in text and binary: where messages start and end. Data is passed over, never kept.
//!
//! Where that is not known any more, the next message is looked for at the start of segments.

mod binary;
mod pairing;
mod text;

use std::collections::VecDeque;

use crate::figures::StatusClass;
use crate::ledger::Ledger;
use crate::method::Method;
use crate::piece::{Context, Moment, Piece, Side};
use crate::reader::{Reader, Readers, Start};
use pairing::{Answer, Request};

/// The longest head that is put together from several segments: multi-gets name many keys.
const LONGEST_HEAD: usize = 64 * 1024;

/// What came of reading a head.
enum Parsed<T> {
    Head(T),
    /// More bytes are needed.
    Short,
    /// It is no head.
    Bad,
}

/// Whether a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Always,
    /// A quiet command: only if it is not as usual.
    Quiet,
    Never,
}

struct RequestHead<'a> {
    /// Bytes of the head.
    length: usize,
    /// Bytes that follow it.
    body: u64,
    method: Method,
    key: &'a [u8],
    reply: Reply,
    /// Stands in the response too.
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
enum State {
    /// A message starts here, or its head goes on.
    Head,
    /// So many bytes are to come that belong to the head before.
    Body(u64),
    /// Wait for a segment that starts a message.
    Search,
}

/// The dialogue of one connection.
pub struct Memcached {
    readers: Readers<State>,
    /// Unanswered requests, in the order in which they were sent.
    requests: VecDeque<Request>,
    answer: Option<Answer>,
    /// The last of `requests` is still coming in.
    open: bool,
    /// Requests may have been missed since the last one.
    gap: bool,
    /// Responses may have been missed since the last one.
    resync: bool,
}

/// What became of a head.
enum Taken {
    Bytes(usize),
    Short,
    /// Bytes of the other direction are needed.
    Wait,
    Bad,
}

impl Memcached {
    /// A connection that is met in the middle.
    pub fn new() -> Self {
        Self {
            readers: Readers::new(State::Search),
            requests: VecDeque::new(),
            answer: None,
            open: false,
            gap: true,
            resync: true,
        }
    }

    /// The direction starts here.
    pub fn open(&mut self, side: Side) {
        self.reader(side).state = State::Head;
        match side {
            Side::Client => self.gap = false,
            Side::Server => self.resync = false,
        }
    }

    /// Takes the next bytes of a direction; returns how many.
    pub fn read(&mut self, side: Side, piece: &Piece<'_>, context: &mut Context<'_>) -> u32 {
        let length = piece.bytes.len();
        let mut at = 0;
        while at < length {
            match self.reader(side).state {
                State::Search if at == 0 && starts_message(side, piece.bytes) => self.reader(side).state = State::Head,
                State::Search => at = length,
                State::Body(left) => {
                    let take = left.min((length - at) as u64);
                    at += take as usize;
                    self.pass(side, left, take, piece, at as u32, context);
                }
                State::Head => match self.head(side, piece, at, context) {
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

    /// `take` of the `left` bytes of a body are here: they reach up to the piece's byte `at`.
    fn pass(&mut self, side: Side, left: u64, take: u64, piece: &Piece<'_>, at: u32, context: &mut Context<'_>) {
        self.touch(side, piece, at);
        self.reader(side).state = State::Body(left - take);
        if take == left {
            self.finish(side, true, context);
        }
    }

    /// Reads a head, or more of it, at `at`; returns where to go on, `None` to wait for the other direction.
    fn head(&mut self, side: Side, piece: &Piece<'_>, at: usize, context: &mut Context<'_>) -> Option<usize> {
        let bytes = &piece.bytes[at..];
        let mut held = std::mem::take(&mut self.reader(side).held);
        let before = held.len();
        let start = match self.reader(side).start {
            Some(start) if before > 0 => start,
            _ => Start { seq: piece.seq.wrapping_add(at as u32), ack: piece.ack, at: Moment::of(piece) },
        };
        let room = bytes.len().min(LONGEST_HEAD - before.min(LONGEST_HEAD));
        let taken = if before == 0 {
            self.message(side, start, bytes, piece, at, context)
        } else {
            held.extend_from_slice(&bytes[..room]);
            // Looks at a long head once it may be whole, not again with each segment.
            match is_whole(&held, before) {
                true => self.message(side, start, &held, piece, at.wrapping_sub(before), context),
                false => Taken::Short,
            }
        };
        match taken {
            Taken::Bytes(length) => {
                context.ledger.release(before);
                Some((at + length).saturating_sub(before))
            }
            Taken::Wait => {
                held.truncate(before);
                self.reader(side).held = held;
                None
            }
            Taken::Short if room == bytes.len() && before + room <= LONGEST_HEAD && context.ledger.hold(room) => {
                if before == 0 {
                    held.extend_from_slice(bytes);
                }
                let reader = self.reader(side);
                reader.held = held;
                reader.start = Some(start);
                Some(piece.bytes.len())
            }
            Taken::Short | Taken::Bad => {
                context.ledger.release(before);
                context.ledger.counts.malformed += 1;
                self.lose_framing(side, context);
                Some(piece.bytes.len())
            }
        }
    }

    /// Begins the message whose head is at the start of the bytes, which are the piece's from its byte `at` on.
    fn message(
        &mut self,
        side: Side,
        start: Start,
        bytes: &[u8],
        piece: &Piece<'_>,
        at: usize,
        context: &mut Context<'_>,
    ) -> Taken {
        match side {
            Side::Client => match request(bytes) {
                Parsed::Short => Taken::Short,
                Parsed::Bad => Taken::Bad,
                Parsed::Head(head) => {
                    let end = piece.seq.wrapping_add(at.wrapping_add(head.length) as u32);
                    let length = head.length;
                    self.begin_request(&head, start, end, piece, context);
                    Taken::Bytes(length)
                }
            },
            Side::Server => match reply(bytes) {
                Parsed::Short => Taken::Short,
                Parsed::Bad => Taken::Bad,
                Parsed::Head(head) => {
                    let end = piece.seq.wrapping_add(at.wrapping_add(head.length) as u32);
                    self.begin_answer(&head, start, end, piece, context)
                }
            },
        }
    }

    /// Bytes of a direction are missing.
    pub fn hole(&mut self, side: Side, length: u32, context: &mut Context<'_>) {
        self.pass_over(side, length, None, context);
    }

    /// Passes over bytes whose content is not there; `seen`: the piece that they were cut from, else they were lost.
    fn pass_over(&mut self, side: Side, length: u32, seen: Option<&Piece<'_>>, context: &mut Context<'_>) {
        let mut left = u64::from(length);
        while left > 0 {
            match self.reader(side).state {
                State::Search => return,
                State::Head => {
                    context.ledger.counts.lost_heads += 1;
                    self.readers.forget(side, context.ledger);
                    self.lose_framing(side, context);
                    return;
                }
                State::Body(rest) => {
                    let take = rest.min(left);
                    left -= take;
                    if let Some(piece) = seen {
                        self.touch(side, piece, piece.length() - left as u32);
                    }
                    self.reader(side).state = State::Body(rest - take);
                    if take == rest {
                        self.finish(side, seen.is_some(), context);
                    }
                }
            }
        }
    }

    /// Position and framing of a direction are lost.
    pub fn lose(&mut self, side: Side, ledger: &mut Ledger) {
        self.readers.forget(side, ledger);
        self.reader(side).state = State::Search;
        match side {
            Side::Client => self.lose_requests(),
            Side::Server => {
                self.resync = true;
                self.break_off(ledger);
            }
        }
    }

    /// From here on, it is not known where a message of this direction starts.
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
        self.reader(side).state = State::Search;
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

    /// A direction ended.
    pub fn end(&mut self, side: Side, _seq: u32, context: &mut Context<'_>) {
        self.readers.forget(side, context.ledger);
        if side == Side::Server {
            self.break_off(context.ledger);
        }
    }

    /// The connection is no longer followed.
    pub fn close(&mut self, context: &mut Context<'_>) {
        self.readers.forget_all(context.ledger);
        self.break_off(context.ledger);
        self.give_up(self.requests.len(), context.ledger);
    }

    /// How many of the next bytes may be anything.
    pub fn opaque(&self, side: Side) -> u64 {
        match self.readers.of(side).state {
            State::Body(left) => left,
            State::Head | State::Search => 0,
        }
    }

    /// False when the server's last bytes were of no message.
    pub fn is_followed(&self) -> bool {
        self.readers.server.state != State::Search || self.answer.is_some()
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.readers.held_bytes()
    }

    /// Requests whose response has not ended.
    pub fn waiting(&self) -> usize {
        self.requests.len() + usize::from(self.answer.as_ref().is_some_and(|answer| answer.request.is_some()))
    }

    fn reader(&mut self, side: Side) -> &mut Reader<State> {
        self.readers.of_mut(side)
    }

    /// The message that is coming in reaches up to the piece's byte `at`.
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

/// A head that goes on: in binary 24 bytes and more, in text a line, whose end only the new bytes can hold.
fn is_whole(held: &[u8], before: usize) -> bool {
    matches!(held.first(), Some(&binary::REQUEST | &binary::RESPONSE))
        || memchr::memchr(b'\n', &held[before..]).is_some()
}

fn request(bytes: &[u8]) -> Parsed<RequestHead<'_>> {
    if bytes.first() == Some(&binary::REQUEST) { binary::request(bytes) } else { text::request(bytes) }
}

fn reply(bytes: &[u8]) -> Parsed<ReplyHead> {
    if bytes.first() == Some(&binary::RESPONSE) { binary::reply(bytes) } else { text::reply(bytes) }
}

/// True when a segment surely starts with a message.
fn starts_message(side: Side, bytes: &[u8]) -> bool {
    match side {
        Side::Client => matches!(request(bytes), Parsed::Head(_)),
        Side::Server => matches!(reply(bytes), Parsed::Head(_)),
    }
}
