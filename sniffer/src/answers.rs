//! The answers of the servers on each port, which show when a port speaks another protocol than it is taken for.

use std::fmt;

use serde::Serialize;

/// Half-life of earlier answers, counted in time with new answers.
const HALF_LIFE_NS: f64 = 5e9;

/// A port that speaks another protocol than it is taken for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForeignPort {
    /// The port.
    pub port: u16,
    /// The protocol that the port is taken for, by its name in the table of protocols.
    pub taken_for: &'static str,
    /// The protocol that it speaks, for people; empty where that is not known.
    pub speaks: &'static str,
    /// The protocol of the table with which the port could be measured.
    pub measure_as: &'static str,
}

/// A protocol that can be recognised by the first bytes of the client or of the server.
pub struct Sign {
    speaks: &'static str,
    measure_as: &'static str,
    client: fn(&[u8]) -> bool,
    server: fn(&[u8]) -> bool,
}

impl Sign {
    /// Whether a client that speaks it may begin with these bytes.
    pub fn matches_client(&self, bytes: &[u8]) -> bool {
        (self.client)(bytes)
    }

    /// Whether a server that speaks it may begin with these bytes.
    pub fn matches_server(&self, bytes: &[u8]) -> bool {
        (self.server)(bytes)
    }
}

fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x14..=0x18, 3, 0..=4, ..])
}

fn is_http2_frame(bytes: &[u8]) -> bool {
    // Length below 16 KiB, one of the ten types, no reserved bit in the stream's number.
    matches!(bytes, [0, 0..=0x40, _, 0..=9, _, 0..=0x7f, _, _, _, ..])
}

fn is_fastcgi(bytes: &[u8]) -> bool {
    matches!(bytes, [1, 1..=11, _, _, _, _, _, 0, ..])
}

fn starts(bytes: &[u8], words: &[&str]) -> bool {
    words.iter().any(|word| bytes.starts_with(word.as_bytes()))
}

pub const SIGNS: &[Sign] = &[
    Sign { speaks: "TLS", measure_as: "unknown", client: is_tls, server: is_tls },
    Sign {
        speaks: "HTTP/2 (h2c, as gRPC uses it)",
        measure_as: "unknown",
        client: |bytes| bytes.starts_with(b"PRI * HTTP/2") || is_http2_frame(bytes),
        server: is_http2_frame,
    },
    Sign { speaks: "FastCGI", measure_as: "unknown", client: is_fastcgi, server: is_fastcgi },
    Sign {
        speaks: "memcached",
        measure_as: "memcached",
        client: |bytes| {
            let is_binary = matches!(bytes, [0x80, 0..=0x22, _, _, _, 0, ..]);
            is_binary || starts(bytes, &["get ", "gets ", "set ", "add ", "mg ", "ms ", "mn\r\n", "version\r\n"])
        },
        server: |bytes| {
            let is_binary = matches!(bytes, [0x81, 0..=0x22, _, _, _, 0, ..]);
            is_binary || starts(bytes, &["VALUE ", "END\r\n", "STORED\r\n", "VERSION ", "HD\r\n", "EN\r\n", "MN\r\n"])
        },
    },
    Sign {
        speaks: "Redis",
        measure_as: "unknown",
        client: |bytes| matches!(bytes, [b'*', b'1'..=b'9', ..]) || starts(bytes, &["PING\r\n"]),
        server: |bytes| {
            matches!(bytes, [b'$' | b'*' | b':', b'-' | b'0'..=b'9', ..])
                || starts(bytes, &["+OK\r\n", "+PONG\r\n", "-ERR "])
        },
    },
    Sign {
        speaks: "SSH",
        measure_as: "unknown",
        client: |bytes| starts(bytes, &["SSH-"]),
        server: |bytes| starts(bytes, &["SSH-"]),
    },
];

/// The sign of a protocol that is not recognised.
static NAMELESS: Sign = Sign { speaks: "", measure_as: "unknown", client: |_| true, server: |_| true };

/// The answers of the servers on one port.
struct Answers {
    port: u16,
    taken_for: &'static str,
    /// Answers of this period in the expected protocol.
    understood: f64,
    /// Answers of this period in another protocol.
    strange: f64,
    /// Understood and strange answers of earlier periods; older periods count less.
    before: [f64; 2],
    sign: &'static Sign,
}

/// The answers of the servers on all ports.
#[derive(Default)]
pub struct Ports {
    answers: Vec<Answers>,
    taken_ns: u64,
}

impl Ports {
    /// Counts an answer in the expected protocol.
    pub fn understood(&mut self, port: u16, taken_for: &'static str) {
        self.answers_of(port, taken_for).understood += 1.0;
    }

    /// Counts an answer in another protocol, with its sign if it was recognised.
    pub fn strange(&mut self, port: u16, taken_for: &'static str, sign: Option<&'static Sign>) {
        let answers = self.answers_of(port, taken_for);
        answers.strange += 1.0;
        answers.sign = sign.unwrap_or(&NAMELESS);
    }

    fn answers_of(&mut self, port: u16, taken_for: &'static str) -> &mut Answers {
        let place = match self.answers.iter().position(|answers| answers.port == port) {
            Some(place) => place,
            None => {
                let (understood, strange, before) = (0.0, 0.0, [0.0; 2]);
                self.answers.push(Answers { port, taken_for, understood, strange, before, sign: &NAMELESS });
                self.answers.len() - 1
            }
        };
        &mut self.answers[place]
    }

    /// Closes the period; returns the ports whose servers mostly answered in another protocol, recently or when they
    /// last answered.
    pub fn take(&mut self, now_ns: u64) -> Vec<ForeignPort> {
        let elapsed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.taken_ns, now_ns));
        let fading = (-(elapsed_ns as f64) / HALF_LIFE_NS).exp2();
        for answers in &mut self.answers {
            let period = [std::mem::take(&mut answers.understood), std::mem::take(&mut answers.strange)];
            if period != [0.0; 2] {
                answers.before = std::array::from_fn(|place| answers.before[place] * fading + period[place]);
            }
        }
        self.now()
    }

    /// The foreign ports by all answers so far.
    pub fn now(&self) -> Vec<ForeignPort> {
        let foreign =
            self.answers.iter().filter(|port| port.before[1] + port.strange > port.before[0] + port.understood);
        let described = foreign.map(|answers| ForeignPort {
            port: answers.port,
            taken_for: answers.taken_for,
            speaks: answers.sign.speaks,
            measure_as: answers.sign.measure_as,
        });
        described.collect()
    }
}

impl fmt::Display for ForeignPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, taken_for, .. } = self;
        let speaks = if self.speaks.is_empty() { "an unknown protocol" } else { self.speaks };
        write!(f, "port {port} is taken for {taken_for}, and speaks {speaks}")
    }
}
