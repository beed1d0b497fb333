//! IP as it comes: options, extension heads, fragments, segments of any size.

mod support;

use slackwater_sniffer::TrackerSettings;
use support::{GET, OK, Talk, Wrapping, run};

/// Four bytes of options that do nothing.
fn with_options(frame: &mut support::Frame) {
    frame.bytes.splice(34..34, [1, 1, 1, 0]);
    frame.bytes[14] = 0x46;
    let length = u16::from_be_bytes([frame.bytes[16], frame.bytes[17]]) + 4;
    frame.bytes[16..18].copy_from_slice(&length.to_be_bytes());
    frame.original_length += 4;
}

/// An extension head between IPv6 and TCP: its number, and its bytes behind the next head's number.
fn with_extension(frame: &mut support::Frame, number: u8, rest: [u8; 7]) {
    let next = std::mem::replace(&mut frame.bytes[20], number);
    let head: Vec<u8> = [next].into_iter().chain(rest).collect();
    frame.bytes.splice(54..54, head);
    let length = u16::from_be_bytes([frame.bytes[18], frame.bytes[19]]) + 8;
    frame.bytes[18..20].copy_from_slice(&length.to_be_bytes());
    frame.original_length += 8;
}

fn talk(wrapping: Wrapping) -> Talk {
    let mut talk = Talk::silent();
    talk.wrapping = wrapping;
    talk.handshake();
    talk.client(GET);
    talk.server(OK);
    talk
}

#[test]
fn options_and_extension_heads_are_passed_over() {
    let mut v4 = talk(Wrapping::V4);
    v4.frames.iter_mut().for_each(with_options);
    assert_eq!(v4.run().pairs(), [(4, 5)]);
    let mut v6 = talk(Wrapping::V6);
    for frame in &mut v6.frames {
        // Destination options, then hop-by-hop options before them: padding only.
        with_extension(frame, 60, [0, 1, 4, 0, 0, 0, 0]);
        with_extension(frame, 0, [0, 1, 4, 0, 0, 0, 0]);
    }
    assert_eq!(v6.run().pairs(), [(4, 5)]);
}

#[test]
fn fragments_are_counted_and_skipped_whatever_they_hold() {
    let mut v6 = talk(Wrapping::V6);
    // The first one of several, and a later one.
    with_extension(&mut v6.frames[3], 44, [0, 0, 1, 0, 0, 0, 9]);
    with_extension(&mut v6.frames[4], 44, [0, 0x10, 0, 0, 0, 0, 9]);
    let result = v6.run();
    assert_eq!((result.summary.counts.fragments, result.pairs()), (2, vec![]));
    let mut v4 = talk(Wrapping::V4);
    v4.frames[3].bytes[21] = 185;
    assert_eq!(v4.run().summary.counts.fragments, 1);
    // What is not split is no fragment, even with the head of one.
    let mut whole = talk(Wrapping::V6);
    with_extension(&mut whole.frames[3], 44, [0, 0, 0, 0, 0, 0, 9]);
    assert_eq!((whole.run().summary.counts.fragments, whole.run().pairs()), (0, vec![(4, 5)]));
}

#[test]
fn segments_as_large_as_the_kernel_makes_them_are_whole() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n");
    let large = talk.server(&[b'x'; 60_000]) as usize - 1;
    // More than the length field can say: the kernel leaves it zero.
    talk.frames[large].bytes[16..18].copy_from_slice(&[0, 0]);
    talk.client(GET);
    talk.server(OK);
    let result = talk.run();
    assert_eq!((result.pairs(), result.summary.counts.holes), (vec![(4, 6), (7, 8)], 0));
    assert_eq!(result.exchanges[0].response_bytes, 60_042);
}

#[test]
fn zero_windows_and_their_probes_change_nothing() {
    let mut talk = Talk::new();
    talk.client(GET);
    talk.server(&OK[..40]);
    let full = talk.client_acks() as usize - 1;
    talk.frames[full].bytes[48..50].copy_from_slice(&[0, 0]);
    // The probe: the next byte, again and again, until there is room.
    let next = talk.server;
    talk.server(&OK[40..41]);
    talk.client_acks();
    talk.server = next;
    talk.server(&OK[40..]);
    let result = talk.run();
    assert_eq!((result.pairs(), result.unpaired(), result.summary.counts.holes), (vec![(4, 9)], (0, 0), 0));
}

#[test]
fn sizes_are_those_on_the_wire() {
    let mut talk = Talk::new();
    let body = b"POST / HTTP/1.1\r\nContent-Length: 30\r\n\r\n0123456789";
    talk.client(body);
    talk.client(&[b'x'; 20]);
    talk.server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    talk.server(b"3\r\nabc\r\n0\r\n\r\n");
    let mut frames = talk.frames.clone();
    frames.iter_mut().for_each(|frame| frame.cut(54 + 60));
    for frames in [talk.frames, frames] {
        let result = run(1, &frames, TrackerSettings::default());
        let sizes = (result.exchanges[0].request_bytes, result.exchanges[0].response_bytes);
        assert_eq!(sizes, (body.len() as u32 + 20, 47 + 13));
        assert_eq!(
            (result.summary.details.request_bytes.max, result.summary.details.response_bytes.mean),
            (Some(69), Some(60.0))
        );
    }
}
