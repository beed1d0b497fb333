//! Packets that come late or at a wrong time: segments sent again, copies after the end, clocks that are set.

mod support;

use support::{GET, OK, SentSegment, Talk};

/// A response of which an early segment is missing at first, and so many come before it is sent again, 0.2 s later.
fn with_a_late_segment(segments: usize, acknowledged: bool) -> support::Measured {
    let mut talk = Talk::new();
    talk.client(GET);
    let body = vec![b'x'; 10 * segments];
    talk.server(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes());
    let late = talk.server;
    talk.server = talk.server.wrapping_add(10);
    for part in body[10..].chunks(10) {
        talk.server(part);
    }
    if acknowledged {
        talk.client_acks();
    }
    talk.pause(200);
    talk.send(SentSegment { from_client: false, seq: late, ack: Some(talk.client), flags: "", bytes: &body[..10] });
    talk.client_acks();
    talk.client(GET);
    talk.server(OK);
    talk.run()
}

#[test]
fn a_hole_that_is_filled_when_it_was_given_up_leaves_no_time() {
    // Held back, and exact.
    let result = with_a_late_segment(100, false);
    assert_eq!((result.exchanges[0].last_byte_ns, result.summary.counts.holes), (Some(301_000_000), 0));
    // More than is held back: when the response was whole is not known. The next one is as ever.
    let result = with_a_late_segment(400, false);
    assert_eq!((result.exchanges[0].last_byte_ns, result.summary.counts.holes), (None, 1));
    assert_eq!(
        (result.exchanges[0].first_byte_ns, result.exchanges[1].last_byte_ns),
        (Some(1_000_000), Some(1_000_000))
    );
    // The client had it all: it was only not captured.
    let result = with_a_late_segment(100, true);
    assert_eq!((result.exchanges[0].last_byte_ns, result.summary.counts.holes), (Some(100_000_000), 1));
}

#[test]
fn late_copies_on_a_closed_connection_open_no_new_one() {
    let mut talk = Talk::new();
    talk.client(GET);
    let response = talk.server;
    talk.server(OK);
    talk.server_ends();
    talk.client_ends();
    talk.client_acks();
    let now_ns = talk.now_ns;
    // Other packets, among which it is noticed that the connection is over.
    let (client_port, client) = (talk.client_port, talk.client);
    talk.client_port = 50_000;
    for _ in 0..3 {
        talk.pause(1_000);
        talk.client_acks();
    }
    talk.client_port = client_port;
    for bytes in [OK, b""] {
        talk.send(SentSegment { from_client: false, seq: response, ack: Some(client), flags: "F", bytes });
    }
    talk.client_acks();
    assert!(talk.now_ns > now_ns + 3_000_000_000);
    let result = talk.run();
    assert_eq!((result.pairs(), result.unpaired()), (vec![(4, 5)], (0, 0)));
    assert_eq!((result.summary.connections, result.summary.counts.retransmitted), (2, 1));
    // Other bytes on the same ports are another connection.
    talk.client = talk.client.wrapping_add(1 << 20);
    talk.server = talk.server.wrapping_add(1 << 20);
    talk.client(GET);
    talk.server(OK);
    assert_eq!(talk.run().summary.connections, 3);
}

#[test]
fn data_may_come_with_the_syn() {
    let mut talk = Talk::silent();
    talk.send(SentSegment { from_client: true, seq: talk.client, ack: None, flags: "S", bytes: GET });
    talk.client = talk.client.wrapping_add(1 + GET.len() as u32);
    talk.send(SentSegment { from_client: false, seq: talk.server, ack: Some(talk.client), flags: "S", bytes: b"" });
    talk.server = talk.server.wrapping_add(1);
    talk.server(OK);
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.pairs(), result.unpaired(), result.summary.connections), (vec![(1, 3), (4, 5)], (0, 0), 1));
    // The server may refuse it: then it comes again.
    let mut talk = Talk::silent();
    let first = talk.client;
    talk.send(SentSegment { from_client: true, seq: first, ack: None, flags: "S", bytes: GET });
    talk.client = first.wrapping_add(1);
    talk.send(SentSegment { from_client: false, seq: talk.server, ack: Some(talk.client), flags: "S", bytes: b"" });
    talk.server = talk.server.wrapping_add(1);
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.exchanges.len(), result.unpaired(), result.summary.connections), (1, (0, 0), 1));
}

#[test]
fn across_a_step_of_the_clock_there_is_no_time() {
    let day_ns = 86_400_000_000_000;
    for (back_ns, whole_response) in [(400_000_000, true), (400_000_000, false), (day_ns, true), (day_ns, false)] {
        let mut talk = Talk::new();
        talk.client(GET);
        if !whole_response {
            // The step is within the response.
            talk.server(&OK[..40]);
        }
        talk.now_ns -= back_ns;
        talk.server(if whole_response { OK } else { &OK[40..] });
        talk.client(GET);
        talk.server(OK);
        let result = talk.run();
        let times: Vec<_> = result.exchanges.iter().map(|e| e.last_byte_ns).collect();
        assert_eq!(times, [None, Some(1_000_000)], "{back_ns} {whole_response}");
        assert_eq!(result.summary.last_byte_ms.max, Some(1.0));
    }
    // Forward, by more than a connection is followed without a packet.
    let mut talk = Talk::new();
    talk.client(GET);
    talk.pause(1_000_000_000_000);
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.summary.last_byte_ms.max, result.unpaired()), (None, (1, 1)));
}

#[test]
fn a_response_from_before_its_request_has_no_time() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.now_ns -= 100_000_000;
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.pairs(), result.exchanges[0].last_byte_ns), (vec![(4, 5)], None));
}
