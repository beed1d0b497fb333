//! One GET request to a FastCGI server, for php-fpm's status page as JSON.
//!
//! The client on crates.io panics at an end of request that is too short, which would end the program. One request for
//! a page of some hundred bytes needs little of the protocol:
//! <https://fastcgi-archives.github.io/FastCGI_Specification.html>.

use std::io;
use std::path::Path;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::{LONGEST_PAGE, PageErrorCause};
use crate::files::reason;

const VERSION: u8 = 1;
/// Each connection has one request.
const REQUEST_ID: u8 = 1;
/// Kinds of records.
const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
/// A responder (0, 1) whose connection ends with the request (0).
const RESPONDER: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 0];

/// The body of the page. `listen` is a path, HOST:PORT or a port, as php-fpm's `listen` has it.
pub(super) async fn get(listen: &str, path: &str) -> Result<String, PageErrorCause> {
    if Path::new(listen).is_absolute() {
        return exchange(UnixStream::connect(listen).await.map_err(failed)?, path).await;
    }
    let address = match listen.rsplit_once(':') {
        // It listens on all addresses, and loopback is one of them.
        Some(("*", port)) => format!("127.0.0.1:{port}"),
        Some(_) => listen.to_owned(),
        None => format!("127.0.0.1:{listen}"),
    };
    exchange(TcpStream::connect(address).await.map_err(failed)?, path).await
}

fn failed(error: io::Error) -> PageErrorCause {
    PageErrorCause::Connection(match error.kind() {
        io::ErrorKind::UnexpectedEof => "the answer is cut off".to_owned(),
        _ => reason(&error),
    })
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, path: &str) -> Result<String, PageErrorCause> {
    let request = request(path).ok_or(PageErrorCause::TooLong)?;
    stream.write_all(&request).await.map_err(failed)?;
    let (mut page, mut received) = (Vec::new(), 0);
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head).await.map_err(failed)?;
        let [_, kind, _, _, high, low, padding, _] = head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let mut content = vec![0; length + usize::from(padding)];
        stream.read_exact(&mut content).await.map_err(failed)?;
        received += head.len() + content.len();
        if received > LONGEST_PAGE {
            return Err(PageErrorCause::TooLong);
        }
        match kind {
            STDOUT => page.extend_from_slice(&content[..length]),
            END_REQUEST => break,
            _ => {}
        }
    }
    let page = String::from_utf8_lossy(&page);
    let (head, body) = page.split_once("\r\n\r\n").ok_or(PageErrorCause::NoHeaders)?;
    match head.lines().find_map(|line| line.strip_prefix("Status: ")) {
        Some(status) if !status.starts_with("200") => {
            Err(PageErrorCause::NoStatusPath { status: status.to_owned(), path: path.to_owned() })
        }
        _ => Ok(body.to_owned()),
    }
}

/// The records of a GET request for the JSON of `path`; `None` when that is too long for one.
fn request(path: &str) -> Option<Vec<u8>> {
    let mut parameters = Vec::new();
    for (name, value) in [
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("REQUEST_METHOD", "GET"),
        ("SCRIPT_NAME", path),
        ("SCRIPT_FILENAME", path),
        ("REQUEST_URI", &format!("{path}?json")),
        ("QUERY_STRING", "json"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
    ] {
        for text in [name, value] {
            // The top bit of a length marks one of four bytes.
            let length = u32::try_from(text.len()).ok().filter(|length| length >> 31 == 0)?;
            parameters.extend_from_slice(&(length | 1 << 31).to_be_bytes());
        }
        parameters.extend_from_slice(name.as_bytes());
        parameters.extend_from_slice(value.as_bytes());
    }
    let mut records = Vec::new();
    for (kind, content) in [(BEGIN_REQUEST, RESPONDER.as_slice()), (PARAMS, &parameters), (PARAMS, &[]), (STDIN, &[])] {
        let [high, low] = u16::try_from(content.len()).ok()?.to_be_bytes();
        records.extend_from_slice(&[VERSION, kind, 0, REQUEST_ID, high, low, 0, 0]);
        records.extend_from_slice(content);
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::runtime::Builder;

    use super::*;

    fn record(kind: u8, content: &[u8], padding: u8) -> Vec<u8> {
        let [high, low] = u16::try_from(content.len()).expect("a short record").to_be_bytes();
        let padded = vec![0; usize::from(padding)];
        [&[VERSION, kind, 0, REQUEST_ID, high, low, padding, 0], content, &padded].concat()
    }

    /// The page that a server with this answer gives.
    fn answered(answer: &[&[u8]]) -> Result<String, String> {
        let (ours, mut theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 20);
        let conversation = async {
            theirs.write_all(&answer.concat()).await.expect("room");
            theirs.shutdown().await.expect("an end");
            exchange(ours, "/status").await.map_err(|cause| cause.to_string())
        };
        Builder::new_current_thread().build().expect("a runtime").block_on(conversation)
    }

    #[test]
    fn a_page_may_come_in_pieces_with_padding_and_errors_beside_it() {
        let page = b"Content-type: application/json\r\n\r\n{}";
        let (first, rest) = page.split_at(20);
        let end = record(END_REQUEST, &[0; 8], 0);
        let stderr = record(7, b"a warning", 0);
        assert_eq!(
            answered(&[&record(STDOUT, first, 5), &stderr, &record(STDOUT, rest, 0), &end]).as_deref(),
            Ok("{}")
        );
    }

    #[test]
    fn an_answer_in_another_form_is_an_error() {
        let page = record(STDOUT, b"a: b\r\n\r\nbody", 0);
        assert_eq!(
            answered(&[&page, &record(END_REQUEST, &[], 0)]).as_deref(),
            Ok("body"),
            "an end without its content"
        );
        assert_eq!(answered(&[&page]), Err("the answer is cut off".to_owned()));
        assert_eq!(answered(&[&page[..10]]), Err("the answer is cut off".to_owned()));
        assert_eq!(answered(&[&record(END_REQUEST, &[0; 8], 0)]), Err("no headers in the answer".to_owned()));
        let long = record(7, &[0; 60_000], 0);
        assert_eq!(
            answered(&[&long, &long, &long, &long, &long]),
            Err("it is longer than 256 KiB, which is not read".to_owned())
        );
        let absent = record(STDOUT, b"Status: 404 Not Found\r\n\r\n", 0);
        let error = answered(&[&absent, &record(END_REQUEST, &[0; 8], 0)]).expect_err("no page");
        assert!(error.contains("404 Not Found"), "{error}");
    }

    #[test]
    fn a_path_that_is_too_long_is_not_sent() {
        assert!(request("/status").is_some());
        assert!(request(&"x".repeat(30_000)).is_none());
    }
}
