//! Captures as files and pipes: formats, interfaces, standard input, and unreadable input.

mod support;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::{Frame, GET, OK, START_NS, Talk, Wrapping, gzip, lines, write_capture};

fn sniffer(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_slackwater-sniffer"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    child.stdin.take().expect("a pipe").write_all(input).expect("the command reads everything");
    child.wait_with_output().expect("the command ends")
}

fn talk() -> Talk {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(OK);
    talk
}

fn capture(link_type: i32, frames: &[Frame]) -> Vec<u8> {
    let path = write_capture(link_type, frames);
    let bytes = std::fs::read(&path).expect("the file was written");
    std::fs::remove_file(path).expect("the file was written");
    bytes
}

#[test]
fn standard_input_is_read_as_a_file_is() {
    let mut bytes = capture(1, &talk().frames);
    for _ in 0..2 {
        let output = sniffer(&["read", "-", "--json"], &bytes);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(lines(&output)[0]["exchanges"], 1);
        bytes = gzip(&bytes);
    }
}

#[test]
fn a_pipe_s_exchanges_are_printed_as_they_come() {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(env!("CARGO_BIN_EXE_slackwater-sniffer"))
        .args(["read", "-", "--json", "--exchanges"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(&capture(1, &talk().frames)).expect("the command reads");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    // The input is still open.
    output.read_line(&mut line).expect("a line");
    assert!(line.contains("\"request_frame\":4"), "{line}");
    drop(input);
    line.clear();
    output.read_line(&mut line).expect("the summary");
    assert!(line.contains("\"exchanges\":1"), "{line}");
    assert!(child.wait().expect("the command ends").success());
}

#[test]
fn ctrl_c_ends_the_writer_and_not_the_reader_at_once() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(env!("CARGO_BIN_EXE_slackwater-sniffer"))
        .args(["read", "-", "--json", "--exchanges"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut input = child.stdin.take().expect("a pipe");
    let bytes = capture(1, &talk().frames);
    input.write_all(&bytes).expect("the command reads");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("an exchange");
    kill_process(Pid::from_child(&child), Signal::INT).expect("the process is ours");
    // A second Ctrl-C in a test would race with the first: the writer's end is what must bring the summary.
    drop(input);
    line.clear();
    output.read_line(&mut line).expect("the summary");
    assert!(line.contains("\"exchanges\":1"), "{line}");
    assert!(child.wait().expect("the command ends").success());
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padding = vec![0; body.len().next_multiple_of(4) - body.len()];
    let length = (12 + body.len() + padding.len()) as u32;
    [&kind.to_le_bytes()[..], &length.to_le_bytes(), body, &padding, &length.to_le_bytes()].concat()
}

fn section() -> Vec<u8> {
    block(0x0a0d_0d0a, &[0x1a2b_3c4du32, 1, u32::MAX, u32::MAX].map(u32::to_le_bytes).concat())
}

/// `resolution`: as in the option; `offset_s` is added to all times.
fn interface(link_type: u16, resolution: u8, offset_s: i64) -> Vec<u8> {
    let head = [&link_type.to_le_bytes()[..], &[0; 6]].concat();
    let options = [&[9, 0, 1, 0, resolution, 0, 0, 0, 14, 0, 8, 0][..], &offset_s.to_le_bytes(), &[0; 4]].concat();
    block(1, &[head, options].concat())
}

fn packet(interface: u32, units: u64, frame: &[u8]) -> Vec<u8> {
    let length = frame.len() as u32;
    let words = [interface, (units >> 32) as u32, units as u32, length, length];
    block(6, &[&words.map(u32::to_le_bytes).concat(), frame].concat())
}

#[test]
fn interfaces_of_a_pcapng_file_have_their_own_link_types_and_times() {
    let other = |wrapping, frame: usize| {
        let mut talk = Talk::silent();
        talk.wrapping = wrapping;
        talk.handshake();
        talk.client(GET);
        talk.server(OK);
        talk.frames[frame].bytes.clone()
    };
    let offset_s = 1_000_000_000;
    let offset_ns = offset_s * 1_000_000_000;
    let frames = talk().frames;
    let mut bytes =
        [section(), interface(1, 9, 0), interface(276, 6, 0), interface(12, 0x80 | 10, offset_s as i64)].concat();
    for frame in &frames[..3] {
        bytes.extend(packet(0, frame.time_ns, &frame.bytes));
    }
    // The request in microseconds, the response in 1024ths of a second since another year.
    let start_s = START_NS / 1_000_000_000;
    assert!(START_NS.is_multiple_of(1_000_000_000) && offset_ns < START_NS);
    bytes.extend(packet(1, (start_s + 1) * 1_000_000, &other(Wrapping::Sll2, 3)));
    bytes.extend(packet(2, (start_s + 1 - offset_s) * 1_024 + 512, &other(Wrapping::Raw, 4)));
    let output = sniffer(&["read", "-", "--json", "--exchanges"], &bytes);
    let exchange = &lines(&output)[0];
    assert_eq!((&exchange["request_frame"], &exchange["seconds"]), (&4.into(), &0.5.into()));
    assert_eq!(exchange["time_unix_s"], (start_s + 1) as f64);
}

#[test]
fn what_is_wrong_with_a_pcapng_file_is_named() {
    let good = [section(), interface(1, 9, 0)].concat();
    for (bytes, reason) in [
        (packet(1, 7, &[0; 60]), "interface 1 is not described"),
        (block(3, &[60, 0, 0, 0]), "it has no time"),
        (block(6, &[0; 8]), "too short"),
        (packet(0, 7, &[0; 60])[..40].to_vec(), "cut off"),
        (vec![6, 0, 0, 0, 13, 0, 0, 0, 0, 0, 0, 0, 0], "a block of 13 bytes"),
        (interface(1, 127, 0), "interface's description"),
    ] {
        let output = sniffer(&["read", "-", "--json"], &[&good[..], &bytes].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains(reason), "{reason}: {text}");
        assert!(lines(&output)[0]["error"].as_str().is_some_and(|error| error.contains(reason)), "{reason}");
    }
}

#[test]
fn an_error_gives_no_result_that_looks_valid() {
    let unknown = capture(105, &talk().frames);
    let cases =
        [(&unknown[..], "5 with link type 105 (IEEE802_11)"), (b"GET / HTTP/1.1\r\n", "neither pcap nor pcapng")];
    for (bytes, reason) in cases {
        let output = sniffer(&["read", "-"], bytes);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains(reason), "{text}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "no summary of zeros");
        let output = sniffer(&["read", "-", "--json"], bytes);
        let lines = lines(&output);
        assert!(lines.len() == 1 && lines[0].as_object().is_some_and(|line| line.len() == 1), "{lines:?}");
        assert!(lines[0]["error"].as_str().is_some_and(|error| error.contains(reason)), "{lines:?}");
    }
    // Nothing captured is no error.
    let output = sniffer(&["read", "-", "--json"], &capture(1, &[]));
    assert!(output.status.success() && lines(&output)[0]["packets"] == 0);
    for arguments in [&["merge", "--json", "no-such-file"][..], &["live", "--json", "-i", "slackwater-none"]] {
        assert!(lines(&sniffer(arguments, b""))[0]["error"].is_string(), "{arguments:?}");
    }
}

#[test]
fn some_packets_that_are_not_understood_are_reported_and_no_error() {
    let mut talk = talk();
    talk.frames[2].bytes[12..14].copy_from_slice(&[0x88, 0xe5]);
    let bytes = capture(1, &talk.frames);
    let output = sniffer(&["read", "-", "--json"], &bytes);
    let summary = &lines(&output)[0];
    assert_eq!((&summary["exchanges"], &summary["not_understood"]), (&1.into(), &1.into()));
    assert_eq!(summary["not_understood_kinds"]["EtherType 0x88e5 (MACsec)"], 1);
    let text = String::from_utf8(sniffer(&["read", "-"], &bytes).stdout).expect("text");
    assert!(text.contains("not understood: EtherType 0x88e5 (MACsec)"), "{text}");
}

#[test]
fn merge_keeps_first_byte_times() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(&OK[..40]);
    talk.pause(9);
    talk.server(&OK[40..]);
    let output = sniffer(&["read", "-", "--json", "--histograms"], &capture(1, &talk.frames));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("merge-{}.json", std::process::id()));
    std::fs::write(&path, &output.stdout).expect("the build's directory takes files");
    let name = path.to_str().expect("a name in text");
    let merged = lines(&sniffer(&["merge", name, name, "--json"], b"")).remove(0);
    let text = String::from_utf8(sniffer(&["merge", name], b"").stdout).expect("text");
    std::fs::remove_file(&path).expect("the file was written");
    let rounded = |value: &Value| value.as_f64().map(f64::round);
    assert_eq!(rounded(&merged["first_byte_ms"]["p50"]), Some(1.0));
    assert_eq!(rounded(&merged["last_byte_ms"]["p50"]), Some(11.0));
    assert!(text.contains("first byte"), "{text}");
}
