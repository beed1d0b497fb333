//! `slackwater-sniffer merge`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use slackwater_sniffer::{Times, merge};

use crate::{AnyError, output, table};

#[derive(Serialize)]
struct Merged {
    exchanges: u64,
    last_byte_ms: Times,
}

/// Merges the last histogram of each file, which is the summary's.
pub fn merge_files(files: &[PathBuf], as_json: bool) -> Result<(), AnyError> {
    let texts = files.iter().map(|file| last_histogram(file)).collect::<Result<Vec<_>, _>>()?;
    let (exchanges, times) = merge(texts.iter().map(String::as_str))?;
    let mut out = io::stdout().lock();
    if as_json {
        output::json(&mut out, &Merged { exchanges, last_byte_ms: times })?;
    } else {
        out.write_all(table::merged(exchanges, &times, output::columns()).as_bytes())?;
    }
    Ok(())
}

fn last_histogram(file: &Path) -> Result<String, AnyError> {
    let named = |reason: &dyn std::fmt::Display| format!("{}: {reason}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| named(&error))?;
    let histogram = text.lines().rev().find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(line.get("histogram")?.as_str()?.to_owned())
    });
    Ok(histogram.ok_or_else(|| named(&"no line of JSON with a \"histogram\" (print them with --json --histograms)"))?)
}
