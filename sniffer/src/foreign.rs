//! Whether a server answers in the protocol that its port is taken for.
//!
//! The answers decide, not the requests: anybody may send anything to a port, but only a server of another protocol
//! answers in that protocol. On a connection that was captured from its start, the first answer decides. On any other
//! connection, which may have been met in the middle of a message, two answers in a row that start no message do.

use crate::answers::{Ports, SIGNS, Sign};
use crate::piece::{Piece, Side};

/// Bytes of a cut answer that are needed to see whether it starts a message.
const LEAST_BYTES: usize = 16;

/// Whether these bytes start a WebSocket frame. A client masks its frames, a server does not.
fn is_web_socket(bytes: &[u8], side: Side) -> bool {
    let [first, second, ..] = *bytes else { return false };
    let is_masked = second & 0x80 != 0;
    first & 0xb0 == 0x80 && matches!(first & 0x0f, 0..=2 | 8..=10) && is_masked == (side == Side::Client)
}

/// The protocol that the answers on one connection have shown so far.
pub struct Listening {
    /// The server's next bytes are an answer: the client has sent bytes since, or the server has sent none.
    expects_answer: bool,
    /// The server's first bytes are still to come, and nothing before them was missed.
    at_start: bool,
    /// Answers in a row that started no message.
    strange: u8,
    /// The protocol of the client's first bytes.
    client: Option<&'static Sign>,
    /// The client's last turn began with a WebSocket frame.
    has_frames: bool,
}

impl Listening {
    /// A connection without any bytes so far.
    pub fn new() -> Self {
        Self { expects_answer: false, at_start: false, strange: 0, client: None, has_frames: false }
    }

    /// The server's direction starts here.
    pub fn open(&mut self) {
        (self.expects_answer, self.at_start) = (true, true);
    }

    /// Bytes are missing, so the next bytes show nothing.
    pub fn lose(&mut self) {
        (self.expects_answer, self.at_start, self.strange) = (false, false, 0);
    }

    /// Takes bytes of the client.
    pub fn ask(&mut self, piece: &Piece<'_>) {
        if !self.expects_answer || self.at_start {
            self.has_frames = is_web_socket(piece.bytes, Side::Client);
            if self.client.is_none() && (self.at_start || self.strange > 0) {
                self.client = SIGNS.iter().find(|sign| sign.matches_client(piece.bytes));
            }
        }
        self.expects_answer = true;
    }

    /// Takes bytes of the server; `is_message`: they belong to a message of the expected protocol.
    pub fn answer(
        &mut self,
        piece: &Piece<'_>,
        is_message: bool,
        port: u16,
        taken_for: &'static str,
        ports: &mut Ports,
    ) {
        let is_answer = std::mem::take(&mut self.expects_answer);
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
        // The connection became a WebSocket before it was captured.
        if !at_start && self.has_frames && is_web_socket(piece.bytes, Side::Server) {
            return;
        }
        self.strange = if at_start { 2 } else { (self.strange + 1).min(2) };
        if self.strange == 2 {
            let by_server = || SIGNS.iter().find(|sign| sign.matches_server(piece.bytes));
            ports.strange(port, taken_for, self.client.or_else(by_server));
        }
    }
}
