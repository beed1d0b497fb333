//! A connection to NATS that comes back by itself for ever, and logs once when it comes or goes.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use async_nats::rustls::{ClientConfig, RootCertStore};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use tracing::Level;

use crate::secrets::{self, SecretError};
use crate::settings::Faults;

/// A connection that is silent for about two of these counts as lost.
const PING_EVERY: Duration = Duration::from_secs(2);
/// Time between two attempts to connect, from the first to the later ones.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(2);
/// An error that the server repeats is logged once in this time.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// Why the bus cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum BusError {
    #[error(transparent)]
    File(#[from] SecretError),
    #[error("{setting}: {path}: {reason}")]
    Malformed { setting: &'static str, path: String, reason: String },
    #[error("bus.url: {0}")]
    Address(String),
}

/// [`BusError::Malformed`], from what a library answered.
fn malformed(setting: &'static str, path: &str, reason: impl ToString) -> BusError {
    BusError::Malformed { setting, path: path.to_owned(), reason: reason.to_string() }
}

crate::section! {
    /// The bus: the NATS server, how we prove who we are to it, and how it proves itself.
    struct BusSettings {
        /// URL of the NATS server: nats://HOST:PORT or tls://HOST:PORT.
        url: String = "nats://127.0.0.1:14222".to_owned();
        /// Credentials file of NATS (.creds); empty: none.
        credentials: String = String::new();
        /// File with the seed of an NKey; empty: none.
        nkey_file: String = String::new();
        /// User name, with bus.password_file; empty: none.
        user: String = String::new();
        /// File with the user's password.
        password_file: String = String::new();
        /// File with the certificate authority (PEM) that the server must be of; empty: those of the machine.
        tls_ca: String = String::new();
        /// File with our own certificate (PEM), with bus.tls_key and bus.tls_ca; empty: none.
        tls_cert: String = String::new();
        /// File with the key of our own certificate (PEM).
        tls_key: String = String::new();
    }
}

impl BusSettings {
    /// Notes settings that exclude each other.
    pub fn check(&self, faults: &mut Faults) {
        faults.expect_bus_url("bus.url", &self.url);
        let given = |text: &str| !text.is_empty();
        let logins = [&self.credentials, &self.nkey_file, &self.user].into_iter().filter(|login| given(login)).count();
        let only = "must be the only one of bus.credentials, bus.nkey_file and bus.user";
        faults.expect("bus.user", logins <= 1, || only.to_owned());
        let mut paired = |name, holds, other| {
            faults.expect(name, holds, || format!("must be set together with {other}"));
        };
        paired("bus.password_file", given(&self.user) == given(&self.password_file), "bus.user");
        paired("bus.tls_key", given(&self.tls_cert) == given(&self.tls_key), "bus.tls_cert");
        paired("bus.tls_cert", !given(&self.tls_cert) || given(&self.tls_ca), "bus.tls_ca");
        let is_heard_by_none = !self.has_password() || self.needs_tls() || is_this_machine(&self.url);
        let encrypted =
            "must be tls://HOST:PORT, or bus.tls_ca be set: the password would go to another machine in the clear";
        faults.expect("bus.url", is_heard_by_none, || encrypted.to_owned());
    }

    /// Whether nothing may be said on a connection that is not encrypted, whatever the server says of itself.
    #[must_use]
    pub fn needs_tls(&self) -> bool {
        !self.tls_ca.is_empty() || self.url.starts_with("tls://")
    }

    /// Whether there is a secret that others could read on such a connection. An NKey signs, and is never sent.
    fn has_password(&self) -> bool {
        !self.password_file.is_empty() || self.url.contains('@')
    }

    /// What [`connect`] needs. All files are read now: privileges may be given up before it connects, or connects again.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub fn read(&self) -> Result<ConnectOptions, BusError> {
        let mut options = ConnectOptions::new();
        if !self.credentials.is_empty() {
            let text = secrets::read("bus.credentials", Path::new(&self.credentials))?;
            options =
                options.credentials(&text).map_err(|error| malformed("bus.credentials", &self.credentials, error))?;
        }
        if !self.nkey_file.is_empty() {
            let seed = secrets::read("bus.nkey_file", Path::new(&self.nkey_file))?;
            options = options.nkey(seed.trim().to_owned());
        }
        if !self.user.is_empty() {
            let password = secrets::read("bus.password_file", Path::new(&self.password_file))?;
            options = options.user_and_password(self.user.clone(), password.trim_end_matches(['\r', '\n']).to_owned());
        }
        if !self.tls_ca.is_empty() {
            options = options.tls_client_config(self.tls()?);
        } else if self.has_password() || self.needs_tls() {
            // A greeting comes before TLS, so anybody on the way can name servers of his own in it, to which the
            // library would go without TLS, or with a certificate that anybody gets. A private authority's he lacks.
            options = options.ignore_discovered_servers();
        }
        Ok(options.require_tls(self.needs_tls()))
    }

    /// Which servers to trust, and our own certificate.
    fn tls(&self) -> Result<ClientConfig, BusError> {
        let mut trusted = RootCertStore::empty();
        for authority in certificates("bus.tls_ca", &self.tls_ca)? {
            trusted.add(authority).map_err(|error| malformed("bus.tls_ca", &self.tls_ca, error))?;
        }
        let config = ClientConfig::builder().with_root_certificates(trusted);
        if self.tls_cert.is_empty() {
            return Ok(config.with_no_client_auth());
        }
        let ours = certificates("bus.tls_cert", &self.tls_cert)?;
        let key = secrets::read("bus.tls_key", Path::new(&self.tls_key))?;
        let wrong = |error: &dyn std::fmt::Display| malformed("bus.tls_key", &self.tls_key, error);
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| wrong(&error))?;
        config.with_client_auth_cert(ours, key).map_err(|error| wrong(&error))
    }
}

/// Whether a URL leads to this machine alone. Another name than `localhost` counts as outside.
fn is_this_machine(url: &str) -> bool {
    url.parse::<ServerAddr>().is_ok_and(|address| match address.host().trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(found) => found.to_canonical().is_loopback(),
        Err(_) => address.host() == "localhost",
    })
}

fn certificates(setting: &'static str, path: &str) -> Result<Vec<CertificateDer<'static>>, BusError> {
    let text = secrets::read_open(setting, Path::new(path))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(malformed(setting, path, "holds no certificate (PEM)")),
        Err(error) => Err(malformed(setting, path, error)),
    }
}

/// Starts connecting to `url` with what [`BusSettings::read`] gave, and returns at once, whether the server is there or not.
/// `program` and `node` name the connection to the server; `waiting` messages may wait for the connection's task.
///
/// # Errors
/// When the address is none.
pub async fn connect(
    url: &str,
    options: ConnectOptions,
    program: &str,
    node: &str,
    waiting: usize,
) -> Result<Client, BusError> {
    let address: ServerAddr = url.parse().map_err(|error: std::io::Error| BusError::Address(error.to_string()))?;
    let shown = format!("{}:{}", address.host(), address.port());
    let news = Mutex::new(News::default());
    options
        .name(format!("{program} {node}"))
        .retry_on_initial_connect()
        .max_reconnects(None)
        .reconnect_delay_callback(retry_delay)
        .ping_interval(PING_EVERY)
        .client_capacity(waiting)
        .read_buffer_capacity(4096)
        .event_callback(move |event| {
            let line = news.lock().unwrap_or_else(PoisonError::into_inner).line(&shown, &event, Instant::now());
            match line {
                Some((Level::INFO, line)) => tracing::info!("{line}"),
                Some((_, line)) => tracing::warn!("{line}"),
                None => {}
            }
            std::future::ready(())
        })
        .connect(address)
        .await
        .map_err(|error| BusError::Address(error.to_string()))
}

fn retry_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(10);
    RETRY_LONGEST.min(RETRY_FIRST * 2_u32.pow(doublings))
}

/// What was logged of the connection, so that nothing is repeated.
#[derive(Default)]
struct News {
    away: Vec<String>,
    server: Option<(String, Instant)>,
}

impl News {
    /// One line when the bus comes, and one for each reason while it is away; an error of the server is repeated once
    /// in a while.
    fn line(&mut self, address: &str, event: &Event, now: Instant) -> Option<(Level, String)> {
        match event {
            Event::Connected => {
                self.away.clear();
                Some((Level::INFO, format!("bus {address}: connected")))
            }
            Event::Disconnected | Event::ClientError(_) => {
                let reason = event.to_string();
                if self.away.contains(&reason) {
                    return None;
                }
                let line = format!("bus {address}: {reason}; trying again for as long as it takes");
                self.away.push(reason);
                Some((Level::WARN, line))
            }
            Event::ServerError(error) => {
                let text = error.to_string();
                let again = self
                    .server
                    .as_ref()
                    .is_some_and(|(last, at)| *last == text && now.saturating_duration_since(*at) < REPEAT_AFTER);
                if again {
                    return None;
                }
                self.server = Some((text.clone(), now));
                Some((Level::WARN, format!("bus {address}: the server says: {text}")))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::{ClientError, ServerError};
    use std::io::{Read as _, Write as _};

    #[test]
    fn attempts_to_connect_become_rarer_up_to_a_bound() {
        let delays: Vec<u128> = [0, 1, 2, 3, 100].iter().map(|n| retry_delay(*n).as_millis()).collect();
        assert_eq!(delays, [50, 50, 100, 200, 2000]);
    }

    #[test]
    fn what_cannot_be_used_is_refused_before_anything_is_sent() {
        let refused = |settings: BusSettings| settings.read().expect_err("refused").to_string();
        let bad = BusSettings { credentials: "/nowhere/n1.creds".to_owned(), ..BusSettings::default() };
        assert_eq!(refused(bad), "bus.credentials: /nowhere/n1.creds: is not there");
        let bad = BusSettings { tls_ca: "/nowhere/ca.pem".to_owned(), ..BusSettings::default() };
        assert_eq!(refused(bad), "bus.tls_ca: /nowhere/ca.pem: is not there");
        let bad = BusSettings { tls_ca: "/dev/null".to_owned(), ..BusSettings::default() };
        assert_eq!(refused(bad), "bus.tls_ca: /dev/null: holds no certificate (PEM)");
    }

    fn faults(settings: &BusSettings) -> Vec<String> {
        let mut faults = Faults::default();
        settings.check(&mut faults);
        faults.texts()
    }

    #[test]
    fn a_password_goes_to_another_machine_through_tls_alone() {
        let at = |url: &str| BusSettings { url: url.to_owned(), ..BusSettings::default() };
        let with = |url: &str| BusSettings { user: "n1".to_owned(), password_file: "/p".to_owned(), ..at(url) };
        for url in
            ["nats://10.0.0.5:4222", "nats://balancer:4222", "nats://localhost.example:1", "nats://[2001:db8::1]:1"]
        {
            assert!(faults(&with(url)).concat().contains("in the clear"), "{url}");
            assert!(faults(&BusSettings { tls_ca: "/ca.pem".to_owned(), ..with(url) }).is_empty(), "{url}");
            assert!(faults(&BusSettings { nkey_file: "/n".to_owned(), ..at(url) }).is_empty(), "a key is never sent");
        }
        assert!(!faults(&at("nats://u:p@10.0.0.5:1")).is_empty());
        for url in ["tls://10.0.0.5:4222", "nats://127.0.0.1:1", "nats://[::1]:1", "nats://localhost:1"] {
            assert!(faults(&with(url)).is_empty(), "{url}");
        }
    }

    /// What a listener without TLS hears in some attempts of a program to connect, and to whom it then goes.
    fn heard_by_a_stranger(settings: &BusSettings, greeting: &str) -> Vec<u8> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = settings.url.replace("HERE", &listener.local_addr().expect("an address").to_string());
        let greeting = greeting.to_owned();
        let stranger = std::thread::spawn(move || {
            let mut heard = Vec::new();
            for _ in 0..3 {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
                stream.write_all(greeting.as_bytes()).expect("sent");
                let mut part = [0; 4096];
                if let Ok(length) = stream.read(&mut part) {
                    heard.extend(&part[..length]);
                }
            }
            heard
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an event loop");
        runtime.block_on(async {
            let options = settings.read().expect("readable files").connection_timeout(Duration::from_millis(300));
            let client = connect(&url, options, "test", "n1", 8).await.expect("an address");
            while !stranger.is_finished() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            drop(client);
        });
        stranger.join().expect("it ends")
    }

    #[test]
    fn nothing_is_said_to_a_listener_without_tls_in_any_attempt() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        std::fs::write(&file, "the-password").expect("written");
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("closed");
        let password_file = file.to_str().expect("a path").to_owned();
        let (url, user) = ("tls://HERE".to_owned(), "n1".to_owned());
        let settings = BusSettings { url, user, password_file, ..BusSettings::default() };
        let info = "{\"server_id\":\"x\",\"version\":\"2.9.10\",\"max_payload\":1048576,\"proto\":1,\"headers\":true";
        for more in ["", ",\"connect_urls\":[\"127.0.0.1:2\"]", ",\"auth_required\":true,\"tls_required\":false"] {
            let greeting = format!("INFO {info}{more}}}\r\n");
            let heard = heard_by_a_stranger(&settings, &greeting);
            let has = |word: &[u8]| heard.windows(word.len()).any(|part| part == word);
            assert!(!has(b"CONNECT") && !has(b"the-password"), "{more}");
        }
    }

    #[test]
    fn news_of_the_connection_is_logged_once_and_so_is_each_reason_why_it_is_away() {
        let (mut news, now) = (News::default(), Instant::now());
        let mut line =
            |event: Event, after_s| news.line("a:1", &event, now + Duration::from_secs(after_s)).map(|(_, line)| line);
        let refused = || Event::ServerError(ServerError::Other("Permissions Violation".to_owned()));
        assert_eq!(line(Event::Connected, 0).as_deref(), Some("bus a:1: connected"));
        for _ in 0..2 {
            assert!(line(Event::Disconnected, 1).is_some() && line(Event::Disconnected, 1).is_none());
            for reason in ["nats: IO error", "nats: authorization violation"] {
                let failed = || Event::ClientError(ClientError::Other(reason.to_owned()));
                assert!(line(failed(), 2).is_some_and(|line| line.contains(reason)) && line(failed(), 2).is_none());
            }
            assert!(line(Event::Connected, 2).is_some());
        }
        assert!(line(refused(), 3).is_some_and(|line| line.contains("Permissions Violation")));
        assert!(line(refused(), 62).is_none() && line(refused(), 64).is_some());
        assert!(line(Event::ServerError(ServerError::AuthorizationViolation), 65).is_some());
    }
}
