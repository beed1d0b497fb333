//! A conversation in `unknown`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| slackwater_fuzz::conversation("unknown", data));
