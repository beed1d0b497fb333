//! Captures made in the tests: conversations between a client and a server, packet by packet.

#![allow(dead_code)]

pub mod traffic;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use etherparse::{PacketBuilder, PacketBuilderStep, TcpHeader, VlanId};
use serde_json::Value;
use slackwater_sniffer::{Exchange, Live, LiveSettings, Packet, Summary, Tracker, TrackerSettings, read_file};

/// The headers around the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrapping {
    V4,
    V6,
    Vlan,
    DoubleVlan,
    /// Linux cooked capture, version 1 and 2.
    Sll,
    Sll2,
    /// BSD loopback.
    Null,
    Raw,
}

impl Wrapping {
    pub fn link_type(self) -> i32 {
        match self {
            Self::V4 | Self::V6 | Self::Vlan | Self::DoubleVlan => 1,
            Self::Sll => 113,
            Self::Sll2 => 276,
            Self::Null => 0,
            Self::Raw => 12,
        }
    }
}

/// A packet of a capture.
#[derive(Debug, Clone)]
pub struct Frame {
    pub time_ns: u64,
    pub bytes: Vec<u8>,
    pub original_length: usize,
}

impl Frame {
    /// Cuts the frame as a capture with this snap length does.
    pub fn cut(&mut self, snap_length: usize) {
        self.bytes.truncate(snap_length);
    }
}

/// One segment of a conversation, before it is wrapped.
#[derive(Debug, Clone, Copy)]
pub struct SentSegment<'a> {
    pub from_client: bool,
    pub seq: u32,
    pub ack: Option<u32>,
    pub flags: &'a str,
    pub bytes: &'a [u8],
}

/// A conversation. Each packet is captured a millisecond after the one before.
pub struct Talk {
    pub wrapping: Wrapping,
    pub frames: Vec<Frame>,
    pub client_port: u16,
    pub server_port: u16,
    /// Sequence numbers of the next bytes.
    pub client: u32,
    pub server: u32,
    pub now_ns: u64,
    pub step_ns: u64,
}

pub const START_NS: u64 = 1_700_000_000_000_000_000;

impl Talk {
    /// A conversation without any packet, not even of the handshake.
    pub fn silent() -> Self {
        Self {
            wrapping: Wrapping::V4,
            frames: Vec::new(),
            client_port: 40_000,
            server_port: 80,
            client: 1_000,
            server: 900_000,
            now_ns: START_NS,
            step_ns: 1_000_000,
        }
    }

    /// A conversation behind its handshake: three frames.
    pub fn new() -> Self {
        let mut talk = Self::silent();
        talk.handshake();
        talk
    }

    pub fn handshake(&mut self) {
        self.send(SentSegment { from_client: true, seq: self.client, ack: None, flags: "S", bytes: b"" });
        self.client = self.client.wrapping_add(1);
        self.send(SentSegment { from_client: false, seq: self.server, ack: Some(self.client), flags: "S", bytes: b"" });
        self.server = self.server.wrapping_add(1);
        self.client_acks();
    }

    /// The client sends; returns the frame's number.
    pub fn client(&mut self, bytes: &[u8]) -> u64 {
        let segment = SentSegment { from_client: true, seq: self.client, ack: Some(self.server), flags: "", bytes };
        self.client = self.client.wrapping_add(bytes.len() as u32);
        self.send(segment)
    }

    /// The server sends; returns the frame's number.
    pub fn server(&mut self, bytes: &[u8]) -> u64 {
        let segment = SentSegment { from_client: false, seq: self.server, ack: Some(self.client), flags: "", bytes };
        self.server = self.server.wrapping_add(bytes.len() as u32);
        self.send(segment)
    }

    pub fn client_acks(&mut self) -> u64 {
        self.send(SentSegment { from_client: true, seq: self.client, ack: Some(self.server), flags: "", bytes: b"" })
    }

    pub fn server_ends(&mut self) -> u64 {
        let segment =
            SentSegment { from_client: false, seq: self.server, ack: Some(self.client), flags: "F", bytes: b"" };
        self.server = self.server.wrapping_add(1);
        self.send(segment)
    }

    pub fn client_ends(&mut self) -> u64 {
        let segment =
            SentSegment { from_client: true, seq: self.client, ack: Some(self.server), flags: "F", bytes: b"" };
        self.client = self.client.wrapping_add(1);
        self.send(segment)
    }

    /// Waits, so that a later packet can't be one that came out of order.
    pub fn pause(&mut self, ms: u64) {
        self.now_ns += ms * 1_000_000;
    }

    /// Adds any segment; returns the frame's number.
    pub fn send(&mut self, segment: SentSegment<'_>) -> u64 {
        self.now_ns += self.step_ns;
        let bytes = self.wrap(&segment);
        self.frames.push(Frame { time_ns: self.now_ns, original_length: bytes.len(), bytes });
        self.frames.len() as u64
    }

    fn wrap(&self, segment: &SentSegment<'_>) -> Vec<u8> {
        let ports = if segment.from_client {
            (self.client_port, self.server_port)
        } else {
            (self.server_port, self.client_port)
        };
        let mut tcp = TcpHeader::new(ports.0, ports.1, segment.seq, 65_000);
        tcp.syn = segment.flags.contains('S');
        tcp.fin = segment.flags.contains('F');
        tcp.rst = segment.flags.contains('R');
        tcp.ack = segment.ack.is_some();
        tcp.acknowledgment_number = segment.ack.unwrap_or(0);
        let (source, destination) = if segment.from_client { (1, 2) } else { (2, 1) };
        let v4 = |step: PacketBuilderStep<etherparse::Ethernet2Header>| {
            step.ipv4([10, 0, 0, source], [10, 0, 0, destination], 64)
        };
        let ethernet = || PacketBuilder::ethernet2([2, 0, 0, 0, 0, source], [2, 0, 0, 0, 0, destination]);
        let address = |last: u8| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let vlan = |id| VlanId::try_new(id).expect("an id");
        let builder = match self.wrapping {
            Wrapping::V6 => ethernet().ipv6(address(source), address(destination), 64),
            Wrapping::Vlan => ethernet().single_vlan(vlan(7)).ipv4([10, 0, 0, source], [10, 0, 0, destination], 64),
            Wrapping::DoubleVlan => {
                ethernet().double_vlan(vlan(7), vlan(8)).ipv4([10, 0, 0, source], [10, 0, 0, destination], 64)
            }
            _ => v4(ethernet()),
        };
        let mut frame = Vec::new();
        builder.tcp_header(tcp).write(&mut frame, segment.bytes).expect("memory takes everything");
        let ip = &frame[14..];
        match self.wrapping {
            Wrapping::V4 | Wrapping::V6 | Wrapping::Vlan | Wrapping::DoubleVlan => frame,
            Wrapping::Sll => [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0], ip].concat(),
            Wrapping::Sll2 => [&[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0], ip].concat(),
            Wrapping::Null => [&2u32.to_le_bytes(), ip].concat(),
            Wrapping::Raw => ip.to_vec(),
        }
    }

    pub fn run(&self) -> Measured {
        run(self.wrapping.link_type(), &self.frames, TrackerSettings::default())
    }
}

/// The sniffer's results for a capture.
#[derive(Debug)]
pub struct Measured {
    pub exchanges: Vec<Exchange>,
    pub summary: Summary,
}

impl Measured {
    /// Frames of requests and responses, in the order of the requests.
    pub fn pairs(&self) -> Vec<(u64, u64)> {
        let mut pairs: Vec<_> = self.exchanges.iter().map(|e| (e.request_frame, e.response_frame)).collect();
        pairs.sort_unstable();
        pairs
    }

    pub fn statuses(&self) -> Vec<u16> {
        self.exchanges.iter().map(|e| e.status).collect()
    }

    /// Requests without response, responses without request.
    pub fn unpaired(&self) -> (u64, u64) {
        (self.summary.counts.unmatched_requests, self.summary.counts.orphan_responses)
    }
}

/// Writes a capture with nanoseconds and returns its path.
pub fn write_capture(link_type: i32, frames: &[Frame]) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("{}-{}.pcap", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from).join(name);
    let mut file = Vec::new();
    for word in [0xa1b2_3c4d_u32, 4 << 16 | 2, 0, 0, 262_144, link_type as u32] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        let second = 1_000_000_000;
        let words =
            [frame.time_ns / second, frame.time_ns % second, frame.bytes.len() as u64, frame.original_length as u64];
        words.iter().for_each(|word| file.extend((*word as u32).to_le_bytes()));
        file.extend(&frame.bytes);
    }
    std::fs::write(&path, file).expect("the directory takes files");
    path
}

/// Reads frames as a capture file.
pub fn run(link_type: i32, frames: &[Frame], settings: TrackerSettings) -> Measured {
    let path = write_capture(link_type, frames);
    let mut tracker = Tracker::new(TrackerSettings { keep_exchanges: true, number_all: true, ..settings });
    let count = read_file(&path, |packet| tracker.packet(packet)).expect("a capture");
    std::fs::remove_file(&path).expect("the file was written");
    assert_eq!(count, frames.len() as u64);
    let summary = tracker.finish();
    assert_eq!((tracker.held_bytes(), tracker.connections(), summary.in_flight), (0, 0, 0), "all was given back");
    Measured { exchanges: tracker.take_exchanges(), summary }
}

/// A frame as the tracker takes it.
pub fn packet(link_type: i32, number: u64, frame: &Frame) -> Packet<'_> {
    Packet {
        time_ns: frame.time_ns,
        link_type,
        frame: number,
        original_length: frame.original_length as u32,
        bytes: &frame.bytes,
    }
}

/// Feeds frames to a tracker.
pub fn feed(tracker: &mut Tracker, frames: &[Frame]) {
    for (number, frame) in frames.iter().enumerate() {
        tracker.packet(&packet(1, number as u64 + 1, frame));
    }
}

/// The lines of JSON that a command printed.
pub fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Bytes, compressed with gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

/// Opens a capture, or prints why the test is skipped.
pub fn open_capture(interface: &str, port: u16) -> Option<Live> {
    let settings = LiveSettings { interface: interface.to_owned(), ports: vec![port], ..LiveSettings::default() };
    match Live::open(&settings) {
        Ok(live) => Some(live),
        Err(error) if error.to_string().contains("CAP_NET_RAW") => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

/// A generator of numbers that are always the same ones (xorshift).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

pub const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
pub const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
