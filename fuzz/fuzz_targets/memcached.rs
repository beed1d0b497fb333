//! A conversation in `memcached`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| slackwater_fuzz::conversation("memcached", data));
