//! The controller's requests ("asks"), each for a bounded time: for Samples as frequent as in an event, whose rate the
//! node's own settings bound, or to take the node's traffic as the balancer's host sees it. Only the controller may
//! publish on the node's subject.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::{Client, Subscriber};
use slackwater_messages::{Ask, decode};
use slackwater_node::sync::lock;
use tokio::sync::Notify;
use tokio_stream::StreamExt as _;

use crate::config::Settings;
use crate::error::Error;

/// The longest time for which one ask holds.
const LONGEST: Duration = Duration::from_secs(60);

/// Most looks at the traffic that wait while the loop is busy; the oldest are dropped.
const MOST_LOOKS: usize = 32;

/// The asks in force, shared by the receiver of asks and the loop that takes Samples.
#[derive(Debug, Clone, Default)]
pub struct Asks {
    state: Arc<Mutex<AskState>>,
    came: Arc<Notify>,
}

#[derive(Debug, Default)]
struct AskState {
    ends: Option<Instant>,
    taken: u64,
    with_traffic: VecDeque<Ask>,
}

impl Asks {
    /// Takes an ask that arrived at `now`. One for Samples never shortens an earlier one, so asks may arrive late, twice
    /// or in another order. An ask without a lease is ignored.
    pub fn take(&self, ask: Ask, now: Instant) {
        if ask.lease_s.is_nan() || ask.lease_s <= 0.0 {
            return;
        }
        let mut state = lock(&self.state);
        if ask.traffic.is_some() {
            if state.with_traffic.len() == MOST_LOOKS {
                state.with_traffic.pop_front();
            }
            state.with_traffic.push_back(ask);
        } else {
            let ends = now + Duration::from_secs_f64(ask.lease_s.min(LONGEST.as_secs_f64()));
            state.ends = state.ends.max(Some(ends));
            state.taken += 1;
        }
        drop(state);
        self.came.notify_one();
    }

    /// Waits until an ask comes.
    pub async fn came(&self) {
        self.came.notified().await;
    }

    /// The asks with traffic that came since the last call, oldest first.
    pub fn take_traffic(&self) -> VecDeque<Ask> {
        std::mem::take(&mut lock(&self.state).with_traffic)
    }

    /// Until when Samples are asked for.
    pub fn ends(&self) -> Option<Instant> {
        lock(&self.state).ends
    }

    /// Number of asks for Samples since the start.
    pub fn taken(&self) -> u64 {
        lock(&self.state).taken
    }
}

/// The subject of the asks for a node.
pub fn subject(settings: &Settings) -> String {
    format!("slackwater.ask.{}.{}", settings.pool, settings.node)
}

/// Subscribes to the asks for this node.
///
/// # Errors
/// Why the subscription failed.
pub async fn open(settings: &Settings, client: Client) -> Result<Asks, Error> {
    let subject = subject(settings);
    let messages = client.subscribe(subject.clone()).await.map_err(|reason| Error::Subscribe { subject, reason })?;
    let asks = Asks::default();
    tokio::spawn(listen_to(messages, settings.pool.clone(), settings.node.clone(), asks.clone()));
    Ok(asks)
}

async fn listen_to(mut messages: Subscriber, pool: String, node: String, asks: Asks) {
    while let Some(message) = messages.next().await {
        match decode::<Ask>(&message.payload) {
            Ok(ask) if ask.pool == pool && ask.node == node => asks.take(ask, Instant::now()),
            Ok(ask) => tracing::warn!("ignored a request for Samples of node {} in pool {}", ask.node, ask.pool),
            Err(error) => tracing::warn!("ignored a request for Samples: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_messages::Traffic;

    fn ask(lease_s: f64) -> Ask {
        Ask { v: 1, node: "n1".to_owned(), pool: "web".to_owned(), time_unix_s: 0.0, lease_s, ..Ask::default() }
    }

    #[test]
    fn an_ask_holds_for_its_lease_and_none_shortens_another() {
        let (asks, start) = (Asks::default(), Instant::now());
        let after = |s: f64| Some(start + Duration::from_secs_f64(s));
        assert_eq!((asks.ends(), asks.taken()), (None, 0));
        asks.take(ask(30.0), start);
        assert_eq!(asks.ends(), after(30.0));
        for lease_s in [30.0, 5.0] {
            asks.take(ask(lease_s), start);
        }
        assert_eq!((asks.ends(), asks.taken()), (after(30.0), 3), "twice, and one that came late");
        asks.take(ask(30.0), start + Duration::from_secs(10));
        assert_eq!(asks.ends(), after(40.0), "asked again");
    }

    #[test]
    fn a_lease_that_is_none_is_ignored_and_one_without_end_is_cut() {
        let (asks, start) = (Asks::default(), Instant::now());
        for lease_s in [0.0, -1.0, f64::NEG_INFINITY, f64::NAN] {
            asks.take(ask(lease_s), start);
            assert_eq!((asks.ends(), asks.taken()), (None, 0), "{lease_s}");
        }
        for lease_s in [61.0, 1e12, f64::INFINITY] {
            asks.take(ask(lease_s), start);
            assert_eq!(asks.ends(), Some(start + LONGEST), "{lease_s}");
        }
    }

    #[test]
    fn traffic_is_no_ask_for_samples_and_the_oldest_looks_are_dropped() {
        let (asks, start) = (Asks::default(), Instant::now());
        for number in 0..40 {
            let traffic = Some(Traffic { rps: Some(f64::from(number)), ..Traffic::default() });
            asks.take(Ask { traffic, period_s: Some(0.2), ..ask(3.0) }, start);
        }
        assert_eq!((asks.ends(), asks.taken()), (None, 0));
        let rates = asks.take_traffic().into_iter().filter_map(|ask| ask.traffic?.rps).collect::<Vec<_>>();
        assert_eq!(rates, (8..40).map(f64::from).collect::<Vec<_>>());
        assert!(asks.take_traffic().is_empty());
    }
}
