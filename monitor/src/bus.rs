//! Publishing to NATS: a connection that comes back by itself for ever. While it is away the newest Samples wait in a
//! bounded buffer.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions};
use slackwater_messages::Sample;
use slackwater_node::bus::{BusError, BusSettings, connect};

use crate::backlog::Backlog;
use crate::config::PROGRAM;

/// Most messages that wait for the connection's task.
const MOST_QUEUED: usize = 4;
/// Most Samples that wait while the bus is away; older ones are dropped and counted.
pub const MOST_WAITING: usize = 25;
/// How long the connection's task may take to accept messages.
const HANDED_WITHIN: Duration = Duration::from_millis(20);

/// The subject of a node's Samples.
pub fn subject(pool: &str, node: &str) -> String {
    format!("slackwater.sample.{pool}.{node}")
}

/// Numbers of Samples since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// Handed to a connection.
    pub published: u64,
    /// Dropped because the bus was away.
    pub dropped: u64,
}

/// The connection to NATS, with the Samples that wait for it.
pub struct Bus {
    client: Client,
    subject: String,
    backlog: Backlog,
    published: u64,
    dropped_before: u64,
}

impl Bus {
    /// Starts connecting as `node` and returns at once, whether the server is there or not.
    ///
    /// # Errors
    /// When the URL is no address of a server.
    pub async fn open(
        settings: &BusSettings,
        access: ConnectOptions,
        node: &str,
        subject: String,
    ) -> Result<Bus, BusError> {
        let client = connect(&settings.url, access, PROGRAM, node, MOST_QUEUED).await?;
        let backlog = Backlog::new(MOST_WAITING);
        Ok(Bus { client, subject, backlog, published: 0, dropped_before: 0 })
    }

    /// Hands the waiting Samples, then this one, to the connection. Without a connection the Sample waits, and the
    /// oldest of too many is dropped.
    pub async fn publish(&mut self, sample: Sample) {
        self.backlog.push(sample);
        let end = tokio::time::Instant::now() + HANDED_WITHIN;
        while self.client.connection_state() == State::Connected
            && let Some(next) = self.backlog.oldest()
        {
            let message = slackwater_messages::encode_binary(next).into();
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
            tracing::warn!("{lost} Samples were dropped while the bus was away");
        }
    }

    /// The connection, to listen on.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Numbers of Samples since the start.
    pub fn sent(&self) -> SampleCounts {
        SampleCounts { published: self.published, dropped: self.backlog.dropped() }
    }

    /// Waits a moment for the messages that were handed over to be sent.
    pub async fn close(self) {
        if self.client.connection_state() == State::Connected {
            let _ = tokio::time::timeout(Duration::from_millis(500), self.client.flush()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_that_is_away_for_a_minute_takes_no_time_and_the_newest_samples_wait() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let settings = BusSettings { url: "nats://127.0.0.1:9".to_owned(), ..BusSettings::default() };
            let mut bus = Bus::open(&settings, ConnectOptions::new(), "test", subject("p", "n")).await.expect("a bus");
            for seq in 0..300 {
                bus.publish(Sample { seq, ..Sample::default() }).await;
            }
            assert_eq!(bus.sent(), SampleCounts { published: 0, dropped: 275 });
            let oldest = bus.backlog.oldest().expect("a waiting Sample");
            assert_eq!((oldest.seq, oldest.samples_dropped), (275, 275));
            bus.close().await;
        });
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let bad = BusSettings { url: "nats://127.0.0.1:x".to_owned(), ..BusSettings::default() };
        let opened = runtime.block_on(Bus::open(&bad, ConnectOptions::new(), "test", subject("p", "n")));
        assert!(opened.is_err_and(|error| error.to_string().starts_with("bus.url: ")));
    }
}
