//! Real captures with reference answers: the same pairs and times as in the `.ref.tsv` beside each.
//!
//! They are not part of this repository: SLACKWATER_PCAPS names their folder, else it is looked for beside the checkout.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use slackwater_sniffer::{Tracker, TrackerSettings, read_file};

/// The ports of a capture where that is not 80, and what they speak where that is not the usual.
const OTHER_PORTS: &[(&str, Ports, Protocols)] = &[
    ("pb-http_minitwit.pcap", &[80, 5000], &[]),
    ("pb-http_100_continue.pcap", &[9200], &[]),
    ("sv-http-gap-simple.pcap", &[8080], &[]),
    ("pb-memcache_text_multi.pcap", &[11211], &[]),
    ("pb-memcache_bin_multi.pcap", &[11211], &[]),
    ("zeek-redis-50-pings.pcap", &[6379], &[(6379, "unknown")]),
];

type Ports = &'static [u16];
type Protocols = &'static [(u16, &'static str)];

/// Requests without answer, where there are such: `quit` in text, and misses of quiet gets in binary.
const UNANSWERED: &[(&str, u64)] = &[("pb-memcache_text_multi.pcap", 1), ("pb-memcache_bin_multi.pcap", 2)];

/// The binary protocol's commands that the reference gives as numbers.
const COMMANDS: &[(&str, &str)] = &[("op1", "set"), ("op7", "quit"), ("op10", "noop"), ("op13", "getkq")];

/// A row of the reference: stream, last frames, method and status, first-byte and last-byte time.
type Row = (u64, u64, u64, String, String, f64, f64);

fn folder() -> PathBuf {
    match std::env::var_os("SLACKWATER_PCAPS") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/pcaps/given"),
    }
}

fn reference(path: &Path) -> Vec<Row> {
    let text = std::fs::read_to_string(path).expect("the reference is readable");
    let mut lines = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let names = lines.next().expect("a line of names");
    let rows = lines.map(|fields| {
        let row: HashMap<_, _> = names.iter().copied().zip(fields).collect();
        let number = |name: &str| row[name].parse::<u64>().expect("a number");
        let time = |name: &str| row[name].parse::<f64>().expect("a time");
        let command = COMMANDS.iter().find(|(number, _)| *number == row["method"]);
        let method = command.map_or(row["method"], |(_, name)| name);
        // In binary the reference has the opaque value in its place.
        let code = if command.is_some() { "0" } else { row["code"] };
        let frames = (number("req_last"), number("resp_last"));
        (number("stream"), frames.0, frames.1, method.to_owned(), code.to_owned(), time("t_lf"), time("t_ll"))
    });
    rows.collect()
}

fn measured(path: &Path, ports: &[u16], protocols: &[(u16, &'static str)]) -> (Vec<Row>, (u64, u64)) {
    let mut tracker = Tracker::new(TrackerSettings {
        ports: ports.to_vec(),
        protocols: protocols.to_vec(),
        keep_exchanges: true,
        number_all: true,
        ..TrackerSettings::default()
    });
    read_file(path, |packet| tracker.packet(packet)).expect("a capture");
    let counts = tracker.finish().counts;
    let seconds = |ns: Option<u64>| ns.expect("a time") as f64 / 1e9;
    let rows = tracker.take_exchanges().into_iter().map(|e| {
        let times = (seconds(e.first_byte_ns), seconds(e.last_byte_ns));
        let status = match (e.protocol, e.word) {
            ("unknown", _) => String::new(),
            (_, "") => e.status.to_string(),
            (_, word) => word.to_owned(),
        };
        (e.stream, e.request_frame, e.response_frame, e.method.as_str().to_owned(), status, times.0, times.1)
    });
    (rows.collect(), (counts.unmatched_requests, counts.orphan_responses))
}

#[test]
fn real_captures_give_the_pairs_and_times_of_their_references() {
    let folder = folder();
    let Ok(files) = std::fs::read_dir(&folder) else {
        return println!("skipped: no captures in {} (set SLACKWATER_PCAPS to their folder)", folder.display());
    };
    let mut compared = 0;
    for file in files {
        let path = file.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "pcap") {
            continue;
        }
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let mut expected = reference(&path.with_file_name(format!("{name}.ref.tsv")));
        let others = OTHER_PORTS.iter().find(|(other, ..)| *other == name);
        let (ports, protocols) = others.map_or((&[80][..], &[][..]), |(_, ports, protocols)| (ports, protocols));
        let unanswered = UNANSWERED.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count);
        let (mut rows, unpaired) = measured(&path, ports, protocols);
        let by_frames = |a: &Row, b: &Row| (a.1, a.2).cmp(&(b.1, b.2));
        expected.sort_by(by_frames);
        rows.sort_by(by_frames);
        assert_eq!(rows.len(), expected.len(), "{name}: pairs");
        for (row, want) in rows.iter().zip(&expected) {
            let same = (row.0, row.1, row.2, &row.3, &row.4) == (want.0, want.1, want.2, &want.3, &want.4);
            let near = (row.5 - want.5).abs() <= 1.01e-6 && (row.6 - want.6).abs() <= 1.01e-6;
            assert!(same && near, "{name}: {row:?} instead of {want:?}");
        }
        assert_eq!(unpaired, (unanswered, 0), "{name}: unanswered requests, orphan responses");
        compared += 1;
    }
    assert!(compared > 0, "{}: no capture among the files", folder.display());
}
