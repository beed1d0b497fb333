//! Reads heads of HTTP/1.x messages, as far as is needed to know where a message ends and which request it answers.
//!
//! One scanner reads complete heads, heads that the snap length cut, and heads that no strict parser accepts; a library
//! gives no result for a cut head. Framing: RFC 9112, section 6.

use crate::direction::line;
use crate::method::Method;

/// How a message's body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// The message has no body.
    None,
    /// The body has this many bytes.
    Length(u64),
    /// The body ends with its last chunk.
    Chunked,
    /// The body ends with the connection.
    UntilClose,
    /// The head was not captured whole, so the end is not known.
    Unknown,
}

/// The fields of a request's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// Its method.
    pub method: Method,
    /// How its body ends.
    pub framing: Framing,
}

/// The fields of a response's head, before the request that it answers is considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status code.
    pub status: u16,
    /// How its body ends unless method or status mean that there is none.
    pub framing: Framing,
}

/// The longest valid method, in bytes.
const LONGEST_METHOD: usize = 255;

/// A character of a token (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The method at the start of the bytes; `None` when they start no request.
fn method(bytes: &[u8]) -> Option<&[u8]> {
    let length = bytes.iter().take(LONGEST_METHOD + 1).take_while(|b| is_token(**b)).count();
    let token = &bytes[..length];
    let ends = bytes.get(length).is_none_or(|b| *b == b' ');
    (length > 0 && length <= LONGEST_METHOD && ends).then_some(token)
}

/// False when these can't be the first bytes of a request.
pub fn may_start_request(bytes: &[u8]) -> bool {
    method(bytes).is_some()
}

/// False when these can't be the first bytes of a response.
pub fn may_start_response(bytes: &[u8]) -> bool {
    const START: &[u8] = b"HTTP/1.";
    let length = bytes.len().min(START.len());
    bytes[..length] == START[..length]
}

/// Whether a segment certainly starts with a request: its first line ends with the version, or the segment ends before
/// that and holds a method and the start of a target.
pub fn starts_request(bytes: &[u8]) -> bool {
    let Some(method) = method(bytes) else { return false };
    let Some(target) = bytes.get(method.len() + 1..) else { return false };
    match line(target) {
        Some((line, _)) => is_version_1(line),
        // In a cut line only a usual method is certain, because any text may start with a word and a slash.
        None => is_usual(method) && matches!(target.first(), Some(b'/' | b'h' | b'*')),
    }
}

fn is_usual(method: &[u8]) -> bool {
    method.len() >= 3 && method.iter().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_'))
}

/// Whether a segment certainly starts with a response.
pub fn starts_response(bytes: &[u8]) -> bool {
    bytes.len() >= 12 && status(bytes).is_some()
}

/// Whether the client speaks HTTP/2 with prior knowledge, which this parser does not read.
pub fn is_http2(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PRI * HTTP/2")
}

/// The target of the request at the start of the bytes, as far as it was captured.
pub fn target(bytes: &[u8]) -> &[u8] {
    let Some(rest) = method(bytes).and_then(|method| bytes.get(method.len() + 1..)) else { return &[] };
    let end = memchr::memchr3(b' ', b'\r', b'\n', rest).unwrap_or(rest.len());
    &rest[..end]
}

fn is_version_1(target_and_version: &[u8]) -> bool {
    let text = target_and_version.trim_ascii_end();
    text.len() > 8 && text[..text.len() - 1].ends_with(b" HTTP/1.") && text[text.len() - 1].is_ascii_digit()
}

fn status(bytes: &[u8]) -> Option<u16> {
    let rest = bytes.strip_prefix(b"HTTP/1.")?;
    let (version, rest) = rest.split_first()?;
    let code = rest.strip_prefix(b" ")?.trim_ascii_start();
    let digits: [u8; 3] = code.get(..3)?.try_into().ok()?;
    let ends = code.get(3).is_none_or(|b| !b.is_ascii_digit());
    if !version.is_ascii_digit() || !ends || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let code = digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    (100..=999).contains(&code).then_some(code)
}

/// The header fields about the body, and the end of the head if it is there.
#[derive(Default)]
struct Fields {
    end: Option<usize>,
    length: Option<u64>,
    bad_length: bool,
    encoded: bool,
    chunked: bool,
}

fn fields(bytes: &[u8], mut position: usize) -> Fields {
    let mut fields = Fields::default();
    while let Some((text, next)) = line(&bytes[position..]) {
        position += next;
        match text.first() {
            None => {
                fields.end = Some(position);
                break;
            }
            Some(b'c' | b'C') => {
                if let Some(value) = value(text, b"content-length:") {
                    match content_length(value) {
                        Some(length) if fields.length.is_none_or(|other| other == length) => {
                            fields.length = Some(length);
                        }
                        _ => fields.bad_length = true,
                    }
                }
            }
            Some(b't' | b'T') => {
                if let Some(value) = value(text, b"transfer-encoding:") {
                    let last = value.rsplit(|b| *b == b',').next().unwrap_or(value);
                    // `identity` is an old name for no coding.
                    fields.encoded |= !value.trim_ascii().eq_ignore_ascii_case(b"identity");
                    fields.chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
                }
            }
            _ => {}
        }
    }
    fields
}

fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(rest)
}

fn content_length(value: &[u8]) -> Option<u64> {
    let mut lengths = value.split(|b| *b == b',').map(|text| {
        let text = text.trim_ascii();
        if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
            return None;
        }
        Some(text.iter().fold(0u64, |length, digit| length * 10 + u64::from(digit - b'0')))
    });
    let first = lengths.next()??;
    lengths.all(|length| length == Some(first)).then_some(first)
}

/// A head and how many bytes it took; the length is `None` when the bytes end before the head does.
pub type HeadAndLength<T> = Option<(T, Option<usize>)>;

/// Reads a request's head. `None`: the bytes start no request.
pub fn request(bytes: &[u8]) -> HeadAndLength<RequestHead> {
    let token = method(bytes)?;
    let method = Method::new(token);
    let Some((start, next)) = line(bytes) else {
        return Some((RequestHead { method, framing: Framing::Unknown }, None));
    };
    if !is_version_1(start) {
        return None;
    }
    let fields = fields(bytes, next);
    let framing = match (fields.end, fields.length) {
        (None, _) => Framing::Unknown,
        _ if fields.chunked => Framing::Chunked,
        _ if fields.encoded || fields.bad_length => Framing::Unknown,
        (_, Some(length @ 1..)) => Framing::Length(length),
        _ => Framing::None,
    };
    Some((RequestHead { method, framing }, fields.end))
}

/// Reads a response's head. `None`: the bytes start no response.
pub fn response(bytes: &[u8]) -> HeadAndLength<ResponseHead> {
    let status = status(bytes)?;
    let fields = line(bytes).map(|(_, next)| fields(bytes, next)).unwrap_or_default();
    let framing = match (fields.end, fields.length) {
        (None, _) => Framing::Unknown,
        _ if fields.chunked => Framing::Chunked,
        _ if fields.encoded || fields.bad_length => Framing::UntilClose,
        (_, Some(0)) => Framing::None,
        (_, Some(length)) => Framing::Length(length),
        _ => Framing::UntilClose,
    };
    Some((ResponseHead { status, framing }, fields.end))
}

/// The end of the head at the start of the bytes, searched for from position `from` on: the bytes before were searched
/// already.
pub fn end(bytes: &[u8], from: usize) -> Option<usize> {
    for feed in memchr::memchr_iter(b'\n', &bytes[from..]) {
        match &bytes[from + feed + 1..] {
            [b'\n', ..] => return Some(from + feed + 2),
            [b'\r', b'\n', ..] => return Some(from + feed + 3),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framing_of(head: &str) -> Framing {
        response(head.as_bytes()).expect("a head").0.framing
    }

    #[test]
    fn reads_a_request() {
        let text = b"POST /x HTTP/1.1\r\nHost: a\r\ncontent-LENGTH:  12\r\n\r\nbody";
        let (head, end) = request(text).expect("a request");
        assert_eq!((head.method.as_str(), head.framing, end), ("POST", Framing::Length(12), Some(text.len() - 4)));
    }

    #[test]
    fn bare_line_feeds_will_do() {
        assert_eq!(request(b"GET / HTTP/1.1\nHost: a\n\n").map(|r| r.1), Some(Some(24)));
        assert_eq!(end(b"GET / HTTP/1.1\nHost: a\n\nxx", 0), Some(24));
        assert_eq!(end(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nxx", 20), Some(27));
    }

    #[test]
    fn chunked_counts_more_than_a_length() {
        assert_eq!(
            framing_of("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n"),
            Framing::Chunked
        );
    }

    #[test]
    fn bodies_without_a_usable_length_last_until_close() {
        assert_eq!(framing_of("HTTP/1.0 200 OK\r\n\r\n"), Framing::UntilClose);
        assert_eq!(framing_of("HTTP/1.0 200 OK\r\nContent-Length: x\r\n\r\n"), Framing::UntilClose);
        assert_eq!(framing_of("HTTP/1.0 200\r\nContent-Length: 5, 5\r\n\r\n"), Framing::Length(5));
        assert_eq!(framing_of("HTTP/1.0 200\r\nContent-Length: 5, 6\r\n\r\n"), Framing::UntilClose);
    }

    #[test]
    fn a_cut_head_gives_what_is_there() {
        let (head, end) = response(b"HTTP/1.1 404 Not Fo").expect("a status");
        assert_eq!((head.status, head.framing, end), (404, Framing::Unknown, None));
        let (head, end) = request(b"HEAD /images/sf.net_box.gif HTT").expect("a method");
        assert_eq!((head.method.as_str(), head.framing, end), ("HEAD", Framing::Unknown, None));
    }

    #[test]
    fn the_target_is_found_as_far_as_it_goes() {
        assert_eq!(target(b"GET /a?b HTTP/1.1\r\n"), b"/a?b");
        assert_eq!((target(b"GET /cut"), target(b"GET")), (&b"/cut"[..], &b""[..]));
    }

    #[test]
    fn tells_heads_from_other_bytes() {
        assert!(starts_request(b"GET /a HTTP/1.1\r\n"));
        assert!(starts_request(b"PROPFIND /a"));
        assert!(!starts_request(b"GET me out of here\r\n"));
        assert!(!starts_request(b"\x16\x03\x01"));
        assert!(may_start_request(b"rpc.in_data!~ /") && !may_start_request(b"(get) /"));
        assert!(starts_request(b"RPC_IN_DATA /") && !starts_request(b"and/or /"));
        assert!(starts_response(b"HTTP/1.0 200 OK\r\n"));
        assert!(!starts_response(b"HTTP/1.1 twohundred"));
        assert!(may_start_response(b"HT"));
        assert!(!may_start_response(b"HX"));
        assert!(request(b"GET / HTTP/2.0\r\n\r\n").is_none());
        assert!(response(b"HTTP/1.1 2000 OK\r\n\r\n").is_none());
    }
}
