//! HTTP/1.x on one connection: where messages start and end (RFC 9112). Bodies are passed over, never kept.
//!
//! Where that is not known any more (bytes are missing, or these are no messages), the next message is looked for at the
//! start of segments.

mod assemble;
mod chunks;
pub(crate) mod head;
mod pairing;

use std::collections::VecDeque;

use crate::ledger::Ledger;
use crate::piece::{Context, Moment, Piece, Side};
use crate::reader::{Reader, Readers};
use chunks::{Chunks, Progress};
use pairing::{Answer, Gap, Request};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A message starts here, or its head goes on.
    Head,
    /// So many bytes of body are to come.
    Length(u64),
    Chunked(Chunks),
    UntilClose,
    /// It is not known where the next message starts: wait for a segment that starts one. The message whose end was
    /// lost, if there is one, goes on until then.
    Search,
    /// The connection went over to another protocol.
    Opaque,
}

/// The dialogue of one connection.
pub struct Http1 {
    readers: Readers<State>,
    /// In the order sent; the first is the one that `answer` belongs to, if that is paired.
    requests: VecDeque<Request>,
    answer: Option<Answer>,
    /// The last of `requests` is still coming in.
    open: bool,
    /// Requests may have been missed since the last one.
    gap: Gap,
    /// Responses may have been missed since the last one.
    resync: bool,
    /// The client went over to HTTP/2.
    is_http2: bool,
}

impl Http1 {
    /// A connection that is met in the middle.
    pub fn new() -> Self {
        Self {
            readers: Readers::new(State::Search),
            requests: VecDeque::new(),
            answer: None,
            open: false,
            gap: Gap::Loss,
            resync: true,
            is_http2: false,
        }
    }

    /// The direction starts here.
    pub fn open(&mut self, side: Side) {
        self.reader(side).state = State::Head;
        match side {
            Side::Client => self.gap = Gap::None,
            Side::Server => self.resync = false,
        }
    }

    /// Takes the next bytes of a direction; returns how many.
    pub fn read(&mut self, side: Side, piece: &Piece<'_>, context: &mut Context<'_>) -> u32 {
        if side == Side::Server {
            self.find_boundary(piece, context);
        }
        let length = piece.bytes.len();
        let mut at = 0;
        while at < length {
            let bytes = &piece.bytes[at..];
            match self.reader(side).state {
                State::Opaque => {
                    self.is_http2 |= side == Side::Client && head::is_http2(bytes);
                    at = length;
                }
                State::Search if side == Side::Client && at == 0 && head::starts_request(bytes) => {
                    self.open = false;
                    self.readers.client.state = State::Head;
                }
                State::Search | State::UntilClose => {
                    at = length;
                    self.touch(side, piece, at as u32);
                }
                State::Head => match self.head(side, piece, at, context) {
                    Some(next) => at = next,
                    None => return at as u32,
                },
                State::Length(left) => {
                    let take = left.min(bytes.len() as u64);
                    at += take as usize;
                    self.reader(side).state = State::Length(left - take);
                    self.touch(side, piece, at as u32);
                    if take == left {
                        self.finish(side, true, context);
                    }
                }
                State::Chunked(mut chunks) => {
                    let (used, progress) = chunks.read(bytes);
                    at += used;
                    self.reader(side).state = State::Chunked(chunks);
                    self.touch(side, piece, at as u32);
                    match progress {
                        Progress::More => {}
                        Progress::Done => self.finish(side, true, context),
                        Progress::Broken => {
                            context.ledger.counts.malformed += 1;
                            self.lose_framing(side);
                        }
                    }
                }
            }
        }
        if piece.cut > 0 {
            self.pass_over(side, piece.cut, Some(piece), context);
        }
        piece.length()
    }

    /// Bytes of a direction are missing.
    pub fn hole(&mut self, side: Side, length: u32, context: &mut Context<'_>) {
        self.pass_over(side, length, None, context);
    }

    /// Position and framing of a direction are lost.
    pub fn lose(&mut self, side: Side, ledger: &mut Ledger) {
        if self.reader(side).state == State::Opaque {
            return;
        }
        self.readers.forget(side, ledger);
        self.lose_framing(side);
    }

    /// A direction ended before sequence number `seq`.
    pub fn end(&mut self, side: Side, seq: u32, context: &mut Context<'_>) {
        let begun = self.readers.forget(side, context.ledger) > 0;
        if side == Side::Client {
            return;
        }
        match (&self.answer, self.readers.server.state) {
            (Some(answer), State::UntilClose) => {
                let known = answer.end == seq;
                self.finish(side, known, context);
            }
            (Some(answer), State::Search) => {
                // Had there been other requests, what came last might belong to their responses.
                let alone = self.requests.len() == 1 && self.gap != Gap::Loss && !context.client_is_behind;
                let known = answer.end == seq && !answer.end_uncertain && alone;
                self.finish(side, known, context);
            }
            (Some(_), _) => self.break_off(context.ledger),
            (None, State::Head) if begun => context.ledger.counts.unfinished_responses += 1,
            _ => {}
        }
        if self.requests.is_empty() {
            // A closed connection is kept for a while; its memory is of more use to the next one.
            self.requests = VecDeque::new();
        }
    }

    /// The connection is no longer followed.
    pub fn close(&mut self, context: &mut Context<'_>) {
        let ledger = &mut *context.ledger;
        self.readers.forget_all(ledger);
        self.break_off(ledger);
        self.give_up(self.requests.len(), ledger);
    }

    /// How many of the next bytes may be anything.
    pub fn opaque(&self, side: Side) -> u64 {
        match self.readers.of(side).state {
            // A segment that starts a response may end this one: it has to be seen.
            _ if side == Side::Server && self.answer.as_ref().is_some_and(|answer| !answer.paired) => 0,
            State::Length(left) => left,
            State::Chunked(chunks) => chunks.opaque(),
            State::UntilClose | State::Opaque => u64::MAX,
            State::Head | State::Search => 0,
        }
    }

    /// The connection went over to another protocol, and no response is coming in any more.
    pub fn is_over(&self) -> bool {
        self.readers.server.state == State::Opaque && self.answer.is_none()
    }

    /// False when the server's last bytes were of no message.
    pub fn is_followed(&self) -> bool {
        !self.is_http2 && (self.readers.server.state != State::Search || self.answer.is_some())
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.readers.held_bytes()
    }

    /// Requests whose response has not ended.
    pub fn waiting(&self) -> usize {
        self.requests.len()
    }

    /// When the oldest request ended of whose response no byte has come; nothing where one may have come unseen.
    pub fn oldest_unanswered(&self) -> Option<Moment> {
        let begun = usize::from(self.answer.as_ref().is_some_and(|answer| answer.paired));
        let request = self.requests.get(begun).filter(|request| request.whole && request.after_gap == Gap::None)?;
        let is_sure = !self.resync && self.readers.server.state != State::Search;
        is_sure.then_some(request.last)
    }

    fn reader(&mut self, side: Side) -> &mut Reader<State> {
        self.readers.of_mut(side)
    }

    /// The message that is coming in reaches up to the piece's byte `at`.
    fn touch(&mut self, side: Side, piece: &Piece<'_>, at: u32) {
        match side {
            Side::Client if self.open => {
                if let Some(request) = self.requests.back_mut() {
                    request.last = request.last.later(Moment::of(piece));
                    request.end = piece.seq.wrapping_add(at);
                    request.end_lost = false;
                }
            }
            Side::Client => {}
            Side::Server => {
                if let Some(answer) = &mut self.answer {
                    answer.last = answer.last.later(Moment::of(piece));
                    answer.end = piece.seq.wrapping_add(at);
                }
            }
        }
    }

    /// While the end of a response is unknown: does the next one start with this piece?
    fn find_boundary(&mut self, piece: &Piece<'_>, context: &mut Context<'_>) {
        let searching = self.readers.server.state == State::Search;
        let orphan = self.answer.as_ref().is_some_and(|answer| !answer.paired);
        if !(searching || orphan) || !head::starts_response(piece.bytes) {
            return;
        }
        let Some(answer) = &mut self.answer else {
            self.readers.server.state = State::Head;
            return;
        };
        let mut others = self.requests.iter().skip(usize::from(answer.paired));
        let next = others.clone().next();
        if let Some(answered) = others.find(|request| request.ack == Some(piece.seq)) {
            // Had there been requests between, what came last might belong to their responses.
            let is_next = next.is_some_and(|next| next.start == answered.start) && answered.after_gap != Gap::Loss;
            let known = answer.end == piece.seq && !answer.end_uncertain && is_next;
            self.finish(Side::Server, known, context);
        } else if searching {
            answer.end_uncertain = true;
        }
    }

    /// Passes over bytes whose content is not there; `seen`: the piece that they were cut from, else they were lost.
    fn pass_over(&mut self, side: Side, length: u32, seen: Option<&Piece<'_>>, context: &mut Context<'_>) {
        let mut left = u64::from(length);
        while left > 0 {
            let here = seen.map_or(0, |piece| piece.length() - left as u32);
            match self.reader(side).state {
                State::Opaque => return,
                State::Search | State::UntilClose => {
                    match seen {
                        Some(piece) => self.touch(side, piece, piece.length()),
                        None => self.lose_end(side),
                    }
                    return;
                }
                State::Head => {
                    context.ledger.counts.lost_heads += 1;
                    self.lose(side, context.ledger);
                    return;
                }
                State::Length(rest) => {
                    let take = rest.min(left);
                    left -= take;
                    if let Some(piece) = seen {
                        self.touch(side, piece, here + take as u32);
                    }
                    self.reader(side).state = State::Length(rest - take);
                    if take == rest {
                        self.finish(side, seen.is_some(), context);
                    }
                }
                State::Chunked(mut chunks) => {
                    if chunks.skip(left) {
                        self.reader(side).state = State::Chunked(chunks);
                    } else {
                        self.lose_framing(side);
                        self.lose_end(side);
                    }
                    if let Some(piece) = seen {
                        self.touch(side, piece, piece.length());
                    }
                    return;
                }
            }
        }
    }

    /// From here on, it is not known where a message of this direction ends or starts.
    fn lose_framing(&mut self, side: Side) {
        self.reader(side).state = State::Search;
        match side {
            Side::Client => self.gap = Gap::Loss,
            Side::Server => self.resync = true,
        }
    }

    /// A request's last bytes were lost, unless more of it comes. (Of a response, `Answer::end` tells.)
    fn lose_end(&mut self, side: Side) {
        if side == Side::Client
            && self.open
            && let Some(request) = self.requests.back_mut()
        {
            request.end_lost = true;
        }
    }
}
