//! The age of the oldest request whose response has not begun.

mod support;

use slackwater_sniffer::{Tracker, TrackerSettings};
use support::{GET, OK, SentSegment, Talk, packet};

/// A tracker, and the frames that it got.
struct Fed(Tracker, u64);

impl Fed {
    fn new(settings: TrackerSettings) -> Fed {
        Fed(Tracker::new(settings), 0)
    }

    /// Feeds the new frames and returns the age at `later_ms` after the last packet.
    fn age_ms(&mut self, talk: &mut Talk, later_ms: u64) -> f64 {
        for frame in talk.frames.drain(..) {
            self.1 += 1;
            self.0.packet(&packet(1, self.1, &frame));
        }
        let now_ns = talk.now_ns + later_ms * 1_000_000;
        let age_ms = self.0.oldest_unanswered_ms(now_ns);
        assert!((self.0.take_period(now_ns).oldest_unanswered_ms - age_ms).abs() < 1e-9, "a period has it too");
        age_ms
    }
}

fn is(age_ms: f64, expected: f64) -> bool {
    (age_ms - expected).abs() < 1e-6
}

#[test]
fn a_request_grows_old_until_the_first_byte_of_its_response() {
    let (mut fed, mut talk) = (Fed::new(TrackerSettings::default()), Talk::new());
    assert!(is(fed.age_ms(&mut talk, 500), 0.0), "nothing was asked");
    talk.client(GET);
    assert!(is(fed.age_ms(&mut talk, 40), 40.0));
    talk.server(&OK[..OK.len() - 2]);
    assert!(is(fed.age_ms(&mut talk, 70), 0.0), "its response has begun");
    assert_eq!(fed.0.in_flight(), 1, "and has not ended");
    talk.server(&OK[OK.len() - 2..]);
    assert!(is(fed.age_ms(&mut talk, 70), 0.0));
}

#[test]
fn of_several_the_oldest_counts_also_behind_one_that_is_being_answered() {
    let (mut fed, mut talk) = (Fed::new(TrackerSettings::default()), Talk::new());
    talk.client(GET);
    talk.pause(10);
    talk.client(GET);
    let mut other = Talk::silent();
    (other.client_port, other.now_ns) = (50_000, talk.now_ns + 30_000_000);
    other.handshake();
    other.client(GET);
    fed.age_ms(&mut talk, 0);
    let since_first = (other.now_ns - talk.now_ns) as f64 / 1e6 + 11.0;
    assert!(is(fed.age_ms(&mut other, 5), since_first + 5.0));
    talk.now_ns = other.now_ns;
    talk.server(&OK[..OK.len() - 2]);
    let since_second = since_first - 11.0 + 1.0;
    assert!(is(fed.age_ms(&mut talk, 5), since_second + 5.0), "the second one waits behind the first");
}

#[test]
fn a_body_that_is_still_being_sent_does_not_wait() {
    let (mut fed, mut talk) = (Fed::new(TrackerSettings::default()), Talk::new());
    talk.client(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n12345");
    assert!(is(fed.age_ms(&mut talk, 900), 0.0));
    talk.client(b"67890");
    assert!(is(fed.age_ms(&mut talk, 900), 900.0));
}

#[test]
fn closed_connections_and_responses_that_may_have_been_missed_leave_nobody_waiting() {
    let (mut fed, mut talk) = (Fed::new(TrackerSettings::default()), Talk::new());
    talk.client(GET);
    talk.send(SentSegment { from_client: true, seq: talk.client, ack: Some(talk.server), flags: "R", bytes: b"" });
    assert!(is(fed.age_ms(&mut talk, 900), 0.0));
    let mut other = Talk::new();
    (other.now_ns, other.frames) = (talk.now_ns, Vec::new());
    other.client_port = 50_000;
    other.handshake();
    other.client(GET);
    other.server += OK.len() as u32; // was not captured
    other.client_acks();
    other.pause(2_000);
    other.server(b"rest of something");
    other.client(GET);
    assert!(is(fed.age_ms(&mut other, 900), 0.0));
}

#[test]
fn after_a_step_back_of_the_clock_only_later_requests_have_an_age() {
    let (mut fed, mut talk) = (Fed::new(TrackerSettings::default()), Talk::new());
    talk.client(GET);
    fed.age_ms(&mut talk, 0);
    let mut other = Talk::silent();
    (other.client_port, other.now_ns) = (50_000, talk.now_ns - 60_000_000_000);
    other.handshake();
    other.client(GET);
    assert!(is(fed.age_ms(&mut other, 7), 7.0));
}

#[test]
fn other_protocols_have_it_too_but_not_for_what_asks_for_no_answer() {
    let ports = TrackerSettings { ports: vec![443, 11211], ..TrackerSettings::default() };
    let talk = |port| {
        let mut talk = Talk::silent();
        talk.server_port = port;
        talk.handshake();
        talk
    };
    let (mut fed, mut tls) = (Fed::new(ports.clone()), talk(443));
    tls.client(b"question");
    assert!(is(fed.age_ms(&mut tls, 20), 20.0));
    tls.server(b"answer");
    assert!(is(fed.age_ms(&mut tls, 20), 0.0));
    let (mut fed, mut cache) = (Fed::new(ports), talk(11211));
    cache.client(b"mg missing q v\r\n");
    assert!(is(fed.age_ms(&mut cache, 20), 0.0), "a quiet miss is no answer");
    cache.client(b"get a\r\n");
    assert!(is(fed.age_ms(&mut cache, 20), 20.0));
    cache.server(b"END\r\n");
    assert!(is(fed.age_ms(&mut cache, 20), 0.0));
}
