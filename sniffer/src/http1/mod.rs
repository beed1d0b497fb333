//! HTTP/1.x on one connection: where messages start and end (RFC 9112). Bodies are passed over, never kept.
//!
//! Where that is no longer known (bytes are missing, or the bytes are no messages), the next message is searched for at
//! the start of segments.

mod assemble;
mod chunks;
pub(crate) mod head;
mod pairing;

use std::collections::VecDeque;

use crate::direction::{Direction, Directions};
use crate::ledger::Ledger;
use crate::piece::{Context, Moment, Piece, Side};
use chunks::{Chunks, Progress};
use pairing::{Answer, Gap, Request};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadState {
    /// A message starts here, or its head goes on.
    Head,
    /// Bytes of the body that are still to come.
    Length(u64),
    Chunked(Chunks),
    UntilClose,
    /// It is not known where the next message starts: wait for a segment that starts a message. A message whose end was
    /// lost continues until then.
    Search,
    /// The connection changed to another protocol.
    Opaque,
}

/// The dialogue of one connection.
pub struct Http1 {
    directions: Directions<ReadState>,
    /// In the order in which they were sent; if `answer` is paired, it belongs to the first.
    requests: VecDeque<Request>,
    answer: Option<Answer>,
    /// The end of the last of `requests` has not arrived.
    open: bool,
    /// Requests may have been missed since the last one.
    gap: Gap,
    /// Responses may have been missed since the last one.
    resync: bool,
    /// The client changed to HTTP/2.
    is_http2: bool,
}

impl Http1 {
    /// A connection whose beginning was not captured.
    pub fn new() -> Self {
        Self {
            directions: Directions::new(ReadState::Search),
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
        self.direction(side).state = ReadState::Head;
        match side {
            Side::Client => self.gap = Gap::None,
            Side::Server => self.resync = false,
        }
    }

    /// Takes the next bytes of a direction; returns the number of bytes that were taken.
    pub fn read(&mut self, side: Side, piece: &Piece<'_>, context: &mut Context<'_>) -> u32 {
        if side == Side::Server {
            self.find_boundary(piece, context);
        }
        let length = piece.bytes.len();
        let mut at = 0;
        while at < length {
            let bytes = &piece.bytes[at..];
            match self.direction(side).state {
                ReadState::Opaque => {
                    self.is_http2 |= side == Side::Client && head::is_http2(bytes);
                    at = length;
                }
                ReadState::Search if side == Side::Client && at == 0 && head::starts_request(bytes) => {
                    self.open = false;
                    self.directions.client.state = ReadState::Head;
                }
                ReadState::Search | ReadState::UntilClose => {
                    at = length;
                    self.touch(side, piece, at as u32);
                }
                ReadState::Head => match self.head(side, piece, at, context) {
                    Some(next) => at = next,
                    None => return at as u32,
                },
                ReadState::Length(left) => {
                    let take = left.min(bytes.len() as u64);
                    at += take as usize;
                    self.direction(side).state = ReadState::Length(left - take);
                    self.touch(side, piece, at as u32);
                    if take == left {
                        self.finish(side, true, context);
                    }
                }
                ReadState::Chunked(mut chunks) => {
                    let (used, progress) = chunks.read(bytes);
                    at += used;
                    self.direction(side).state = ReadState::Chunked(chunks);
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

    /// Passes over missing bytes of a direction.
    pub fn hole(&mut self, side: Side, length: u32, context: &mut Context<'_>) {
        self.pass_over(side, length, None, context);
    }

    /// Notes that position and framing of a direction are lost.
    pub fn lose(&mut self, side: Side, ledger: &mut Ledger) {
        if self.direction(side).state == ReadState::Opaque {
            return;
        }
        self.directions.forget(side, ledger);
        self.lose_framing(side);
    }

    /// Notes that a direction ended before sequence number `seq`.
    pub fn end(&mut self, side: Side, seq: u32, context: &mut Context<'_>) {
        let begun = self.directions.forget(side, context.ledger) > 0;
        if side == Side::Client {
            return;
        }
        match (&self.answer, self.directions.server.state) {
            (Some(answer), ReadState::UntilClose) => {
                let known = answer.end == seq;
                self.finish(side, known, context);
            }
            (Some(answer), ReadState::Search) => {
                // With other requests, the last bytes might belong to their responses.
                let is_alone = self.requests.len() == 1 && self.gap != Gap::Loss && !context.client_is_behind;
                let known = answer.end == seq && !answer.end_uncertain && is_alone;
                self.finish(side, known, context);
            }
            (Some(_), _) => self.break_off(context.ledger),
            (None, ReadState::Head) if begun => context.ledger.counts.unfinished_responses += 1,
            _ => {}
        }
        if self.requests.is_empty() {
            // A closed connection is kept for a while, but its memory is given back at once.
            self.requests = VecDeque::new();
        }
    }

    /// Stops following the connection.
    pub fn close(&mut self, context: &mut Context<'_>) {
        let ledger = &mut *context.ledger;
        self.directions.forget_all(ledger);
        self.break_off(ledger);
        self.give_up(self.requests.len(), ledger);
    }

    /// Number of the next bytes whose content does not matter.
    pub fn opaque(&self, side: Side) -> u64 {
        match self.directions.of(side).state {
            // A segment that starts another response would end this one, so its content matters.
            _ if side == Side::Server && self.answer.as_ref().is_some_and(|answer| !answer.paired) => 0,
            ReadState::Length(left) => left,
            ReadState::Chunked(chunks) => chunks.opaque(),
            ReadState::UntilClose | ReadState::Opaque => u64::MAX,
            ReadState::Head | ReadState::Search => 0,
        }
    }

    /// Whether the connection changed to another protocol and no response is under way.
    pub fn is_over(&self) -> bool {
        self.directions.server.state == ReadState::Opaque && self.answer.is_none()
    }

    /// False when the server's last bytes belonged to no message.
    pub fn is_followed(&self) -> bool {
        !self.is_http2 && (self.directions.server.state != ReadState::Search || self.answer.is_some())
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.directions.held_bytes()
    }

    /// Requests whose response has not ended.
    pub fn waiting(&self) -> usize {
        self.requests.len()
    }

    /// When the oldest request without any byte of a response ended; `None` when bytes of a response may have been
    /// missed.
    pub fn oldest_unanswered(&self) -> Option<Moment> {
        let begun = usize::from(self.answer.as_ref().is_some_and(|answer| answer.paired));
        let request = self.requests.get(begun).filter(|request| request.whole && request.after_gap == Gap::None)?;
        let is_sure = !self.resync && self.directions.server.state != ReadState::Search;
        is_sure.then_some(request.last)
    }

    fn direction(&mut self, side: Side) -> &mut Direction<ReadState> {
        self.directions.of_mut(side)
    }

    /// Extends the present message up to the piece's byte `at`.
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

    /// While the end of a response is unknown: ends it if the next response starts with this piece.
    fn find_boundary(&mut self, piece: &Piece<'_>, context: &mut Context<'_>) {
        let searching = self.directions.server.state == ReadState::Search;
        let orphan = self.answer.as_ref().is_some_and(|answer| !answer.paired);
        if !(searching || orphan) || !head::starts_response(piece.bytes) {
            return;
        }
        let Some(answer) = &mut self.answer else {
            self.directions.server.state = ReadState::Head;
            return;
        };
        let mut others = self.requests.iter().skip(usize::from(answer.paired));
        let next = others.clone().next();
        if let Some(answered) = others.find(|request| request.ack == Some(piece.seq)) {
            // With requests between the two, the last bytes might belong to their responses.
            let is_next = next.is_some_and(|next| next.start == answered.start) && answered.after_gap != Gap::Loss;
            let known = answer.end == piece.seq && !answer.end_uncertain && is_next;
            self.finish(Side::Server, known, context);
        } else if searching {
            answer.end_uncertain = true;
        }
    }

    /// Passes over bytes whose content was not captured. `source` is the piece from which they were cut; `None`: they
    /// were lost.
    fn pass_over(&mut self, side: Side, length: u32, source: Option<&Piece<'_>>, context: &mut Context<'_>) {
        let mut left = u64::from(length);
        while left > 0 {
            let here = source.map_or(0, |piece| piece.length() - left as u32);
            match self.direction(side).state {
                ReadState::Opaque => return,
                ReadState::Search | ReadState::UntilClose => {
                    match source {
                        Some(piece) => self.touch(side, piece, piece.length()),
                        None => self.lose_end(side),
                    }
                    return;
                }
                ReadState::Head => {
                    context.ledger.counts.lost_heads += 1;
                    self.lose(side, context.ledger);
                    return;
                }
                ReadState::Length(rest) => {
                    let take = rest.min(left);
                    left -= take;
                    if let Some(piece) = source {
                        self.touch(side, piece, here + take as u32);
                    }
                    self.direction(side).state = ReadState::Length(rest - take);
                    if take == rest {
                        self.finish(side, source.is_some(), context);
                    }
                }
                ReadState::Chunked(mut chunks) => {
                    if chunks.skip(left) {
                        self.direction(side).state = ReadState::Chunked(chunks);
                    } else {
                        self.lose_framing(side);
                        self.lose_end(side);
                    }
                    if let Some(piece) = source {
                        self.touch(side, piece, piece.length());
                    }
                    return;
                }
            }
        }
    }

    /// Notes that it is not known any more where a message of this direction ends or starts.
    fn lose_framing(&mut self, side: Side) {
        self.direction(side).state = ReadState::Search;
        match side {
            Side::Client => self.gap = Gap::Loss,
            Side::Server => self.resync = true,
        }
    }

    /// Notes that the last bytes of a request were lost, unless more of it arrives. (For a response, `Answer::end`
    /// shows it.)
    fn lose_end(&mut self, side: Side) {
        if side == Side::Client
            && self.open
            && let Some(request) = self.requests.back_mut()
        {
            request.end_lost = true;
        }
    }
}
