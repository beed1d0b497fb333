//! The pcapng format (draft-ietf-opsawg-pcapng): several interfaces, each with its link type and resolution of times.
//!
//! libpcap is not used because it refuses files whose interfaces differ.

use std::io::{self, Read};

use super::classic::LONGEST;
use super::input::Input;
use crate::segment::Packet;

/// The first bytes of a file of this format.
pub const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const PACKET: u32 = 6;

/// Bytes of a block's type, length and the word behind them.
const BLOCK_HEAD: usize = 12;

/// Bytes of a packet's block before the packet itself.
const PACKET_HEAD: usize = 28;

/// The longest valid block in bytes, as in libpcap.
const LONGEST_BLOCK: usize = 16 << 20;

const RESOLUTION: u16 = 9;
const OFFSET: u16 = 14;

struct Interface {
    link_type: i32,
    units_per_second: u128,
    offset_s: i64,
}

impl Interface {
    fn time_ns(&self, units: u64) -> u64 {
        let ns = u128::from(units) * 1_000_000_000 / self.units_per_second;
        let offset_ns = i128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(i128::try_from(ns).unwrap_or(i128::MAX).saturating_add(offset_ns).max(0)).unwrap_or(u64::MAX)
    }
}

/// Reads numbers in the section's byte order.
#[derive(Clone, Copy)]
struct ByteOrder {
    is_big_endian: bool,
}

impl ByteOrder {
    fn word(self, bytes: &[u8], offset: usize) -> Option<u32> {
        let word = *bytes.get(offset..)?.first_chunk()?;
        Some(if self.is_big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) })
    }

    fn half(self, bytes: &[u8], offset: usize) -> Option<u16> {
        let half = *bytes.get(offset..)?.first_chunk()?;
        Some(if self.is_big_endian { u16::from_be_bytes(half) } else { u16::from_le_bytes(half) })
    }

    /// The description of an interface; `None` when it is damaged.
    fn interface(self, block: &[u8]) -> Option<Interface> {
        let link_type = i32::from(self.half(block, 8)?);
        let mut interface = Interface { link_type, units_per_second: 1_000_000, offset_s: 0 };
        let mut options = block.get(16..block.len() - 4)?;
        while options.len() >= 4 {
            let (code, length) = (self.half(options, 0)?, usize::from(self.half(options, 2)?));
            let value = options.get(4..4 + length)?;
            match (code, value) {
                (RESOLUTION, [power]) => {
                    let (base, power) = if power & 0x80 == 0 { (10u128, power & 0x7f) } else { (2, power & 0x7f) };
                    interface.units_per_second = base.checked_pow(power.into())?;
                }
                (OFFSET, value) => {
                    let value = *value.first_chunk()?;
                    let is_big = self.is_big_endian;
                    interface.offset_s = if is_big { i64::from_be_bytes(value) } else { i64::from_le_bytes(value) };
                }
                _ => {}
            }
            options = options.get(4 + length.next_multiple_of(4)..).unwrap_or_default();
        }
        Some(interface)
    }

    /// A packet with the number `frame`; the error says what is wrong.
    fn packet<'a>(
        self,
        block: &'a [u8],
        is_old: bool,
        frame: u64,
        interfaces: &[Interface],
    ) -> Result<Packet<'a>, String> {
        let short = || "its block is too short".to_owned();
        let word = |offset| self.word(block, offset).ok_or_else(short);
        let number = if is_old { self.half(block, 8).map(u32::from).ok_or_else(short)? } else { word(8)? };
        let interface =
            interfaces.get(number as usize).ok_or_else(|| format!("interface {number} is not described"))?;
        let length = word(20)? as usize;
        if length > LONGEST {
            return Err(format!("it has {length} bytes, more than {LONGEST}"));
        }
        let bytes = block[..block.len() - 4].get(PACKET_HEAD..PACKET_HEAD + length).ok_or_else(short)?;
        let units = u64::from(word(12)?) << 32 | u64::from(word(16)?);
        let (time_ns, link_type) = (interface.time_ns(units), interface.link_type);
        Ok(Packet { time_ns, link_type, frame, original_length: word(24)?, bytes })
    }
}

/// Hands each packet to `take`; the input is at the start of the file. The error comes with the number of packets before
/// it.
pub fn read(input: &mut Input<impl Read>, mut take: impl FnMut(&Packet<'_>)) -> Result<u64, (u64, io::Error)> {
    let mut frame = 0;
    let mut order = ByteOrder { is_big_endian: false };
    let mut interfaces: Vec<Interface> = Vec::new();
    loop {
        let wrong = |kind, text: String| (frame, io::Error::new(kind, text));
        let bad = |text: String| wrong(io::ErrorKind::InvalidData, format!("packet {}: {text}", frame + 1));
        let cut = || wrong(io::ErrorKind::UnexpectedEof, format!("cut off before the end of packet {}", frame + 1));
        let head = input.peek(BLOCK_HEAD).map_err(|error| (frame, error))?;
        if head.is_empty() {
            return Ok(frame);
        }
        if head.len() < BLOCK_HEAD {
            return Err(cut());
        }
        if head[..4] == MAGIC {
            order.is_big_endian = match head[8..] {
                [0x1a, 0x2b, 0x3c, 0x4d] => true,
                [0x4d, 0x3c, 0x2b, 0x1a] => false,
                _ => return Err(bad("the section's byte order is unknown".into())),
            };
        }
        let (kind, length) = (order.word(head, 0).unwrap_or(0), order.word(head, 4).unwrap_or(0) as usize);
        if !(BLOCK_HEAD..=LONGEST_BLOCK).contains(&length) || length % 4 != 0 {
            return Err(bad(format!("a block of {length} bytes")));
        }
        let block = input.peek(length).map_err(|error| (frame, error))?;
        if block.len() < length {
            return Err(cut());
        }
        match kind {
            SECTION => interfaces.clear(),
            INTERFACE => {
                let described = order.interface(block);
                interfaces.push(described.ok_or_else(|| bad("an interface's description is damaged".into()))?);
            }
            PACKET | OLD_PACKET => {
                let packet = order.packet(block, kind == OLD_PACKET, frame + 1, &interfaces).map_err(bad)?;
                frame += 1;
                take(&packet);
            }
            SIMPLE_PACKET => return Err(bad("it has no time (a simple packet block)".into())),
            _ => {}
        }
        input.skip(length);
    }
}
