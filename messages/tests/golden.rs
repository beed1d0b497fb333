//! The golden messages of `schema/examples/`, which the Python tests read too.

use std::path::Path;

use serde::{Serialize, de::DeserializeOwned};
use slackwater_messages::{
    Ask, Change, Cycle, Knobs, Order, Sample, Verdict, Weight, decode, encode, encode_binary, is_name,
};

fn examples(kind: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schema/examples");
    let mut examples: Vec<_> = std::fs::read_dir(folder)
        .expect("schema/examples")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&format!("{kind}-"))))
        .map(|path| (path.display().to_string(), std::fs::read(&path).expect("an example")))
        .collect();
    examples.sort();
    assert!(!examples.is_empty(), "no example of {kind}");
    examples
}

fn round_trips<T: DeserializeOwned + Serialize>(kind: &str) {
    for (path, data) in examples(kind) {
        let message: T = decode(&data).unwrap_or_else(|error| panic!("{path}: {error}"));
        let written: serde_json::Value = serde_json::from_slice(&encode(&message)).expect("json");
        let golden: serde_json::Value = serde_json::from_slice(&data).expect("json");
        assert_eq!(written, golden, "{path}");
    }
}

#[test]
fn golden_messages_round_trip() {
    round_trips::<Sample>("sample");
    round_trips::<Verdict>("verdict");
    round_trips::<Order>("order");
    round_trips::<Weight>("weight");
    round_trips::<Ask>("ask");
    round_trips::<Change>("change");
    round_trips::<Cycle>("cycle");
    round_trips::<Knobs>("knobs");
}

#[test]
fn a_sample_in_messagepack_holds_what_it_holds_in_json() {
    for (path, data) in examples("sample") {
        let sample: Sample = decode(&data).unwrap_or_else(|error| panic!("{path}: {error}"));
        let golden = std::fs::read(Path::new(&path).with_extension("msgpack")).expect("its twin");
        for written in [golden, encode_binary(&sample)] {
            assert_eq!(rmp_serde::from_slice::<Sample>(&written).expect("a Sample"), sample, "{path}");
            assert!(written[0] >= 0x80, "readers distinguish it from JSON by its first byte");
        }
    }
}

#[test]
fn what_is_no_number_is_left_out() {
    let (_, data) = examples("sample").remove(0);
    let mut sample: Sample = decode(&data).expect("an example");
    sample.next_within_s = None;
    let without = encode_binary(&sample);
    for none in [f64::NAN, f64::INFINITY] {
        sample.next_within_s = Some(none);
        assert_eq!(encode_binary(&sample), without, "{none}");
    }
}

#[test]
fn a_number_is_the_same_after_it_was_written_and_read() {
    let (_, data) = examples("knobs").remove(0);
    let mut message: Knobs = decode(&data).expect("an example");
    message.time_unix_s = "1795222222222222222222222222222222222222222222222222238400.25".parse().expect("a number");
    let again: Knobs = decode(&encode(&message)).expect("what was written");
    assert_eq!(again.time_unix_s, message.time_unix_s);
}

#[test]
fn unknown_fields_are_tolerated_and_wrong_types_named() {
    let (_, data) = examples("sample").swap_remove(0);
    let mut value: serde_json::Value = serde_json::from_slice(&data).expect("json");
    value["of_the_future"] = serde_json::json!({"x": 1});
    decode::<Sample>(value.to_string().as_bytes()).expect("unknown fields are tolerated");
    value["cpu"]["utilisation"] = serde_json::json!("full");
    let error = decode::<Sample>(value.to_string().as_bytes()).expect_err("a string is no utilisation");
    assert!(error.to_string().starts_with("cpu.utilisation: "), "{error}");
}

#[test]
fn names_that_could_start_another_command_are_refused() {
    for bad in ["", "a;b", "a b", "a\nb", "a..b", ".a", "a.", "*", ">", "a/b", "é"] {
        assert!(!is_name(bad), "{bad:?}");
    }
    for good in ["web1", "web-1.example.com", "n_1", "10.0.0.1:80"] {
        assert!(is_name(good), "{good:?}");
    }
}
