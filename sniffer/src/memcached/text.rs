//! memcached's text protocol: lines, and blocks of data whose size is in the line before.
//!
//! Source: doc/protocol.txt of memcached 1.6, classic and meta commands.

use super::{CommandHead, Parsed, ReplyHead, ReplyRule};
use crate::direction::line;
use crate::figures::StatusClass;
use crate::method::Method;

/// The largest valid block of data, in bytes.
const MOST_DATA: u64 = 1 << 30;

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// The first word of a line whose end has not arrived.
fn first_word(bytes: &[u8]) -> &[u8] {
    words(bytes.strip_suffix(b"\r").unwrap_or(bytes)).next().unwrap_or(b"")
}

fn number(word: &[u8]) -> Option<u64> {
    let digits = !word.is_empty() && word.len() <= 20 && word.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(word).ok().filter(|_| digits)?;
    text.parse().ok()
}

/// The length of a block of data with the line end behind it.
fn block(word: Option<&[u8]>) -> Option<u64> {
    number(word?).filter(|size| *size <= MOST_DATA).map(|size| size + 2)
}

const STORAGE: [&[u8]; 6] = [b"set", b"add", b"replace", b"append", b"prepend", b"cas"];
const CLASSIC: [&[u8]; 17] = [
    b"get",
    b"gets",
    b"gat",
    b"gats",
    b"delete",
    b"incr",
    b"decr",
    b"touch",
    b"stats",
    b"version",
    b"verbosity",
    b"flush_all",
    b"quit",
    b"cache_memlimit",
    b"slabs",
    b"lru_crawler",
    b"watch",
];
const META: [&[u8]; 6] = [b"mg", b"ms", b"md", b"ma", b"mn", b"me"];

/// Reads the line of a request.
pub fn request(bytes: &[u8]) -> Parsed<CommandHead<'_>> {
    let Some((line, length)) = line(bytes) else {
        let command = first_word(bytes);
        let mut commands = STORAGE.iter().chain(&CLASSIC).chain(&META);
        let may_be_command = commands.any(|name| name.starts_with(command));
        return if may_be_command { Parsed::Short } else { Parsed::Bad };
    };
    let Some(command) = words(line).next() else { return Parsed::Bad };
    let method = Method::new(command);
    let key = words(line).nth(1).unwrap_or(b"");
    let mut head = CommandHead { length, body: 0, method, key, reply: ReplyRule::Always, token: None };
    let noreply = words(line).last() == Some(b"noreply");
    if STORAGE.contains(&command) {
        let Some(body) = block(words(line).nth(4)) else { return Parsed::Bad };
        head.body = body;
    } else if META.contains(&command) {
        if command == b"ms" {
            let Some(body) = block(words(line).nth(2)) else { return Parsed::Bad };
            head.body = body;
        }
        let flags = words(line).skip(2);
        for flag in flags {
            match flag {
                b"q" => head.reply = ReplyRule::Quiet,
                [b'O', ..] => head.token = Some(token(flag)),
                _ => {}
            }
        }
        // An answer with the key belongs to the first request for it that asks for the key.
        if head.token.is_none() && words(line).skip(2).any(|flag| flag == b"k") {
            head.token = Some(token(&[b"k", key].concat()));
        }
        return Parsed::Head(head);
    } else if !CLASSIC.contains(&command) {
        return Parsed::Bad;
    }
    if noreply || command == b"quit" {
        head.reply = ReplyRule::Never;
    }
    Parsed::Head(head)
}

/// FNV-1a hash of an opaque value or a key, with the flag before it. After a collision two requests of one connection
/// look alike.
fn token(opaque: &[u8]) -> u64 {
    opaque.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The first words of answers.
const ANSWERS: [&str; 28] = [
    "VALUE",
    "STAT",
    "ITEM",
    "END",
    "STORED",
    "NOT_STORED",
    "EXISTS",
    "NOT_FOUND",
    "DELETED",
    "TOUCHED",
    "OK",
    "ERROR",
    "CLIENT_ERROR",
    "SERVER_ERROR",
    "VERSION",
    "RESET",
    "BUSY",
    "BADCLASS",
    "NOSPARE",
    "NOTFULL",
    "HD",
    "VA",
    "EN",
    "NS",
    "EX",
    "NF",
    "MN",
    "ME",
];

/// The name for the answer to `incr` and `decr`.
const NUMBER: &str = "NUMBER";

/// Reads the line of a response, or of a part of one: values and statistics come one by one until `END`.
pub fn reply(bytes: &[u8]) -> Parsed<ReplyHead> {
    let Some((line, length)) = line(bytes) else {
        let start = first_word(bytes);
        let may_be_answer = ANSWERS.iter().any(|word| word.as_bytes().starts_with(start)) || number(start).is_some();
        return if may_be_answer { Parsed::Short } else { Parsed::Bad };
    };
    let Some(first) = words(line).next() else { return Parsed::Bad };
    let word = ANSWERS.iter().find(|word| word.as_bytes() == first);
    let Some(word) = word.copied().or_else(|| number(first).map(|_| NUMBER)) else { return Parsed::Bad };
    let class = match word {
        "SERVER_ERROR" => StatusClass::ServerError,
        "ERROR" | "CLIENT_ERROR" => StatusClass::ClientError,
        _ => StatusClass::Successful,
    };
    let mut head = ReplyHead { length, body: 0, is_last: true, status: 0, word, class, token: None };
    match word {
        "VALUE" => match block(words(line).nth(3)) {
            Some(body) => (head.body, head.is_last) = (body, false),
            None => return Parsed::Bad,
        },
        "VA" => match block(words(line).nth(1)) {
            Some(body) => head.body = body,
            None => return Parsed::Bad,
        },
        "STAT" | "ITEM" => head.is_last = false,
        _ => {}
    }
    if matches!(word, "HD" | "VA" | "EN" | "NS" | "EX" | "NF" | "MN") {
        let flags = words(line).skip(if word == "VA" { 2 } else { 1 });
        let opaque = flags.clone().find(|flag| flag.starts_with(b"O"));
        let key = || flags.clone().find(|flag| flag.starts_with(b"k"));
        head.token = opaque.or_else(key).map(token);
    }
    Parsed::Head(head)
}

/// Whether a quiet meta command may give this answer; it gives none when the result is as usual.
pub fn may_answer(method: &str, word: &str) -> bool {
    match word {
        "VA" | "HD" => method == "mg",
        "NS" | "EX" | "NF" => method != "mg",
        "CLIENT_ERROR" | "SERVER_ERROR" | "ERROR" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(bytes: &[u8]) -> CommandHead<'_> {
        match request(bytes) {
            Parsed::Head(head) => head,
            _ => panic!("no request: {:?}", String::from_utf8_lossy(bytes)),
        }
    }

    fn answer(bytes: &[u8]) -> ReplyHead {
        match reply(bytes) {
            Parsed::Head(head) => head,
            _ => panic!("no reply: {:?}", String::from_utf8_lossy(bytes)),
        }
    }

    #[test]
    fn commands_say_what_follows_and_whether_they_are_answered() {
        let set = head(b"set k 0 0 10 noreply\r\n0123456789\r\n");
        assert_eq!((set.length, set.body, set.reply, set.key), (22, 12, ReplyRule::Never, &b"k"[..]));
        assert_eq!((head(b"get a b\r\n").body, head(b"get a b\n").reply), (0, ReplyRule::Always));
        assert_eq!((head(b"cas k 0 0 1 99\r\n").body, head(b"quit\r\n").reply), (3, ReplyRule::Never));
        let meta = head(b"ms k 2 q O12 T0\r\nhi\r\n");
        assert_eq!((meta.body, meta.reply, meta.token), (4, ReplyRule::Quiet, Some(token(b"O12"))));
    }

    #[test]
    fn answers_say_where_they_end() {
        assert_eq!((answer(b"VALUE k 0 5\r\nhello\r\n").body, answer(b"VALUE k 0 5 7\r\n").is_last), (7, false));
        assert_eq!((answer(b"END\r\n").is_last, answer(b"17\r\n").word), (true, "NUMBER"));
        assert_eq!((answer(b"VA 2 O12\r\n").body, answer(b"VA 2 O12\r\n").token), (4, Some(token(b"O12"))));
        assert_eq!(answer(b"SERVER_ERROR out of memory\r\n").class, StatusClass::ServerError);
    }

    #[test]
    fn what_is_no_command_is_refused_and_what_is_not_whole_is_short() {
        for bytes in [&b"\r\n"[..], b"GET / HTTP/1.1\r\n", b"set k 0 0 x\r\n", b"set k 0 0 99999999999\r\n", b"hello"] {
            assert!(matches!(request(bytes), Parsed::Bad), "{bytes:?}");
        }
        assert!(matches!(request(b"get a b c"), Parsed::Short) && matches!(request(b"ge"), Parsed::Short));
        assert!(matches!(request(b"quit\r"), Parsed::Short) && matches!(reply(b"END\r"), Parsed::Short));
        assert!(matches!(reply(b"STOR"), Parsed::Short) && matches!(reply(b"HTTP/1.1 200 OK\r\n"), Parsed::Bad));
    }
}
