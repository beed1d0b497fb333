//! Listening on TCP, with few connections at a time and little time for each.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::error::Error;

/// Listens on an address; `setting` names the setting that holds it.
///
/// # Errors
/// The address is none, or cannot be listened on.
pub async fn listen(setting: &'static str, address: &str) -> Result<TcpListener, Error> {
    let cannot = |reason| Error::Listen { setting, address: address.to_owned(), reason };
    let parsed: SocketAddr =
        address.parse().map_err(|error| cannot(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    TcpListener::bind(parsed).await.map_err(cannot)
}

/// Calls `talk` for each connection, until the future is dropped. At most `max_connections` are served at a time (more
/// wait in the kernel), each for at most `ends_after` from its first byte to our last.
pub async fn serve<F>(
    listener: TcpListener,
    max_connections: usize,
    ends_after: Duration,
    mut talk: impl FnMut(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= max_connections {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                while connections.try_join_next().is_some() {}
                connections.spawn(timeout(ends_after, talk(stream)));
            }
            // For example no descriptors are left: trying again at once would not help.
            Err(_) => sleep(Duration::from_secs(1)).await,
        }
    }
}
