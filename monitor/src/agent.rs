//! Answers HAProxy's agent-check: the weight that lbengine wants for this node, in percent of the configured one, and
//! 100% when no weight came within the lease.
//!
//! Only ever a percentage: the protocol's other words (`ready`, `up`, `drain`, ...) would overrule what an operator has
//! set. HAProxy Configuration Manual, section 5.2, `agent-check`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::{Client, Subscriber};
use slackwater_messages::{Weight, decode};
use slackwater_node::sync::lock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::StreamExt as _;

use crate::config::Settings;
use crate::error::Error;
use crate::listener;

/// The node's percentage of its server's weight while no weight is in force.
const WHOLE: u64 = 100;
/// The longest lease that is believed: a wrong weight may not stay for hours.
const LONGEST_LEASE_S: f64 = 60.0;
/// Connections at a time; more wait in the kernel.
const MOST_CONNECTIONS: usize = 16;
/// How long a connection may take.
const CONNECTION_ENDS_AFTER: Duration = Duration::from_secs(1);

/// The last weight that lbengine sent.
#[derive(Debug, Clone, Copy)]
struct LastWeight {
    percent: u64,
    ends: Instant,
}

/// The weight to answer with, shared by the receiver of weights and the answers to HAProxy.
#[derive(Debug, Clone, Default)]
pub struct WantedWeight(Arc<Mutex<Option<LastWeight>>>);

impl WantedWeight {
    /// Keeps a weight for as long as its lease. One without a lease is ignored.
    pub fn keep(&self, weight: &Weight, now: Instant) {
        let lease_s = weight.lease_s.min(LONGEST_LEASE_S);
        if lease_s > 0.0 {
            let last = LastWeight { percent: weight.percent, ends: now + Duration::from_secs_f64(lease_s) };
            *lock(&self.0) = Some(last);
        }
    }

    /// The answer at this instant.
    pub fn percent(&self, now: Instant) -> u64 {
        lock(&self.0).filter(|last| now < last.ends).map_or(WHOLE, |last| last.percent)
    }
}

/// Receives lbengine's weights and answers HAProxy, if the settings name an address.
///
/// # Errors
/// The address or the subject that cannot be listened on.
pub async fn open(settings: &Settings, client: Client) -> Result<(), Error> {
    let listen = &settings.agent.listen;
    if listen.is_empty() {
        return Ok(());
    }
    let listener = listener::listen("agent.listen", listen).await?;
    let subject = format!("slackwater.weight.{}.{}", settings.pool, settings.node);
    let weights = client.subscribe(subject.clone()).await.map_err(|reason| Error::Subscribe { subject, reason })?;
    let wanted = WantedWeight::default();
    tokio::spawn(listen_to(weights, settings.pool.clone(), settings.node.clone(), wanted.clone()));
    tokio::spawn(serve(listener, wanted));
    Ok(())
}

async fn listen_to(mut weights: Subscriber, pool: String, node: String, wanted: WantedWeight) {
    while let Some(message) = weights.next().await {
        match decode::<Weight>(&message.payload) {
            Ok(weight) if weight.pool == pool && weight.node == node => wanted.keep(&weight, Instant::now()),
            Ok(weight) => tracing::warn!("ignored a weight for node {} in pool {}", weight.node, weight.pool),
            Err(error) => tracing::warn!("ignored a weight: {error}"),
        }
    }
}

/// Answers HAProxy until it is dropped.
pub async fn serve(listener: TcpListener, wanted: WantedWeight) {
    let answer = |stream| answer(stream, wanted.percent(Instant::now()));
    listener::serve(listener, MOST_CONNECTIONS, CONNECTION_ENDS_AFTER, answer).await;
}

/// Sends one line, then reads what HAProxy sends (`agent-send`) to its end: unread bytes would turn the close into a
/// reset that may overtake the answer. Errors of the connection are ignored.
async fn answer(mut stream: TcpStream, percent: u64) {
    let line = format!("{percent}%\n");
    if stream.write_all(line.as_bytes()).await.is_ok() && stream.shutdown().await.is_ok() {
        let mut sent = [0; 256];
        while stream.read(&mut sent).await.is_ok_and(|count| count > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn weight(percent: u64, lease_s: f64) -> Weight {
        Weight { v: 1, node: "n1".to_owned(), pool: "web".to_owned(), time_unix_s: 0.0, percent, lease_s }
    }

    #[test]
    fn a_weight_holds_for_its_lease_and_then_the_node_gets_all_of_its_weight() {
        let (wanted, start) = (WantedWeight::default(), Instant::now());
        let at = |s: f64| wanted.percent(start + Duration::from_secs_f64(s));
        assert_eq!(at(0.0), 100, "no weight came yet");
        wanted.keep(&weight(30, 3.0), start);
        assert_eq!((at(0.0), at(2.9), at(3.0)), (30, 30, 100));
        wanted.keep(&weight(0, 3.0), start + Duration::from_secs(2));
        assert_eq!((at(4.9), at(5.1)), (0, 100), "each weight renews the lease");
    }

    #[test]
    fn a_lease_that_is_none_or_has_no_end_is_not_believed() {
        let (wanted, start) = (WantedWeight::default(), Instant::now());
        for lease_s in [0.0, -1.0, f64::NEG_INFINITY] {
            wanted.keep(&weight(0, lease_s), start);
            assert_eq!(wanted.percent(start), 100, "{lease_s}");
        }
        for lease_s in [1e12, f64::INFINITY, f64::NAN] {
            wanted.keep(&weight(0, lease_s), start);
            assert_eq!(wanted.percent(start + Duration::from_secs(61)), 100, "{lease_s}");
        }
    }

    #[test]
    fn a_connection_gets_one_line_whatever_it_sends_and_silent_ones_hold_nobody_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("an address");
            let wanted = WantedWeight::default();
            wanted.keep(&weight(42, 30.0), Instant::now());
            let client = tokio::task::spawn_blocking(move || {
                let connect = || std::net::TcpStream::connect(address).expect("a connection");
                let silent: Vec<_> = (0..2 * MOST_CONNECTIONS).map(|_| connect()).collect();
                let mut stream = connect();
                stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a deadline");
                stream.write_all(&[b'x'; 2000]).expect("the peer reads");
                let mut line = String::new();
                stream.read_to_string(&mut line).expect("an answer");
                drop(silent);
                line
            });
            tokio::select! {
                () = serve(listener, wanted) => {}
                line = client => assert_eq!(line.expect("the client's part"), "42%\n"),
            }
        });
    }
}
