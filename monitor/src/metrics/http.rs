//! Serves the page: GET and HEAD of two paths, with few connections at a time and little time for each.

use std::convert::Infallible;
use std::time::Duration;

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::Metrics;
use crate::error::Error;
use crate::listener;

/// Connections at a time; more wait in the kernel.
const MOST_CONNECTIONS: usize = 4;
/// How long a connection may take, from its first byte to our last.
const CONNECTION_ENDS_AFTER: Duration = Duration::from_secs(5);
/// How long a request's head may take.
const HEAD_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of a request's head.
const MOST_HEAD_BYTES: usize = 8 * 1024;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// Listens on the address of `metrics.listen`.
///
/// # Errors
/// Why it cannot.
pub async fn listen(address: &str) -> Result<TcpListener, Error> {
    listener::listen("metrics.listen", address).await
}

/// Serves until the future is dropped.
pub async fn serve(listener: TcpListener, metrics: Metrics) {
    listener::serve(listener, MOST_CONNECTIONS, CONNECTION_ENDS_AFTER, |stream| talk(stream, metrics.clone())).await;
}

/// Answers one request. Errors of a connection are its peer's business.
async fn talk(stream: TcpStream, metrics: Metrics) {
    let answer = service_fn(|request: Request<hyper::body::Incoming>| {
        let answer = answer(request.method(), request.uri().path(), &metrics);
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .keep_alive(false)
        .max_buf_size(MOST_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

fn answer(method: &Method, path: &str, metrics: &Metrics) -> Response<String> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/metrics" => match metrics.page() {
            Ok(page) => text(StatusCode::OK, OPEN_METRICS, page),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        },
        "/orca" => text(StatusCode::OK, JSON, metrics.orca() + "\n"),
        _ => text(StatusCode::NOT_FOUND, TEXT, "there is /metrics, and /orca\n".to_owned()),
    }
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::SocketAddr;
    use std::time::Instant;

    fn with_server(body: impl FnOnce(SocketAddr) + Send + 'static) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = listen("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("an address");
            let client = tokio::task::spawn_blocking(move || body(address));
            tokio::select! {
                () = serve(listener, Metrics::new("n1", "web")) => {}
                done = client => done.expect("the client's part"),
            }
        });
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a deadline");
        stream.write_all(request.as_bytes()).expect("the peer reads");
        let mut answer = String::new();
        // A reset ends the answer too.
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn only_get_and_head_of_the_two_pages_are_answered() {
        with_server(|address| {
            let page = ask(address, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("# EOF\n"), "{page}");
            assert!(page.contains("content-type: application/openmetrics-text; version=1.0.0"), "{page}");
            let head = ask(address, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
            assert!(ask(address, "GET /orca HTTP/1.1\r\nHost: a\r\n\r\n").contains("named_metrics"));
            assert!(ask(address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").starts_with("HTTP/1.1 404 "));
            let refused = ask(address, "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
            assert!(refused.starts_with("HTTP/1.1 405 ") && refused.contains("allow: GET, HEAD"), "{refused}");
        });
    }

    #[test]
    fn heads_that_are_too_long_or_never_end_are_given_up_and_others_get_their_turn() {
        with_server(|address| {
            let long = format!("GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(2 * MOST_HEAD_BYTES));
            assert!(!ask(address, &long).starts_with("HTTP/1.1 200"));
            let start = Instant::now();
            // As many as may be there at a time, and they send nothing.
            let silent: Vec<_> =
                (0..MOST_CONNECTIONS).map(|_| std::net::TcpStream::connect(address).expect("a connection")).collect();
            assert!(ask(address, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
            assert!(start.elapsed() >= HEAD_WITHIN / 2, "it had to wait for one of the others to be given up");
            drop(silent);
        });
    }
}
