//! One login at the bus, as the program itself does it. A failure comes with the server's answer and a remedy.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use async_nats::{ConnectError, ConnectErrorKind, Event, ServerAddr, ServerError, rustls};
use serde::Deserialize;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

use crate::bus::{BusError, BusSettings};

/// How long each step may take.
const WITHIN: Duration = Duration::from_secs(3);
/// The client hands on a refusal of the server within this time of the answer to a later message.
const REFUSED_WITHIN: Duration = Duration::from_millis(300);
/// The longest greeting that is read.
const LONGEST_GREETING: u64 = 65_536;

/// Why the bus cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub struct NoBus {
    /// The fault, with the server's answer where there is one.
    pub why: String,
    /// What an operator can do about it.
    pub remedy: String,
}

/// The greeting that a server sends before anybody logs in.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Greeting {
    auth_required: bool,
    tls_required: bool,
    tls_available: bool,
}

/// The node that logs in, and the subject that it listens to.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// Section `bus` of the settings.
    pub bus: &'a BusSettings,
    /// The pool that the settings name.
    pub pool: &'a str,
    /// The node that the settings name.
    pub node: &'a str,
    /// The subject that the program listens to: the server lets only the node itself do so.
    pub listens_to: &'a str,
}

impl Caller<'_> {
    /// Logs in with the settings' credentials, over TLS where they say so, and listens as the program does.
    ///
    /// # Errors
    /// The server's refusal, or why there is no answer.
    pub fn log_in(&self) -> Result<String, NoBus> {
        let remedy = "the setting must name a file that this user can read";
        let options = self.bus.read().map_err(|error| no_bus(error, remedy))?;
        let address = |error: &dyn std::fmt::Display| no_bus(BusError::Address(error.to_string()), ADDRESS);
        let server: ServerAddr = self.bus.url.parse().map_err(|error: std::io::Error| address(&error))?;
        let place = format!("{}:{}", server.host(), server.port());
        let greeting = greet(&place)?;
        let wants_tls = self.bus.needs_tls();
        if wants_tls && !(greeting.tls_required || greeting.tls_available) {
            let why = format!("{place} offers no TLS, and the settings demand it (bus.tls_ca, or tls:// in bus.url)");
            return Err(no_bus(
                why,
                "give nats-server its certificate (`slackwater bus config --tls-cert`), or name the right server in bus.url",
            ));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| no_bus(format!("no event loop: {error}"), ""))?;
        let is_encrypted = wants_tls || greeting.tls_required;
        runtime.block_on(async {
            let (refusals, mut refused) = unbounded_channel();
            let options = options
                .name(format!("slackwater check of {}", self.node))
                .connection_timeout(WITHIN)
                .event_callback(move |event| {
                    if let Event::ServerError(error) = event {
                        let _ = refusals.send(error);
                    }
                    std::future::ready(())
                });
            let client = match timeout(2 * WITHIN, options.connect(server)).await {
                Ok(Ok(client)) => client,
                Ok(Err(error)) => {
                    let mut why = error.to_string();
                    let mut source = error.source();
                    while let Some(cause) = source {
                        // Writing to a String cannot fail.
                        let _ = write!(why, ": {cause}");
                        source = cause.source();
                    }
                    return Err(self.refusal(&place, kind_of(&error), &why));
                }
                Err(_) => return Err(self.refusal(&place, RefusalKind::Other, "no answer in time")),
            };
            let silent = |_: &dyn std::fmt::Display| {
                no_bus(format!("{place} accepted the login, and then did not answer"), ADDRESS)
            };
            let _listening = client.subscribe(self.listens_to.to_owned()).await.map_err(|error| silent(&error))?;
            timeout(WITHIN, client.flush()).await.map_err(|error| silent(&error))?.map_err(|error| silent(&error))?;
            if let Ok(Some(error)) = timeout(REFUSED_WITHIN, refused.recv()).await {
                return Err(self.not_permitted(&place, &error));
            }
            let tls = if is_encrypted { "over TLS" } else { "without TLS" };
            Ok(format!("{place}: logged in {} {tls}; node and pool are those that the server knows", self.who()))
        })
    }

    fn who(&self) -> String {
        let BusSettings { user, nkey_file, credentials, tls_cert, .. } = self.bus;
        match (user.as_str(), nkey_file.as_str(), credentials.as_str(), tls_cert.as_str()) {
            ("", "", "", "") => "without a name".to_owned(),
            ("", "", "", certificate) => format!("by the certificate {certificate}"),
            ("", "", credentials, _) => format!("by {credentials}"),
            ("", key, ..) => format!("by the key of {key}"),
            (user, ..) => format!("as {user}"),
        }
    }

    fn refusal(&self, place: &str, refused: RefusalKind, why: &str) -> NoBus {
        let BusSettings { user, password_file, tls_ca, url, .. } = self.bus;
        let add_node = format!("`slackwater bus node add {} {}` on the balancer", self.pool, self.node);
        match refused {
            RefusalKind::Login => match self.who().as_str() {
                "without a name" => no_bus(
                    format!("{place} wants a login, and the settings have none: {why}"),
                    format!("{add_node} prints bus.user and writes the password for bus.password_file"),
                ),
                _ if !user.is_empty() => no_bus(
                    format!("{place} refuses user {user} with the password in {password_file}: {why}"),
                    format!("wrong password or unknown user: {add_node} gives both; put them here"),
                ),
                who => no_bus(
                    format!("{place} refuses the login {who}: {why}"),
                    "the server must know this key or certificate: see its nats.conf",
                ),
            },
            RefusalKind::Certificate if tls_ca.is_empty() => no_bus(
                format!("{place} wants TLS, and this machine knows no authority for its certificate: {why}"),
                "copy the authority's certificate (PEM) here, and name it in bus.tls_ca",
            ),
            RefusalKind::Certificate => no_bus(
                format!("{place}: no TLS with a certificate of {tls_ca}: {why}"),
                format!(
                    "bus.tls_ca must be the authority of the server's certificate, and that must be for the name in {url}"
                ),
            ),
            RefusalKind::Tls => no_bus(
                format!("{place} answers, but TLS with it fails: {why}"),
                "a server that wants a certificate of ours (`verify`) needs bus.tls_cert and bus.tls_key",
            ),
            RefusalKind::Other => no_bus(format!("{place}: {why}"), ADDRESS),
        }
    }

    fn not_permitted(&self, place: &str, error: &ServerError) -> NoBus {
        let (pool, node) = (self.pool, self.node);
        no_bus(
            format!(
                "{place} accepts the login {}, but does not permit what node {node} of pool {pool} does: {error}",
                self.who()
            ),
            format!(
                "`node` and `pool` must be those of `slackwater bus node add POOL NODE`: here `{node}` and `{pool}`"
            ),
        )
    }
}

/// The subject of a refusal, by the server or by us.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RefusalKind {
    Login,
    /// The server's certificate.
    Certificate,
    /// Another fault of TLS.
    Tls,
    Other,
}

fn kind_of(error: &ConnectError) -> RefusalKind {
    let mut cause = error.source();
    while let Some(inner) = cause {
        let stream_error = inner.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref());
        let tls_error = stream_error.map_or_else(|| inner.downcast_ref(), |error| error.downcast_ref());
        match tls_error {
            Some(rustls::Error::InvalidCertificate(_)) => return RefusalKind::Certificate,
            Some(_) => return RefusalKind::Tls,
            None => cause = inner.source(),
        }
    }
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => RefusalKind::Login,
        ConnectErrorKind::Tls => RefusalKind::Tls,
        _ => RefusalKind::Other,
    }
}

const ADDRESS: &str =
    "start nats-server (`slackwater serve` does, on the balancer) and let this machine reach it; bus.url must name it";

fn no_bus(why: impl ToString, remedy: impl Into<String>) -> NoBus {
    NoBus { why: why.to_string(), remedy: remedy.into() }
}

/// Connects, and reads the server's greeting.
fn greet(place: &str) -> Result<Greeting, NoBus> {
    let unreachable = |error: std::io::Error| no_bus(format!("{place} cannot be reached: {error}"), ADDRESS);
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in place.to_socket_addrs().map_err(unreachable)? {
        let line = TcpStream::connect_timeout(&address, WITHIN).and_then(|stream| {
            stream.set_read_timeout(Some(WITHIN))?;
            let mut line = Vec::new();
            BufReader::new(stream.take(LONGEST_GREETING)).read_until(b'\n', &mut line)?;
            Ok(line)
        });
        match line {
            Ok(line) => {
                let greeting = line.strip_prefix(b"INFO ").and_then(|text| serde_json::from_slice(text).ok());
                return greeting.ok_or_else(|| {
                    no_bus(format!("{place} answers, but not as NATS"), "bus.url must name the nats-server")
                });
            }
            Err(error) => last = error,
        }
    }
    Err(unreachable(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    fn bus_at(url: &str) -> BusSettings {
        BusSettings { url: url.to_owned(), ..BusSettings::default() }
    }

    fn refusal_of(bus: &BusSettings) -> NoBus {
        let caller = Caller { bus, pool: "web", node: "n1", listens_to: "slackwater.ask.web.n1" };
        caller.log_in().expect_err("no bus")
    }

    #[test]
    fn a_server_is_known_by_its_greeting() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("nats://user:word@{}", listener.local_addr().expect("an address"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(b"220 mail.example ESMTP\r\n").expect("the peer reads");
        });
        assert!(refusal_of(&bus_at(&url)).why.ends_with(" answers, but not as NATS"));
        server.join().expect("the server ends");
        let gone = refusal_of(&bus_at(&url));
        assert!(gone.why.contains("cannot be reached: Connection refused") && !gone.why.contains("word"), "{gone:?}");
        assert!(gone.remedy.contains("bus.url"));
    }

    #[test]
    fn tls_that_the_server_does_not_offer_is_missed_before_a_password_is_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("tls://{}", listener.local_addr().expect("an address"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(b"INFO {\"server_id\":\"x\"} \r\n").expect("the peer reads");
        });
        assert!(refusal_of(&bus_at(&url)).why.contains("offers no TLS"));
        server.join().expect("the server ends");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let (user, password_file) = ("n1".to_owned(), "/nowhere/word".to_owned());
        let bus = BusSettings { user, password_file, ..bus_at("nats://127.0.0.1:1") };
        assert_eq!(refusal_of(&bus).why, "bus.password_file: /nowhere/word: is not there");
    }
}
