//! memcached's binary protocol: heads of 24 bytes with the length of the message.
//!
//! Source: the wiki page BinaryProtocolRevamped of memcached.

use super::{CommandHead, Parsed, ReplyHead, ReplyRule};
use crate::figures::StatusClass;
use crate::method::Method;

/// The first byte of a request and of a response.
pub const REQUEST: u8 = 0x80;
pub const RESPONSE: u8 = 0x81;

const HEAD: usize = 24;

/// The longest valid body, in bytes.
const MOST_BODY: u32 = 1 << 30;

const STAT: u8 = 0x10;
const QUITQ: u8 = 0x17;

/// Commands by their number; those that end in `q` are not answered when the result is as usual.
const COMMANDS: [&str; 0x25] = [
    "get",
    "set",
    "add",
    "replace",
    "delete",
    "incr",
    "decr",
    "quit",
    "flush",
    "getq",
    "noop",
    "version",
    "getk",
    "getkq",
    "append",
    "prepend",
    "stat",
    "setq",
    "addq",
    "replaceq",
    "deleteq",
    "incrq",
    "decrq",
    "quitq",
    "flushq",
    "appendq",
    "prependq",
    "verbosity",
    "touch",
    "gat",
    "gatq",
    "hello",
    "sasl_list",
    "sasl_auth",
    "sasl_step",
    "gatk",
    "gatkq",
];

struct Head {
    opcode: u8,
    key: usize,
    extras: usize,
    status: u16,
    body: u32,
    opaque: u32,
}

fn head(bytes: &[u8], magic: u8) -> Parsed<Head> {
    if bytes.first().is_some_and(|byte| *byte != magic) {
        return Parsed::Bad;
    }
    let Some(head) = bytes.get(..HEAD) else { return Parsed::Short };
    let u16_at = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let u32_at = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (key, extras, body) = (usize::from(u16_at(2)), usize::from(head[4]), u32_at(8));
    // The data type is not in use, and key and extras are parts of the body.
    if head[5] != 0 || body > MOST_BODY || key + extras > body as usize {
        return Parsed::Bad;
    }
    Parsed::Head(Head { opcode: head[1], key, extras, status: u16_at(6), body, opaque: u32_at(12) })
}

/// Command and opaque value, which a response repeats.
fn token(head: &Head) -> Option<u64> {
    Some(u64::from(head.opaque) << 8 | u64::from(head.opcode))
}

/// Whether a token distinguishes requests; most clients that don't use the opaque value leave it zero.
pub fn identifies_request(token: u64) -> bool {
    token >> 8 != 0
}

/// Reads the head of a request.
pub fn request(bytes: &[u8]) -> Parsed<CommandHead<'_>> {
    head(bytes, REQUEST).map(|head| {
        let name = COMMANDS.get(usize::from(head.opcode)).copied().unwrap_or("other");
        let reply = match head.opcode {
            QUITQ => ReplyRule::Never,
            _ if name.ends_with('q') => ReplyRule::Quiet,
            _ => ReplyRule::Always,
        };
        let key_at = HEAD + head.extras;
        CommandHead {
            length: HEAD,
            body: u64::from(head.body),
            method: Method::new(name.as_bytes()),
            key: bytes.get(key_at..key_at + head.key).unwrap_or(b""),
            reply,
            token: token(&head),
        }
    })
}

/// Reads the head of a response, or of a part of one: statistics come one by one until one has no key.
pub fn reply(bytes: &[u8]) -> Parsed<ReplyHead> {
    head(bytes, RESPONSE).map(|head| ReplyHead {
        length: HEAD,
        body: u64::from(head.body),
        is_last: head.opcode != STAT || head.key == 0 || head.status != 0,
        status: head.status,
        word: "",
        class: match head.status {
            0x00..=0x02 | 0x05 => StatusClass::Successful,
            0x03 | 0x04 | 0x06..=0x81 => StatusClass::ClientError,
            _ => StatusClass::ServerError,
        },
        token: token(&head),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(magic: u8, opcode: u8, key: &[u8]) -> Vec<u8> {
        let mut bytes = vec![magic, opcode, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, key.len() as u8, 0, 0, 0, 7];
        bytes.extend([0; 8]);
        bytes.extend(key);
        bytes
    }

    #[test]
    fn heads_say_how_long_the_message_is_and_whom_it_answers() {
        let bytes = message(REQUEST, 0x0d, b"key");
        let Parsed::Head(request) = request(&bytes) else { panic!("no request") };
        assert_eq!((request.method.as_str(), request.body, request.key), ("getkq", 3, &b"key"[..]));
        assert_eq!(request.reply, ReplyRule::Quiet);
        let Parsed::Head(answer) = reply(&message(RESPONSE, 0x0d, b"key")) else { panic!("no reply") };
        assert_eq!((answer.token, answer.is_last), (request.token, true));
        let Parsed::Head(stat) = reply(&message(RESPONSE, STAT, b"pid")) else { panic!("no reply") };
        assert!(!stat.is_last);
    }

    #[test]
    fn what_is_no_head_is_refused() {
        let mut bytes = message(REQUEST, 0, b"key");
        assert!(matches!(request(&bytes[..23]), Parsed::Short) && matches!(reply(&bytes), Parsed::Bad));
        bytes[3] = 200;
        assert!(matches!(request(&bytes), Parsed::Bad), "a key longer than the body");
    }
}
