//! Reads a capture file: pcap or pcapng, whatever its precision.

use std::path::Path;

use pcap::{Capture, Precision};

use super::{CaptureError, time_ns};
use crate::segment::Packet;

/// Hands each packet of a file to `take`, in the file's order; returns how many there were. What was read before an
/// error was handed over.
pub fn read_file(path: &Path, mut take: impl FnMut(&Packet<'_>)) -> Result<u64, CaptureError> {
    let error = |error: pcap::Error| CaptureError(format!("{}: {error}", path.display()));
    let mut capture = Capture::from_file_with_precision(path, Precision::Nano).map_err(error)?;
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
