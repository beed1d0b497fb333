//! One request to a FastCGI server, for php-fpm's status page.

use std::time::Duration;

use fastcgi_client::response::Content;
use fastcgi_client::{Client, Params, Request, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

const WITHIN: Duration = Duration::from_secs(2);
/// More than a status page is not read.
const LONGEST: usize = 1 << 18;

/// The body of what a page answers to GET. `listen` is a path, HOST:PORT or a port, as php-fpm's `listen` has it.
///
/// # Errors
/// Why there is no answer.
pub fn get(listen: &str, page: &str, query: &str) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no event loop: {error}"))?;
    runtime
        .block_on(async { tokio::time::timeout(WITHIN, ask(listen, page, query)).await })
        .unwrap_or_else(|_| Err(format!("no answer within {} s", WITHIN.as_secs())))
        .map_err(|said| format!("{listen}: {said}"))
}

async fn ask(listen: &str, page: &str, query: &str) -> Result<String, String> {
    let trouble = |error: std::io::Error| error.to_string();
    if listen.starts_with('/') {
        return exchange(UnixStream::connect(listen).await.map_err(trouble)?, page, query).await;
    }
    let address = if listen.contains(':') { listen.to_owned() } else { format!("127.0.0.1:{listen}") };
    exchange(TcpStream::connect(address).await.map_err(trouble)?, page, query).await
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(stream: S, page: &str, query: &str) -> Result<String, String> {
    let trouble = |error: fastcgi_client::ClientError| error.to_string();
    let params =
        Params::default().request_method("GET").script_name(page).script_filename(page).query_string(query.to_owned());
    let request = Request::new(params, fastcgi_client::io::empty());
    let mut answer = Client::new_tokio(stream).execute_once_stream(request).await.map_err(trouble)?;
    let mut bytes = Vec::new();
    while let Some(content) = answer.next().await {
        if let Content::Stdout(more) = content.map_err(trouble)? {
            bytes.extend_from_slice(&more);
        }
        if bytes.len() > LONGEST {
            return Err("the page is too long".to_owned());
        }
    }
    let answer = String::from_utf8_lossy(&bytes);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no headers in the answer")?;
    match head.lines().find_map(|line| line.strip_prefix("Status: ")) {
        Some(status) if !status.starts_with("200") => Err(format!("{page} answers {status}")),
        _ => Ok(body.to_owned()),
    }
}
