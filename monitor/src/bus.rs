//! Publishing to NATS: a connection that comes back by itself for ever. While it is away the newest Samples wait in a
//! bounded buffer.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use async_nats::rustls::{ClientConfig, RootCertStore};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use slackwater_messages::Sample;

use crate::backlog::Backlog;
use crate::config::BusSettings;
use crate::inputs::why;
use crate::secrets;

/// A connection that is silent for about two of these counts as lost.
const PING_EVERY: Duration = Duration::from_secs(2);
/// Messages that wait for the connection's task: those of one moment, never a backlog.
const WAITING: usize = 4;
/// How long the connection's task may take for what was handed to it.
const HANDED_WITHIN: Duration = Duration::from_millis(20);
/// Time between two attempts to connect, from the first to the later ones.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(2);
/// What the server says again and again is said once in this time.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The subject of a node's Samples.
pub fn subject(pool: &str, node: &str) -> String {
    format!("slackwater.sample.{pool}.{node}")
}

/// How many Samples went where, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Handed to a connection.
    pub published: u64,
    /// Dropped because the bus was away.
    pub dropped: u64,
}

/// The door to NATS.
pub struct Bus {
    client: Client,
    subject: String,
    backlog: Backlog,
    published: u64,
    dropped_before: u64,
}

impl Bus {
    /// Starts connecting as `name` and returns at once, whether the server is there or not.
    ///
    /// # Errors
    /// When the address is none.
    pub async fn open(
        settings: &BusSettings,
        access: ConnectOptions,
        name: &str,
        subject: String,
    ) -> Result<Bus, String> {
        let address: ServerAddr = settings.url.parse().map_err(|error| format!("bus.url: {error}"))?;
        let shown = format!("{}:{}", address.host(), address.port());
        let said = Mutex::new(Said::default());
        let client = access
            .name(name)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .reconnect_delay_callback(retry_delay)
            .ping_interval(PING_EVERY)
            .client_capacity(WAITING)
            .read_buffer_capacity(4096)
            .event_callback(move |event| {
                let line = said.lock().unwrap_or_else(PoisonError::into_inner).say(&shown, &event, Instant::now());
                if let Some(line) = line {
                    eprintln!("slackwater-monitor: {line}");
                }
                std::future::ready(())
            })
            .connect(address)
            .await
            .map_err(|error| format!("bus.url: {error}"))?;
        let backlog = Backlog::new(settings.buffer_samples as usize);
        Ok(Bus { client, subject, backlog, published: 0, dropped_before: 0 })
    }

    /// Hands a Sample to the connection after those that wait. While there is none it waits, and the oldest of too many
    /// is dropped.
    pub async fn publish(&mut self, sample: Sample) {
        self.backlog.push(sample);
        let end = tokio::time::Instant::now() + HANDED_WITHIN;
        while self.client.connection_state() == State::Connected
            && let Some(next) = self.backlog.oldest()
        {
            let message = slackwater_messages::encode(next).into();
            match tokio::time::timeout_at(end, self.client.publish(self.subject.clone(), message)).await {
                Ok(Ok(())) => {
                    self.backlog.sent();
                    self.published += 1;
                }
                _ => return,
            }
        }
        let dropped = self.backlog.dropped();
        if self.backlog.is_empty() && dropped > self.dropped_before {
            let lost = dropped - std::mem::replace(&mut self.dropped_before, dropped);
            eprintln!("slackwater-monitor: {lost} Samples were dropped while the bus was away");
        }
    }

    /// How many Samples went where.
    pub fn sent(&self) -> Sent {
        Sent { published: self.published, dropped: self.backlog.dropped() }
    }

    /// Sends what was handed over, if that goes quickly.
    pub async fn close(self) {
        if self.client.connection_state() == State::Connected {
            let _ = tokio::time::timeout(Duration::from_millis(500), self.client.flush()).await;
        }
    }
}

/// Names and keys that the settings give. All files are read now, while the monitor may.
///
/// # Errors
/// The file that cannot be used, and why.
pub fn access(settings: &BusSettings) -> Result<ConnectOptions, String> {
    let mut options = ConnectOptions::new();
    if !settings.credentials.is_empty() {
        let text = secrets::read("bus.credentials", Path::new(&settings.credentials))?;
        options = options
            .credentials(&text)
            .map_err(|error| format!("bus.credentials: {}: {error}", settings.credentials))?;
    }
    if !settings.nkey_file.is_empty() {
        let seed = secrets::read("bus.nkey_file", Path::new(&settings.nkey_file))?;
        options = options.nkey(seed.trim().to_owned());
    }
    if !settings.user.is_empty() {
        let password = secrets::read("bus.password_file", Path::new(&settings.password_file))?;
        options = options.user_and_password(settings.user.clone(), password.trim_end_matches('\n').to_owned());
    }
    if !settings.tls_ca.is_empty() {
        // Who names a certificate authority never wants to speak in the clear.
        options = options.tls_client_config(tls(settings)?).require_tls(true);
    }
    Ok(options)
}

/// Whom to trust, and who we are.
fn tls(settings: &BusSettings) -> Result<ClientConfig, String> {
    let mut trusted = RootCertStore::empty();
    for authority in certificates("bus.tls_ca", &settings.tls_ca)? {
        trusted.add(authority).map_err(|error| format!("bus.tls_ca: {}: {error}", settings.tls_ca))?;
    }
    let config = ClientConfig::builder().with_root_certificates(trusted);
    if settings.tls_cert.is_empty() {
        return Ok(config.with_no_client_auth());
    }
    let ours = certificates("bus.tls_cert", &settings.tls_cert)?;
    let key = secrets::read("bus.tls_key", Path::new(&settings.tls_key))?;
    let wrong = |error: &dyn std::fmt::Display| format!("bus.tls_key: {}: {error}", settings.tls_key);
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| wrong(&error))?;
    config.with_client_auth_cert(ours, key).map_err(|error| wrong(&error))
}

fn certificates(setting: &str, path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = std::fs::read(path).map_err(|error| format!("{setting}: {}", why(Path::new(path), &error)))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{setting}: {path}: holds no certificate (PEM)")),
        Err(error) => Err(format!("{setting}: {path}: {error}")),
    }
}

fn retry_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(10);
    RETRY_LONGEST.min(RETRY_FIRST * 2_u32.pow(doublings))
}

/// What was said of the connection, so that nothing is said over and over.
#[derive(Default)]
struct Said {
    away: bool,
    server: Option<(String, Instant)>,
}

impl Said {
    /// One line when the bus comes or goes; attempts that fail after that are not news, and what the server refuses is
    /// said once in a while.
    fn say(&mut self, address: &str, event: &Event, now: Instant) -> Option<String> {
        match event {
            Event::Connected => {
                self.away = false;
                Some(format!("bus {address}: connected"))
            }
            Event::Disconnected | Event::ClientError(_) if !std::mem::replace(&mut self.away, true) => {
                Some(format!("bus {address}: {event}; trying again for as long as it takes"))
            }
            Event::ServerError(error) => {
                let text = error.to_string();
                let again = self
                    .server
                    .as_ref()
                    .is_some_and(|(said, at)| *said == text && now.saturating_duration_since(*at) < SAY_AGAIN_AFTER);
                if again {
                    return None;
                }
                self.server = Some((text.clone(), now));
                Some(format!("bus {address}: the server says: {text}"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::ServerError;

    #[test]
    fn attempts_to_connect_become_rarer_up_to_a_bound() {
        let delays: Vec<u128> = [0, 1, 2, 3, 100].iter().map(|n| retry_delay(*n).as_millis()).collect();
        assert_eq!(delays, [50, 50, 100, 200, 2000]);
    }

    #[test]
    fn a_bus_that_is_not_there_takes_no_time_and_the_newest_samples_wait() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let settings =
                BusSettings { url: "nats://127.0.0.1:9".to_owned(), buffer_samples: 10, ..BusSettings::default() };
            let mut bus = Bus::open(&settings, ConnectOptions::new(), "test", subject("p", "n")).await.expect("open");
            for seq in 0..100 {
                bus.publish(Sample { seq, ..Sample::default() }).await;
            }
            assert_eq!(bus.sent(), Sent { published: 0, dropped: 90 });
            let oldest = bus.backlog.oldest().expect("ten wait");
            assert_eq!((oldest.seq, oldest.samples_dropped), (90, 90));
            bus.close().await;
        });
    }

    #[test]
    fn what_cannot_be_used_is_refused_before_anything_is_sent() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let bad = BusSettings { url: "nats://127.0.0.1:x".to_owned(), ..BusSettings::default() };
        let opened = runtime.block_on(Bus::open(&bad, ConnectOptions::new(), "test", subject("p", "n")));
        assert!(opened.is_err_and(|error| error.starts_with("bus.url: ")));
        let refused = |settings: BusSettings| access(&settings).expect_err("refused");
        let bad = BusSettings { credentials: "/nowhere/n1.creds".to_owned(), ..BusSettings::default() };
        assert_eq!(refused(bad), "bus.credentials: /nowhere/n1.creds: is not there");
        let bad = BusSettings { tls_ca: "/nowhere/ca.pem".to_owned(), ..BusSettings::default() };
        assert_eq!(refused(bad), "bus.tls_ca: /nowhere/ca.pem: is not there");
        let bad = BusSettings { tls_ca: "/dev/null".to_owned(), ..BusSettings::default() };
        assert_eq!(refused(bad), "bus.tls_ca: /dev/null: holds no certificate (PEM)");
    }

    #[test]
    fn what_is_said_of_the_connection_is_said_once() {
        let (mut said, now) = (Said::default(), Instant::now());
        let mut say = |event: Event, after_s| said.say("a:1", &event, now + Duration::from_secs(after_s));
        let refused = || Event::ServerError(ServerError::Other("Permissions Violation".to_owned()));
        assert_eq!(say(Event::Connected, 0).as_deref(), Some("bus a:1: connected"));
        assert!(say(Event::Disconnected, 1).is_some() && say(Event::Disconnected, 2).is_none());
        assert!(say(refused(), 3).is_some_and(|line| line.contains("Permissions Violation")));
        assert!(say(refused(), 62).is_none() && say(refused(), 64).is_some());
        assert!(say(Event::ServerError(ServerError::AuthorizationViolation), 65).is_some());
    }
}
