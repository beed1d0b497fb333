//! The status pages of Apache (mod_status) and php-fpm: where they are, asking for them, and what they say.
//!
//! Forms: https://httpd.apache.org/docs/2.4/mod/mod_status.html (`?auto`), https://www.php.net/manual/en/fpm.status.php
//! (`?json`). Both answer over loopback or a socket only: a page elsewhere would be asked through the interface whose
//! traffic is measured.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastcgi_client::response::Content;
use fastcgi_client::{Client, Params, Request, StreamExt as _};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// How long a page may take; one that takes longer has all its workers busy, or hangs.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Pages are some hundred bytes; Apache's scoreboard adds one for each worker.
const LONGEST_PAGE: usize = 1 << 18;
/// Where php-fpm's page is when nothing else is said.
const PHP_PATH: &str = "/status";

/// Where a status page is.
#[derive(Debug, Clone, PartialEq)]
pub enum Page {
    /// A URL of this machine.
    Http(String),
    /// A FastCGI server's socket, and the page's path.
    FastCgi(PathBuf, String),
}

impl Page {
    /// Reads `http://127.0.0.1:PORT/PATH` or `unix:/SOCKET[:/PATH]`.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Page, String> {
        if let Some(place) = text.strip_prefix("unix:/") {
            let (socket, path) = place.split_once(":/").unwrap_or((place, &PHP_PATH[1..]));
            return Ok(Page::FastCgi(Path::new("/").join(socket), format!("/{path}")));
        }
        let authority = text.strip_prefix("http://").map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
        match authority {
            Some(authority) if is_loopback(authority) => Ok(Page::Http(text.to_owned())),
            Some(_) => Err(format!("must be on 127.0.0.1, [::1] or localhost, got {text:?}")),
            None => Err(format!("must be http://127.0.0.1/PATH or unix:/SOCKET, got {text:?}")),
        }
    }

    /// Asks for the page; takes a second at most. `runtime` needs time and sockets.
    ///
    /// # Errors
    /// Why there is no page, in words.
    pub fn fetch(&self, runtime: &Runtime) -> Result<String, String> {
        match self {
            Page::Http(url) => over_http(url),
            Page::FastCgi(socket, path) => runtime
                .block_on(async { tokio::time::timeout(TIMEOUT, over_fastcgi(socket, path)).await })
                .unwrap_or_else(|_| Err(format!("{}: no answer within 1 s", socket.display()))),
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

fn over_http(url: &str) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{url}: {error}");
    let answer = minreq::get(url)
        .with_timeout(TIMEOUT.as_secs())
        .with_follow_redirects(false)
        .with_max_headers_size(16 * 1024)
        .with_max_status_line_length(1024)
        .send_lazy()
        .map_err(|error| failed(&error))?;
    if answer.status_code != 200 {
        return Err(failed(&format!("answered {} {}", answer.status_code, answer.reason_phrase)));
    }
    let mut page = Vec::new();
    answer.take(LONGEST_PAGE as u64).read_to_end(&mut page).map_err(|error| failed(&error))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

async fn over_fastcgi(socket: &Path, path: &str) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", socket.display());
    let stream = UnixStream::connect(socket).await.map_err(|error| crate::inputs::why(socket, &error))?;
    let params = Params::default()
        .request_method("GET")
        .script_name(path)
        .script_filename(path)
        .request_uri(format!("{path}?json"))
        .query_string("json");
    let request = Request::new(params, fastcgi_client::io::empty());
    let mut answer = Client::new_tokio(stream).execute_once_stream(request).await.map_err(|error| failed(&error))?;
    let mut page = Vec::new();
    while let Some(content) = answer.next().await {
        if let Content::Stdout(bytes) = content.map_err(|error| failed(&error))? {
            page.extend_from_slice(&bytes);
        }
        if page.len() > LONGEST_PAGE {
            return Err(failed(&"the page is too long"));
        }
    }
    let page = String::from_utf8_lossy(&page);
    let (heads, body) = page.split_once("\r\n\r\n").ok_or_else(|| failed(&"no page"))?;
    match heads.lines().find_map(|line| line.strip_prefix("Status: ")) {
        Some(status) if !status.starts_with("200") => {
            Err(failed(&format!("answered {status} for {path}: set `pm.status_path = {path}` in the pool")))
        }
        _ => Ok(body.to_owned()),
    }
}

/// Workers at work and workers that wait, from Apache's page.
pub fn parse_apache(page: &str) -> Option<(u64, u64)> {
    let value =
        |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok());
    Some((value("BusyWorkers")?, value("IdleWorkers")?))
}

/// What php-fpm's page says.
#[derive(Debug, Clone, Copy, PartialEq, serde::Deserialize)]
pub struct Fpm {
    /// Processes at work.
    #[serde(rename = "active processes")]
    pub active: u64,
    /// Processes that wait.
    #[serde(rename = "idle processes")]
    pub idle: u64,
    /// Requests that wait for a process; means something only where the queue has a length.
    #[serde(rename = "listen queue")]
    queue: u64,
    /// What the queue holds at most; 0 on Unix sockets, of which php-fpm cannot tell.
    #[serde(rename = "listen queue len")]
    queue_length: u64,
    /// Times since it started.
    #[serde(rename = "max children reached")]
    pub max_children_reached: u64,
}

impl Fpm {
    /// Requests that wait for a process.
    ///
    /// # Errors
    /// Why php-fpm does not know.
    pub fn queue(&self) -> Result<u64, &'static str> {
        if self.queue_length == 0 {
            Err("php-fpm knows the queue of a TCP port only, not of a Unix socket")
        } else {
            Ok(self.queue)
        }
    }
}

/// Reads php-fpm's page.
pub fn parse_fpm(page: &str) -> Option<Fpm> {
    serde_json::from_str(page).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
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
        let socket = |path: &str| Ok(Page::FastCgi("/run/php/a.sock".into(), path.to_owned()));
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
            assert!(Page::parse(bad).expect_err(bad).starts_with("must be "), "{bad}");
        }
    }

    #[test]
    fn what_the_pages_say_is_read() {
        let apache = "127.0.0.1\nServerVersion: Apache/2.4.62\nTotal Accesses: 9\nBusyWorkers: 3\nIdleWorkers: 61\n";
        assert_eq!(parse_apache(apache), Some((3, 61)));
        assert_eq!(parse_apache("<html>BusyWorkers: 3</html>"), None);
        let fpm = r#"{"pool":"www","process manager":"static","start time":1,"listen queue":2,"max listen queue":4,
            "listen queue len":511,"idle processes":5,"active processes":6,"total processes":11,"max children reached":7,"slow requests":0}"#;
        let expected = Fpm { active: 6, idle: 5, queue: 2, queue_length: 511, max_children_reached: 7 };
        assert_eq!((parse_fpm(fpm), expected.queue()), (Some(expected), Ok(2)));
        assert!(Fpm { queue_length: 0, ..expected }.queue().is_err());
        assert_eq!(parse_fpm("File not found.\n"), None);
    }

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    /// What is said of a server that answers each connection with `answer` and then closes or, without one, hangs.
    fn said_of(answer: Option<&'static str>) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/server-status?auto", listener.local_addr().expect("an address"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = [0; 1024];
            let length = stream.read(&mut request).expect("a request");
            assert!(request[..length].starts_with(b"GET /server-status?auto HTTP/1.1\r\n"));
            if let Some(answer) = answer {
                stream.write_all(answer.as_bytes()).expect("answered");
            } else {
                // Until the other side gives up.
                let _ = stream.read(&mut request);
            }
        });
        let said = Page::parse(&url).expect("a page").fetch(&runtime());
        server.join().expect("served");
        said
    }

    #[test]
    fn a_page_comes_over_http_and_what_is_none_is_said() {
        let page = said_of(Some("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"));
        assert_eq!(page.as_deref(), Ok("yes"));
        let moved = said_of(Some("HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n"));
        assert!(moved.expect_err("no page").ends_with("answered 302 Found"));
        assert!(said_of(Some("what?\r\n\r\n")).is_err());
        assert!(said_of(None).expect_err("no answer").starts_with("http://127.0.0.1:"));
    }

    #[test]
    fn a_socket_that_is_not_there_or_hangs_is_said() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let socket = folder.path().join("php.sock");
        let page = Page::parse(&format!("unix:{}", socket.display())).expect("a page");
        assert_eq!(page.fetch(&runtime()), Err(format!("{}: is not there", socket.display())));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        assert_eq!(page.fetch(&runtime()), Err(format!("{}: no answer within 1 s", socket.display())));
    }
}
