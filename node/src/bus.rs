//! A connection to NATS that comes back by itself for ever, and says once when it comes or goes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, ServerAddr};

use crate::secrets;

/// A connection that is silent for about two of these counts as lost.
const PING_EVERY: Duration = Duration::from_secs(2);
/// Time between two attempts to connect, from the first to the later ones.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(2);

/// Who we are to the server, and whom we take it for. Empty: not asked for.
#[derive(Debug, Clone, Default)]
pub struct Access<'a> {
    /// nats://HOST:PORT or tls://HOST:PORT.
    pub url: &'a str,
    /// User name, with `password_file`.
    pub user: &'a str,
    /// File with the user's password.
    pub password_file: &'a str,
    /// File with the certificate authority (PEM) that the server must be of.
    pub tls_ca: &'a str,
}

/// Starts connecting and returns at once, whether the server is there or not. `program` stands in front of what is said
/// about the connection, `node` names it to the server, `waiting` messages may wait for the connection's task.
///
/// # Errors
/// When the address is none, or a file cannot be used.
pub async fn connect(access: &Access<'_>, program: &'static str, node: &str, waiting: usize) -> Result<Client, String> {
    let address: ServerAddr = access.url.parse().map_err(|error| format!("bus.url: {error}"))?;
    let shown = format!("{}:{}", address.host(), address.port());
    let said_away = AtomicBool::new(false);
    with_access(access, ConnectOptions::new())?
        .name(format!("{program} {node}"))
        .retry_on_initial_connect()
        .max_reconnects(None)
        .reconnect_delay_callback(retry_delay)
        .ping_interval(PING_EVERY)
        .client_capacity(waiting)
        .read_buffer_capacity(4096)
        .event_callback(move |event| {
            report(program, &shown, &event, &said_away);
            std::future::ready(())
        })
        .connect(address)
        .await
        .map_err(|error| format!("bus.url: {error}"))
}

fn with_access(access: &Access<'_>, mut options: ConnectOptions) -> Result<ConnectOptions, String> {
    if !access.user.is_empty() {
        let password = secrets::read("bus.password_file", Path::new(access.password_file))?;
        options = options.user_and_password(access.user.to_owned(), password.trim_end_matches('\n').to_owned());
    }
    if !access.tls_ca.is_empty() {
        secrets::exists("bus.tls_ca", Path::new(access.tls_ca))?;
        // Who names a certificate authority never wants to speak in the clear.
        options = options.add_root_certificates(access.tls_ca.into()).require_tls(true);
    }
    Ok(options)
}

fn retry_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(10);
    RETRY_LONGEST.min(RETRY_FIRST * 2_u32.pow(doublings))
}

/// One line when the bus comes or goes; attempts that fail after that are not news.
fn report(program: &str, address: &str, event: &Event, said_away: &AtomicBool) {
    match event {
        Event::Connected => {
            said_away.store(false, Ordering::Relaxed);
            eprintln!("{program}: bus {address}: connected");
        }
        Event::Disconnected | Event::ClientError(_) if !said_away.swap(true, Ordering::Relaxed) => {
            eprintln!("{program}: bus {address}: {event}; trying again for as long as it takes");
        }
        Event::ServerError(error) => eprintln!("{program}: bus {address}: {error}"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_to_connect_become_rarer_up_to_a_bound() {
        let delays: Vec<u128> = [0, 1, 2, 3, 100].iter().map(|n| retry_delay(*n).as_millis()).collect();
        assert_eq!(delays, [50, 50, 100, 200, 2000]);
    }
}
