//! One request to a FastCGI server, for php-fpm's status page. The protocol: FastCGI specification 1.0, section 3.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(2);
const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
/// More than a status page is not read.
const LONGEST: usize = 1 << 20;

/// The body of what a page answers to GET. `listen` is a path, HOST:PORT or a port, as php-fpm's `listen` has it.
///
/// # Errors
/// Why there is no answer.
pub fn get(listen: &str, page: &str, query: &str) -> Result<String, String> {
    let trouble = |error: std::io::Error| format!("{listen}: {error}");
    let answer = if listen.starts_with('/') {
        let stream = UnixStream::connect(listen).map_err(trouble)?;
        stream.set_read_timeout(Some(WITHIN)).and_then(|()| stream.set_write_timeout(Some(WITHIN))).map_err(trouble)?;
        exchange(stream, page, query)
    } else {
        let address = if listen.contains(':') { listen.to_owned() } else { format!("127.0.0.1:{listen}") };
        let stream = TcpStream::connect(address).map_err(trouble)?;
        stream.set_read_timeout(Some(WITHIN)).and_then(|()| stream.set_write_timeout(Some(WITHIN))).map_err(trouble)?;
        exchange(stream, page, query)
    }
    .map_err(trouble)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("{listen}: no headers in the answer"))?;
    match head.lines().find_map(|line| line.strip_prefix("Status: ")) {
        Some(status) if !status.starts_with("200") => Err(format!("{listen}: {page} answers {status}")),
        _ => Ok(body.to_owned()),
    }
}

fn exchange(mut stream: impl Read + Write, page: &str, query: &str) -> std::io::Result<Vec<u8>> {
    let mut params = Vec::new();
    for (name, value) in
        [("REQUEST_METHOD", "GET"), ("SCRIPT_NAME", page), ("SCRIPT_FILENAME", page), ("QUERY_STRING", query)]
    {
        for length in [name.len(), value.len()] {
            let long = u32::try_from(length).unwrap_or(0) | 0x8000_0000;
            params.extend_from_slice(&long.to_be_bytes());
        }
        params.extend_from_slice(name.as_bytes());
        params.extend_from_slice(value.as_bytes());
    }
    // Role 1 is a responder; no flags: the server ends the connection.
    let request = [
        record(BEGIN_REQUEST, &[0, 1, 0, 0, 0, 0, 0, 0]),
        record(PARAMS, &params),
        record(PARAMS, &[]),
        record(STDIN, &[]),
    ];
    stream.write_all(&request.concat())?;
    let mut answer = Vec::new();
    loop {
        let mut header = [0; 8];
        stream.read_exact(&mut header)?;
        let mut content = vec![0; usize::from(u16::from_be_bytes([header[4], header[5]])) + usize::from(header[6])];
        stream.read_exact(&mut content)?;
        content.truncate(content.len() - usize::from(header[6]));
        match header[1] {
            STDOUT => answer.extend_from_slice(&content),
            END_REQUEST => return Ok(answer),
            _ => {}
        }
        if answer.len() > LONGEST {
            return Ok(answer);
        }
    }
}

/// A record of request 1. The contents here are far shorter than the longest (65535).
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[1, kind, 0, 1, length[0], length[1], 0, 0], content].concat()
}
