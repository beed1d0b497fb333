//! The bytes of a NATS server: a greeting, a NUL, and the bytes after the login. The node's connection must stay
//! usable, or come back by itself and receive a later message.
#![no_main]

use std::time::Duration;

use slackwater_node::bus::{BusSettings, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_stream::StreamExt;

const SUBJECT: &str = "slackwater.weight.web.n1";
const GOOD: &[u8] =
    b"INFO {\"server_id\":\"x\",\"version\":\"2.9.10\",\"max_payload\":1048576,\"proto\":1,\"headers\":true}\r\n";
const RECEIVED_WITHIN: Duration = Duration::from_secs(8);

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if is_known(data) {
        return;
    }
    let cut = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (greeting, rest) = (&data[..cut], data.get(cut + 1..).unwrap_or_default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an event loop");
    runtime.block_on(async { timeout(RECEIVED_WITHIN, converse(greeting, rest)).await.expect("a message in time") });
});

/// Faults of async-nats 0.51 that end the program: docs/operations/security.md.
fn is_known(data: &[u8]) -> bool {
    let has_long_number = data.split(|byte| !byte.is_ascii_digit()).any(|digits| digits.len() > 15);
    let has_headers = data.windows(4).any(|part| part == b"HMSG");
    let has_single_return = data.windows(2).any(|part| part[0] == b'\r' && part[1] != b'\n');
    has_long_number || (has_headers && has_single_return) || data.windows(6).any(|part| part == b"-ERR\r\n")
}

/// Serves these bytes to a client, then serves well, and waits until the client receives a message.
async fn converse(greeting: &[u8], rest: &[u8]) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    let options = BusSettings { url: url.clone(), ..BusSettings::default() }.read().expect("no files");
    let options = options.connection_timeout(Duration::from_millis(200)).ignore_discovered_servers();
    let client = connect(&url, options, "fuzz", "n1", 8).await.expect("an address");
    let mut weights = client.subscribe(SUBJECT).await.expect("a subscription");
    let server = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let greeting = if greeting.is_empty() { GOOD } else { greeting };
        let _ = stream.write_all(greeting).await;
        let _ = timeout(Duration::from_millis(20), words(&mut stream, "PING\r\n")).await;
        let _ = stream.write_all(b"PONG\r\n").await;
        let _ = stream.write_all(rest).await;
        let _ = timeout(Duration::from_millis(5), words(&mut stream, "nothing")).await;
        drop(stream);
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let _ = stream.write_all(GOOD).await;
            if words(&mut stream, "PING\r\n").await.is_none() {
                continue;
            }
            let _ = stream.write_all(b"PONG\r\n").await;
            let Some(text) = words(&mut stream, SUBJECT).await else { continue };
            let sid: String =
                text.split(SUBJECT).last().unwrap_or_default().chars().filter(char::is_ascii_digit).collect();
            let _ = stream.write_all(format!("MSG {SUBJECT} {sid} 4\r\ngood\r\n").as_bytes()).await;
            let _ = words(&mut stream, "nothing").await;
        }
    };
    let received = async {
        while let Some(message) = weights.next().await {
            if &message.payload[..] == b"good" {
                return true;
            }
        }
        false
    };
    tokio::pin!(server, received);
    tokio::select! {
        () = server => unreachable!("it serves for ever"),
        received = received => assert!(received, "the subscription ended"),
    }
}

/// The text that a client sends up to a line with this word; `None` when it has ended.
async fn words(stream: &mut TcpStream, word: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let length = stream.read(&mut part).await.ok().filter(|length| *length > 0)?;
        bytes.extend(&part[..length]);
        let text = String::from_utf8_lossy(&bytes);
        if text.rfind(word).is_some_and(|start| text[start..].contains("\r\n")) {
            return Some(text.into_owned());
        }
    }
}
