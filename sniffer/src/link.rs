//! The layers between a captured frame and the IP packet in it: link layers, VLAN tags, labels and tunnels.

use std::fmt;

/// Why a packet holds no segment to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// The packet is understood, and is not TCP.
    NotTcp,
    /// The packet is a fragment of an IP packet.
    Fragment,
    /// The packet can't be read.
    NotUnderstood(Unread),
}

/// The part of a packet that can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unread {
    /// The link type, a `DLT_` number of libpcap.
    LinkType(i32),
    /// The type in an Ethernet header, or in a header like it.
    EtherType(u16),
    /// The protocol in a PPP header.
    Ppp(u16),
    /// The protocol in an IP header.
    IpProtocol(u8),
    /// A tunnel over UDP.
    Tunnel(&'static str),
    /// A header that is damaged, or that the snap length cut.
    Damaged,
    /// Headers nested more deeply than is read.
    TooDeep,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::LinkType(number) => match pcap::Linktype(number).get_name() {
                Ok(name) => write!(f, "link type {number} ({name})"),
                Err(_) => write!(f, "link type {number}"),
            },
            Self::EtherType(number) => write!(f, "EtherType {number:#06x}{}", named(ETHER_NAMES, number)),
            Self::Ppp(number) => write!(f, "PPP protocol {number:#06x}"),
            Self::IpProtocol(number) => write!(f, "IP protocol {number}{}", named(IP_NAMES, number)),
            Self::Tunnel(name) => f.write_str(name),
            Self::Damaged => f.write_str("headers damaged or cut"),
            Self::TooDeep => f.write_str("headers nested too deeply"),
        }
    }
}

const ETHER_NAMES: &[(u16, &str)] = &[(0x22eb, " (ERSPAN III)"), (0x883e, " (WCCP)"), (0x88e5, " (MACsec)")];
const IP_NAMES: &[(u8, &str)] = &[(50, " (ESP)"), (97, " (EtherIP)"), (115, " (L2TP)"), (137, " (MPLS)")];

fn named<T: PartialEq>(names: &[(T, &'static str)], number: T) -> &'static str {
    names.iter().find(|(other, _)| *other == number).map_or("", |(_, name)| name)
}

const DAMAGED: Skip = Skip::NotUnderstood(Unread::Damaged);

/// Deepest nesting of headers of the same layer that is read; deeper nesting is an attack on parsers.
pub const MOST_NESTED: usize = 8;

const NULL: i32 = 0;
pub const ETHERNET: i32 = 1;
const PPP: i32 = 9;
pub const RAW: i32 = 12;
const PPP_SERIAL: i32 = 50;
const PPP_ETHERNET: i32 = 51;
const RAW_IN_FILES: i32 = 101;
const LOOP: i32 = 108;
pub const SLL: i32 = 113;
const IPV4: i32 = 228;
const IPV6: i32 = 229;
const NFLOG: i32 = 239;
pub const SLL2: i32 = 276;

/// Link types that are read.
pub const LINK_TYPES: [i32; 13] =
    [ETHERNET, NULL, RAW, LOOP, SLL, IPV4, IPV6, SLL2, PPP, PPP_SERIAL, PPP_ETHERNET, RAW_IN_FILES, NFLOG];

/// Link types that the kernel does not have; libpcap makes up their headers.
pub const COOKED: [i32; 2] = [SLL, SLL2];

/// The bytes of a frame from the IP header on.
pub fn ip(link_type: i32, bytes: &[u8]) -> Result<&[u8], Skip> {
    match link_type {
        ETHERNET => network(bytes, u16_at(bytes, 12)?, 14),
        SLL => network(bytes, u16_at(bytes, 14)?, 16),
        SLL2 => network(bytes, u16_at(bytes, 0)?, 20),
        NULL | LOOP => from(bytes, 4),
        RAW | RAW_IN_FILES | IPV4 | IPV6 => Ok(bytes),
        PPP | PPP_SERIAL => ppp(bytes, if bytes.starts_with(&[0xff, 3]) { 2 } else { 0 }),
        PPP_ETHERNET => ppp(bytes, 6),
        NFLOG => nflog(bytes),
        _ => Err(Skip::NotUnderstood(Unread::LinkType(link_type))),
    }
}

/// The IP packet within an IP packet's payload.
pub fn tunnelled(ip_protocol: u8, payload: &[u8]) -> Result<&[u8], Skip> {
    match ip_protocol {
        4 | 41 => Ok(payload),
        17 => over_udp(payload),
        47 => gre(payload),
        // ICMP, IGMP, ICMPv6, nothing, EIGRP, OSPF, PIM, VRRP, SCTP.
        1 | 2 | 58 | 59 | 88 | 89 | 103 | 112 | 132 => Err(Skip::NotTcp),
        other => Err(Skip::NotUnderstood(Unread::IpProtocol(other))),
    }
}

fn from(bytes: &[u8], offset: usize) -> Result<&[u8], Skip> {
    bytes.get(offset..).ok_or(DAMAGED)
}

fn u16_at(bytes: &[u8], offset: usize) -> Result<u16, Skip> {
    let number = bytes.get(offset..).and_then(|rest| rest.first_chunk()).ok_or(DAMAGED)?;
    Ok(u16::from_be_bytes(*number))
}

/// The IP packet behind an EtherType; its content begins at `at`.
fn network(bytes: &[u8], mut ether_type: u16, mut at: usize) -> Result<&[u8], Skip> {
    for _ in 0..MOST_NESTED {
        match ether_type {
            0x0800 | 0x86dd => return from(bytes, at),
            // VLANs.
            0x8100 | 0x88a8 | 0x9100 => {
                ether_type = u16_at(bytes, at + 2)?;
                at += 4;
            }
            // A frame of Ethernet.
            0x6558 => {
                ether_type = u16_at(bytes, at + 12)?;
                at += 14;
            }
            0x8847 | 0x8848 => return labelled(bytes, at, ether_type),
            // PPPoE, and PPP in GRE.
            0x8864 => return ppp(bytes, at + 6),
            0x880b => return ppp(bytes, if from(bytes, at)?.starts_with(&[0xff, 3]) { at + 2 } else { at }),
            // A length (IEEE 802.3), ARP, RARP, PPPoE's discovery, LACP, EAPOL, LLDP, PTP, CFM, loopback tests.
            0..0x600 | 0x0806 | 0x8035 | 0x8863 | 0x8809 | 0x888e | 0x88cc | 0x88f7 | 0x8902 | 0x9000 => {
                return Err(Skip::NotTcp);
            }
            other => return Err(Skip::NotUnderstood(Unread::EtherType(other))),
        }
    }
    Err(Skip::NotUnderstood(Unread::TooDeep))
}

/// The IP packet behind MPLS labels (RFC 3032), which only its first four bits show.
fn labelled(bytes: &[u8], at: usize, ether_type: u16) -> Result<&[u8], Skip> {
    for label in from(bytes, at)?.chunks_exact(4).take(MOST_NESTED).enumerate() {
        let (number, [_, _, low, _]) = label else { break };
        if low & 1 == 1 {
            let rest = from(bytes, at + 4 * (number + 1))?;
            let is_ip = rest.first().is_some_and(|first| matches!(first >> 4, 4 | 6));
            return if is_ip { Ok(rest) } else { Err(Skip::NotUnderstood(Unread::EtherType(ether_type))) };
        }
    }
    Err(DAMAGED)
}

/// The IP packet behind a PPP protocol number, which begins at `at`.
fn ppp(bytes: &[u8], at: usize) -> Result<&[u8], Skip> {
    // A first byte of zero may be left out.
    let first = *bytes.get(at).ok_or(DAMAGED)?;
    let (protocol, at) = if first & 1 == 1 { (u16::from(first), at + 1) } else { (u16_at(bytes, at)?, at + 2) };
    match protocol {
        0x21 | 0x57 => from(bytes, at),
        // Protocols that set up the link.
        0x8000.. => Err(Skip::NotTcp),
        other => Err(Skip::NotUnderstood(Unread::Ppp(other))),
    }
}

/// The packet among the fields of Linux's NFLOG, which have the byte order of the capturing machine.
fn nflog(bytes: &[u8]) -> Result<&[u8], Skip> {
    const HEAD: usize = 4;
    const PAYLOAD: [u8; 2] = [9, 0];
    let mut fields = from(bytes, HEAD)?;
    while let [low, high, kind @ ..] = fields
        && kind.len() >= 2
    {
        if kind[..2] == PAYLOAD {
            return Ok(&kind[2..]);
        }
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        fields = from(fields, length.max(4).next_multiple_of(4))?;
    }
    Err(DAMAGED)
}

/// GRE (RFC 2784, 2890, 2637), also with ERSPAN (types I and II).
fn gre(bytes: &[u8]) -> Result<&[u8], Skip> {
    const CHECKSUM: u16 = 0x8000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const ACKNOWLEDGEMENT: u16 = 0x0080;
    let (flags, ether_type) = (u16_at(bytes, 0)?, u16_at(bytes, 2)?);
    let fields = [CHECKSUM, KEY, SEQUENCE, ACKNOWLEDGEMENT].iter().filter(|flag| flags & **flag != 0).count();
    let at = 4 + 4 * fields;
    if ether_type == 0x88be {
        let mirrored = at + if flags & SEQUENCE == 0 { 0 } else { 8 };
        return network(bytes, u16_at(bytes, mirrored + 12)?, mirrored + 14);
    }
    network(bytes, ether_type, at)
}

/// The IP packet in a tunnel over UDP, which is recognised by its destination port.
fn over_udp(bytes: &[u8]) -> Result<&[u8], Skip> {
    const DATA: usize = 8;
    match u16_at(bytes, 2)? {
        // VXLAN: its port, and the one that Linux had before there was one.
        4789 | 8472 => network(bytes, u16_at(bytes, DATA + 20)?, DATA + 22),
        // Geneve, with options.
        6081 => {
            let options = 4 * usize::from(bytes.get(DATA).ok_or(DAMAGED)? & 0x3f);
            network(bytes, u16_at(bytes, DATA + 2)?, DATA + 8 + options)
        }
        1701 => Err(Skip::NotUnderstood(Unread::Tunnel("L2TP"))),
        2152 => Err(Skip::NotUnderstood(Unread::Tunnel("GTP-U"))),
        4790 => Err(Skip::NotUnderstood(Unread::Tunnel("VXLAN-GPE"))),
        _ => Err(Skip::NotTcp),
    }
}
