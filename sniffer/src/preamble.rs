//! The PROXY protocol: a connection may begin with a line (version 1) or a block (version 2) that names the client whose
//! requests a balancer passes on. It belongs to no message, so the protocol behind it never sees it.
//!
//! Form: HAProxy's doc/proxy-protocol.txt.

use crate::piece::{Context, Piece, Side};
use crate::protocol::Dialogue;

/// How a preamble of version 1 starts; its line has at most `LONGEST_LINE` bytes, the line end included.
const LINES: [&[u8]; 3] = [b"PROXY TCP4 ", b"PROXY TCP6 ", b"PROXY UNKNOWN"];
const LONGEST_LINE: usize = 107;
/// How one of version 2 starts: the signature, a byte with the version in its upper half and the command, one with the
/// family, and in two bytes how many follow.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const HEAD: usize = 16;

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq)]
enum Found {
    /// A preamble of so many bytes.
    Length(u32),
    /// The start of one, perhaps.
    Short,
    None,
}

fn find(bytes: &[u8]) -> Found {
    let starts = |form: &[u8]| {
        let length = bytes.len().min(form.len());
        bytes[..length] == form[..length]
    };
    if starts(SIGNATURE) {
        return match bytes.get(SIGNATURE.len()).map(|byte| byte >> 4) {
            Some(2) | None => match bytes.get(HEAD - 2..HEAD) {
                Some(length) => Found::Length(HEAD as u32 + u32::from(u16::from_be_bytes([length[0], length[1]]))),
                None => Found::Short,
            },
            Some(_) => Found::None,
        };
    }
    if !LINES.iter().any(|form| starts(form)) {
        return Found::None;
    }
    match memchr::memchr(b'\n', &bytes[..bytes.len().min(LONGEST_LINE)]) {
        Some(end) => Found::Length(end as u32 + 1),
        None if bytes.len() < LONGEST_LINE => Found::Short,
        None => Found::None,
    }
}

/// The first bytes, which may be the start of a preamble, and where they stood.
pub struct Begun {
    bytes: Vec<u8>,
    seq: u32,
    ack: Option<u32>,
    time_ns: u64,
    frame: u64,
}

/// What is known of a connection's preamble.
pub enum Preamble {
    /// No byte of the client was seen yet.
    Awaited,
    /// What came so far may be the start of one.
    Begun(Box<Begun>),
    /// So many of its bytes are to come.
    Rest(u32),
    /// It is over, or there was none.
    Over,
}

impl Preamble {
    /// Passes over what belongs to the preamble and gives the rest of the client's bytes to the dialogue; returns how many
    /// were taken.
    pub fn read(&mut self, piece: &Piece<'_>, dialogue: &mut Dialogue, context: &mut Context<'_>) -> u32 {
        let (found, before) = match self {
            Preamble::Over => return dialogue.read(Side::Client, piece, context),
            Preamble::Rest(left) => (Found::Length(*left), 0),
            Preamble::Awaited => (find(piece.bytes), 0),
            Preamble::Begun(begun) => {
                let before = begun.bytes.len();
                let room = piece.bytes.len().min(LONGEST_LINE);
                begun.bytes.extend_from_slice(&piece.bytes[..room]);
                (find(&begun.bytes), before)
            }
        };
        match found {
            Found::Length(length) => {
                let skip = length.saturating_sub(before as u32);
                let here = skip.min(piece.length());
                *self = if here < skip { Preamble::Rest(skip - here) } else { Preamble::Over };
                let rest = piece.from(here);
                if rest.length() == 0 { here } else { here + dialogue.read(Side::Client, &rest, context) }
            }
            Found::Short if piece.cut > 0 => {
                // It, or a request's head, ends in what was cut: where is not known.
                *self = Preamble::Over;
                dialogue.hole(Side::Client, piece.length(), context);
                piece.length()
            }
            Found::Short => {
                if let Preamble::Awaited = self {
                    let Piece { seq, ack, time_ns, frame, bytes, .. } = *piece;
                    *self = Preamble::Begun(Box::new(Begun { bytes: bytes.to_vec(), seq, ack, time_ns, frame }));
                }
                piece.length()
            }
            Found::None => {
                if let Preamble::Begun(begun) = std::mem::replace(self, Preamble::Over) {
                    let Begun { bytes, seq, ack, time_ns, frame } = *begun;
                    let held = Piece { seq, ack, time_ns, frame, bytes: &bytes[..before], cut: 0 };
                    dialogue.read(Side::Client, &held, context);
                }
                dialogue.read(Side::Client, piece, context)
            }
        }
    }

    /// The client's next bytes are missing for good; returns how many of them were no preamble's.
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

    /// The position in the client's bytes is lost.
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
        assert_eq!(find(&[v1, &b"GET / HTTP/1.1\r\n"[..]].concat()), Found::Length(v1.len() as u32));
        assert_eq!(find(b"PROXY UNKNOWN\r\n"), Found::Length(15));
        assert_eq!(find(b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\nGET"), Found::Length(35));
        let v2 = [SIGNATURE, b"\x21\x11\x00\x0c"].concat();
        assert_eq!(find(&v2), Found::Length(28));
        assert_eq!(find(&[SIGNATURE, b"\x20\x00\x00\x00"].concat()), Found::Length(16), "LOCAL");
        assert_eq!(find(&[SIGNATURE, b"\x31\x11\x00\x0c"].concat()), Found::None, "no such version");
        for start in [&b"P"[..], b"PROXY ", b"PROXY TCP6 ", b"\r\n", &v2[..13], &v2[..15]] {
            assert_eq!(find(start), Found::Short, "{start:?}");
        }
        let long = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat();
        for other in [&b"GET / HTTP/1.1\r\n"[..], b"PROPFIND /", b"PROXY /x HTTP/1.1\r\n", b"\r\nGET", &long] {
            assert_eq!(find(other), Found::None, "{other:?}");
        }
    }
}
