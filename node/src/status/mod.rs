//! The status pages of Apache and php-fpm: their addresses, fetching them, and their values.

mod fastcgi;

pub mod apache;
pub mod http;
pub mod php_fpm;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::runtime::Runtime;

/// Pages are some hundred bytes; Apache's scoreboard adds one for each worker.
const LONGEST_PAGE: usize = 1 << 18;
/// Path of php-fpm's page where none is given.
const PHP_PATH: &str = "/status";

/// Where a status page is.
#[derive(Debug, Clone, PartialEq)]
pub enum Page {
    /// A URL.
    Http(String),
    /// A page of a FastCGI server.
    FastCgi {
        /// The socket's path, HOST:PORT or a port, as in php-fpm's `listen`.
        listen: String,
        /// The page's path.
        path: String,
    },
}

/// A text that is not the address of a status page.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum AddressError {
    #[error("must be on 127.0.0.1, [::1] or localhost, got {0:?}")]
    NotLocal(String),
    #[error("must be http://127.0.0.1/PATH or unix:/SOCKET, got {0:?}")]
    Form(String),
}

/// A page that could not be fetched.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct PageError {
    /// The URL, or where the FastCGI server listens.
    pub place: String,
    /// Why it failed.
    pub cause: PageErrorCause,
}

/// Why a page could not be fetched.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum PageErrorCause {
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("answered {0}")]
    Status(String),
    #[error("answered {status} for {path}: set `pm.status_path = {path}` in the pool")]
    NoStatusPath { status: String, path: String },
    #[error("it is longer than {} KiB, which is not read", LONGEST_PAGE >> 10)]
    TooLong,
    #[error("no headers in the answer")]
    NoHeaders,
    #[error("{0}")]
    Connection(String),
}

impl Page {
    /// Parses `http://127.0.0.1:PORT/PATH` or `unix:/SOCKET[:/PATH]`. The page must be on this machine: another one
    /// would be fetched through the interface whose traffic is measured.
    ///
    /// # Errors
    /// The expected form.
    pub fn parse(text: &str) -> Result<Page, AddressError> {
        if let Some(place) = text.strip_prefix("unix:/") {
            let (socket, path) = place.split_once(":/").unwrap_or((place, &PHP_PATH[1..]));
            return Ok(Page::FastCgi { listen: format!("/{socket}"), path: format!("/{path}") });
        }
        let authority = text.strip_prefix("http://").map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
        match authority {
            Some(authority) if is_loopback(authority) => Ok(Page::Http(text.to_owned())),
            Some(_) => Err(AddressError::NotLocal(text.to_owned())),
            None => Err(AddressError::Form(text.to_owned())),
        }
    }

    /// Fetches the page's text. `runtime` needs time and sockets.
    ///
    /// # Errors
    /// Why there is no page.
    pub fn fetch(&self, runtime: &Runtime, within: Duration) -> Result<String, PageError> {
        match self {
            Page::Http(url) => http::get(url, within),
            Page::FastCgi { listen, path } => {
                let answer = async { tokio::time::timeout(within, fastcgi::get(listen, path)).await };
                let answer = runtime.block_on(answer).unwrap_or(Err(PageErrorCause::Timeout(within)));
                answer.map_err(|cause| PageError { place: listen.clone(), cause })
            }
        }
    }
}

fn is_loopback(authority: &str) -> bool {
    let host = authority.rsplit_once(':').map_or(authority, |(host, port)| match port.parse::<u16>() {
        Ok(_) => host,
        Err(_) => authority,
    });
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost"
        || address.is_ok_and(|address| address.is_loopback())
        || authority.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    #[test]
    fn pages_are_on_this_machine_or_on_a_socket() {
        for url in [
            "http://127.0.0.1/server-status?auto",
            "http://127.0.0.1:8080/x",
            "http://[::1]:80/x",
            "http://[::1]/x",
            "http://localhost?auto",
        ] {
            assert_eq!(Page::parse(url), Ok(Page::Http(url.to_owned())));
        }
        let socket = |path: &str| Ok(Page::FastCgi { listen: "/run/php/a.sock".to_owned(), path: path.to_owned() });
        assert_eq!(Page::parse("unix:/run/php/a.sock"), socket("/status"));
        assert_eq!(Page::parse("unix:/run/php/a.sock:/fpm"), socket("/fpm"));
        for bad in [
            "",
            "https://127.0.0.1/",
            "unix:a.sock",
            "http://192.0.2.1/",
            "http://127.0.0.1.example.com/",
            "http://127.0.0.1@example.com/",
            "http://localhost@192.0.2.1/",
            "http:///x",
        ] {
            assert!(Page::parse(bad).expect_err(bad).to_string().starts_with("must be "), "{bad}");
        }
    }

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    const WITHIN: Duration = Duration::from_secs(1);

    /// Fetches from a server that answers a request with `answer` and then closes or, without an answer, hangs.
    fn fetch_from(answer: Option<&'static str>) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/server-status?auto", listener.local_addr().expect("an address"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = [0; 1024];
            let length = stream.read(&mut request).expect("a request");
            assert!(request[..length].starts_with(b"GET /server-status?auto HTTP/1.1\r\n"));
            if let Some(answer) = answer {
                stream.write_all(answer.as_bytes()).expect("the client listens");
            } else {
                // Until the other side gives up.
                let _ = stream.read(&mut request);
            }
        });
        let fetched = Page::parse(&url).expect("a page").fetch(&runtime(), WITHIN);
        server.join().expect("the server ends");
        fetched.map_err(|error| error.to_string())
    }

    #[test]
    fn a_page_comes_over_http_and_what_is_none_is_an_error() {
        let page = fetch_from(Some("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"));
        assert_eq!(page.as_deref(), Ok("yes"));
        let moved = fetch_from(Some("HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n"));
        assert!(moved.expect_err("no page").ends_with("answered 302 Found"));
        assert!(fetch_from(Some("what?\r\n\r\n")).is_err());
        assert!(fetch_from(None).expect_err("no answer comes").starts_with("http://127.0.0.1:"));
    }

    #[test]
    fn a_socket_that_is_not_there_or_hangs_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let socket = folder.path().join("php.sock");
        let page = Page::parse(&format!("unix:{}", socket.display())).expect("a page");
        let fetch = || page.fetch(&runtime(), WITHIN).expect_err("no page").to_string();
        assert_eq!(fetch(), format!("{}: is not there", socket.display()));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        assert_eq!(fetch(), format!("{}: no answer within 1 s", socket.display()));
    }
}
