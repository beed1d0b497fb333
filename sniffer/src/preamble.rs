//! The PROXY protocol: a connection may begin with a line (version 1) or a block (version 2) that names the client whose
//! requests a balancer passes on. It belongs to no message, so the protocol behind it never sees it.
//!
//! Form: HAProxy's doc/proxy-protocol.txt.

use crate::piece::{Context, Piece, Side};
use crate::protocol::Dialogue;

/// The starts of a preamble of version 1, whose line has at most `LONGEST_LINE` bytes, line end included.
const LINES: [&[u8]; 3] = [b"PROXY TCP4 ", b"PROXY TCP6 ", b"PROXY UNKNOWN"];
const LONGEST_LINE: usize = 107;
/// The start of a preamble of version 2. A byte with version and command follows, a byte with the address family, and
/// in two bytes the number of further bytes.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const HEAD: usize = 16;

/// The first bytes of a connection.
#[derive(Debug, PartialEq)]
enum Opening {
    /// They start with a preamble of this length in bytes.
    Preamble(u32),
    /// They may be the start of a preamble.
    Undecided,
    /// They are no preamble.
    Other,
}

fn opening(bytes: &[u8]) -> Opening {
    let starts = |form: &[u8]| {
        let length = bytes.len().min(form.len());
        bytes[..length] == form[..length]
    };
    if starts(SIGNATURE) {
        return match bytes.get(SIGNATURE.len()).map(|byte| byte >> 4) {
            Some(2) | None => match bytes.get(HEAD - 2..HEAD) {
                Some(length) => Opening::Preamble(HEAD as u32 + u32::from(u16::from_be_bytes([length[0], length[1]]))),
                None => Opening::Undecided,
            },
            Some(_) => Opening::Other,
        };
    }
    if !LINES.iter().any(|form| starts(form)) {
        return Opening::Other;
    }
    match memchr::memchr(b'\n', &bytes[..bytes.len().min(LONGEST_LINE)]) {
        Some(end) => Opening::Preamble(end as u32 + 1),
        None if bytes.len() < LONGEST_LINE => Opening::Undecided,
        None => Opening::Other,
    }
}

/// The first bytes, which may be the start of a preamble, with their position.
pub struct HeldStart {
    bytes: Vec<u8>,
    seq: u32,
    ack: Option<u32>,
    time_ns: u64,
    frame: u64,
}

/// The state of a connection's preamble.
pub enum Preamble {
    /// The client has sent no byte yet.
    Awaited,
    /// The bytes so far may be the start of a preamble.
    Started(Box<HeldStart>),
    /// Bytes of the preamble that are still to come.
    Rest(u32),
    /// It is over, or there was none.
    Over,
}

impl Preamble {
    /// Passes over the bytes of the preamble and gives the client's other bytes to the dialogue; returns the number of
    /// bytes that were taken.
    pub fn read(&mut self, piece: &Piece<'_>, dialogue: &mut Dialogue, context: &mut Context<'_>) -> u32 {
        let (opening, before) = match self {
            Preamble::Over => return dialogue.read(Side::Client, piece, context),
            Preamble::Rest(left) => (Opening::Preamble(*left), 0),
            Preamble::Awaited => (opening(piece.bytes), 0),
            Preamble::Started(start) => {
                let before = start.bytes.len();
                let room = piece.bytes.len().min(LONGEST_LINE);
                start.bytes.extend_from_slice(&piece.bytes[..room]);
                (opening(&start.bytes), before)
            }
        };
        match opening {
            Opening::Preamble(length) => {
                let skip = length.saturating_sub(before as u32);
                let here = skip.min(piece.length());
                *self = if here < skip { Preamble::Rest(skip - here) } else { Preamble::Over };
                let rest = piece.from(here);
                if rest.length() == 0 { here } else { here + dialogue.read(Side::Client, &rest, context) }
            }
            Opening::Undecided if piece.cut > 0 => {
                // The preamble, or a request's head, ends somewhere in the bytes that were cut.
                *self = Preamble::Over;
                dialogue.hole(Side::Client, piece.length(), context);
                piece.length()
            }
            Opening::Undecided => {
                if let Preamble::Awaited = self {
                    let Piece { seq, ack, time_ns, frame, bytes, .. } = *piece;
                    *self = Preamble::Started(Box::new(HeldStart { bytes: bytes.to_vec(), seq, ack, time_ns, frame }));
                }
                piece.length()
            }
            Opening::Other => {
                if let Preamble::Started(start) = std::mem::replace(self, Preamble::Over) {
                    let HeldStart { bytes, seq, ack, time_ns, frame } = *start;
                    let held = Piece { seq, ack, time_ns, frame, bytes: &bytes[..before], cut: 0 };
                    dialogue.read(Side::Client, &held, context);
                }
                dialogue.read(Side::Client, piece, context)
            }
        }
    }

    /// Passes over missing bytes of the client; returns how many of them are not part of the preamble.
    pub fn hole(&mut self, length: u32) -> u32 {
        match self {
            Preamble::Rest(left) if *left > length => {
                *left -= length;
                0
            }
            Preamble::Rest(left) => {
                let rest = length - *left;
                *self = Preamble::Over;
                rest
            }
            _ => {
                *self = Preamble::Over;
                length
            }
        }
    }

    /// Notes that the position in the client's bytes is lost.
    pub fn lose(&mut self) {
        *self = Preamble::Over;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preamble_is_told_from_a_request_by_its_first_bytes() {
        let v1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
        assert_eq!(opening(&[v1, &b"GET / HTTP/1.1\r\n"[..]].concat()), Opening::Preamble(v1.len() as u32));
        assert_eq!(opening(b"PROXY UNKNOWN\r\n"), Opening::Preamble(15));
        assert_eq!(opening(b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\nGET"), Opening::Preamble(35));
        let v2 = [SIGNATURE, b"\x21\x11\x00\x0c"].concat();
        assert_eq!(opening(&v2), Opening::Preamble(28));
        assert_eq!(opening(&[SIGNATURE, b"\x20\x00\x00\x00"].concat()), Opening::Preamble(16), "LOCAL");
        assert_eq!(opening(&[SIGNATURE, b"\x31\x11\x00\x0c"].concat()), Opening::Other, "no such version");
        for start in [&b"P"[..], b"PROXY ", b"PROXY TCP6 ", b"\r\n", &v2[..13], &v2[..15]] {
            assert_eq!(opening(start), Opening::Undecided, "{start:?}");
        }
        let long = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat();
        for other in [&b"GET / HTTP/1.1\r\n"[..], b"PROPFIND /", b"PROXY /x HTTP/1.1\r\n", b"\r\nGET", &long] {
            assert_eq!(opening(other), Opening::Other, "{other:?}");
        }
    }
}
