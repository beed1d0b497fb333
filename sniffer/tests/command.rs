//! The command `slackwater-sniffer`.

mod support;

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use support::{GET, OK, START_NS, Talk, gzip, lines, write_capture};

fn sniffer(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slackwater-sniffer")).args(arguments).output().expect("the command runs")
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
        "time_unix_s": (START_NS + 4_000_000) as f64 / 1e9, "client": "10.0.0.1:40000", "server": "10.0.0.2:80",
        "request_frame": 4, "response_frame": 5, "stream": 0, "seconds": 0.001, "seconds_first_byte": 0.001,
        "method": "GET", "status": 200, "protocol": "http1", "request_bytes": GET.len(), "response_bytes": OK.len()
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
    let said = String::from_utf8(output.stderr).expect("text");
    let expected = "no connection of port 81, 82: name the servers' ports with --port\n";
    assert!(said.ends_with(expected), "zeros look like silence: {said}");
    assert!(sniffer(&["read", file.path(), "--json"]).stderr.is_empty());
}

#[test]
fn without_json_people_can_read_it() {
    let file = Capture::new();
    let output = sniffer(&["read", file.path(), "--port", "80"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("unmatched requests") && text.contains("last byte"), "{text}");
}

#[test]
fn routes_periods_and_histograms_are_in_the_json() {
    let file = Capture::new();
    let output = sniffer(&["read", file.path(), "--json", "--histograms", "--every", "0.001", "--route", "a=/a*"]);
    let lines = lines(&output);
    assert_eq!(lines.len(), 6, "a line for each period, and the summary");
    let busy = lines.iter().find(|line| line["rps"].as_f64() == Some(1_000.0)).expect("a period with the exchange");
    assert_eq!((&busy["routes"][0]["name"], &busy["routes"][1]["exchanges"]), (&"a".into(), &0.into()));
    let summary = &lines[5];
    assert_eq!((&summary["routes"][0]["exchanges"], &summary["routes"][1]["name"]), (&1.into(), &"other".into()));

    let text = PathBuf::from(format!("{}.json", file.path()));
    std::fs::write(&text, &output.stdout).expect("the build's directory takes files");
    let path = text.to_str().expect("a name in text");
    let merged = sniffer(&["merge", path, path, "--json"]);
    std::fs::remove_file(&text).expect("the file was written");
    let merged: Value = serde_json::from_slice(&merged.stdout).expect("JSON");
    assert_eq!((&merged["exchanges"], merged["last_byte_ms"]["p99"].as_f64().map(f64::round)), (&2.into(), Some(1.0)));
}

#[test]
fn compressed_captures_are_read_and_damaged_ones_named() {
    let file = Capture::new();
    let bytes = std::fs::read(file.path()).expect("the file was written");
    let packed = gzip(&bytes);
    std::fs::write(file.path(), &packed).expect("the file is ours");
    assert_eq!(lines(&sniffer(&["read", file.path(), "--json"]))[0]["exchanges"], 1);
    // pcapng is read by other code than pcap: a section, an interface, one packet.
    let section = [0x0a0d0d0au32, 28, 0x1a2b3c4d, 1, u32::MAX, u32::MAX, 28, 1, 20, 1, 262_144, 20];
    // The packet announces ARP.
    let packet = [6u32, 48, 0, 0, 0, 16, 16, 0, 0, 0, 0x0608, 48];
    let bytes: Vec<u8> = section.iter().chain(&packet).flat_map(|word| word.to_le_bytes()).collect();
    for bytes in [gzip(&bytes), bytes] {
        std::fs::write(file.path(), bytes).expect("the file is ours");
        assert_eq!(lines(&sniffer(&["read", file.path(), "--json"]))[0]["packets"], 1);
    }
    for damaged in [&packed[..packed.len() / 2], b"\x1f\x8bnothing of the kind", &packed[..3]] {
        std::fs::write(file.path(), damaged).expect("the file is ours");
        let output = sniffer(&["read", file.path(), "--json"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(file.path()), "{text}");
    }
}

#[test]
fn a_missing_or_damaged_file_is_named() {
    let output = sniffer(&["read", "no-such-file.pcap"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("no-such-file.pcap"), "{text}");

    let file = Capture::new();
    let bytes = std::fs::read(file.path()).expect("the file was written");
    std::fs::write(file.path(), &bytes[..bytes.len() - 10]).expect("the file is ours");
    let output = sniffer(&["read", file.path(), "--json"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("after 5 packets"), "{text}");
    assert_eq!(lines(&output)[0]["exchanges"], 1, "what could be read is reported");
}

#[test]
fn what_is_no_capture_is_named() {
    let file = Capture::new();
    for content in [&b"GET / HTTP/1.1\r\n"[..], b"", b"\x0a\x0d\x0d\x0a", &[0xff; 100]] {
        std::fs::write(file.path(), content).expect("the file is ours");
        let output = sniffer(&["read", file.path(), "--json"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains(file.path()), "{content:?}: {text}");
    }
}

#[test]
fn without_the_capability_it_says_what_is_missing() {
    // Root without it is as good as anyone without it; who has none to drop is refused in any case.
    let is_root = rustix::process::geteuid().is_root();
    let program = env!("CARGO_BIN_EXE_slackwater-sniffer");
    let words = ["setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw", program];
    let (first, rest) = words[if is_root { 0 } else { 5 }..].split_first().expect("a program");
    let output =
        Command::new(first).args(rest).args(["live", "-i", "lo", "--seconds", "1"]).output().expect("the command runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("CAP_NET_RAW") && text.contains("lo"), "{text}");
}

#[test]
fn every_help_has_an_example() {
    for arguments in [&["--help"][..], &["read", "--help"], &["live", "--help"], &["merge", "--help"]] {
        let output = sniffer(arguments);
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let example = text.lines().find_map(|line| line.strip_prefix("Example: slackwater-sniffer "));
        let example: Vec<&str> = example.expect("an example").split(' ').collect();
        // Its options are right: the files and the interface that it names are not there.
        let missing = |word: &str| if word == "eth0" { "slackwater-none".to_owned() } else { word.to_owned() };
        let example: Vec<String> = example.into_iter().map(missing).collect();
        let tried = sniffer(&example.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(tried.status.code(), Some(1), "{example:?}: {}", String::from_utf8_lossy(&tried.stderr));
    }
}

#[test]
fn the_help_names_the_limits() {
    let text = String::from_utf8(sniffer(&["--help"]).stdout).expect("text");
    for limit in ["128 requests", "64 KiB", "32,768 connections", "300 s"] {
        assert!(text.contains(limit), "{limit}: {text}");
    }
}

#[test]
fn pcapng_gives_the_same_as_pcap() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(OK);
    let file = Capture(write_capture(1, &talk.frames));
    let expected = sniffer(&["read", file.path(), "--json", "--exchanges"]).stdout;
    // A section, an interface with nanoseconds (option 9), and each frame in a block of its own.
    let mut bytes: Vec<u8> = [0x0a0d_0d0au32, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28]
        .iter()
        .chain(&[1, 32, 1, 262_144, 1 << 16 | 9, 9, 0, 32])
        .flat_map(|word| word.to_le_bytes())
        .collect();
    for frame in &talk.frames {
        let padded = frame.bytes.len().next_multiple_of(4);
        let (length, size) = ((32 + padded) as u32, frame.bytes.len() as u32);
        let words = [6, length, 0, (frame.time_ns >> 32) as u32, frame.time_ns as u32, size, size];
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(&frame.bytes);
        bytes.resize(bytes.len() + padded - frame.bytes.len(), 0);
        bytes.extend(length.to_le_bytes());
    }
    std::fs::write(file.path(), bytes).expect("the file is ours");
    let output = sniffer(&["read", file.path(), "--json", "--exchanges"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&expected));
    assert!(lines(&output).len() == 2 && output.status.success());
}

#[test]
fn wrong_arguments_are_refused() {
    for arguments in [
        &["read", "x.pcap", "--port", "0"][..],
        &["read", "x.pcap", "--port", "65536"],
        &["read", "x.pcap", "--port", "80:spdy"],
        &["read", "x.pcap", "--route", "/a"],
        &["merge"],
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
