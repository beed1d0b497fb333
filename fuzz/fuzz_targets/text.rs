//! Texts of people and of other nodes: route classes, and histograms to merge.
#![no_main]

use slackwater_sniffer::{Route, merge};

libfuzzer_sys::fuzz_target!(|data: &str| {
    let _ = data.parse::<Route>();
    let _ = merge(data.lines());
});
