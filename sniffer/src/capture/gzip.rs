//! Unpacks a capture for libpcap as it is read: a thread writes into a pair of sockets that libpcap reads from.
//!
//! Not a pipe: when libpcap refuses what it reads it keeps its end open, and a thread that writes into a full pipe would
//! wait for ever. A pair of sockets can be shut down from another handle.

use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

use flate2::read::MultiGzDecoder;

/// How a file compressed with gzip starts.
pub const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Unpacking under way.
pub struct Unpacking {
    thread: JoinHandle<io::Result<()>>,
    reading_end: UnixStream,
}

/// Starts to unpack a file; the bytes come from the descriptor.
pub fn unpack(path: &Path) -> io::Result<(OwnedFd, Unpacking)> {
    let mut packed = MultiGzDecoder::new(File::open(path)?);
    let (mut write, read) = UnixStream::pair()?;
    let reading_end = read.try_clone()?;
    let thread = std::thread::Builder::new().name("gzip".into()).spawn(move || {
        let copied = io::copy(&mut packed, &mut write);
        match copied {
            Ok(_) => Ok(()),
            // The reader gave up: it knows why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(error),
        }
    })?;
    Ok((read.into(), Unpacking { thread, reading_end }))
}

impl Unpacking {
    /// Nothing more is read: ends the thread, and returns what went wrong in it.
    pub fn end(self) -> io::Result<()> {
        // It fails where the other end is gone already, which is fine.
        let _ = self.reading_end.shutdown(Shutdown::Both);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that unpacks died")))
    }
}
