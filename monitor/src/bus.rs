//! Publishing to NATS: a connection that comes back by itself for ever. While it is away Samples are dropped.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, ServerAddr};

/// A connection that is silent for about two of these counts as lost.
const PING_EVERY: Duration = Duration::from_secs(2);
/// Messages that wait for the connection's task: those of one moment, never a backlog.
const WAITING: usize = 4;
/// Time between two attempts to connect, from the first to the later ones.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(2);

/// The subject of a node's Samples.
pub fn subject(pool: &str, node: &str) -> String {
    format!("slackwater.sample.{pool}.{node}")
}

/// The door to NATS.
pub struct Bus {
    client: Client,
    subject: String,
    dropped: u64,
}

impl Bus {
    /// Starts connecting as `name` and returns at once, whether the server is there or not.
    ///
    /// # Errors
    /// When `url` is no address.
    pub async fn open(url: &str, name: &str, subject: String) -> Result<Bus, String> {
        let address: ServerAddr = url.parse().map_err(|error| format!("bus.url: {error}"))?;
        let shown = format!("{}:{}", address.host(), address.port());
        let said_away = Arc::new(AtomicBool::new(false));
        let client = ConnectOptions::new()
            .name(name)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .reconnect_delay_callback(retry_delay)
            .ping_interval(PING_EVERY)
            .client_capacity(WAITING)
            .read_buffer_capacity(4096)
            .event_callback(move |event| {
                report(&shown, &event, &said_away);
                std::future::ready(())
            })
            .connect(address)
            .await
            .map_err(|error| format!("bus.url: {error}"))?;
        Ok(Bus { client, subject, dropped: 0 })
    }

    /// Hands a message to the connection, or drops it when there is none.
    pub fn publish(&mut self, message: Vec<u8>) {
        let handed = self.client.connection_state() == State::Connected
            && matches!(poll_once(self.client.publish(self.subject.clone(), message.into())), Poll::Ready(Ok(())));
        if !handed {
            self.dropped += 1;
        } else if self.dropped > 0 {
            eprintln!("slackwater-monitor: {} Samples were dropped while the bus was away", self.dropped);
            self.dropped = 0;
        }
    }

    /// Sends what was handed over, if that goes quickly.
    pub async fn close(self) {
        if self.client.connection_state() == State::Connected {
            let _ = tokio::time::timeout(Duration::from_millis(500), self.client.flush()).await;
        }
    }
}

fn retry_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(10);
    RETRY_LONGEST.min(RETRY_FIRST * 2_u32.pow(doublings))
}

/// One line when the bus comes or goes; attempts that fail after that are not news.
fn report(address: &str, event: &Event, said_away: &AtomicBool) {
    match event {
        Event::Connected => {
            said_away.store(false, Ordering::Relaxed);
            eprintln!("slackwater-monitor: bus {address}: connected");
        }
        Event::Disconnected | Event::ClientError(_) if !said_away.swap(true, Ordering::Relaxed) => {
            eprintln!("slackwater-monitor: bus {address}: {event}; trying again for as long as it takes");
        }
        Event::ServerError(error) => eprintln!("slackwater-monitor: bus {address}: {error}"),
        _ => {}
    }
}

/// One look at a future that must not be waited for.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_to_connect_become_rarer_up_to_a_bound() {
        let delays: Vec<u128> = [0, 1, 2, 3, 100].iter().map(|n| retry_delay(*n).as_millis()).collect();
        assert_eq!(delays, [50, 50, 100, 200, 2000]);
    }

    #[test]
    fn a_bus_that_is_not_there_takes_no_messages_and_no_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut bus = Bus::open("nats://127.0.0.1:9", "test", subject("p", "n")).await.expect("open");
            for _ in 0..100 {
                bus.publish(vec![b'x'; 100]);
            }
            assert_eq!(bus.dropped, 100);
            bus.close().await;
        });
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let opened = runtime.block_on(Bus::open("nats://127.0.0.1:x", "test", subject("p", "n")));
        assert!(opened.err().expect("refused").starts_with("bus.url: "));
    }
}
