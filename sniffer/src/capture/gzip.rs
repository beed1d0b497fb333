//! Unpacks a capture for libpcap as it is read: a thread writes into a pipe that libpcap reads from.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::JoinHandle;

use flate2::read::MultiGzDecoder;
use rustix::pipe::{PipeFlags, pipe_with};

/// How a file compressed with gzip starts.
pub const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The end of a pipe from which the unpacked bytes come, and the thread that says whether there was an error.
pub fn unpack(path: &Path) -> io::Result<(OwnedFd, JoinHandle<io::Result<()>>)> {
    let mut packed = MultiGzDecoder::new(File::open(path)?);
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    let thread = std::thread::Builder::new().name("gzip".into()).spawn(move || {
        let copied = io::copy(&mut packed, &mut File::from(write));
        match copied {
            Ok(_) => Ok(()),
            // The reader gave up: it knows why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(error),
        }
    })?;
    Ok((read, thread))
}
