//! `slackwater-sniffer merge`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use slackwater_sniffer::{Times, merge};

use crate::{AnyError, output, table};

#[derive(Serialize)]
struct Merged {
    exchanges: u64,
    /// Absent unless all files have a histogram of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte_ms: Option<Times>,
    last_byte_ms: Times,
}

/// The histograms of a file's summary.
struct Histograms {
    last_byte: String,
    first_byte: Option<String>,
}

/// Merges the last histograms of each file, which are the summary's.
pub fn merge_files(files: &[PathBuf], as_json: bool) -> Result<(), AnyError> {
    let histograms = files.iter().map(|file| last_histograms(file)).collect::<Result<Vec<_>, _>>()?;
    let last_byte = merge(histograms.iter().map(|histograms| histograms.last_byte.as_str()))?;
    let first_byte: Option<Vec<&str>> = histograms.iter().map(|histograms| histograms.first_byte.as_deref()).collect();
    let first_byte = first_byte.map(merge).transpose()?;
    let mut out = io::stdout().lock();
    if as_json {
        let first_byte_ms = first_byte.map(|(_, times)| times);
        output::json(&mut out, &Merged { exchanges: last_byte.0, first_byte_ms, last_byte_ms: last_byte.1 })?;
    } else {
        out.write_all(table::merged(first_byte, last_byte, output::columns()).as_bytes())?;
    }
    Ok(())
}

fn last_histograms(file: &Path) -> Result<Histograms, AnyError> {
    let named = |reason: &dyn std::fmt::Display| format!("{}: {reason}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| named(&error))?;
    let histograms = text.lines().rev().find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        let field = |name| Some(line.get(name)?.as_str()?.to_owned());
        Some(Histograms { last_byte: field("histogram")?, first_byte: field("first_byte_histogram") })
    });
    Ok(histograms
        .ok_or_else(|| named(&"no line of JSON with a \"histogram\" (print them with --json --histograms)"))?)
}
