//! Reads a capture file: pcap or pcapng, whatever its precision, also compressed with gzip.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use pcap::{Capture, Offline, Precision};

use super::classic::{self, Format};
use super::{CaptureError, gzip, time_ns};
use crate::segment::Packet;

/// Hands each packet of a file to `take`, in the file's order; returns how many there were. What was read before an
/// error was handed over.
pub fn read_file(path: &Path, take: impl FnMut(&Packet<'_>)) -> Result<u64, CaptureError> {
    let named = |error: &dyn std::fmt::Display| CaptureError(format!("{}: {error}", path.display()));
    let open = || File::open(path).map_err(|error| named(&error));
    let after = |(frames, error): (u64, io::Error)| named(&format!("after {frames} packets: {error}"));
    let is_compressed = start_of(open()?).starts_with(&gzip::MAGIC);
    if !is_compressed {
        if let Some(format) = Format::of(&start_of(open()?)) {
            return classic::read(open()?, format, take).map_err(after);
        }
        let capture = Capture::from_file_with_precision(path, Precision::Nano).map_err(|error| named(&error))?;
        return read(capture, path, take);
    }
    if let Some(format) = Format::of(&start_of(MultiGzDecoder::new(open()?))) {
        return classic::read(MultiGzDecoder::new(open()?), format, take).map_err(after);
    }
    let (unpacked, thread) = gzip::unpack(path).map_err(|error| named(&error))?;
    // SAFETY: the descriptor is ours and is handed over; libpcap closes it with the capture.
    let opened = unsafe { Capture::from_raw_fd_with_precision(unpacked.into_raw_fd(), Precision::Nano) };
    // What is no capture leaves the thread alone: libpcap may have kept the pipe open, so it might never end.
    let result = read(opened.map_err(|error| named(&error))?, path, take);
    // Once the capture is closed the thread has nowhere to write to.
    match thread.join() {
        Ok(Err(error)) => Err(named(&format!("gzip: {error}"))),
        _ => result,
    }
}

/// The first bytes, as many as there are; errors come again when the file is read.
fn start_of(source: impl Read) -> Vec<u8> {
    let mut start = Vec::new();
    let _ = source.take(64).read_to_end(&mut start);
    start
}

fn read(mut capture: Capture<Offline>, path: &Path, mut take: impl FnMut(&Packet<'_>)) -> Result<u64, CaptureError> {
    let link_type = capture.get_datalink().0;
    let mut frame = 0;
    let read = capture.for_each(None, |packet| {
        frame += 1;
        take(&Packet {
            time_ns: time_ns(packet.header),
            link_type,
            frame,
            original_length: packet.header.len,
            bytes: packet.data,
        });
    });
    match read {
        Ok(()) => Ok(frame),
        Err(reason) => Err(CaptureError(format!("{}: after {frame} packets: {reason}", path.display()))),
    }
}
