//! Reads a file or a pipe in large pieces, with a view of the next bytes.

use std::io::{self, Read};

/// Bytes read at a time. With libpcap's 4 KiB the reading would cost more than all other work.
const PIECE: usize = 256 * 1024;

/// A source, with the bytes that were read and are not consumed yet.
pub struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> Input<R> {
    /// Reads nothing yet.
    pub fn new(source: R) -> Self {
        Self { source, buffer: vec![0; PIECE], start: 0, end: 0 }
    }

    /// The next `count` bytes; fewer only where the source ends.
    pub fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.end - self.start < count {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.buffer.len() < count {
                self.buffer.resize(count.next_multiple_of(PIECE), 0);
            }
        }
        while self.end - self.start < count {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[self.start..self.end.min(self.start + count)])
    }

    /// Consumes bytes.
    pub fn skip(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
    }
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            return self.source.read(bytes);
        }
        let count = (self.end - self.start).min(bytes.len());
        bytes[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.start += count;
        Ok(count)
    }
}
