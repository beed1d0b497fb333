//! Where a chunked body ends (RFC 9112, section 7.1): sizes are read, data is skipped, nothing is kept.

/// A place in a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunks {
    place: Place,
    /// Bytes of data left in this chunk; while reading a size, the size so far.
    left: u64,
    digits: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Size,
    Extension,
    Data,
    DataEnd,
    Trailer,
    TrailerLine,
}

/// The result of reading more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The body goes on.
    More,
    /// The body ended.
    Done,
    /// These bytes are no chunked body.
    Broken,
}

impl Chunks {
    /// The start of a body.
    pub fn new() -> Self {
        Self { place: Place::Size, left: 0, digits: 0 }
    }

    /// Reads the next bytes; returns how many of them belong to the body: all, unless it is done or broken.
    pub fn read(&mut self, bytes: &[u8]) -> (usize, Progress) {
        let mut position = 0;
        while position < bytes.len() {
            let byte = bytes[position];
            match self.place {
                Place::Data => {
                    let take = self.left.min((bytes.len() - position) as u64);
                    self.left -= take;
                    position += take as usize;
                    if self.left == 0 {
                        self.place = Place::DataEnd;
                    }
                    continue;
                }
                Place::Extension | Place::TrailerLine => {
                    let Some(line) = memchr::memchr(b'\n', &bytes[position..]) else {
                        return (bytes.len(), Progress::More);
                    };
                    position += line;
                    self.place = match (self.place, self.left) {
                        (Place::Extension, 1..) => Place::Data,
                        _ => Place::Trailer,
                    };
                }
                Place::Size => match byte {
                    b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F' if self.digits < 15 => {
                        let digit = (byte as char).to_digit(16).unwrap_or(0);
                        self.left = self.left << 4 | u64::from(digit);
                        self.digits += 1;
                    }
                    b'\n' | b'\r' | b';' | b' ' | b'\t' if self.digits > 0 => {
                        self.place = Place::Extension;
                        continue;
                    }
                    _ => return (position, Progress::Broken),
                },
                Place::DataEnd => match byte {
                    b'\r' => {}
                    b'\n' => *self = Self::new(),
                    _ => return (position, Progress::Broken),
                },
                Place::Trailer => match byte {
                    b'\r' => {}
                    b'\n' => return (position + 1, Progress::Done),
                    _ => self.place = Place::TrailerLine,
                },
            }
            position += 1;
        }
        (position, Progress::More)
    }

    /// Number of the next bytes whose content does not change where the body ends.
    pub fn opaque(&self) -> u64 {
        if self.place == Place::Data { self.left } else { 0 }
    }

    /// Passes over bytes that were not captured; false if these may have included sizes.
    pub fn skip(&mut self, length: u64) -> bool {
        if self.place != Place::Data || length > self.left + 2 {
            return false;
        }
        match length.saturating_sub(self.left) {
            0 => {
                self.left -= length;
                if self.left == 0 {
                    self.place = Place::DataEnd;
                }
            }
            1 => self.place = Place::DataEnd,
            _ => *self = Self::new(),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"4\r\nWiki\r\nA;name=value\r\n0123456789\r\n0\r\nExpires: never\r\n\r\nNEXT";

    #[test]
    fn ends_at_the_same_byte_however_it_is_cut() {
        for cut in 0..BODY.len() - 4 {
            let mut chunks = Chunks::new();
            let (used, progress) = chunks.read(&BODY[..cut]);
            assert_eq!((used, progress), (cut, Progress::More));
            assert_eq!(chunks.read(&BODY[cut..]), (BODY.len() - 4 - cut, Progress::Done));
        }
    }

    #[test]
    fn bare_line_feeds_will_do() {
        assert_eq!(Chunks::new().read(b"2\nab\n0\n\nrest"), (8, Progress::Done));
    }

    #[test]
    fn refuses_what_is_no_size() {
        assert_eq!(Chunks::new().read(b"xyz").1, Progress::Broken);
        assert_eq!(Chunks::new().read(b"\r\n").1, Progress::Broken);
        assert_eq!(Chunks::new().read(b"ffffffffffffffffffff\r\n").1, Progress::Broken);
        assert_eq!(Chunks::new().read(b"1\r\nabc").1, Progress::Broken);
    }

    #[test]
    fn passes_over_a_hole_in_data_only() {
        let mut chunks = Chunks::new();
        chunks.read(b"a\r\n01");
        assert!(chunks.skip(3));
        assert_eq!(chunks.read(b"56789\r\n0\r\n\r\n"), (12, Progress::Done));
        let mut chunks = Chunks::new();
        chunks.read(b"a\r\n01");
        assert!(chunks.skip(10));
        assert_eq!(chunks.read(b"0\r\n\r\n"), (5, Progress::Done));
        let mut chunks = Chunks::new();
        chunks.read(b"a\r\n01");
        assert!(!chunks.skip(11));
        assert!(!Chunks::new().skip(1));
    }
}
