//! The command `slackwater-sniffer`.

mod support;

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use support::{GET, OK, Talk, write_capture};

fn sniffer(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slackwater-sniffer")).args(arguments).output().expect("it runs")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// A capture of one exchange and one request without response; the file goes with it.
struct Capture(PathBuf);

impl Capture {
    fn new() -> Self {
        let mut talk = Talk::new();
        talk.client(GET);
        talk.server(OK);
        talk.client(GET);
        Self(write_capture(1, &talk.frames))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a name in text")
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn read_prints_exchanges_and_then_the_summary() {
    let file = Capture::new();
    let output = sniffer(&["read", file.path(), "--port", "80", "--json", "--exchanges"]);
    assert!(output.status.success());
    let lines = lines(&output);
    assert_eq!(lines.len(), 2);
    let expected = serde_json::json!({
        "request_frame": 4, "response_frame": 5, "stream": 0, "seconds": 0.001, "seconds_first_byte": 0.001,
        "method": "GET", "status": 200, "protocol": "http1"
    });
    assert_eq!(lines[0], expected);
    let summary = &lines[1];
    for (name, value) in [("packets", 6), ("exchanges", 1), ("unmatched_requests", 1), ("orphan_responses", 0)] {
        assert_eq!(summary[name], value, "{name}");
    }
    assert_eq!((&summary["status"]["2xx"], &summary["last_byte_ms"]["p99"]), (&1.into(), &1.0.into()));
    assert!(summary["drops"].is_null());
}

#[test]
fn other_ports_are_not_looked_at() {
    let file = Capture::new();
    let output = sniffer(&["read", file.path(), "--port", "81", "--port", "82", "--json"]);
    assert_eq!((lines(&output)[0]["exchanges"].clone(), lines(&output)[0]["packets"].clone()), (0.into(), 6.into()));
}

#[test]
fn without_json_people_can_read_it() {
    let file = Capture::new();
    let output = sniffer(&["read", file.path(), "--port", "80"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("unmatched requests") && text.contains("last byte"), "{text}");
}

#[test]
fn a_missing_or_damaged_file_is_named() {
    let output = sniffer(&["read", "no-such-file.pcap"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("no-such-file.pcap"), "{text}");

    let file = Capture::new();
    let bytes = std::fs::read(file.path()).expect("it was written");
    std::fs::write(file.path(), &bytes[..bytes.len() - 10]).expect("it is ours");
    let output = sniffer(&["read", file.path(), "--json"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("after 5 packets"), "{text}");
    assert_eq!(lines(&output)[0]["exchanges"], 1, "what could be read is reported");
}

#[test]
fn wrong_arguments_are_refused() {
    for arguments in [
        &["read", "x.pcap", "--port", "0"][..],
        &["read", "x.pcap", "--port", "65536"],
        &["live", "-i", "lo", "--every", "0"],
        &["live", "-i", "lo", "--seconds", "NaN"],
        &["live"],
    ] {
        assert_eq!(sniffer(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = sniffer(&["live", "-i", "slackwater-none", "--seconds", "1"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("slackwater-none"), "{text}");
}
