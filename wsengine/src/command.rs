//! Running a program by its list of arguments: never through a shell, never without a limit in time.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use slackwater_node::sync::lock;

use crate::wait::wait_for;

/// A test or a reload that takes longer than this is ended.
const WITHIN_S: f64 = 20.0;
/// Longest output in bytes. More is an error of its own, and does not stop the program.
const LONGEST: u64 = 64 << 20;
/// A process that the program leaves running may keep the output open; its end is not waited for longer than this.
const READ_WITHIN: Duration = Duration::from_secs(1);

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
    #[error("{program}: it wrote more than {} MiB, which is not read", LONGEST >> 20)]
    TooLong { program: String },
    #[error("{program}: {status}: {output}")]
    Failed { program: String, status: ExitStatus, output: String },
}

/// The output of a program that ended with status 0.
#[derive(Debug)]
pub struct Output {
    /// The command's standard output.
    pub stdout: String,
    /// The command's standard error.
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
        // A script's programs end with it when it takes too long.
        .process_group(0)
        .spawn()
        .map_err(not_run)?;
    let (stdout, stderr) = (Collected::start(child.stdout.take()), Collected::start(child.stderr.take()));
    let status = wait_for(WITHIN_S, || child.try_wait().transpose());
    let Some(status) = status else {
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = child.wait();
        return Err(CommandError::TooSlow { program: name() });
    };
    let status = status.map_err(not_run)?;
    let ((stdout, is_whole), (stderr, _)) = (stdout.text(), stderr.text());
    if status.success() {
        let output = Output { stdout, stderr };
        return if is_whole { Ok(output) } else { Err(CommandError::TooLong { program: name() }) };
    }
    let written = if stderr.trim().is_empty() { &stdout } else { &stderr };
    Err(CommandError::Failed { program: name(), status, output: last_lines(written) })
}

/// The output of a program, read to its end so that the program never has to wait. Output beyond `LONGEST` is dropped.
struct Collected {
    bytes: Arc<Mutex<(Vec<u8>, bool)>>,
    ended: Receiver<()>,
}

impl Collected {
    fn start(source: Option<impl Read + Send + 'static>) -> Collected {
        let bytes = Arc::new(Mutex::new((Vec::new(), true)));
        let (end, ended) = channel();
        let shared = bytes.clone();
        std::thread::spawn(move || {
            let Some(mut source) = source else { return };
            let mut buffer = [0; 65_536];
            while let Ok(length @ 1..) = source.read(&mut buffer) {
                let (bytes, is_whole) = &mut *lock(&shared);
                *is_whole &= (bytes.len() + length) as u64 <= LONGEST;
                if *is_whole {
                    bytes.extend_from_slice(&buffer[..length]);
                }
            }
            let _ = end.send(());
        });
        Collected { bytes, ended }
    }

    /// The text, and whether it is complete.
    fn text(self) -> (String, bool) {
        let _ = self.ended.recv_timeout(READ_WITHIN);
        let (bytes, is_whole) = &*lock(&self.bytes);
        (String::from_utf8_lossy(bytes).into_owned(), *is_whole)
    }
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
        let output = run(&["printf", "%s", "$(id); `id` > /tmp/x"]).expect("the command runs");
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

    #[test]
    fn output_is_read_to_its_end_or_its_length_is_the_error() {
        let zeros = |count: &str| run(&["head", "-c", count, "/dev/zero"]).map(|output| output.stdout.len());
        assert_eq!(zeros("9000000"), Ok(9_000_000));
        assert_eq!(zeros("70000000").unwrap_err().to_string(), "head: it wrote more than 64 MiB, which is not read");
    }

    #[test]
    fn what_a_program_leaves_running_does_not_hold_us_up() {
        let start = std::time::Instant::now();
        assert_eq!(run(&["sh", "-c", "echo done; sleep 30 &"]).expect("the command runs").stdout, "done\n");
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}
