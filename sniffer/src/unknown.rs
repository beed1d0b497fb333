//! Any protocol in which client and server take turns. Only sequence and acknowledgement numbers are read, and the
//! first bytes of an answer, which tell a handshake of TLS. So encrypted connections are measured too.
//!
//! A turn is a run of bytes from the client and the following run of bytes from the server. Bytes of the server belong
//! to the turn before as long as the server has not acknowledged the present one. When the client acknowledges bytes of
//! the server that were not captured when its turn began, an answer was missed.

use crate::figures::{Exchange, StatusClass};
use crate::ledger::Ledger;
use crate::method::Method;
use crate::piece::{Context, Moment, Piece, Side, between, is_after};

/// The bytes of the server in a turn.
struct Reply {
    start: u32,
    end: u32,
    first: Moment,
    last: Moment,
    first_lost: bool,
    end_lost: bool,
    is_handshake: bool,
}

/// Whether a server's bytes begin with a record of TLS's handshake, or with the change of the cipher that ends it (RFC
/// 8446, section 5.1): no request was answered.
fn is_handshake(bytes: &[u8]) -> bool {
    matches!(bytes, [0x14 | 0x16, 0x03, ..])
}

struct Turn {
    start: u32,
    end: u32,
    request_end: Moment,
    /// The last bytes of the request were not captured.
    request_end_lost: bool,
    /// The end of the server's bytes when the turn began, as captured or as acknowledged by the client.
    acked: Option<u32>,
    reply: Option<Reply>,
}

/// The dialogue of one connection.
pub struct Unknown {
    /// The turn before, for the rest of its response.
    before: Option<Turn>,
    turn: Option<Turn>,
    server_end: Option<u32>,
    /// Bytes of the server are missing behind `server_end`.
    server_gap: bool,
}

impl Unknown {
    /// A connection without any bytes so far.
    pub fn new() -> Self {
        Self { before: None, turn: None, server_end: None, server_gap: false }
    }

    /// The direction starts here.
    pub fn open(&mut self, _side: Side) {}

    /// Takes the next bytes of a direction; returns the number of bytes that were taken.
    pub fn read(&mut self, side: Side, piece: &Piece<'_>, context: &mut Context<'_>) -> u32 {
        match side {
            Side::Client => self.read_client(piece, context),
            Side::Server if Self::must_wait(piece, context) => return 0,
            Side::Server => self.answer(piece, context),
        }
        piece.length()
    }

    /// Whether the request may still arrive, because captures of several queues are not in order.
    fn must_wait(piece: &Piece<'_>, context: &Context<'_>) -> bool {
        context.patient && context.client_next.zip(piece.ack).is_some_and(|(next, ack)| is_after(ack, next))
    }

    fn read_client(&mut self, piece: &Piece<'_>, context: &mut Context<'_>) {
        let goes_on = self.turn.as_ref().is_some_and(|turn| {
            let missed_answer = |acked| piece.ack.is_some_and(|ack| is_after(ack, acked));
            turn.reply.is_none() && !turn.acked.is_some_and(missed_answer)
        });
        if !goes_on {
            self.begin(piece.seq, piece.ack, Moment::of(piece), context);
        }
        if let Some(turn) = &mut self.turn {
            turn.request_end = turn.request_end.later(Moment::of(piece));
            turn.request_end_lost = context.is_late;
            turn.end = piece.end();
        }
    }

    fn begin(&mut self, start: u32, ack: Option<u32>, request_end: Moment, context: &mut Context<'_>) {
        self.book_before(context);
        self.before = self.turn.take();
        context.ledger.waiting += 1;
        let acked = match (self.server_end, ack) {
            (Some(end), Some(ack)) if !is_after(ack, end) => Some(end),
            (end, ack) => ack.or(end),
        };
        self.turn = Some(Turn { start, end: start, request_end, request_end_lost: false, acked, reply: None });
    }

    fn answer(&mut self, piece: &Piece<'_>, context: &mut Context<'_>) {
        let gap = std::mem::take(&mut self.server_gap) || context.is_late;
        self.server_end = Some(piece.end());
        let received = |turn: &Turn| piece.ack.is_none_or(|ack| is_after(ack, turn.start));
        let is_current = self.turn.as_ref().is_some_and(received);
        if is_current {
            self.book_before(context);
        }
        // Without a turn the server sends first, as in many protocols, and answers nothing.
        let Some(turn) = (if is_current { &mut self.turn } else { &mut self.before }) else { return };
        let now = Moment::of(piece);
        match &mut turn.reply {
            Some(reply) => {
                reply.last = reply.last.later(now);
                reply.end = piece.end();
                reply.end_lost = context.is_late;
            }
            None => {
                turn.reply = Some(Reply {
                    start: piece.seq,
                    end: piece.end(),
                    first: now,
                    last: now,
                    first_lost: gap,
                    end_lost: context.is_late,
                    is_handshake: is_handshake(piece.bytes),
                });
            }
        }
    }

    /// Passes over missing bytes of a direction.
    pub fn hole(&mut self, side: Side, length: u32, context: &mut Context<'_>) {
        if side == Side::Server {
            self.server_gap = true;
            for turn in [&mut self.before, &mut self.turn].into_iter().flatten() {
                if let Some(reply) = &mut turn.reply {
                    reply.end_lost = true;
                }
            }
            return;
        }
        if self.turn.as_ref().is_none_or(|turn| turn.reply.is_some()) {
            let end = context.client_next.unwrap_or_default();
            self.begin(end.wrapping_sub(length), None, Moment { time_ns: 0, frame: 0 }, context);
        }
        if let Some(turn) = &mut self.turn {
            turn.request_end_lost = true;
        }
    }

    /// Gives up all turns, because the position of a direction is lost.
    pub fn lose(&mut self, side: Side, ledger: &mut Ledger) {
        self.server_gap |= side == Side::Server;
        for turn in [self.before.take(), self.turn.take()].into_iter().flatten() {
            ledger.waiting -= 1;
            match turn.reply {
                Some(_) => ledger.counts.unfinished_responses += 1,
                None => ledger.counts.unmatched_requests += 1,
            }
        }
        self.server_end = None;
    }

    /// Notes that a direction ended.
    pub fn end(&mut self, side: Side, _seq: u32, context: &mut Context<'_>) {
        if side == Side::Server {
            self.on_idle(context);
        }
    }

    /// Ends the turns that have an answer, because nothing was captured for a while.
    pub fn on_idle(&mut self, context: &mut Context<'_>) {
        if self.before.as_ref().is_some_and(|turn| turn.reply.is_some()) {
            self.book_before(context);
        }
        if self.turn.as_ref().is_some_and(|turn| turn.reply.is_some()) {
            self.book_before(context);
            self.before = self.turn.take();
            self.book_before(context);
        }
    }

    fn book_before(&mut self, context: &mut Context<'_>) {
        let Some(turn) = self.before.take() else { return };
        context.ledger.waiting -= 1;
        let Some(reply) = turn.reply else {
            context.ledger.counts.unmatched_requests += 1;
            return;
        };
        if reply.is_handshake {
            return;
        }
        if turn.request_end_lost {
            context.ledger.counts.orphan_responses += 1;
            return;
        }
        let route = context.ledger.other_route();
        let [client, server] = context.addresses();
        context.ledger.exchange(Exchange {
            request_frame: turn.request_end.frame,
            response_frame: reply.last.frame,
            stream: context.stream,
            client,
            server,
            time_ns: turn.request_end.time_ns,
            last_byte_ns: between(turn.request_end, reply.last).filter(|_| !reply.end_lost),
            first_byte_ns: between(turn.request_end, reply.first).filter(|_| !reply.first_lost),
            method: Method::NONE,
            status: 0,
            word: "",
            class: StatusClass::Unknown,
            protocol: context.protocol,
            route,
            request_bytes: turn.end.wrapping_sub(turn.start),
            response_bytes: reply.end.wrapping_sub(reply.start),
        });
    }

    /// Stops following the connection.
    pub fn close(&mut self, context: &mut Context<'_>) {
        self.on_idle(context);
        self.book_before(context);
        self.before = self.turn.take();
        self.book_before(context);
    }

    /// The content of no byte matters.
    pub fn opaque(&self, _side: Side) -> u64 {
        u64::MAX
    }

    /// When the oldest turn of the client without an answer ended.
    pub fn oldest_unanswered(&self) -> Option<Moment> {
        let turn = self.before.iter().chain(&self.turn).find(|turn| turn.reply.is_none())?;
        (!turn.request_end_lost).then_some(turn.request_end)
    }

    /// Turns without an answer.
    pub fn waiting(&self) -> usize {
        let open = |turn: &&Turn| turn.reply.is_none();
        self.before.iter().chain(&self.turn).filter(open).count()
    }
}
