//! The PROXY protocol before the first request: it is no message, and no bytes were lost.

mod support;

use std::path::Path;

use slackwater_sniffer::{Summary, Tracker, TrackerSettings, read_file};
use support::{GET, OK, Talk, run};

const V1: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 80\r\n";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    [SIGNATURE, &[0x20 | command, family], &(body.len() as u16).to_be_bytes(), body].concat()
}

/// Version 2 with addresses, a checksum, an authority and 300 bytes of no meaning.
fn with_tlvs() -> Vec<u8> {
    let addresses = [192, 0, 2, 1, 192, 0, 2, 2, 0xdc, 4, 0, 80];
    let tlvs = [&[3, 0, 4, 1, 2, 3, 4][..], b"\x02\x00\x06a.test", &[4, 1, 44], &[b'\n'; 300]].concat();
    v2(1, 0x11, &[&addresses[..], &tlvs].concat())
}

fn preambles() -> Vec<Vec<u8>> {
    let long = format!("PROXY TCP6 {0} {0} 65535 65535\r\n", "ffff:".repeat(7) + "ffff");
    vec![
        V1.to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n".to_vec(),
        long.into_bytes(),
        v2(1, 0x11, &[9; 12]),
        v2(1, 0x21, b"GET / HTTP/1.1\r\n\r\n0123456789abcdefgh"),
        v2(0, 0, b""),
        v2(0, 0, &[7; 20]),
        with_tlvs(),
    ]
}

fn clean(summary: &Summary) -> bool {
    let counts = &summary.counts;
    let lost = [counts.malformed, counts.orphan_responses, counts.unmatched_requests, counts.lost_heads, counts.holes];
    lost == [0; 5] && summary.foreign_ports.is_empty()
}

#[test]
fn captures_of_a_balancer_lose_no_exchange() {
    for (name, exchanges) in [("first-segment", 30), ("one-request-a-connection", 10)] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/captures/proxy-v1-{name}.pcap"));
        let mut tracker = Tracker::new(TrackerSettings::default());
        read_file(&file, |packet| tracker.packet(packet)).expect("a capture");
        let summary = tracker.finish();
        assert_eq!(summary.counts.exchanges, exchanges, "{name}");
        assert!(clean(&summary), "{name}: {summary:?}");
    }
}

#[test]
fn each_form_is_passed_over_however_it_is_cut_into_segments() {
    for preamble in preambles() {
        let whole = [&preamble[..], GET].concat();
        let cuts = (0..whole.len()).step_by(if whole.len() > 200 { 7 } else { 1 });
        for cut in cuts {
            let mut talk = Talk::new();
            for part in [&whole[..cut], &whole[cut..]] {
                if !part.is_empty() {
                    talk.client(part);
                }
            }
            talk.server(OK);
            talk.client(GET);
            talk.server(OK);
            let result = talk.run();
            assert_eq!(result.exchanges.len(), 2, "{preamble:?} cut at {cut}");
            assert!(clean(&result.summary), "{preamble:?} cut at {cut}: {:?}", result.summary);
            assert_eq!(result.exchanges[0].request_bytes as usize, GET.len());
        }
    }
}

#[test]
fn one_that_comes_byte_by_byte_or_before_the_handshake_was_seen_is_passed_over() {
    for preamble in preambles() {
        let (mut slow, mut late) = (Talk::new(), Talk::silent());
        for byte in &preamble {
            slow.client(&[*byte]);
        }
        slow.client(GET);
        slow.server(OK);
        late.client(&[&preamble[..], GET].concat());
        late.server(OK);
        for talk in [slow, late] {
            let result = talk.run();
            assert_eq!(
                (result.exchanges.len(), clean(&result.summary)),
                (1, true),
                "{preamble:?}: {:?}",
                result.summary
            );
        }
    }
}

#[test]
fn what_only_begins_like_one_is_a_request_all_the_same() {
    for (first, rest) in
        [("P", "ROPFIND / HTTP/1.1\r\n\r\n"), ("PROXY", " /x HTTP/1.1\r\n\r\n"), ("\r\n\r\n", "GET / HTTP/1.1\r\n\r\n")]
    {
        let mut talk = Talk::new();
        talk.client(first.as_bytes());
        talk.client(rest.as_bytes());
        talk.server(OK);
        let result = talk.run();
        assert_eq!((result.exchanges.len(), clean(&result.summary)), (1, true), "{first:?}: {:?}", result.summary);
    }
}

#[test]
fn a_preamble_that_the_snap_length_cut_costs_no_exchange() {
    for (preamble, snap) in [(with_tlvs(), 100), (with_tlvs(), 66), (V1.to_vec(), 80)] {
        let mut talk = Talk::new();
        talk.client(&preamble);
        talk.client(GET);
        talk.server(OK);
        talk.frames[3].cut(snap);
        let result = run(1, &talk.frames, TrackerSettings::default());
        assert_eq!((result.exchanges.len(), result.summary.counts.malformed), (1, 0), "{snap}: {:?}", result.summary);
    }
}

#[test]
fn one_that_names_no_end_is_no_preamble() {
    let mut talk = Talk::new();
    talk.client(&[b"PROXY TCP4 ".as_slice(), &[b'1'; 400]].concat());
    talk.server(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    let result = talk.run();
    assert_eq!(result.exchanges.len(), 0);
    assert!(result.summary.foreign_ports.is_empty(), "the server speaks HTTP");
}
