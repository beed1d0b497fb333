//! Histograms as text, to compute percentiles over several periods and nodes; an average of percentiles is no
//! percentile.
//!
//! The text is base64 of HdrHistogram's V2 format, compressed: every HdrHistogram library reads and writes it.

use std::fmt;
use std::io::{self, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

use crate::figures::Times;

/// The longest accepted text in bytes; a full histogram has some 100 KiB.
const LONGEST_TEXT: usize = 1 << 20;

/// The most bytes that are unpacked; our histograms have at most 5 for each of 43,000 counts.
const LONGEST: u64 = 4 << 20;

/// The first word of a compressed histogram.
const COMPRESSED: u32 = 0x1c84_9314;

/// Bytes before the counts.
const HEAD: usize = 40;

/// A text that is no histogram.
#[derive(Debug, thiserror::Error)]
#[error("{start:?}...: not an HDR histogram (V2, compressed, base64): {reason}")]
pub struct MergeError {
    start: String,
    reason: String,
}

/// A histogram as text.
pub(crate) fn text(histogram: &Histogram<u32>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes).expect("memory takes everything");
    STANDARD.encode(bytes)
}

/// The uncompressed histogram, after a check of its declared size, for which a reader would otherwise allocate up to 4
/// GiB.
fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let number = |bytes: &[u8], offset: usize| bytes.get(offset..)?.first_chunk().copied().map(u32::from_be_bytes);
    let (Some(COMPRESSED), Some(length)) = (number(packed, 0), number(packed, 4)) else {
        return Err(io::Error::other("another format"));
    };
    let mut bytes = Vec::new();
    let source = packed[8..].take(length.into());
    ZlibDecoder::new(source).take(LONGEST + 1).read_to_end(&mut bytes)?;
    let payload = number(&bytes, 4).unwrap_or(u32::MAX);
    if bytes.len() as u64 > LONGEST || payload as usize > bytes.len().saturating_sub(HEAD) {
        return Err(io::Error::other(format!("{payload} bytes of counts are said to be in {}", bytes.len())));
    }
    Ok(bytes)
}

/// The number of exchanges in several histograms, and their times as if one place had measured them all. The mean is
/// that of the histograms: within 0.1%.
pub fn merge<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<(u64, Times), MergeError> {
    let mut merged = Histogram::<u64>::new(3).expect("three digits are allowed");
    for text in texts {
        let error = |reason: &dyn fmt::Display| MergeError {
            start: text.chars().take(24).collect(),
            reason: reason.to_string(),
        };
        if text.len() > LONGEST_TEXT {
            return Err(error(&"too long"));
        }
        let packed = STANDARD.decode(text.trim()).map_err(|reason| error(&reason))?;
        let bytes = unpack(&packed).map_err(|reason| error(&reason))?;
        let histogram: Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|reason| error(&reason))?;
        merged.add(&histogram).map_err(|reason| error(&reason))?;
    }
    let ms = |ns: f64| (!merged.is_empty()).then_some(ns / 1e6);
    let quantile = |q| ms(merged.value_at_quantile(q) as f64);
    let times = Times {
        mean: ms(merged.mean()),
        p50: quantile(0.50),
        p95: quantile(0.95),
        p99: quantile(0.99),
        max: ms(merged.max() as f64),
    };
    Ok((merged.len(), times))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_fuzzers_seed_is_a_histogram() {
        let seed = include_str!("../../fuzz/corpus/text/histogram");
        assert_eq!(merge(seed.lines()).expect("a histogram").0, 17);
    }

    #[test]
    fn a_histogram_that_lies_about_its_size_is_refused() {
        let packed = |bytes: &[u8]| {
            let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            zlib.write_all(bytes).expect("memory takes everything");
            let zlib = zlib.finish().expect("memory takes everything");
            STANDARD.encode([&COMPRESSED.to_be_bytes()[..], &(zlib.len() as u32).to_be_bytes(), &zlib].concat())
        };
        let mut bytes = Vec::new();
        hdrhistogram::serialization::V2Serializer::new()
            .serialize(&Histogram::<u32>::new(3).expect("three digits"), &mut bytes)
            .expect("memory takes everything");
        assert_eq!(merge([packed(&bytes).as_str()]).expect("a whole file").0, 0);
        bytes[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        for bytes in [&bytes[..], &[], &vec![0; 5 << 20]] {
            let error = merge([packed(bytes).as_str()]).expect_err("a false histogram").to_string();
            assert!(error.contains("are said to be"), "{error}");
        }
        assert!(merge(["AAAA", "HISTFA=="]).is_err());
    }
}
