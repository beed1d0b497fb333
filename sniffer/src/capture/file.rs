//! Reads captures from files and pipes: pcap or pcapng, whatever their precision, also compressed with gzip.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::CaptureError;
use super::classic::{self, Format};
use super::input::Input;
use super::pcapng;
use crate::segment::Packet;

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Bytes that are needed to recognise the format.
const START: usize = 24;

/// Hands each packet of a file to `take`, in the file's order; returns their number. Packets before an error are handed
/// over too.
pub fn read_file(path: &Path, take: impl FnMut(&Packet<'_>)) -> Result<u64, CaptureError> {
    let file =
        File::open(path).map_err(|error| CaptureError::File { path: path.to_owned(), reason: error.to_string() })?;
    read_stream(file, path, take)
}

/// Hands each packet of a source to `take`; errors call the source `name`. The packets of a pipe are handed over as
/// they arrive.
pub fn read_stream(source: impl Read, name: &Path, take: impl FnMut(&Packet<'_>)) -> Result<u64, CaptureError> {
    let mut input = Input::new(source);
    let is_compressed = input.peek(GZIP.len()).map(|start| *start == GZIP);
    let read = match is_compressed {
        Ok(true) => read_packets(&mut Input::new(MultiGzDecoder::new(input)), take),
        Ok(false) => read_packets(&mut input, take),
        Err(error) => Err((0, error)),
    };
    read.map_err(|(frames, error)| {
        let reason = if frames > 0 { format!("after {frames} packets: {error}") } else { error.to_string() };
        CaptureError::File { path: name.to_owned(), reason }
    })
}

fn read_packets(input: &mut Input<impl Read>, take: impl FnMut(&Packet<'_>)) -> Result<u64, (u64, io::Error)> {
    let start = input.peek(START).map_err(|error| (0, error))?;
    if let Some(format) = Format::parse(start) {
        return classic::read(input, format, take);
    }
    if start.starts_with(&pcapng::MAGIC) {
        return pcapng::read(input, take);
    }
    let text = if start.is_empty() { "it is empty" } else { "neither pcap nor pcapng" };
    Err((0, io::Error::new(io::ErrorKind::InvalidData, text)))
}
