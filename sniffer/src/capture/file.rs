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
    let named = |error: &dyn std::fmt::Display| CaptureError::File { path: path.to_owned(), reason: error.to_string() };
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
    let (unpacked, unpacking) = gzip::unpack(path).map_err(|error| named(&error))?;
    // SAFETY: the descriptor is ours and is handed over; libpcap closes it with the capture.
    let opened = unsafe { Capture::from_raw_fd_with_precision(unpacked.into_raw_fd(), Precision::Nano) };
    let result = opened.map_err(|error| named(&error)).and_then(|capture| read(capture, path, take));
    // A file that can't be unpacked to its end is the reason for whatever error libpcap has.
    unpacking.end().map_err(|error| named(&format!("gzip: {error}")))?;
    result
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
        Err(reason) => {
            Err(CaptureError::File { path: path.to_owned(), reason: format!("after {frame} packets: {reason}") })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn nothing_goes_on_unpacking_what_is_refused() {
        let path = std::env::temp_dir().join(format!("slackwater-refused-{}.gz", std::process::id()));
        // No capture at all, and a section of pcapng that is damaged: both far larger than what is buffered.
        for start in [&b"neither of the formats"[..], &[0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 1, 0xee]] {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packed.write_all(start).and_then(|()| packed.write_all(&vec![7; 2 << 20])).expect("memory takes all");
            std::fs::write(&path, packed.finish().expect("memory takes all")).expect("a temporary file");
            let read = read_file(&path, |_| {});
            std::fs::remove_file(&path).expect("it was written");
            // It returned, so the thread was joined.
            assert!(read.expect_err("it is no capture").to_string().contains("slackwater-refused"));
        }
    }
}
