//! One GET request to a FastCGI server, for php-fpm's status page as JSON.

use std::io;
use std::path::Path;

use fastcgi_client::response::Content;
use fastcgi_client::{Client, ClientError, Params, Request, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::{LONGEST_PAGE, PageErrorCause};
use crate::files::reason;

/// The body of the page. `listen` is a path, HOST:PORT or a port, as php-fpm's `listen` has it.
pub(super) async fn get(listen: &str, path: &str) -> Result<String, PageErrorCause> {
    let failed = |error: io::Error| PageErrorCause::Connection(reason(&error));
    if Path::new(listen).is_absolute() {
        return exchange(UnixStream::connect(listen).await.map_err(failed)?, path).await;
    }
    let address = if listen.contains(':') { listen.to_owned() } else { format!("127.0.0.1:{listen}") };
    exchange(TcpStream::connect(address).await.map_err(failed)?, path).await
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(stream: S, path: &str) -> Result<String, PageErrorCause> {
    let failed = |error: ClientError| PageErrorCause::Connection(error.to_string());
    let params = Params::default()
        .request_method("GET")
        .script_name(path)
        .script_filename(path)
        .request_uri(format!("{path}?json"))
        .query_string("json");
    let request = Request::new(params, fastcgi_client::io::empty());
    let mut answer = Client::new_tokio(stream).execute_once_stream(request).await.map_err(failed)?;
    let mut page = Vec::new();
    while let Some(content) = answer.next().await {
        if let Content::Stdout(bytes) = content.map_err(failed)? {
            page.extend_from_slice(&bytes);
        }
        if page.len() > LONGEST_PAGE {
            return Err(PageErrorCause::TooLong);
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
