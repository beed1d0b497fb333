//! The classic pcap format (draft-ietf-opsawg-pcap).

use std::io::{self, Read};

use super::input::Input;
use crate::segment::Packet;

const FILE_HEAD: usize = 24;
const RECORD_HEAD: usize = 16;

/// The longest valid packet in bytes, as in libpcap.
pub const LONGEST: usize = 262_144;

/// The format that the start of a file declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    is_big_endian: bool,
    /// Nanoseconds in a unit of the fraction.
    unit_ns: u64,
    link_type: i32,
}

impl Format {
    /// The format of a file that starts with these bytes; `None` if this is no such file.
    pub fn parse(start: &[u8]) -> Option<Self> {
        let head: &[u8; FILE_HEAD] = start.get(..FILE_HEAD)?.try_into().ok()?;
        let (is_big_endian, unit_ns) = match head[..4] {
            [0xa1, 0xb2, 0xc3, 0xd4] => (true, 1_000),
            [0xd4, 0xc3, 0xb2, 0xa1] => (false, 1_000),
            [0xa1, 0xb2, 0x3c, 0x4d] => (true, 1),
            [0x4d, 0x3c, 0xb2, 0xa1] => (false, 1),
            _ => return None,
        };
        let mut format = Self { is_big_endian, unit_ns, link_type: 0 };
        // The upper half holds flags.
        format.link_type = format.word(head, 20) as i32 & 0xffff;
        Some(format)
    }

    fn word(&self, bytes: &[u8], offset: usize) -> u32 {
        let word = [bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]];
        if self.is_big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    }
}

/// Hands each packet of a file of this format to `take`; the input is at the start of the file. The error comes with the
/// number of packets before it.
pub fn read(
    input: &mut Input<impl Read>,
    format: Format,
    mut take: impl FnMut(&Packet<'_>),
) -> Result<u64, (u64, io::Error)> {
    let mut frame = 0;
    input.peek(FILE_HEAD).map_err(|error| (frame, error))?;
    input.skip(FILE_HEAD);
    loop {
        let failed = |error| (frame, error);
        let cut =
            || (frame, io::Error::new(io::ErrorKind::UnexpectedEof, format!("cut off within packet {}", frame + 1)));
        let head = input.peek(RECORD_HEAD).map_err(failed)?;
        if head.is_empty() {
            return Ok(frame);
        }
        let head: [u8; RECORD_HEAD] = head.try_into().map_err(|_| cut())?;
        let length = format.word(&head, 8) as usize;
        if length > LONGEST {
            let text = format!("packet {} has {length} bytes, more than {LONGEST}", frame + 1);
            return Err((frame, io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let record = input.peek(RECORD_HEAD + length).map_err(failed)?;
        let bytes = record.get(RECORD_HEAD..RECORD_HEAD + length).ok_or_else(cut)?;
        frame += 1;
        let seconds = u64::from(format.word(&head, 0)) * 1_000_000_000;
        take(&Packet {
            time_ns: seconds + u64::from(format.word(&head, 4)) * format.unit_ns,
            link_type: format.link_type,
            frame,
            original_length: format.word(&head, 12),
            bytes,
        });
        input.skip(RECORD_HEAD + length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time: every boundary is met.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
            (buffer[0], self.0) = (*first, rest);
            Ok(1)
        }
    }

    fn file(magic: u32, link_type: u32, is_big_endian: bool) -> Vec<u8> {
        let words = [magic, 4 << 16 | 2, 0, 0, 65_535, link_type, 7, 5, 3, 60, u32::from_be_bytes(*b"abc.") & !0xff];
        let word = |word: u32| if is_big_endian { word.to_be_bytes() } else { word.to_le_bytes() };
        let mut bytes: Vec<u8> = words[..10].iter().flat_map(|w| word(*w)).collect();
        bytes.extend(b"abc");
        bytes
    }

    #[test]
    fn both_precisions_and_both_orders_are_read() {
        for (magic, is_big_endian, time_ns) in [
            (0xa1b2_c3d4, true, 7_000_005_000),
            (0xa1b2_c3d4, false, 7_000_005_000),
            (0xa1b2_3c4d, true, 7_000_000_005),
            (0xa1b2_3c4d, false, 7_000_000_005),
        ] {
            let bytes = file(magic, 101, is_big_endian);
            let format = Format::parse(&bytes).expect("a format");
            let mut packets = Vec::new();
            let mut take = |packet: &Packet<'_>| {
                assert_eq!(packet.bytes, b"abc");
                packets.push((packet.time_ns, packet.link_type, packet.frame, packet.original_length));
            };
            assert_eq!(read(&mut Input::new(Slow(&bytes)), format, &mut take).expect("a whole file"), 1);
            assert_eq!(read(&mut Input::new(&bytes[..]), format, &mut take).expect("a whole file"), 1);
            assert_eq!(packets, [(time_ns, 101, 1, 60); 2]);
        }
    }

    #[test]
    fn damage_is_named_and_what_came_before_is_counted() {
        let mut bytes = file(0xa1b2_c3d4, 1, true);
        let format = Format::parse(&bytes).expect("a format");
        assert!(Format::parse(&bytes[..23]).is_none() && Format::parse(&[0x0a; 30]).is_none());
        let record = bytes[24..].to_vec();
        bytes.extend(&record[..10]);
        let (frames, error) = read(&mut Input::new(&bytes[..]), format, |_| {}).expect_err("a cut file");
        assert_eq!((frames, error.to_string().as_str()), (1, "cut off within packet 2"));
        bytes[24 + 8] = 0xff;
        assert!(
            read(&mut Input::new(&bytes[..]), format, |_| {})
                .expect_err("a record that is too long")
                .1
                .to_string()
                .contains("packet 1 has")
        );
    }
}
