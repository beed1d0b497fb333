//! Which response answers which request of memcached.
//!
//! A response that repeats a token (command and opaque value in binary, the `O` flag of meta commands) answers the
//! first request with that token; other responses arrive in the order of the requests. Quiet requests before the
//! answered request have no response. Where messages may have been missed, sequence numbers decide as for HTTP: no pair
//! is guessed.

use super::binary::identifies_request;
use super::text::may_answer;
use super::{CommandHead, HeadOutcome, Memcached, ReadState, ReplyHead, ReplyRule};
use crate::direction::Start;
use crate::figures::{Exchange, StatusClass};
use crate::ledger::Ledger;
use crate::method::Method;
use crate::piece::{Context, Moment, Piece, Side, between, is_after};

/// Most pipelined requests that may wait on one connection.
const MOST_WAITING: usize = 1_024;

/// A request whose response has not begun.
pub(super) struct Request {
    start: u32,
    /// Sequence number behind the last byte so far.
    pub(super) end: u32,
    ack: Option<u32>,
    method: Method,
    route: u8,
    quiet: bool,
    token: Option<u64>,
    /// Its last byte so far.
    pub(super) last: Moment,
    /// Its end was not captured.
    pub(super) end_lost: bool,
    /// Requests before it may have been missed.
    after_gap: bool,
}

/// The response that is under way.
pub(super) struct Answer {
    /// The request that it answers; `None` for an orphan.
    pub(super) request: Option<Request>,
    status: u16,
    word: &'static str,
    class: StatusClass,
    first: Moment,
    /// Bytes before the first one may be missing.
    first_late: bool,
    pub(super) last: Moment,
    start: u32,
    /// Sequence number behind the last captured byte.
    pub(super) end: u32,
    /// The part that is under way is its last.
    is_last: bool,
}

/// Which request a response answers.
enum Pairing {
    At(usize),
    Orphan,
    /// It answers one of several requests, and it is not known which.
    Ambiguous,
    Wait,
}

impl Memcached {
    pub(super) fn begin_request(
        &mut self,
        head: &CommandHead<'_>,
        start: Start,
        end: u32,
        piece: &Piece<'_>,
        context: &mut Context<'_>,
    ) {
        let ledger = &mut *context.ledger;
        let has_room = self.requests.is_empty() || (self.requests.len() < MOST_WAITING && !ledger.is_full());
        self.open = head.reply != ReplyRule::Never && has_room;
        if self.open {
            ledger.waiting += 1;
            self.requests.push_back(Request {
                start: start.seq,
                end,
                ack: start.ack,
                method: head.method,
                route: ledger.route(head.key),
                quiet: head.reply == ReplyRule::Quiet,
                token: head.token,
                last: start.at.later(Moment::of(piece)),
                end_lost: false,
                after_gap: std::mem::replace(&mut self.gap, false),
            });
        } else if head.reply == ReplyRule::Never {
            ledger.counts.unmatched_requests += 1;
            ledger.counts.quiet_requests += 1;
        } else {
            ledger.counts.refused += 1;
            self.gap = true;
        }
        self.directions.client.state = ReadState::Body(head.body);
        if head.body == 0 {
            self.finish(Side::Client, true, context);
        }
    }

    /// When the oldest request ended that asks for a response and has not got a byte of it; `None` when bytes of a
    /// response may have been missed.
    pub fn oldest_unanswered(&self) -> Option<Moment> {
        let whole = self.requests.len() - usize::from(self.open);
        let request = self.requests.iter().take(whole).find(|request| !request.quiet)?;
        (!request.after_gap && !request.end_lost).then_some(request.last)
    }

    /// Finds the request that a response answers, gives up the requests before it, and follows the response.
    pub(super) fn begin_answer(
        &mut self,
        head: &ReplyHead,
        start: Start,
        end: u32,
        piece: &Piece<'_>,
        context: &mut Context<'_>,
    ) -> HeadOutcome {
        let last = start.at.later(Moment::of(piece));
        match &mut self.answer {
            Some(answer) => {
                (answer.last, answer.end) = (answer.last.later(last), end);
                (answer.status, answer.class, answer.is_last) = (head.status, head.class, head.is_last);
                answer.word = head.word;
            }
            None => {
                let request = match self.find_request(head, start, context) {
                    Pairing::Wait => return HeadOutcome::Wait,
                    Pairing::At(position) => {
                        self.give_up(position, context.ledger);
                        self.resync = false;
                        self.open &= self.requests.len() > 1;
                        self.requests.pop_front()
                    }
                    Pairing::Orphan => None,
                    Pairing::Ambiguous => {
                        self.give_up(self.requests.len(), context.ledger);
                        self.resync = true;
                        None
                    }
                };
                context.ledger.counts.orphan_responses += u64::from(request.is_none());
                self.answer = Some(Answer {
                    request,
                    status: head.status,
                    word: head.word,
                    class: head.class,
                    first: start.at,
                    first_late: context.is_late,
                    last,
                    start: start.seq,
                    end,
                    is_last: head.is_last,
                });
            }
        }
        self.directions.server.state = ReadState::Body(head.body);
        if head.body == 0 {
            self.finish(Side::Server, true, context);
        }
        HeadOutcome::Bytes(head.length)
    }

    fn find_request(&self, head: &ReplyHead, start: Start, context: &Context<'_>) -> Pairing {
        // The server can't have answered a request that it had not received when it sent this.
        let received = |request: &Request| start.ack.is_none_or(|ack| is_after(ack, request.start));
        let lossy = self.resync || self.requests.front().is_some_and(|request| request.after_gap);
        let candidate = match head.token {
            Some(token) if !lossy || identifies_request(token) => {
                let mut matching = self.requests.iter().enumerate().filter(|(_, request)| request.token == Some(token));
                let first = matching.next();
                // A quiet request may have got no response.
                if first.is_some_and(|(_, request)| request.quiet) && matching.next().is_some() {
                    return Pairing::Ambiguous;
                }
                first.map(|(position, _)| position)
            }
            _ if lossy => self.requests.iter().position(|request| request.ack == Some(start.seq)),
            _ => match self.in_order(head.word) {
                Ok(position) => position,
                Err(()) => return Pairing::Ambiguous,
            },
        };
        let is_behind = || context.client_next.zip(start.ack).is_some_and(|(next, ack)| is_after(ack, next));
        match candidate {
            Some(position) if received(&self.requests[position]) => Pairing::At(position),
            Some(_) => Pairing::Orphan,
            None if context.patient && is_behind() => Pairing::Wait,
            None => Pairing::Orphan,
        }
    }

    /// The first request that must be answered, unless this may be the response to a quiet request before it.
    fn in_order(&self, word: &str) -> Result<Option<usize>, ()> {
        if word == "MN" {
            return Ok(self.requests.iter().position(|request| request.method.as_str() == "mn"));
        }
        let loud = self.requests.iter().position(|request| !request.quiet);
        let before = self.requests.iter().take(loud.unwrap_or(usize::MAX)).enumerate();
        let mut may_have_answered = before.filter(|(_, request)| may_answer(request.method.as_str(), word));
        match (may_have_answered.next(), may_have_answered.next(), loud) {
            (None, _, loud) => Ok(loud),
            (Some((position, _)), None, None) => Ok(Some(position)),
            _ => Err(()),
        }
    }

    /// Ends the message, or the part of a response, of a direction; `known`: its last byte was captured.
    pub(super) fn finish(&mut self, side: Side, known: bool, context: &mut Context<'_>) {
        self.direction(side).state = ReadState::Head;
        let known = known && !context.is_late;
        match side {
            Side::Client => {
                if self.open
                    && let Some(request) = self.requests.back_mut()
                {
                    request.end_lost = !known;
                }
                self.open = false;
            }
            Side::Server if self.answer.as_ref().is_some_and(|answer| answer.is_last) => self.book(known, context),
            Side::Server => {}
        }
    }

    /// Records the exchange whose response ended.
    pub(super) fn book(&mut self, known: bool, context: &mut Context<'_>) {
        let Some(Answer { request: Some(request), status, word, class, first, first_late, last, start, end, .. }) =
            self.answer.take()
        else {
            return;
        };
        context.ledger.waiting -= 1;
        let [client, server] = context.addresses();
        context.ledger.exchange(Exchange {
            request_frame: request.last.frame,
            response_frame: last.frame,
            stream: context.stream,
            client,
            server,
            time_ns: request.last.time_ns,
            last_byte_ns: between(request.last, last).filter(|_| known && !request.end_lost),
            first_byte_ns: between(request.last, first).filter(|_| !first_late && !request.end_lost),
            method: request.method,
            status,
            word,
            class,
            protocol: context.protocol,
            route: request.route,
            request_bytes: request.end.wrapping_sub(request.start),
            response_bytes: end.wrapping_sub(start),
        });
    }

    /// Gives up the response that is under way.
    pub(super) fn break_off(&mut self, ledger: &mut Ledger) {
        if let Some(Answer { request: Some(_), .. }) = self.answer.take() {
            ledger.counts.unfinished_responses += 1;
            ledger.waiting -= 1;
        }
    }

    /// Gives up the first requests, which get no answer.
    pub(super) fn give_up(&mut self, count: usize, ledger: &mut Ledger) {
        for request in self.requests.drain(..count) {
            ledger.waiting -= 1;
            ledger.counts.unmatched_requests += 1;
            ledger.counts.quiet_requests += u64::from(request.quiet);
        }
        self.open &= !self.requests.is_empty();
    }
}
