//! Running a program by its list of arguments: never through a shell, never without a limit in time.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::world::wait_for;

/// A test or a reload that takes longer than this is ended.
const WITHIN_S: f64 = 20.0;
/// More output than this is left out.
const LONGEST: u64 = 4 << 20;

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
/// `PROGRAM: why it could not be run`, or what it wrote last before it ended with another status than 0.
pub fn run<S: AsRef<str>>(argv: &[S]) -> Result<Output, String> {
    let (program, arguments) = argv.split_first().ok_or("no command is configured")?;
    let program = program.as_ref();
    let mut child = Command::new(program)
        .args(arguments.iter().map(AsRef::as_ref))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: cannot be run: {error}"))?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let status = wait_for(WITHIN_S, || child.try_wait().transpose());
    let Some(status) = status else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("{program}: ended, since it took longer than {WITHIN_S} s"));
    };
    let status = status.map_err(|error| format!("{program}: {error}"))?;
    let output = Output { stdout: stdout.join().unwrap_or_default(), stderr: stderr.join().unwrap_or_default() };
    if status.success() {
        return Ok(output);
    }
    let said = if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
    Err(format!("{program}: {status}: {}", last_lines(said)))
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
    fn what_goes_wrong_is_said() {
        assert!(run(&["/no/such/program"]).unwrap_err().starts_with("/no/such/program: cannot be run: "));
        let said = run(&["ls", "/no/such/place"]).unwrap_err();
        assert!(said.starts_with("ls: exit status: 2: ls: cannot access"), "{said}");
        assert_eq!(run::<&str>(&[]).unwrap_err(), "no command is configured");
    }
}
