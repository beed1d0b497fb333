//! Capture files. Compressed ones are left out, since their content is read the same way.
#![no_main]

use std::path::Path;

use slackwater_sniffer::{Tracker, TrackerSettings, read_stream};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if data.starts_with(&[0x1f, 0x8b]) {
        return;
    }
    let mut tracker = Tracker::new(TrackerSettings { most_connections: 8, ..TrackerSettings::default() });
    let mut packets = 0;
    let _ = read_stream(data, Path::new("input"), |packet| {
        packets += 1;
        tracker.packet(packet);
    });
    assert_eq!(tracker.finish().counts.packets, packets);
});
