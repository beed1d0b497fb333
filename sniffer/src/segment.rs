//! From the bytes of a captured frame to a TCP segment: link layer, IP and TCP heads, nothing copied.
//!
//! Fragments of IP packets are counted and skipped, not reassembled: web servers' TCP segments are not fragmented.

use std::net::IpAddr;

use etherparse::{IpNumber, LaxIpSlice, TcpSlice};

/// A captured frame, as the capture hands it over.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// When it was captured, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The capture's link type: a `DLT_` number of libpcap.
    pub link_type: i32,
    /// Its number, counted from 1 as in Wireshark.
    pub frame: u64,
    /// Its length on the wire in bytes; more than `bytes` when the snap length cut it.
    pub original_length: u32,
    /// What was captured of it.
    pub bytes: &'a [u8],
}

/// A TCP segment.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// The sender's address and port.
    pub source: (IpAddr, u16),
    /// The receiver's address and port.
    pub destination: (IpAddr, u16),
    /// Sequence number of the first byte (or of SYN).
    pub seq: u32,
    /// What the sender has received so far, if the segment has it.
    pub ack: Option<u32>,
    /// Opens the connection.
    pub syn: bool,
    /// The sender has no more bytes.
    pub fin: bool,
    /// The connection is broken off.
    pub rst: bool,
    /// What was captured of the payload.
    pub payload: &'a [u8],
    /// Bytes of payload that were on the wire and are not in `payload`: the snap length cut them.
    pub cut: u32,
}

/// Why a packet holds no segment to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// It is not TCP, or its heads are damaged or cut.
    NotTcp,
    /// It is a part of an IP packet.
    Fragment,
}

const LINK_NULL: i32 = 0;
const LINK_ETHERNET: i32 = 1;
const LINK_RAW: i32 = 12;
const LINK_LOOP: i32 = 108;
const LINK_SLL: i32 = 113;
const LINK_IPV4: i32 = 228;
const LINK_IPV6: i32 = 229;
const LINK_SLL2: i32 = 276;

/// Stacked VLAN heads that are looked through; more is not traffic but an attack on parsers.
const MOST_TAGS: usize = 4;

impl<'a> Packet<'a> {
    /// The TCP segment that the packet holds.
    pub fn segment(&self) -> Result<Segment<'a>, Skip> {
        let ip = self.ip().ok_or(Skip::NotTcp)?;
        let head_length = self.bytes.len() - ip.len();
        let on_wire = (self.original_length as usize).max(self.bytes.len()) - head_length;
        let (slice, _) = LaxIpSlice::from_slice(ip).map_err(|_| Skip::NotTcp)?;
        let payload = slice.payload();
        if payload.ip_number != IpNumber::TCP {
            return Err(Skip::NotTcp);
        }
        if payload.fragmented {
            return Err(Skip::Fragment);
        }
        // The kernel hands over segments larger than the length field can hold (0 then): the wire's length counts.
        let declared = match &slice {
            LaxIpSlice::Ipv4(ip) => usize::from(ip.header().total_len()),
            LaxIpSlice::Ipv6(ip) => match usize::from(ip.header().payload_length()) {
                0 => 0,
                length => length + 40,
            },
        };
        let ip_length = if declared == 0 { on_wire } else { declared.min(on_wire) };
        let (source, destination) = (slice.source_addr(), slice.destination_addr());
        let tcp = TcpSlice::from_slice(payload.payload).map_err(|_| Skip::NotTcp)?;
        let data = tcp.payload();
        let before_data = data.as_ptr() as usize - ip.as_ptr() as usize;
        let length = ip_length.saturating_sub(before_data);
        Ok(Segment {
            source: (source, tcp.source_port()),
            destination: (destination, tcp.destination_port()),
            seq: tcp.sequence_number(),
            ack: tcp.ack().then(|| tcp.acknowledgment_number()),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            payload: data,
            cut: length.saturating_sub(data.len()) as u32,
        })
    }

    /// The bytes from the IP head on.
    fn ip(&self) -> Option<&'a [u8]> {
        let bytes = self.bytes;
        match self.link_type {
            LINK_ETHERNET => behind_tags(bytes, 12),
            LINK_SLL => behind_tags(bytes, 14),
            LINK_SLL2 => match u16_at(bytes, 0)? {
                ETHER_IPV4 | ETHER_IPV6 => bytes.get(20..),
                tag if is_tag(tag) => behind_tags(bytes, 22),
                _ => None,
            },
            LINK_NULL | LINK_LOOP => bytes.get(4..),
            LINK_RAW | LINK_IPV4 | LINK_IPV6 => Some(bytes),
            _ => None,
        }
    }
}

const ETHER_IPV4: u16 = 0x0800;
const ETHER_IPV6: u16 = 0x86dd;

fn is_tag(ether_type: u16) -> bool {
    matches!(ether_type, 0x8100 | 0x88a8 | 0x9100)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// What follows the ether type at `at` and the VLAN heads behind it, if it is IP.
fn behind_tags(bytes: &[u8], mut at: usize) -> Option<&[u8]> {
    for _ in 0..=MOST_TAGS {
        match u16_at(bytes, at)? {
            ETHER_IPV4 | ETHER_IPV6 => return bytes.get(at + 2..),
            tag if is_tag(tag) => at += 4,
            _ => return None,
        }
    }
    None
}
