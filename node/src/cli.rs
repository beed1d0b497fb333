//! Printing and the command `config`, which the node's programs share.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

use crate::printable::printable;
use crate::settings::Declared;

/// Standard output does not take the text.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("cannot print: {0}")]
pub struct PrintError(String);

/// Prints text without characters that steer a terminal; a reader that has gone (`| head`) is no failure.
///
/// # Errors
/// When standard output does not take it.
pub fn print(text: &str) -> Result<ExitCode, PrintError> {
    match io::stdout().lock().write_all(printable(text).as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(PrintError(error.to_string())),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Rows as JSON for people.
pub fn pretty_json(rows: &impl Serialize) -> String {
    serde_json::to_string_pretty(rows).unwrap_or_default() + "\n"
}

// A comment, since clap would print a docstring as the command's help: the arguments of the command `config`.
#[allow(missing_docs)]
#[derive(clap::Args)]
pub struct ConfigCommand {
    /// The configuration to check
    #[arg(value_name = "FILE", required_unless_present = "list")]
    file: Option<PathBuf>,
    /// Print each setting with its default and what it does
    #[arg(long, conflicts_with = "file")]
    list: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl ConfigCommand {
    /// Lists all settings, or checks a configuration that `load` reads and `describe` sums up.
    ///
    /// # Errors
    /// The configuration's faults, unless they are printed as JSON.
    pub fn run<S: Declared, E: Display + From<PrintError>>(
        self,
        load: impl FnOnce(&Path) -> Result<S, E>,
        describe: impl FnOnce(&S) -> String,
    ) -> Result<ExitCode, E> {
        if self.list {
            let list = S::list();
            let lines =
                list.iter().map(|setting| format!("{} = {}\n    {}\n", setting.name, setting.default, setting.help));
            return Ok(print(&if self.json { pretty_json(&list) } else { lines.collect() })?);
        }
        let file = self.file.unwrap_or_default();
        let settings = load(&file);
        if !self.json {
            return Ok(print(&format!("{}: fine ({})\n", file.display(), describe(&settings?)))?);
        }
        let faults = settings.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let faults: Vec<&str> = faults.lines().collect();
        print(&format!("{}\n", json!({"valid": settings.is_ok(), "faults": faults})))?;
        Ok(if settings.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
