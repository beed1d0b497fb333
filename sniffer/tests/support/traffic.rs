//! Generated traffic: many connections at a time, whose response times and numbers of requests differ widely.

use super::{Dice, Frame, OK, START_NS, Talk};

/// The properties of the connections.
#[derive(Debug, Clone, Copy)]
pub struct Traffic {
    pub connections: usize,
    /// A connection has from one to so many requests; short connections are more frequent.
    pub most_requests: usize,
    /// The milliseconds over which their starts are spread.
    pub opened_within_ms: usize,
}

const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
const FAILED: &[u8] = b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n";

impl Traffic {
    /// Frames in the order of time. One request in eight takes some hundred milliseconds, the others some.
    pub fn frames(&self, seed: u64) -> Vec<Frame> {
        let mut dice = Dice::new(seed);
        let mut frames: Vec<Frame> =
            (0..self.connections).flat_map(|number| self.connection(number, &mut dice)).collect();
        frames.sort_by_key(|frame| frame.time_ns);
        frames
    }

    fn connection(&self, number: usize, dice: &mut Dice) -> Vec<Frame> {
        let mut talk = Talk::silent();
        talk.client_port = 10_000 + number as u16;
        talk.step_ns = 20_000;
        talk.now_ns = START_NS + dice.roll(self.opened_within_ms * 1_000) as u64 * 1_000;
        talk.handshake();
        let most = 1 + dice.roll(self.most_requests);
        for _ in 0..1 + dice.roll(most) {
            talk.client(GET);
            let slow = if dice.roll(8) == 0 { 100 + dice.roll(400) } else { 1 + dice.roll(20) };
            talk.pause(slow as u64);
            talk.server(if dice.roll(50) == 0 { FAILED } else { OK });
            talk.client_acks();
            talk.pause(dice.roll(60) as u64);
        }
        talk.client_ends();
        talk.server_ends();
        talk.frames
    }
}
