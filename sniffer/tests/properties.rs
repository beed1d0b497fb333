//! Properties of any conversation, however it is cut into segments, mixed up, repeated or lost.

mod support;

use slackwater_sniffer::{Exchange, TrackerSettings};
use support::{Dice, Frame, GET, Talk, run};

fn run_frames(frames: &[Frame]) -> support::Measured {
    run(1, frames, TrackerSettings { ports: vec![80, 11211], ..TrackerSettings::default() })
}

/// Sends bytes in random segments and returns the number of the frame with the last byte.
fn cut(talk: &mut Talk, dice: &mut Dice, from_client: bool, mut bytes: &[u8]) -> u64 {
    let mut frame = 0;
    while !bytes.is_empty() {
        let (part, rest) = bytes.split_at((1 + dice.roll(40)).min(bytes.len()));
        frame = if from_client { talk.client(part) } else { talk.server(part) };
        bytes = rest;
    }
    frame
}

/// An expected exchange: method or command, status or word, and the frames with the last bytes.
struct Expected {
    method: String,
    answer: String,
    frames: (u64, u64),
}

/// Many exchanges of all kinds on one connection, in random segments.
fn mixture(dice: &mut Dice) -> (Talk, Vec<Expected>) {
    let mut talk = Talk::silent();
    talk.step_ns = 10_000;
    (talk.client, talk.server) = (dice.roll(1 << 32) as u32, u32::MAX - dice.roll(2_000) as u32);
    talk.handshake();
    let mut expected = Vec::new();
    for _ in 0..12 {
        let (request, method): (&[u8], _) = match dice.roll(4) {
            0 => (GET, "GET"),
            1 => (b"HEAD /b HTTP/1.1\r\n\r\n", "HEAD"),
            2 => (b"POST /c HTTP/1.1\r\nContent-Length: 12\r\n\r\nHTTP/1.1 200", "POST"),
            _ => (b"PUT /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nGET /\r\n0\r\nA: b\r\n\r\n", "PUT"),
        };
        let (head, body, status): (&[u8], &[u8], _) = match dice.roll(4) {
            0 => (b"HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n", b"HTTP/1.1 404 Not Found\r\n", 200),
            1 => (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 24\r\n\r\n", b"", 304),
            2 => (b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n", b"4\r\nabcd\r\n0\r\n\r\n", 500),
            _ => (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\n", b"abc", 201),
        };
        let body = if method == "HEAD" { b"" } else { body };
        let response = [head, body].concat();
        let frames = (cut(&mut talk, dice, true, request), cut(&mut talk, dice, false, &response));
        expected.push(Expected { method: method.to_owned(), answer: status.to_string(), frames });
    }
    talk.server_ends();
    talk.client_ends();
    (talk, expected)
}

/// Text commands of memcached, likewise.
fn memcached_mixture(dice: &mut Dice) -> (Talk, Vec<Expected>) {
    let mut talk = Talk::silent();
    talk.step_ns = 10_000;
    talk.server_port = 11211;
    (talk.client, talk.server) = (u32::MAX - dice.roll(500) as u32, dice.roll(1 << 32) as u32);
    talk.handshake();
    let mut expected = Vec::new();
    for _ in 0..12 {
        let (request, response, method, answer): (&[u8], &[u8], _, _) = match dice.roll(5) {
            0 => (b"set k 0 0 12\r\nget a\r\nEND\r\n\r\n", b"STORED\r\n", "set", "STORED"),
            1 => (b"get k\r\n", b"VALUE k 0 12\r\nget a\r\nEND\r\n\r\nEND\r\n", "get", "END"),
            2 => (b"get a b c\r\n", b"END\r\n", "get", "END"),
            3 => (b"incr n 5\r\n", b"105\r\n", "incr", "NUMBER"),
            _ => (b"delete k\r\n", b"NOT_FOUND\r\n", "delete", "NOT_FOUND"),
        };
        let frames = (cut(&mut talk, dice, true, request), cut(&mut talk, dice, false, response));
        expected.push(Expected { method: method.to_owned(), answer: answer.to_owned(), frames });
    }
    talk.server_ends();
    talk.client_ends();
    (talk, expected)
}

fn method_and_answer(exchange: &Exchange) -> (String, String) {
    let answer = if exchange.status == 0 { exchange.word.to_owned() } else { exchange.status.to_string() };
    (exchange.method.as_str().to_owned(), answer)
}

#[test]
fn however_it_is_cut_each_exchange_has_its_frames_and_times() {
    for seed in 1..300 {
        for mixture in [mixture, memcached_mixture] {
            let (talk, expected) = mixture(&mut Dice::new(seed));
            let result = run_frames(&talk.frames);
            assert_eq!(result.exchanges.len(), expected.len(), "seed {seed}");
            let time_ns = |frame: u64| talk.frames[frame as usize - 1].time_ns;
            for (exchange, expected) in result.exchanges.iter().zip(&expected) {
                let expected_words = (expected.method.clone(), expected.answer.clone());
                assert_eq!(method_and_answer(exchange), expected_words, "seed {seed}");
                let (request, response) = expected.frames;
                assert_eq!((exchange.request_frame, exchange.response_frame), (request, response), "seed {seed}");
                assert_eq!(exchange.last_byte_ns, Some(time_ns(response) - time_ns(request)), "seed {seed}");
            }
        }
    }
}

#[test]
fn segments_repeats_and_disorder_do_not_change_the_exchanges() {
    for (seed, mixture) in (1..300).flat_map(|seed| [(seed, mixture as fn(&mut Dice) -> _), (seed, memcached_mixture)])
    {
        let mut dice = Dice::new(seed);
        let (talk, expected) = mixture(&mut dice);
        let mut frames = talk.frames.clone();
        for _ in 0..frames.len() / 2 {
            match dice.roll(3) {
                // The handshake stays first: what precedes it belongs to another connection.
                0 => {
                    let place = 3 + dice.roll(frames.len() - 4);
                    frames.swap(place, place + 1);
                }
                1 => {
                    let copy = frames[3 + dice.roll(frames.len() - 3)].clone();
                    let place = 3 + dice.roll(frames.len() - 3);
                    let original = frames.iter().position(|frame| frame.bytes == copy.bytes).expect("the original");
                    frames.insert(place.max(original), copy);
                }
                _ => {
                    let place = 3 + dice.roll(frames.len() - 6);
                    frames[place..place + 4].rotate_left(1);
                }
            }
        }
        for (number, frame) in frames.iter_mut().enumerate() {
            frame.time_ns = support::START_NS + number as u64 * 10_000;
        }
        let result = run_frames(&frames);
        let exchanges: Vec<_> = result.exchanges.iter().map(method_and_answer).collect();
        let expected: Vec<_> = expected.into_iter().map(|exchange| (exchange.method, exchange.answer)).collect();
        assert_eq!((exchanges, result.unpaired()), (expected, (0, 0)), "seed {seed}");
        assert_eq!((result.summary.counts.holes, result.summary.counts.malformed), (0, 0), "seed {seed}");
    }
}

#[test]
fn whatever_is_lost_no_response_is_paired_with_another_request() {
    let mut pairs = 0;
    for seed in 1..1_000 {
        let mut dice = Dice::new(seed);
        let mut talk = Talk::new();
        let mut sure = Vec::new();
        for number in 0..20 {
            let method = format!("{}-X", ["A", "B", "C", "D", "E", "F", "G"][number % 7].repeat(1 + number / 7));
            talk.client(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            let status = 210 + number as u16;
            let (framing, first, second) = match number % 3 {
                0 => ("Transfer-Encoding: chunked", "5\r\nabcde\r\n", "5\r\nfghij\r\n0\r\n\r\n"),
                _ => ("Content-Length: 20", "0123456789", "0123456789"),
            };
            talk.server(format!("HTTP/1.1 {status} OK\r\n{framing}\r\n\r\n").as_bytes());
            talk.server(first.as_bytes());
            talk.server(second.as_bytes());
            talk.client_acks();
            if dice.roll(2) == 0 {
                talk.pause(30);
            }
            sure.push((method, status));
        }
        let lost: Vec<usize> = (0..8).map(|_| 3 + dice.roll(talk.frames.len() - 3)).collect();
        let frames = talk.frames.iter().enumerate();
        let frames: Vec<_> =
            frames.filter(|(place, _)| !lost.contains(place)).map(|(_, frame)| frame.clone()).collect();
        let result = run_frames(&frames);
        for exchange in &result.exchanges {
            let pair = (exchange.method.as_str(), exchange.status);
            assert!(sure.iter().any(|(method, status)| (method.as_str(), *status) == pair), "seed {seed}: {pair:?}");
            let possible = [None, Some(3_000_000)].contains(&exchange.last_byte_ns);
            assert!(possible, "seed {seed}: {:?}", exchange.last_byte_ns);
        }
        pairs += result.exchanges.len();
    }
    // Losing 8 of 100 frames leaves most pairs: each needs its request and the head of its response.
    assert!(pairs > 1_000 * 14, "{pairs} pairs");
}
