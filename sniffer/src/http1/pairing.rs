//! Which response answers which request.
//!
//! Responses arrive in the order of the requests, so a response belongs to the first waiting request, as long as no
//! message was missed. Where one may have been missed, sequence numbers decide: a client that waits for a response
//! before it sends its next request acknowledges, with that request, everything before the first byte of the response
//! to it. A response that does not start at such a byte is an orphan: no pair is guessed.

use super::chunks::Chunks;
use super::head::{Framing, RequestHead, ResponseHead};
use super::{Http1, ReadState};
use crate::direction::{HeadOutcome, Start};
use crate::figures::{Exchange, StatusClass};
use crate::ledger::Ledger;
use crate::method::Method;
use crate::piece::{Context, Moment, Piece, Side, between, is_after};

/// Most pipelined requests that may wait on one connection.
const MOST_WAITING: usize = 128;

/// The kind of gap between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    None,
    /// The end of a head that the snap length cut.
    Cut,
    /// Bytes that were not captured or not understood.
    Loss,
}

/// A request whose response has not ended.
pub(super) struct Request {
    pub(super) start: u32,
    /// Sequence number behind the last byte so far.
    pub(super) end: u32,
    pub(super) ack: Option<u32>,
    pub(super) method: Method,
    pub(super) route: u8,
    /// Its last byte so far.
    pub(super) last: Moment,
    /// `last` is its end.
    pub(super) whole: bool,
    /// Its end was not captured.
    pub(super) end_lost: bool,
    /// Requests before it may have been missed.
    pub(super) after_gap: Gap,
}

/// The response that is under way.
pub(super) struct Answer {
    /// It answers the first of the requests; otherwise it is an orphan.
    pub(super) paired: bool,
    pub(super) status: u16,
    pub(super) first: Moment,
    /// Bytes before the first one may be missing.
    pub(super) first_late: bool,
    pub(super) last: Moment,
    /// Sequence number of its first byte.
    pub(super) start: u32,
    /// Sequence number behind the last captured byte.
    pub(super) end: u32,
    /// The last byte of the request that was captured before the answer began.
    pub(super) request_end: Moment,
    /// Bytes of other messages may have been taken for its own, so its last byte is not known.
    pub(super) end_uncertain: bool,
}

/// Which request a response answers.
enum Pairing {
    First,
    Orphan,
    Wait,
}

impl Http1 {
    pub(super) fn begin_request(
        &mut self,
        head: RequestHead,
        route: u8,
        start: Start,
        length: u32,
        piece: &Piece<'_>,
        context: &mut Context<'_>,
    ) {
        self.settle(start.ack, context);
        let ledger = &mut *context.ledger;
        let after_gap = std::mem::replace(&mut self.gap, Gap::None);
        self.open = self.requests.len() < MOST_WAITING && (self.requests.is_empty() || !ledger.is_full());
        if self.open {
            ledger.waiting += 1;
            self.requests.push_back(Request {
                start: start.seq,
                end: start.seq.wrapping_add(length),
                ack: start.ack,
                method: head.method,
                route,
                last: start.at.later(Moment::of(piece)),
                whole: false,
                end_lost: false,
                after_gap,
            });
        } else {
            ledger.counts.refused += 1;
            self.gap = Gap::Loss;
        }
        match head.framing {
            Framing::None => self.finish(Side::Client, true, context),
            Framing::Length(length) => self.directions.client.state = ReadState::Length(length),
            Framing::Chunked => self.directions.client.state = ReadState::Chunked(Chunks::new()),
            Framing::UntilClose | Framing::Unknown => {
                self.gap = if self.gap == Gap::Loss { Gap::Loss } else { Gap::Cut };
                self.directions.client.state = ReadState::Search;
            }
        }
    }

    /// Ends a response whose end was lost, when a request acknowledges exactly the bytes of it that were captured.
    fn settle(&mut self, ack: Option<u32>, context: &mut Context<'_>) {
        if self.directions.server.state != ReadState::Search || self.requests.len() != 1 {
            return;
        }
        if let Some(answer) = &self.answer
            && answer.paired
            && ack == Some(answer.end)
        {
            let known = !answer.end_uncertain && self.gap != Gap::Loss;
            self.finish(Side::Server, known, context);
        }
    }

    /// Finds the request that a response answers, gives up the requests before it, and follows the response's body.
    pub(super) fn begin_answer(
        &mut self,
        head: ResponseHead,
        start: Start,
        length: usize,
        piece: &Piece<'_>,
        context: &mut Context<'_>,
    ) -> HeadOutcome {
        let status = head.status;
        if (100..200).contains(&status) && status != 101 {
            // An interim response shows which request is answered, as the final response does.
            self.find_request(start, context);
            if head.framing == Framing::Unknown {
                self.lose_framing(Side::Server);
            }
            return HeadOutcome::Bytes(length);
        }
        let paired = match self.find_request(start, context) {
            Pairing::First => true,
            Pairing::Orphan => false,
            Pairing::Wait => return HeadOutcome::Wait,
        };
        context.ledger.counts.orphan_responses += u64::from(!paired);
        let request = self.requests.front().filter(|_| paired);
        let method = request.map_or("", |request| request.method.as_str());
        let switches = status == 101 || (method == "CONNECT" && (200..300).contains(&status));
        let framing = match head.framing {
            Framing::Unknown => Framing::Unknown,
            _ if switches || method == "HEAD" || status == 204 || status == 304 => Framing::None,
            framing => framing,
        };
        self.answer = Some(Answer {
            paired,
            status,
            first: start.at,
            first_late: context.is_late,
            last: start.at.later(Moment::of(piece)),
            start: start.seq,
            end: start.seq.wrapping_add(length as u32),
            request_end: request.map_or(start.at, |request| request.last),
            end_uncertain: false,
        });
        match framing {
            Framing::None => self.finish(Side::Server, true, context),
            Framing::Length(length) => self.directions.server.state = ReadState::Length(length),
            Framing::Chunked => self.directions.server.state = ReadState::Chunked(Chunks::new()),
            Framing::UntilClose => self.directions.server.state = ReadState::UntilClose,
            Framing::Unknown => self.lose_framing(Side::Server),
        }
        if switches {
            self.become_opaque(context.ledger);
        }
        HeadOutcome::Bytes(length)
    }

    fn find_request(&mut self, start: Start, context: &mut Context<'_>) -> Pairing {
        let first = self.requests.front();
        let candidate = if self.resync || first.is_some_and(|request| request.after_gap != Gap::None) {
            self.requests.iter().position(|request| request.ack == Some(start.seq))
        } else {
            first.map(|_| 0)
        };
        // The server can't have answered a request that it had not received when it sent this.
        let received = |request: &Request| start.ack.is_none_or(|ack| is_after(ack, request.start));
        match candidate {
            Some(position) if received(&self.requests[position]) => {
                self.give_up(position, context.ledger);
                self.requests[0].after_gap = Gap::None;
                self.resync = false;
                Pairing::First
            }
            Some(_) => Pairing::Orphan,
            // The request may still arrive, because captures of several queues are not in order.
            None if context.patient
                && context.client_next.zip(start.ack).is_some_and(|(next, ack)| is_after(ack, next)) =>
            {
                Pairing::Wait
            }
            None => Pairing::Orphan,
        }
    }

    /// Ends the message of a direction; `known`: its last byte was captured.
    pub(super) fn finish(&mut self, side: Side, known: bool, context: &mut Context<'_>) {
        self.direction(side).state = ReadState::Head;
        let known = known && !context.is_late;
        if side == Side::Client {
            if self.open
                && let Some(request) = self.requests.back_mut()
            {
                request.whole = true;
                request.end_lost = !known;
            }
            self.open = false;
            return;
        }
        let Some(answer) = self.answer.take() else { return };
        if !answer.paired {
            return;
        }
        let Some(request) = self.pop(context.ledger) else { return };
        // A response may begin before its request ends; then the request's last byte before the response counts.
        let request_end_before = |moment: Moment| {
            let in_time = request.whole && request.last.time_ns <= moment.time_ns;
            if in_time { request.last } else { answer.request_end }
        };
        let request_end = request_end_before(answer.last);
        let is_known = |end_known: bool| end_known && !request.end_lost;
        let [client, server] = context.addresses();
        context.ledger.exchange(Exchange {
            request_frame: request_end.frame,
            response_frame: answer.last.frame,
            stream: context.stream,
            client,
            server,
            time_ns: request_end.time_ns,
            last_byte_ns: between(request_end, answer.last).filter(|_| is_known(known)),
            first_byte_ns: between(request_end_before(answer.first), answer.first)
                .filter(|_| is_known(!answer.first_late)),
            method: request.method,
            status: answer.status,
            word: "",
            class: StatusClass::of_http(answer.status),
            protocol: context.protocol,
            route: request.route,
            request_bytes: request.end.wrapping_sub(request.start),
            response_bytes: answer.end.wrapping_sub(answer.start),
        });
    }

    /// Gives up the response that is under way.
    pub(super) fn break_off(&mut self, ledger: &mut Ledger) {
        if let Some(answer) = self.answer.take()
            && answer.paired
        {
            ledger.counts.unfinished_responses += 1;
            self.pop(ledger);
        }
    }

    fn pop(&mut self, ledger: &mut Ledger) -> Option<Request> {
        let request = self.requests.pop_front()?;
        ledger.waiting -= 1;
        self.open &= !self.requests.is_empty();
        Some(request)
    }

    /// Gives up the first requests, which get no answer.
    pub(super) fn give_up(&mut self, count: usize, ledger: &mut Ledger) {
        for _ in 0..count {
            self.pop(ledger);
        }
        ledger.counts.unmatched_requests += count as u64;
    }

    pub(super) fn become_opaque(&mut self, ledger: &mut Ledger) {
        self.directions.forget_all(ledger);
        self.directions.client.state = ReadState::Opaque;
        self.directions.server.state = ReadState::Opaque;
        self.give_up(self.requests.len(), ledger);
    }
}
