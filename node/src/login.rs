//! One login at the bus, as the program itself does it: what works, or what the server answered and what to do about it.

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
/// A refusal of the server is handed on within this time of its answer to what was sent after it.
const REFUSED_WITHIN: Duration = Duration::from_millis(300);
/// The longest greeting that is read.
const LONGEST_GREETING: u64 = 65_536;

/// Why the bus cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub struct NoBus {
    /// What was found, or what the server answered.
    pub why: String,
    /// What it takes.
    pub remedy: String,
}

/// What a server says of itself before anybody logs in.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Greeting {
    auth_required: bool,
    tls_required: bool,
    tls_available: bool,
}

/// Who logs in, and what it may do there.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// Section `bus` of the settings.
    pub bus: &'a BusSettings,
    /// The pool and the node that the settings name.
    pub pool: &'a str,
    /// See `pool`.
    pub node: &'a str,
    /// What the program listens to: the server lets only the node itself do so.
    pub listens_to: &'a str,
}

impl Caller<'_> {
    /// Logs in with the settings' credentials, over TLS where they say so, and listens as the program does.
    ///
    /// # Errors
    /// What the server answered, or why there is none.
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
                Err(_) => return Err(self.refusal(&place, Refused::Other, "no answer in time")),
            };
            let silent =
                |_: &dyn std::fmt::Display| no_bus(format!("{place} let us in, and then did not answer"), ADDRESS);
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

    fn refusal(&self, place: &str, refused: Refused, why: &str) -> NoBus {
        let BusSettings { user, password_file, tls_ca, url, .. } = self.bus;
        let of_node = format!("`slackwater bus node add {} {}` on the balancer", self.pool, self.node);
        match refused {
            Refused::Login => match self.who().as_str() {
                "without a name" => no_bus(
                    format!("{place} wants a login, and the settings have none: {why}"),
                    format!("{of_node} prints bus.user and writes the password for bus.password_file"),
                ),
                _ if !user.is_empty() => no_bus(
                    format!("{place} refuses user {user} with the password in {password_file}: {why}"),
                    format!("wrong password or unknown user: {of_node} gives both; put them here"),
                ),
                who => no_bus(
                    format!("{place} refuses the login {who}: {why}"),
                    "the server must know this key or certificate: see its nats.conf",
                ),
            },
            Refused::Certificate if tls_ca.is_empty() => no_bus(
                format!("{place} wants TLS, and its certificate is of no authority that this machine knows: {why}"),
                "copy the authority's certificate (PEM) here, and name it in bus.tls_ca",
            ),
            Refused::Certificate => no_bus(
                format!("{place}: no TLS with a certificate of {tls_ca}: {why}"),
                format!(
                    "bus.tls_ca must be the authority of the server's certificate, and that must be for the name in {url}"
                ),
            ),
            Refused::Tls => no_bus(
                format!("{place} greets, and there is no TLS with it: {why}"),
                "a server that wants a certificate of ours (`verify`) needs bus.tls_cert and bus.tls_key",
            ),
            Refused::Other => no_bus(format!("{place}: {why}"), ADDRESS),
        }
    }

    fn not_permitted(&self, place: &str, error: &ServerError) -> NoBus {
        let (pool, node) = (self.pool, self.node);
        no_bus(
            format!(
                "{place} lets us in {}, and does not permit what node {node} of pool {pool} does: {error}",
                self.who()
            ),
            format!(
                "`node` and `pool` must be those of `slackwater bus node add POOL NODE`: here `{node}` and `{pool}`"
            ),
        )
    }
}

/// What a server, or we, refused.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Refused {
    Login,
    /// The server's certificate.
    Certificate,
    /// Anything else of TLS.
    Tls,
    Other,
}

fn kind_of(error: &ConnectError) -> Refused {
    let mut cause = error.source();
    while let Some(inner) = cause {
        let of_stream = inner.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref());
        let of_tls = of_stream.map_or_else(|| inner.downcast_ref(), |error| error.downcast_ref());
        match of_tls {
            Some(rustls::Error::InvalidCertificate(_)) => return Refused::Certificate,
            Some(_) => return Refused::Tls,
            None => cause = inner.source(),
        }
    }
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => Refused::Login,
        ConnectErrorKind::Tls => Refused::Tls,
        _ => Refused::Other,
    }
}

const ADDRESS: &str =
    "start nats-server (`slackwater serve` does, on the balancer) and let this machine reach it; bus.url must name it";

fn no_bus(why: impl ToString, remedy: impl Into<String>) -> NoBus {
    NoBus { why: why.to_string(), remedy: remedy.into() }
}

/// Connects, and reads what the server says first.
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
                let told = line.strip_prefix(b"INFO ").and_then(|text| serde_json::from_slice(text).ok());
                return told.ok_or_else(|| {
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

    fn at(url: &str) -> BusSettings {
        BusSettings { url: url.to_owned(), ..BusSettings::default() }
    }

    fn tried(bus: &BusSettings) -> NoBus {
        let caller = Caller { bus, pool: "web", node: "n1", listens_to: "slackwater.ask.web.n1" };
        caller.log_in().expect_err("no bus")
    }

    #[test]
    fn a_server_is_known_by_its_greeting() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("nats://user:word@{}", listener.local_addr().expect("an address"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(b"220 mail.example ESMTP\r\n").expect("sent");
        });
        assert!(tried(&at(&url)).why.ends_with(" answers, but not as NATS"));
        server.join().expect("it ends");
        let gone = tried(&at(&url));
        assert!(gone.why.contains("cannot be reached: Connection refused") && !gone.why.contains("word"), "{gone:?}");
        assert!(gone.remedy.contains("bus.url"));
    }

    #[test]
    fn tls_that_the_server_does_not_offer_is_missed_before_a_password_is_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("tls://{}", listener.local_addr().expect("an address"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(b"INFO {\"server_id\":\"x\"} \r\n").expect("sent");
        });
        assert!(tried(&at(&url)).why.contains("offers no TLS"));
        server.join().expect("it ends");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let (user, password_file) = ("n1".to_owned(), "/nowhere/word".to_owned());
        let bus = BusSettings { user, password_file, ..at("nats://127.0.0.1:1") };
        assert_eq!(tried(&bus).why, "bus.password_file: /nowhere/word: is not there");
    }
}
