//! Messages of every kind from the bus.
#![no_main]

use serde::{Serialize, de::DeserializeOwned};
use slackwater_messages::{Change, Cycle, Knobs, Order, Sample, Verdict, Weight, decode, encode};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    read::<Change>(data);
    read::<Cycle>(data);
    read::<Knobs>(data);
    read::<Order>(data);
    read::<Sample>(data);
    read::<Verdict>(data);
    read::<Weight>(data);
});

/// Checks that an accepted message is the same after it was written and read again.
fn read<T: DeserializeOwned + Serialize>(data: &[u8]) {
    if let Ok(message) = decode::<T>(data) {
        let written = encode(&message);
        let again: T = decode(&written).expect("a message of our own");
        assert_eq!(encode(&again), written);
    }
}
