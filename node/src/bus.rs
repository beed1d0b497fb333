//! A connection to NATS that comes back by itself for ever, and logs once when it comes or goes.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use async_nats::rustls::{ClientConfig, RootCertStore};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use tracing::Level;

use crate::secrets::{self, SecretError};
use crate::settings::Faults;
use crate::sync::lock;

/// A connection that is silent for about two of these intervals counts as lost.
const PING_EVERY: Duration = Duration::from_secs(2);
/// Time between two attempts to connect: at first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(2);
/// An error that the server repeats is logged again after this time.
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
        let is_set = |text: &str| !text.is_empty();
        let logins = [&self.credentials, &self.nkey_file, &self.user].into_iter().filter(|login| is_set(login)).count();
        let only = "must be the only one of bus.credentials, bus.nkey_file and bus.user";
        faults.expect("bus.user", logins <= 1, || only.to_owned());
        let mut paired = |name, holds, other| {
            faults.expect(name, holds, || format!("must be set together with {other}"));
        };
        paired("bus.password_file", is_set(&self.user) == is_set(&self.password_file), "bus.user");
        paired("bus.tls_key", is_set(&self.tls_cert) == is_set(&self.tls_key), "bus.tls_cert");
        paired("bus.tls_cert", !is_set(&self.tls_cert) || is_set(&self.tls_ca), "bus.tls_ca");
        let password_is_safe = !self.has_password() || self.needs_tls() || is_this_machine(&self.url);
        let encrypted =
            "must be tls://HOST:PORT, or bus.tls_ca be set: the password would go to another machine in the clear";
        faults.expect("bus.url", password_is_safe, || encrypted.to_owned());
    }

    /// Whether the connection must be encrypted, even when the server does not ask for it.
    #[must_use]
    pub fn needs_tls(&self) -> bool {
        !self.tls_ca.is_empty() || self.url.starts_with("tls://")
    }

    /// Whether the login sends a password, which others could read on an unencrypted connection. An NKey signs, and is
    /// never sent.
    fn has_password(&self) -> bool {
        !self.password_file.is_empty() || self.url.contains('@')
    }

    /// The options for [`connect`]. All files are read now, because the program may give up its privileges before it
    /// connects, or connects again.
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
            // The server's greeting comes before TLS. An attacker on the path could name servers in it, to which the
            // library would connect without TLS, or with a certificate of a public authority. With `tls_ca` the
            // attacker has no certificate that is accepted.
            options = options.ignore_discovered_servers();
        }
        Ok(options.require_tls(self.needs_tls()))
    }

    /// The authorities to trust, and our own certificate.
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
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => address.host() == "localhost",
    })
}

fn certificates(setting: &'static str, path: &str) -> Result<Vec<CertificateDer<'static>>, BusError> {
    let text = secrets::read_open(setting, Path::new(path))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(malformed(setting, path, "holds no certificate (PEM)")),
        Err(error) => Err(malformed(setting, path, error)),
    }
}

/// Starts connecting to `url` with the options of [`BusSettings::read`], and returns at once, whether the server is
/// there or not. `program` and `node` name the connection to the server; up to `most_queued` messages may wait for the
/// connection's task.
///
/// # Errors
/// When `url` is no address of a NATS server.
pub async fn connect(
    url: &str,
    options: ConnectOptions,
    program: &str,
    node: &str,
    most_queued: usize,
) -> Result<Client, BusError> {
    let address: ServerAddr = url.parse().map_err(|error: std::io::Error| BusError::Address(error.to_string()))?;
    let place = format!("{}:{}", address.host(), address.port());
    let log = Mutex::new(ConnectionLog::default());
    options
        .name(format!("{program} {node}"))
        .retry_on_initial_connect()
        .max_reconnects(None)
        .reconnect_delay_callback(retry_delay)
        .ping_interval(PING_EVERY)
        .client_capacity(most_queued)
        .read_buffer_capacity(4096)
        .event_callback(move |event| {
            match lock(&log).line(&place, &event, Instant::now()) {
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

/// What was already logged about the connection, so that no line is repeated.
#[derive(Default)]
struct ConnectionLog {
    /// The events of the present interruption that were logged.
    events: Vec<String>,
    /// The server's last error, and when it was logged.
    server_error: Option<(String, Instant)>,
}

impl ConnectionLog {
    /// One line when the connection is there, and one for each reason while it is not. An error of the server is
    /// repeated after [`REPEAT_AFTER`].
    fn line(&mut self, address: &str, event: &Event, now: Instant) -> Option<(Level, String)> {
        match event {
            Event::Connected => {
                self.events.clear();
                Some((Level::INFO, format!("bus {address}: connected")))
            }
            Event::Disconnected | Event::ClientError(_) => {
                let event = event.to_string();
                if self.events.contains(&event) {
                    return None;
                }
                let line = format!("bus {address}: {event}; trying again for as long as it takes");
                self.events.push(event);
                Some((Level::WARN, line))
            }
            Event::ServerError(error) => {
                let text = error.to_string();
                let is_repeated = self.server_error.as_ref().is_some_and(|(last, logged)| {
                    *last == text && now.saturating_duration_since(*logged) < REPEAT_AFTER
                });
                if is_repeated {
                    return None;
                }
                self.server_error = Some((text.clone(), now));
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
        let refused = |settings: BusSettings| settings.read().expect_err("a refusal").to_string();
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
        let open = |url: &str| BusSettings { url: url.to_owned(), ..BusSettings::default() };
        let with = |url: &str| BusSettings { user: "n1".to_owned(), password_file: "/p".to_owned(), ..open(url) };
        for url in
            ["nats://10.0.0.5:4222", "nats://balancer:4222", "nats://localhost.example:1", "nats://[2001:db8::1]:1"]
        {
            assert!(faults(&with(url)).concat().contains("in the clear"), "{url}");
            assert!(faults(&BusSettings { tls_ca: "/ca.pem".to_owned(), ..with(url) }).is_empty(), "{url}");
            assert!(faults(&BusSettings { nkey_file: "/n".to_owned(), ..open(url) }).is_empty(), "a key is never sent");
        }
        assert!(!faults(&open("nats://u:p@10.0.0.5:1")).is_empty());
        for url in ["tls://10.0.0.5:4222", "nats://127.0.0.1:1", "nats://[::1]:1", "nats://localhost:1"] {
            assert!(faults(&with(url)).is_empty(), "{url}");
        }
    }

    /// The bytes that a listener without TLS receives in three attempts to connect, when it greets with `greeting`.
    fn received_by_a_stranger(settings: &BusSettings, greeting: &str) -> Vec<u8> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = settings.url.replace("HERE", &listener.local_addr().expect("an address").to_string());
        let greeting = greeting.to_owned();
        let stranger = std::thread::spawn(move || {
            let mut received = Vec::new();
            for _ in 0..3 {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
                stream.write_all(greeting.as_bytes()).expect("the peer reads");
                let mut part = [0; 4096];
                if let Ok(length) = stream.read(&mut part) {
                    received.extend(&part[..length]);
                }
            }
            received
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
        stranger.join().expect("the thread ends")
    }

    #[test]
    fn nothing_is_said_to_a_listener_without_tls_in_any_attempt() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        std::fs::write(&file, "the-password").expect("the file is written");
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("permissions");
        let password_file = file.to_str().expect("a path").to_owned();
        let (url, user) = ("tls://HERE".to_owned(), "n1".to_owned());
        let settings = BusSettings { url, user, password_file, ..BusSettings::default() };
        let info = "{\"server_id\":\"x\",\"version\":\"2.9.10\",\"max_payload\":1048576,\"proto\":1,\"headers\":true";
        for more in ["", ",\"connect_urls\":[\"127.0.0.1:2\"]", ",\"auth_required\":true,\"tls_required\":false"] {
            let greeting = format!("INFO {info}{more}}}\r\n");
            let received = received_by_a_stranger(&settings, &greeting);
            let has = |word: &[u8]| received.windows(word.len()).any(|part| part == word);
            assert!(!has(b"CONNECT") && !has(b"the-password"), "{more}");
        }
    }

    #[test]
    fn news_of_the_connection_is_logged_once_and_so_is_each_reason_why_it_is_away() {
        let (mut log, now) = (ConnectionLog::default(), Instant::now());
        let mut line =
            |event: Event, after_s| log.line("a:1", &event, now + Duration::from_secs(after_s)).map(|(_, line)| line);
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
