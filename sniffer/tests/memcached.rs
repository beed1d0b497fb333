//! memcached in text and binary: which requests are answered, and by which answers.

mod support;

use slackwater_sniffer::{Exchange, StatusClass, TrackerSettings};
use support::{Dice, Measured, Talk, run};

fn talk() -> Talk {
    let mut talk = Talk::silent();
    talk.server_port = 11211;
    talk.handshake();
    talk
}

fn measure(talk: &Talk) -> Measured {
    run(1, &talk.frames, TrackerSettings { ports: vec![11211], ..TrackerSettings::default() })
}

fn commands(result: &Measured) -> Vec<(&str, &str)> {
    result.exchanges.iter().map(|e: &Exchange| (e.method.as_str(), e.word)).collect()
}

fn message(magic: u8, opcode: u8, status: u16, opaque: u32, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![magic, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(status.to_be_bytes());
    bytes.extend(((key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend(opaque.to_be_bytes());
    bytes.extend([0; 8]);
    [&bytes[..], key, value].concat()
}

fn ask(opcode: u8, opaque: u32, key: &[u8]) -> Vec<u8> {
    message(0x80, opcode, 0, opaque, key, b"")
}

fn tell(opcode: u8, status: u16, opaque: u32) -> Vec<u8> {
    message(0x81, opcode, status, opaque, b"", b"some value")
}

#[test]
fn text_commands_are_answered_in_order() {
    let mut talk = talk();
    talk.client(b"set a 0 0 5\r\nhel");
    talk.client(b"lo\r\n");
    talk.server(b"STORED\r\n");
    talk.client(b"get a b c\r\nincr n 1\r\nget nothing\r\n");
    talk.server(b"VALUE a 0 5\r\nEND\r\n\r\nVALUE c 0 2\r\n");
    talk.server(b"hi\r\nEN");
    talk.server(b"D\r\n8\r\n");
    talk.server(b"END\r\n");
    let result = measure(&talk);
    assert_eq!(commands(&result), [("set", "STORED"), ("get", "END"), ("incr", "NUMBER"), ("get", "END")]);
    assert_eq!(result.pairs(), [(5, 6), (7, 10), (7, 10), (7, 11)]);
    let get = &result.exchanges[1];
    assert_eq!((get.first_byte_ns, get.last_byte_ns), (Some(1_000_000), Some(3_000_000)));
    assert_eq!((result.unpaired(), get.protocol), ((0, 0), "memcached"));
    assert_eq!((result.exchanges[0].request_bytes, result.exchanges[0].response_bytes), (20, 8));
}

#[test]
fn what_asks_for_no_answer_does_not_stay_outstanding() {
    let mut talk = talk();
    talk.client(b"set a 0 0 2 noreply\r\nhi\r\ndelete b noreply\r\nversion\r\n");
    talk.server(b"VERSION 1.6\r\n");
    talk.client(b"quit\r\n");
    let result = measure(&talk);
    assert_eq!((commands(&result), result.unpaired()), (vec![("version", "VERSION")], (3, 0)));
    assert_eq!((result.summary.counts.quiet_requests, result.summary.in_flight), (3, 0));
}

#[test]
fn errors_are_told_from_misses() {
    let mut talk = talk();
    for answer in ["NOT_FOUND\r\n", "CLIENT_ERROR bad\r\n", "SERVER_ERROR out of memory\r\n"] {
        talk.client(b"delete a\r\n");
        talk.server(answer.as_bytes());
    }
    let classes: Vec<_> = measure(&talk).exchanges.iter().map(|e| e.class).collect();
    assert_eq!(classes, [StatusClass::Successful, StatusClass::ClientError, StatusClass::ServerError]);
    assert_eq!(measure(&talk).summary.counts.errors, 1);
}

#[test]
fn statistics_are_one_answer() {
    let mut talk = talk();
    talk.client(b"stats\r\n");
    talk.server(b"STAT pid 1\r\nSTAT up");
    talk.server(b"time 2\r\nEND\r\n");
    assert_eq!(measure(&talk).pairs(), [(4, 6)]);
    let mut talk = self::talk();
    talk.client(&ask(0x10, 3, b""));
    talk.server(&message(0x81, 0x10, 0, 3, b"pid", b"1"));
    talk.server(&message(0x81, 0x10, 0, 3, b"", b""));
    assert_eq!(measure(&talk).pairs(), [(4, 6)]);
}

#[test]
fn binary_answers_find_their_request_by_its_opaque_value() {
    let mut talk = talk();
    talk.client(&[ask(0x0d, 1, b"miss"), ask(0x0d, 2, b"hit"), ask(0x0d, 3, b"miss"), ask(0x0a, 4, b"")].concat());
    talk.server(&tell(0x0d, 0, 2));
    talk.server(&tell(0x0a, 0, 4));
    talk.client(&ask(0x00, 5, b"key"));
    talk.server(&tell(0x00, 1, 5));
    let result = measure(&talk);
    assert_eq!(result.pairs(), [(4, 5), (4, 6), (7, 8)]);
    assert_eq!(commands(&result), [("getkq", ""), ("noop", ""), ("get", "")]);
    assert_eq!((result.unpaired(), result.summary.counts.quiet_requests), ((2, 0), 2));
    assert_eq!((result.statuses(), result.exchanges[2].class), (vec![0, 0, 1], StatusClass::Successful));
}

#[test]
fn binary_answers_without_opaque_values_come_in_order() {
    let mut talk = talk();
    talk.client(&[ask(0x09, 0, b"miss"), ask(0x00, 0, b"a"), ask(0x00, 0, b"b")].concat());
    talk.server(&tell(0x00, 0, 0));
    talk.server(&tell(0x00, 0, 0));
    let result = measure(&talk);
    assert_eq!((result.pairs(), result.unpaired()), (vec![(4, 5), (4, 6)], (1, 0)));
}

#[test]
fn quiet_meta_commands_are_matched_where_that_is_sure() {
    let mut talk = talk();
    talk.client(b"mg a v q\r\nmg b v q O7\r\nms c 2 q\r\nhi\r\nmn\r\n");
    talk.server(b"VA 3 O7\r\nxyz\r\n");
    talk.server(b"MN\r\n");
    let result = measure(&talk);
    assert_eq!((commands(&result), result.unpaired()), (vec![("mg", "VA"), ("mn", "MN")], (2, 0)));
    // Which of two quiet gets hit can't be told: no pair is guessed, the next turn is sure again.
    let mut talk = self::talk();
    talk.client(b"mg a v q\r\nmg b v q\r\nmn\r\n");
    talk.server(b"VA 3\r\nxyz\r\n");
    talk.server(b"MN\r\n");
    talk.client(b"get a\r\n");
    talk.server(b"END\r\n");
    let result = self::measure(&talk);
    assert_eq!((commands(&result), result.unpaired()), (vec![("get", "END")], (3, 2)));
}

#[test]
fn loss_makes_no_false_pair() {
    let exchange = |talk: &mut Talk, key: &str| {
        talk.client(format!("get {key}\r\n").as_bytes());
        talk.server(format!("VALUE {key} 0 4\r\n").as_bytes());
        talk.server(b"data\r\n");
        talk.server(b"END\r\n");
        talk.client_acks();
        talk.pause(20);
    };
    for (lost, pairs, orphans) in [
        // The request, the head of the value, its data, the end.
        (8, vec![(4, 7), (13, 16)], 1),
        // Without its head the rest of a response is an orphan.
        (9, vec![(4, 7), (13, 16)], 1),
        (10, vec![(4, 7), (9, 11), (13, 16)], 0),
    ] {
        let mut talk = talk();
        for key in ["a", "b", "c"] {
            exchange(&mut talk, key);
        }
        talk.frames.remove(lost);
        let result = measure(&talk);
        assert_eq!((result.pairs(), result.unpaired().1), (pairs, orphans), "frame {} lost", lost + 1);
    }
}

#[test]
fn met_in_the_middle_the_next_sure_pair_is_found() {
    let mut talk = talk();
    talk.client(b"set a 0 0 40\r\n");
    talk.client(b"get b\r\n-----------------------------------");
    talk.client(b"\r\n");
    talk.server(b"STORED\r\n");
    talk.client(b"get a\r\n");
    talk.server(b"END\r\n");
    talk.frames.drain(..4);
    let result = measure(&talk);
    assert_eq!(commands(&result).last(), Some(&("get", "END")));
    assert_eq!(result.pairs().last(), Some(&(4, 5)));
}

#[test]
fn any_cut_into_segments_gives_the_same_exchanges() {
    let mut request = b"set k 0 0 9\r\nget a\r\n\r\n\r\nget k j\r\nms m 2 O1\r\nhi\r\n".to_vec();
    let mut reply = b"STORED\r\nVALUE k 0 9\r\nEND\r\nEN\r\n\r\nEND\r\nHD O1\r\n".to_vec();
    request.extend(ask(0x01, 9, b"key"));
    reply.extend(message(0x81, 0x01, 0, 9, b"", b"\x81\x81"));
    for seed in 1..200 {
        let mut dice = Dice::new(seed);
        let mut talk = talk();
        talk.step_ns = 10_000;
        for (from_client, mut bytes) in [(true, &request[..]), (false, &reply)] {
            while !bytes.is_empty() {
                let (part, rest) = bytes.split_at((1 + dice.roll(30)).min(bytes.len()));
                if from_client {
                    talk.client(part)
                } else {
                    talk.server(part)
                };
                bytes = rest;
            }
        }
        for _ in 0..6 {
            let place = 3 + dice.roll(talk.frames.len() - 4);
            talk.frames.swap(place, place + 1);
        }
        let result = measure(&talk);
        let expected = [("set", "STORED"), ("get", "END"), ("ms", "HD"), ("set", "")];
        assert_eq!((commands(&result), result.unpaired()), (expected.to_vec(), (0, 0)), "seed {seed}");
        assert_eq!(result.summary.counts.malformed, 0, "seed {seed}");
    }
}

#[test]
fn keys_in_answers_show_which_quiet_command_they_answer() {
    let mut talk = talk();
    talk.client(b"mg a v q k\r\nmg b v q k\r\nmg c k q\r\nmd d q k\r\nmg e v k\r\nmn\r\n");
    talk.server(b"VA 3 kb\r\nxyz\r\nHD kc\r\nVA 1 ke\r\ne\r\nMN\r\n");
    let result = measure(&talk);
    assert_eq!(commands(&result), [("mg", "VA"), ("mg", "HD"), ("mg", "VA"), ("mn", "MN")]);
    assert_eq!((result.unpaired(), result.summary.counts.quiet_requests), ((2, 0), 2));
}

#[test]
fn a_key_that_several_commands_name_makes_no_pair() {
    let mut talk = talk();
    talk.client(b"mg a q k\r\nms a 2 k\r\nhi\r\n");
    talk.server(b"HD ka\r\n");
    talk.client(b"mg a v k\r\n");
    talk.server(b"VA 2 ka\r\nhi\r\n");
    assert_eq!(commands(&measure(&talk)), [("mg", "VA")]);
}
