//! HTTP/1.x as it is spoken: bodies, pipelines, interim answers, upgrades.

mod support;

use slackwater_sniffer::TrackerSettings;
use support::{GET, OK, Talk, Wrapping, run};

#[test]
fn keep_alive_gives_each_request_its_response_and_times() {
    let mut talk = Talk::new();
    for _ in 0..3 {
        talk.client(GET);
        talk.server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
        talk.server(b"hello");
        talk.client_acks();
    }
    let result = talk.run();
    assert_eq!(result.pairs(), [(4, 6), (8, 10), (12, 14)]);
    for exchange in &result.exchanges {
        assert_eq!((exchange.first_byte_ns, exchange.last_byte_ns), (Some(1_000_000), Some(2_000_000)));
        assert_eq!((exchange.method.as_str(), exchange.status, exchange.protocol), ("GET", 200, "http1"));
    }
    assert_eq!(result.unpaired(), (0, 0));
}

#[test]
fn two_requests_in_one_segment_are_two() {
    let mut talk = Talk::new();
    talk.client(&[GET, GET].concat());
    talk.server(OK);
    talk.server(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    let result = talk.run();
    assert_eq!(result.pairs(), [(4, 5), (4, 6)]);
    assert_eq!(result.statuses(), [200, 404]);
}

#[test]
fn two_responses_in_one_segment_are_two() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.client(GET);
    talk.server(&[OK, OK].concat());
    assert_eq!(talk.run().pairs(), [(4, 6), (5, 6)]);
}

#[test]
fn a_chunked_body_ends_behind_its_trailers() {
    let mut talk = Talk::new();
    talk.client(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    talk.client(b"0\r\n\r\n");
    talk.server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nHTTP/1\r\n");
    talk.server(b"0\r\nExpi");
    talk.server(b"res: never\r\n\r");
    talk.server(b"\n");
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!(result.pairs(), [(5, 9), (10, 11)]);
    assert_eq!(
        (result.exchanges[0].first_byte_ns, result.exchanges[0].last_byte_ns),
        (Some(1_000_000), Some(4_000_000))
    );
}

#[test]
fn head_204_and_304_have_no_body_whatever_they_say() {
    let mut talk = Talk::new();
    talk.client(b"HEAD / HTTP/1.1\r\n\r\n");
    talk.server(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n");
    talk.client(GET);
    talk.server(b"HTTP/1.1 204 No Content\r\n\r\n");
    talk.client(GET);
    talk.server(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5000\r\n\r\n");
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!(result.pairs(), [(4, 5), (6, 7), (8, 9), (10, 11)]);
    assert_eq!(result.statuses(), [200, 204, 304, 200]);
}

#[test]
fn an_interim_answer_is_not_the_answer() {
    let mut talk = Talk::new();
    talk.client(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    talk.server(b"HTTP/1.1 100 Continue\r\n\r\n");
    talk.client(b"body");
    talk.server(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    talk.server(OK);
    let result = talk.run();
    assert_eq!(result.pairs(), [(6, 8)]);
    assert_eq!((result.statuses(), result.exchanges[0].first_byte_ns), (vec![200], Some(2_000_000)));
}

#[test]
fn after_an_upgrade_nothing_is_read_as_http() {
    let mut talk = Talk::new();
    talk.client(b"GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
    talk.server(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello");
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.pairs(), result.statuses()), (vec![(4, 5)], vec![101]));
    assert_eq!((result.unpaired(), result.summary.counts.malformed), ((0, 0), 0));
}

#[test]
fn a_tunnel_opened_by_connect_is_not_read() {
    let mut talk = Talk::new();
    talk.client(b"CONNECT example.org:443 HTTP/1.1\r\n\r\n");
    talk.server(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
    talk.client(b"\x16\x03\x01");
    talk.server(b"\x16\x03\x03");
    let result = talk.run();
    assert_eq!((result.pairs(), result.summary.counts.malformed), (vec![(4, 5)], 0));
}

#[test]
fn a_body_until_close_ends_with_its_last_byte_not_with_fin() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(b"HTTP/1.0 200 OK\r\n\r\nsome");
    talk.server(b" more");
    talk.pause(50);
    talk.server_ends();
    let result = talk.run();
    assert_eq!((result.pairs(), result.exchanges[0].last_byte_ns), (vec![(4, 6)], Some(2_000_000)));
}

#[test]
fn a_response_that_the_capture_does_not_hold_to_its_end_is_unfinished() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\npart");
    let result = talk.run();
    assert_eq!((result.summary.counts.exchanges, result.summary.counts.unfinished_responses), (0, 1));
    talk.server_ends();
    talk.client_ends();
    assert_eq!(talk.run().summary.counts.unfinished_responses, 1);
}

#[test]
fn an_answer_before_the_request_ends_counts_from_what_was_sent_before_it() {
    let mut talk = Talk::new();
    talk.client(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n0123456789");
    talk.server(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n");
    talk.client(&[b'x'; 90]);
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.pairs(), result.statuses()), (vec![(4, 5), (7, 8)], vec![413, 200]));
    assert_eq!(result.exchanges[0].last_byte_ns, Some(1_000_000));
}

#[test]
fn a_response_that_outlasts_a_slow_request_counts_from_the_last_request_byte() {
    let mut talk = Talk::new();
    talk.client(b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo");
    talk.server(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nBO");
    talk.client(b"dy");
    talk.server(b"DY");
    let result = talk.run();
    assert_eq!(result.pairs(), [(6, 7)]);
    assert_eq!(
        (result.exchanges[0].first_byte_ns, result.exchanges[0].last_byte_ns),
        (Some(1_000_000), Some(1_000_000))
    );
}

#[test]
fn heads_may_come_in_many_segments_and_with_bare_line_feeds() {
    let mut talk = Talk::new();
    for byte in b"GET /a HTTP/1.1\nHost: a\n\n".chunks(1) {
        talk.client(byte);
    }
    for part in b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno".chunks(3) {
        talk.server(part);
    }
    let result = talk.run();
    assert_eq!((result.statuses(), result.summary.counts.errors), (vec![500], 1));
    assert_eq!(result.pairs(), [(28, 42)]);
}

#[test]
fn every_wrapping_gives_the_same() {
    use Wrapping::*;
    for wrapping in [V4, V6, Vlan, DoubleVlan, Sll, Sll2, Null, Raw] {
        let mut talk = Talk::silent();
        talk.wrapping = wrapping;
        talk.handshake();
        talk.client(GET);
        talk.server(OK);
        assert_eq!(talk.run().pairs(), [(4, 5)], "{wrapping:?}");
    }
}

#[test]
fn what_is_not_http_is_counted_and_left_alone() {
    let mut talk = Talk::new();
    talk.client(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    talk.server(b"\x16\x03\x03\x00\x7a\x02\x00");
    talk.client(b"\x17\x03\x03GET / HTTP/1.1");
    let result = talk.run();
    assert_eq!((result.summary.counts.exchanges, result.summary.counts.malformed, result.unpaired()), (0, 2, (0, 0)));
    let mut talk = Talk::new();
    talk.client(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0");
    talk.server(b"\0\0\x12\x04\0\0\0\0\0");
    assert_eq!(talk.run().summary.counts.malformed, 0);
}

#[test]
fn a_response_that_nobody_asked_for_is_an_orphan() {
    let mut talk = Talk::new();
    talk.server(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n");
    talk.client(GET);
    talk.pause(20);
    talk.client_acks();
    let result = talk.run();
    assert_eq!((result.pairs(), result.unpaired()), (vec![], (1, 1)));
}

#[test]
fn with_both_ports_watched_the_handshake_tells_who_is_the_server() {
    for (client_port, server_port) in [(79, 8080), (8080, 79)] {
        let mut talk = Talk::silent();
        (talk.client_port, talk.server_port) = (client_port, server_port);
        talk.handshake();
        talk.client(GET);
        talk.server(OK);
        let settings = TrackerSettings { ports: vec![79, 8080], ..TrackerSettings::default() };
        assert_eq!(run(1, &talk.frames, settings).pairs(), [(4, 5)]);
    }
}

#[test]
fn any_token_is_a_method() {
    for method in ["RPC_IN_DATA", "get", "M-SEARCH", "x!#$%&'*+.^`|~9", "A-METHOD-LONGER-THAN-WHAT-IS-KEPT-OF-IT"] {
        let mut talk = Talk::new();
        talk.client(format!("{method} /a HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        talk.server(OK);
        let result = talk.run();
        assert_eq!((result.pairs(), result.summary.counts.malformed), (vec![(4, 5)], 0), "{method}");
        assert!(
            method.starts_with(result.exchanges[0].method.as_str()) && !result.exchanges[0].method.as_str().is_empty()
        );
    }
}

#[test]
fn identity_is_no_transfer_encoding() {
    let mut talk = Talk::new();
    talk.client(b"POST /a HTTP/1.1\r\nTransfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc");
    talk.server(b"HTTP/1.1 200 OK\r\ntransfer-encoding:  Identity \r\nContent-Length: 5\r\n\r\nhello");
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.pairs(), result.unpaired()), (vec![(4, 5), (6, 7)], (0, 0)));
    assert!(result.exchanges.iter().all(|exchange| exchange.last_byte_ns == Some(1_000_000)), "{:?}", result.exchanges);
}
