//! Histograms as text, so that percentiles can be put together over times and nodes (an average of percentiles is none).
//!
//! The text is base64 of HdrHistogram's V2 format, compressed: every HdrHistogram library reads and writes it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

use crate::figures::Times;

/// The longest text that is taken: a full histogram has some 100 KiB.
const LONGEST_TEXT: usize = 1 << 20;

/// A text that is no histogram.
#[derive(Debug)]
pub struct MergeError(String);

impl fmt::Display for MergeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MergeError {}

/// A histogram as text.
pub(crate) fn text(histogram: &Histogram<u32>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes).expect("memory takes all");
    STANDARD.encode(bytes)
}

/// The times of several histograms together, as if all had been measured at one place, and their number. The mean is
/// that of the histograms: within 0.1%.
pub fn merge<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<(u64, Times), MergeError> {
    let mut all = Histogram::<u64>::new(3).expect("three digits are allowed");
    for text in texts {
        let error = |reason: &dyn fmt::Display| {
            let start: String = text.chars().take(24).collect();
            MergeError(format!("{start:?}...: not an HDR histogram (V2, compressed, base64): {reason}"))
        };
        if text.len() > LONGEST_TEXT {
            return Err(error(&"too long"));
        }
        let bytes = STANDARD.decode(text.trim()).map_err(|reason| error(&reason))?;
        let one: Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|reason| error(&reason))?;
        all.add(&one).map_err(|reason| error(&reason))?;
    }
    let ms = |ns: f64| (!all.is_empty()).then_some(ns / 1e6);
    let quantile = |q| ms(all.value_at_quantile(q) as f64);
    let times = Times {
        mean: ms(all.mean()),
        p50: quantile(0.50),
        p95: quantile(0.95),
        p99: quantile(0.99),
        max: ms(all.max() as f64),
    };
    Ok((all.len(), times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuzzers_seed_is_a_histogram() {
        let seed = include_str!("../fuzz/seeds/histogram.txt");
        assert_eq!(merge(seed.lines()).expect("a histogram").0, 17);
    }
}
