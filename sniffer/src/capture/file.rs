//! Reads a capture file: pcap or pcapng, whatever its precision, also compressed with gzip.

use std::os::fd::IntoRawFd;
use std::path::Path;

use pcap::{Capture, Offline, Precision};

use super::{CaptureError, gzip, time_ns};
use crate::segment::Packet;

/// Hands each packet of a file to `take`, in the file's order; returns how many there were. What was read before an
/// error was handed over.
pub fn read_file(path: &Path, take: impl FnMut(&Packet<'_>)) -> Result<u64, CaptureError> {
    let named = |error: &dyn std::fmt::Display| CaptureError(format!("{}: {error}", path.display()));
    if !gzip::is_compressed(path).map_err(|error| named(&error))? {
        let capture = Capture::from_file_with_precision(path, Precision::Nano).map_err(|error| named(&error))?;
        return read(capture, path, take);
    }
    let (unpacked, thread) = gzip::unpack(path).map_err(|error| named(&error))?;
    // SAFETY: the descriptor is ours and is handed over; libpcap closes it, also when it can't open the capture.
    let opened = unsafe { Capture::from_raw_fd_with_precision(unpacked.into_raw_fd(), Precision::Nano) };
    // What is no capture leaves the thread alone: libpcap may have kept the pipe open, so it might never end.
    let result = read(opened.map_err(|error| named(&error))?, path, take);
    // Once the capture is closed the thread has nowhere to write to.
    match thread.join() {
        Ok(Err(error)) => Err(named(&format!("gzip: {error}"))),
        _ => result,
    }
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
