//! From the bytes of a captured frame to a TCP segment: link layer, IP and TCP heads, nothing copied.
//!
//! Fragments of IP packets are counted and skipped, not reassembled: web servers' TCP segments are not fragmented.

use std::net::IpAddr;

use etherparse::{IpNumber, LaxIpSlice, TcpSlice};

use crate::link::{self, MOST_NESTED, Skip, Unread};

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
    /// The captured bytes.
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
    /// The sequence number up to which the sender has received bytes, if the segment acknowledges any.
    pub ack: Option<u32>,
    /// Opens the connection.
    pub syn: bool,
    /// The sender has no more bytes.
    pub fin: bool,
    /// The connection is reset.
    pub rst: bool,
    /// The captured payload.
    pub payload: &'a [u8],
    /// Bytes of payload that were on the wire and are not in `payload` because the snap length cut them.
    pub cut: u32,
}

impl<'a> Packet<'a> {
    /// The TCP segment that the packet holds, also within tunnels.
    pub fn segment(&self) -> Result<Segment<'a>, Skip> {
        let mut ip = link::ip(self.link_type, self.bytes)?;
        for _ in 0..MOST_NESTED {
            let (slice, _) = LaxIpSlice::from_slice(ip).map_err(|_| Skip::NotUnderstood(Unread::Damaged))?;
            let payload = slice.payload();
            if payload.fragmented {
                return Err(Skip::Fragment);
            }
            if payload.ip_number == IpNumber::TCP {
                return self.tcp(ip, &slice);
            }
            ip = link::tunnelled(payload.ip_number.0, payload.payload)?;
        }
        Err(Skip::NotUnderstood(Unread::TooDeep))
    }

    /// The segment in an IP packet that is a part of this one.
    fn tcp(&self, ip: &'a [u8], slice: &LaxIpSlice<'a>) -> Result<Segment<'a>, Skip> {
        let ip_at = ip.as_ptr() as usize - self.bytes.as_ptr() as usize;
        let on_wire = (self.original_length as usize).max(self.bytes.len()) - ip_at;
        // The kernel hands over segments larger than the length field can hold. The field is 0 then, and the length on
        // the wire counts.
        let declared = match slice {
            LaxIpSlice::Ipv4(ip) => usize::from(ip.header().total_len()),
            LaxIpSlice::Ipv6(ip) => match usize::from(ip.header().payload_length()) {
                0 => 0,
                length => length + 40,
            },
        };
        let ip_length = if declared == 0 { on_wire } else { declared.min(on_wire) };
        let tcp = TcpSlice::from_slice(slice.payload().payload).map_err(|_| Skip::NotUnderstood(Unread::Damaged))?;
        let data = tcp.payload();
        let before_data = data.as_ptr() as usize - ip.as_ptr() as usize;
        let length = ip_length.saturating_sub(before_data);
        Ok(Segment {
            source: (slice.source_addr(), tcp.source_port()),
            destination: (slice.destination_addr(), tcp.destination_port()),
            seq: tcp.sequence_number(),
            ack: tcp.ack().then(|| tcp.acknowledgment_number()),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            payload: data,
            cut: length.saturating_sub(data.len()) as u32,
        })
    }
}
