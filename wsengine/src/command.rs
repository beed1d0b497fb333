//! Running a program by its list of arguments: never through a shell, never without a limit in time.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};

use crate::system::wait_for;

/// A test or a reload that takes longer than this is ended.
const WITHIN_S: f64 = 20.0;
/// More output than this is left out.
const LONGEST: u64 = 4 << 20;

/// A program that failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum CommandError {
    #[error("no command is configured")]
    NotConfigured,
    #[error("{program}: cannot be run: {reason}")]
    NotRun { program: String, reason: String },
    #[error("{program}: ended, since it took longer than {WITHIN_S} s")]
    TooSlow { program: String },
    #[error("{program}: {status}: {output}")]
    Failed { program: String, status: ExitStatus, output: String },
}

/// What a program that ended with status 0 wrote.
#[derive(Debug)]
pub struct Output {
    /// To its standard output.
    pub stdout: String,
    /// To its standard error.
    pub stderr: String,
}

/// Runs a program to its end.
///
/// # Errors
/// Why it could not be run, or what it wrote last before it failed.
pub fn run<S: AsRef<str>>(argv: &[S]) -> Result<Output, CommandError> {
    let (program, arguments) = argv.split_first().ok_or(CommandError::NotConfigured)?;
    let program = program.as_ref();
    let name = || program.to_owned();
    let not_run = |error: std::io::Error| CommandError::NotRun { program: name(), reason: error.to_string() };
    let mut child = Command::new(program)
        .args(arguments.iter().map(AsRef::as_ref))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_run)?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let status = wait_for(WITHIN_S, || child.try_wait().transpose());
    let Some(status) = status else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(CommandError::TooSlow { program: name() });
    };
    let status = status.map_err(not_run)?;
    let output = Output { stdout: stdout.join().unwrap_or_default(), stderr: stderr.join().unwrap_or_default() };
    if status.success() {
        return Ok(output);
    }
    let written = if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
    Err(CommandError::Failed { program: name(), status, output: last_lines(written) })
}

fn collect(source: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(source) = source {
            let _ = source.take(LONGEST).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The end of a text in one line, without control characters.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let line = lines[lines.len().saturating_sub(5)..].join("; ");
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(800).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_not_read_by_a_shell() {
        let output = run(&["printf", "%s", "$(id); `id` > /tmp/x"]).expect("it ran");
        assert_eq!(output.stdout, "$(id); `id` > /tmp/x");
    }

    #[test]
    fn a_failure_names_the_program_and_its_output() {
        let failure = |argv: &[&str]| run(argv).unwrap_err().to_string();
        assert!(failure(&["/no/such/program"]).starts_with("/no/such/program: cannot be run: "));
        let message = failure(&["ls", "/no/such/place"]);
        assert!(message.starts_with("ls: exit status: 2: ls: cannot access"), "{message}");
        assert_eq!(failure(&[]), "no command is configured");
    }
}
