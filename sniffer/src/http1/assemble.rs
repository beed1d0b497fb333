//! Puts heads together, from one segment in place or from several, and begins their messages.

use super::{Http1, head};
use crate::direction::{HeadOutcome, Start};
use crate::piece::{Context, Moment, Piece, Side};

/// The longest head that is put together from several segments, in bytes.
const LONGEST_HEAD: usize = 64 * 1024;

impl Http1 {
    /// Reads a head, or more of it, from position `at`; returns the position behind it, `None` to wait for the other
    /// direction.
    pub(super) fn head(
        &mut self,
        side: Side,
        piece: &Piece<'_>,
        at: usize,
        context: &mut Context<'_>,
    ) -> Option<usize> {
        let bytes = &piece.bytes[at..];
        let is_cut = piece.cut > 0;
        if self.direction(side).held.is_empty() {
            let blank = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
            if blank > 0 {
                return Some(at + blank);
            }
            let start = Start { seq: piece.seq.wrapping_add(at as u32), ack: piece.ack, at: Moment::of(piece) };
            match self.message(side, start, bytes, is_cut, piece, context) {
                HeadOutcome::Bytes(length) => Some(at + length),
                HeadOutcome::Wait => None,
                HeadOutcome::Bad => Some(self.malformed(side, piece, context)),
                HeadOutcome::Short if bytes.len() <= LONGEST_HEAD && context.ledger.hold(bytes.len()) => {
                    let direction = self.direction(side);
                    direction.held.extend_from_slice(bytes);
                    direction.start = Some(start);
                    Some(piece.bytes.len())
                }
                HeadOutcome::Short => Some(self.malformed(side, piece, context)),
            }
        } else {
            let mut held = std::mem::take(&mut self.direction(side).held);
            let before = held.len();
            let room = bytes.len().min(LONGEST_HEAD - before.min(LONGEST_HEAD));
            held.extend_from_slice(&bytes[..room]);
            let end = head::end(&held, before.saturating_sub(3));
            let start = self.direction(side).start;
            let taken = match (end, start) {
                (Some(end), Some(start)) => self.message(side, start, &held[..end], true, piece, context),
                (None, Some(start)) if is_cut => self.message(side, start, &held, true, piece, context),
                (None, Some(_)) if room == bytes.len() && context.ledger.hold(room) => HeadOutcome::Short,
                _ => HeadOutcome::Bad,
            };
            match taken {
                HeadOutcome::Bytes(length) => {
                    context.ledger.release(before);
                    Some(at + length - before)
                }
                HeadOutcome::Short => {
                    self.direction(side).held = held;
                    Some(piece.bytes.len())
                }
                HeadOutcome::Wait => {
                    held.truncate(before);
                    self.direction(side).held = held;
                    None
                }
                HeadOutcome::Bad => {
                    context.ledger.release(before);
                    Some(self.malformed(side, piece, context))
                }
            }
        }
    }

    /// Counts bytes that are no message, and passes over the rest of the segment.
    fn malformed(&mut self, side: Side, piece: &Piece<'_>, context: &mut Context<'_>) -> usize {
        context.ledger.counts.malformed += 1;
        self.lose_framing(side);
        piece.bytes.len()
    }

    /// Begins the message whose head is at the start of the bytes. `complete`: no more of the head will arrive.
    fn message(
        &mut self,
        side: Side,
        start: Start,
        bytes: &[u8],
        complete: bool,
        piece: &Piece<'_>,
        context: &mut Context<'_>,
    ) -> HeadOutcome {
        match side {
            Side::Client => match head::request(bytes) {
                _ if !head::may_start_request(bytes) => HeadOutcome::Bad,
                None if head::is_http2(bytes) => {
                    self.become_opaque(context.ledger);
                    self.is_http2 = true;
                    HeadOutcome::Bytes(bytes.len())
                }
                None => HeadOutcome::Bad,
                Some((_, None)) if !complete => HeadOutcome::Short,
                Some((head, end)) => {
                    let route = context.ledger.route(head::target(bytes));
                    let length = end.unwrap_or(bytes.len()) as u32;
                    self.begin_request(head, route, start, length, piece, context);
                    HeadOutcome::Bytes(end.unwrap_or(bytes.len()))
                }
            },
            Side::Server => match head::response(bytes) {
                _ if !head::may_start_response(bytes) => HeadOutcome::Bad,
                None if !complete && memchr::memchr(b'\n', bytes).is_none() => HeadOutcome::Short,
                None => HeadOutcome::Bad,
                Some((_, None)) if !complete => HeadOutcome::Short,
                Some((head, end)) => self.begin_answer(head, start, end.unwrap_or(bytes.len()), piece, context),
            },
        }
    }
}
