//! A conversation in `http1`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| slackwater_fuzz::conversation("http1", data));
