//! Whether a server answers in the protocol that its port is taken for.
//!
//! The answers decide, not the requests: anybody may send anything to a port, but only a server of another protocol answers
//! in that protocol. A connection of which the start was seen shows it with its first answer. One that is met in the middle
//! of a message shows it when a second answer in a row starts no message either.

use crate::answers::{Ports, SIGNS, Sign};
use crate::piece::{Piece, Side};

/// Of an answer that the snap length cut, so many bytes show whether it starts a message.
const LEAST_BYTES: usize = 16;

/// A frame of a WebSocket: the client masks its own, the server does not.
fn is_web_socket(bytes: &[u8], side: Side) -> bool {
    let [first, second, ..] = *bytes else { return false };
    let is_masked = second & 0x80 != 0;
    first & 0xb0 == 0x80 && matches!(first & 0x0f, 0..=2 | 8..=10) && is_masked == (side == Side::Client)
}

/// One connection.
pub struct Listening {
    /// The server's next bytes are an answer: the client spoke since its last ones, or it has not spoken yet.
    asked: bool,
    /// Its first bytes were not seen yet, and nothing before them was missed.
    at_start: bool,
    /// Answers in a row that started no message.
    strange: u8,
    /// What the client's first bytes look like.
    client: Option<&'static Sign>,
    /// The client's last turn began as a frame of a WebSocket.
    frames: bool,
}

impl Listening {
    /// A connection of which nothing was seen.
    pub fn new() -> Self {
        Self { asked: false, at_start: false, strange: 0, client: None, frames: false }
    }

    /// The server's direction starts here.
    pub fn open(&mut self) {
        (self.asked, self.at_start) = (true, true);
    }

    /// Bytes are missing: what comes next says nothing.
    pub fn lose(&mut self) {
        (self.asked, self.at_start, self.strange) = (false, false, 0);
    }

    /// The client spoke.
    pub fn ask(&mut self, piece: &Piece<'_>) {
        if !self.asked || self.at_start {
            self.frames = is_web_socket(piece.bytes, Side::Client);
            if self.client.is_none() && (self.at_start || self.strange > 0) {
                self.client = SIGNS.iter().find(|sign| sign.is_of_client(piece.bytes));
            }
        }
        self.asked = true;
    }

    /// The server spoke; `is_message`: its bytes belong to a message.
    pub fn answer(
        &mut self,
        piece: &Piece<'_>,
        is_message: bool,
        port: u16,
        taken_for: &'static str,
        ports: &mut Ports,
    ) {
        let is_answer = std::mem::take(&mut self.asked);
        let at_start = std::mem::take(&mut self.at_start);
        if !is_answer {
            return;
        }
        if piece.cut > 0 && piece.bytes.len() < LEAST_BYTES {
            return self.lose();
        }
        if is_message {
            self.strange = 0;
            ports.understood(port, taken_for);
            return;
        }
        // Of an upgrade that was not seen.
        if !at_start && self.frames && is_web_socket(piece.bytes, Side::Server) {
            return;
        }
        self.strange = if at_start { 2 } else { (self.strange + 1).min(2) };
        if self.strange == 2 {
            let by_server = || SIGNS.iter().find(|sign| sign.is_of_server(piece.bytes));
            ports.strange(port, taken_for, self.client.or_else(by_server));
        }
    }
}
