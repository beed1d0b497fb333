//! TCP as it is captured: repeated, out of order, lost, cut, met in the middle, with ports used again.

mod support;

use slackwater_sniffer::TrackerSettings;
use support::{Frame, GET, OK, SentSegment, Talk, run};

const HEAD_OF_9: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";

fn run_frames(frames: &[Frame]) -> support::Measured {
    run(1, frames, TrackerSettings::default())
}

#[test]
fn a_retransmission_changes_nothing_but_its_count() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(OK);
    for again in [3, 4, 3] {
        let mut frame = talk.frames[again].clone();
        talk.now_ns += 1_000_000;
        frame.time_ns = talk.now_ns;
        talk.frames.push(frame);
    }
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.pairs(), result.summary.counts.retransmitted), (vec![(4, 5), (9, 10)], 3));
    assert_eq!(result.exchanges[0].last_byte_ns, Some(1_000_000));
}

#[test]
fn a_segment_that_repeats_old_bytes_and_brings_new_ones_gives_the_new_ones() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(HEAD_OF_9);
    talk.server(b"01234");
    let seq = talk.server - 3;
    talk.send(SentSegment { from_client: false, seq, ack: Some(talk.client), flags: "", bytes: b"2345678" });
    let result = talk.run();
    assert_eq!((result.pairs(), result.summary.counts.retransmitted), (vec![(4, 7)], 1));
}

#[test]
fn keep_alive_probes_are_no_retransmissions() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(OK);
    talk.send(SentSegment { from_client: true, seq: talk.client - 1, ack: Some(talk.server), flags: "", bytes: b"\0" });
    talk.send(SentSegment { from_client: true, seq: talk.client - 1, ack: Some(talk.server), flags: "", bytes: b"" });
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.pairs(), result.summary.counts.retransmitted), (vec![(4, 5), (8, 9)], 0));
}

#[test]
fn segments_out_of_order_are_put_in_order() {
    let mut talk = Talk::new();
    talk.client(GET);
    for part in [&HEAD_OF_9[..20], &HEAD_OF_9[20..], b"0123", b"45678"] {
        talk.server(part);
    }
    talk.client(GET);
    talk.server(OK);
    let mut frames = talk.frames.clone();
    frames.swap(4, 7);
    let (first, last) = (frames[4].time_ns, frames[7].time_ns);
    (frames[4].time_ns, frames[7].time_ns) = (last, first);
    let result = run_frames(&frames);
    // The head's first part came last and completed the response: frame 8.
    assert_eq!((result.pairs(), result.summary.counts.holes), (vec![(4, 8), (9, 10)], 0));
}

#[test]
fn a_hole_in_a_body_keeps_the_pair() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(HEAD_OF_9);
    talk.server(b"012");
    let lost = talk.server(b"345");
    talk.server(b"678");
    talk.client_acks();
    talk.client(GET);
    talk.server(OK);
    talk.frames.remove(lost as usize - 1);
    let result = talk.run();
    assert_eq!((result.pairs(), result.summary.counts.holes, result.unpaired()), (vec![(4, 7), (9, 10)], 1, (0, 0)));
    assert_eq!(result.exchanges[0].last_byte_ns, Some(4_000_000));
}

#[test]
fn a_hole_at_the_end_of_a_body_keeps_the_pair_without_its_time() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(HEAD_OF_9);
    let lost = talk.server(b"012345678");
    talk.client_acks();
    talk.client(GET);
    talk.server(OK);
    talk.frames.remove(lost as usize - 1);
    let result = talk.run();
    assert_eq!((result.statuses(), result.unpaired()), (vec![200, 200], (0, 0)));
    let times: Vec<_> = result.exchanges.iter().map(|e| (e.first_byte_ns.is_some(), e.last_byte_ns)).collect();
    assert_eq!(times, [(true, None), (true, Some(1_000_000))]);
}

#[test]
fn a_hole_over_the_sizes_of_a_chunked_body_keeps_the_pair() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let lost = talk.server(b"3\r\nabc\r\n");
    let last = talk.server(b"3\r\ndef\r\n0\r\n\r\n") - 1;
    talk.client_acks();
    talk.client(GET);
    talk.server(OK);
    talk.frames.remove(lost as usize - 1);
    let result = talk.run();
    assert_eq!((result.pairs(), result.unpaired()), (vec![(4, last), (8, 9)], (0, 0)));
    assert_eq!(result.exchanges[0].last_byte_ns, Some(3_000_000));
}

#[test]
fn a_lost_response_is_not_replaced_by_the_next() {
    let mut talk = Talk::new();
    for _ in 0..3 {
        talk.client(GET);
        talk.server(OK);
        talk.client_acks();
        talk.pause(20);
    }
    talk.frames.remove(7);
    let result = talk.run();
    assert_eq!((result.pairs(), result.unpaired()), (vec![(4, 5), (9, 10)], (1, 0)));
    assert_eq!((result.summary.counts.holes, result.summary.counts.lost_heads), (1, 1));
}

#[test]
fn a_lost_request_leaves_its_response_an_orphan() {
    let mut talk = Talk::new();
    for _ in 0..3 {
        talk.client(GET);
        talk.server(OK);
        talk.client_acks();
        talk.pause(20);
    }
    talk.frames.remove(6);
    let result = talk.run();
    assert_eq!((result.pairs(), result.unpaired()), (vec![(4, 5), (9, 10)], (0, 1)));
}

#[test]
fn a_hole_in_a_head_is_counted_and_the_next_exchange_is_found() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(&OK[..20]);
    let lost = talk.server(&OK[20..30]);
    talk.server(&OK[30..]);
    talk.client_acks();
    talk.pause(20);
    talk.client(GET);
    talk.server(OK);
    talk.frames.remove(lost as usize - 1);
    let result = talk.run();
    assert_eq!((result.pairs(), result.unpaired()), (vec![(8, 9)], (1, 0)));
    assert_eq!((result.summary.counts.holes, result.summary.counts.lost_heads), (1, 1));
}

#[test]
fn with_a_pipelined_request_lost_no_pair_is_guessed() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.client(b"GET /lost HTTP/1.1\r\n\r\n");
    talk.client(GET);
    for _ in 0..3 {
        talk.server(OK);
    }
    talk.client_acks();
    talk.pause(20);
    talk.client(GET);
    talk.server(OK);
    talk.frames.remove(4);
    let result = talk.run();
    // The first and the one after the silence are sure; of the others it is not known whose answer is whose.
    assert_eq!((result.pairs(), result.unpaired()), (vec![(4, 6), (10, 11)], (1, 2)));
}

#[test]
fn met_in_the_middle_only_sure_pairs_count() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(HEAD_OF_9);
    talk.server(b"012345678");
    talk.client_acks();
    for _ in 0..2 {
        talk.client(GET);
        talk.server(OK);
    }
    for (skipped, pairs, orphans) in [
        (3, vec![(1, 3), (5, 6), (7, 8)], 0),
        (4, vec![(4, 5), (6, 7)], 1),
        (5, vec![(3, 4), (5, 6)], 0),
        (8, vec![(2, 3)], 1),
    ] {
        let result = run_frames(&talk.frames[skipped..]);
        assert_eq!((result.pairs(), result.unpaired()), (pairs, (0, orphans)), "{skipped} frames skipped");
    }
}

#[test]
fn a_syn_on_used_ports_starts_anew() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.client = 77_000;
    talk.server = 5;
    talk.handshake();
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.pairs(), result.unpaired()), (vec![(8, 9)], (1, 0)));
    assert_eq!((result.exchanges[0].stream, result.summary.connections), (1, 2));
}

#[test]
fn a_repeated_syn_starts_nothing() {
    let mut talk = Talk::new();
    talk.client(GET);
    for again in [0, 1] {
        let mut frame = talk.frames[again].clone();
        frame.time_ns = talk.now_ns;
        talk.frames.push(frame);
    }
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.pairs(), result.summary.connections), (vec![(4, 7)], 1));
}

#[test]
fn a_stray_reset_does_not_hide_what_follows() {
    let mut talk = Talk::new();
    talk.send(SentSegment { from_client: true, seq: talk.client, ack: Some(talk.server), flags: "R", bytes: b"" });
    talk.client(GET);
    talk.server(OK);
    assert_eq!(talk.run().pairs(), [(5, 6)]);
}

#[test]
fn requests_on_a_connection_that_was_reset_are_unmatched() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.send(SentSegment { from_client: false, seq: talk.server, ack: Some(talk.client), flags: "R", bytes: b"" });
    assert_eq!(talk.run().unpaired(), (1, 0));
}

#[test]
fn sequence_numbers_wrap() {
    let mut talk = Talk::silent();
    (talk.client, talk.server) = (u32::MAX - 40, u32::MAX - 60);
    talk.handshake();
    for _ in 0..3 {
        talk.client(GET);
        talk.server(HEAD_OF_9);
        talk.server(b"012345678");
    }
    let mut frames = talk.frames.clone();
    frames.swap(7, 8);
    let result = run_frames(&frames);
    assert_eq!((result.exchanges.len(), result.unpaired(), result.summary.counts.holes), (3, (0, 0), 0));
}

#[test]
fn an_acknowledgement_captured_before_its_data_makes_no_hole() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(HEAD_OF_9);
    talk.server(b"012345678");
    talk.client_acks();
    talk.client(GET);
    talk.server(OK);
    let mut frames = talk.frames.clone();
    frames.swap(5, 6);
    let result = run_frames(&frames);
    assert_eq!((result.pairs(), result.summary.counts.holes), (vec![(4, 7), (8, 9)], 0));
}

#[test]
fn a_response_captured_before_its_request_finds_it() {
    let mut talk = Talk::new();
    for _ in 0..2 {
        talk.client(GET);
        talk.server(OK);
    }
    let mut frames = talk.frames.clone();
    frames.swap(3, 4);
    frames.swap(5, 6);
    let result = run_frames(&frames);
    assert_eq!((result.pairs(), result.unpaired()), (vec![(5, 4), (7, 6)], (0, 0)));
}

#[test]
fn heads_cut_by_the_snap_length_are_read_as_far_as_they_go() {
    let mut talk = Talk::new();
    for _ in 0..2 {
        talk.client(b"GET /images/logo.gif HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: long\r\n\r\n");
        talk.server(b"HTTP/1.1 200 OK\r\nDate: Tue, 16 Mar 2004 00:00:00 GMT\r\nContent-Length: 40\r\n\r\n0123456789");
        talk.server(&[b'x'; 30]);
        talk.client_acks();
    }
    talk.server_ends();
    talk.client_ends();
    let mut frames = talk.frames.clone();
    frames.iter_mut().for_each(|frame| frame.cut(54 + 24));
    let result = run_frames(&frames);
    assert_eq!((result.pairs(), result.statuses(), result.unpaired()), (vec![(4, 6), (8, 10)], vec![200, 200], (0, 0)));
    assert!(result.exchanges.iter().all(|e| (e.first_byte_ns, e.last_byte_ns) == (Some(1_000_000), Some(2_000_000))));
}
