//! Listens to what lbengine asks for: Samples as often as in an event, for a bounded time. Only the controller may
//! publish on the node's subject, and no more can be asked for than the node's own settings allow in an event.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::{Client, Subscriber};
use slackwater_messages::{Ask, decode};
use tokio_stream::StreamExt as _;

use crate::config::Settings;
use crate::error::Error;

/// No ask holds for longer: who wants more asks again.
const LONGEST: Duration = Duration::from_secs(60);

/// What is asked for now, shared by who receives and who takes Samples.
#[derive(Debug, Clone, Default)]
pub struct Asked(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    ends: Option<Instant>,
    taken: u64,
}

impl Asked {
    /// Takes an ask that came at this instant. None ends one that holds for longer, so that they may come late, twice
    /// or in another order. One without a lease is ignored.
    pub fn take(&self, ask: &Ask, now: Instant) {
        if ask.lease_s > 0.0 {
            let ends = now + Duration::from_secs_f64(ask.lease_s.min(LONGEST.as_secs_f64()));
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.ends = state.ends.max(Some(ends));
            state.taken += 1;
        }
    }

    /// Until when Samples are asked for.
    pub fn ends(&self) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).ends
    }

    /// How many were taken since the start.
    pub fn taken(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).taken
    }
}

/// Where a node is asked.
pub fn subject(settings: &Settings) -> String {
    format!("slackwater.ask.{}.{}", settings.pool, settings.node)
}

/// Begins to listen.
///
/// # Errors
/// Why it cannot.
pub async fn open(settings: &Settings, client: Client) -> Result<Asked, Error> {
    let subject = subject(settings);
    let asks = client.subscribe(subject.clone()).await.map_err(|reason| Error::Subscribe { subject, reason })?;
    let asked = Asked::default();
    tokio::spawn(listen_to(asks, settings.pool.clone(), settings.node.clone(), asked.clone()));
    Ok(asked)
}

async fn listen_to(mut asks: Subscriber, pool: String, node: String, asked: Asked) {
    while let Some(message) = asks.next().await {
        match decode::<Ask>(&message.payload) {
            Ok(ask) if ask.pool == pool && ask.node == node => asked.take(&ask, Instant::now()),
            Ok(ask) => tracing::warn!("an ask for {} of {} is ignored", ask.node, ask.pool),
            Err(error) => tracing::warn!("an ask is ignored: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(lease_s: f64) -> Ask {
        Ask { v: 1, node: "n1".to_owned(), pool: "web".to_owned(), time_unix_s: 0.0, lease_s }
    }

    #[test]
    fn an_ask_holds_for_its_lease_and_none_shortens_another() {
        let (asked, start) = (Asked::default(), Instant::now());
        let after = |s: f64| Some(start + Duration::from_secs_f64(s));
        assert_eq!((asked.ends(), asked.taken()), (None, 0));
        asked.take(&ask(30.0), start);
        assert_eq!(asked.ends(), after(30.0));
        for lease_s in [30.0, 5.0] {
            asked.take(&ask(lease_s), start);
        }
        assert_eq!((asked.ends(), asked.taken()), (after(30.0), 3), "twice, and one that came late");
        asked.take(&ask(30.0), start + Duration::from_secs(10));
        assert_eq!(asked.ends(), after(40.0), "asked again");
    }

    #[test]
    fn a_lease_that_is_none_is_ignored_and_one_without_end_is_cut() {
        let (asked, start) = (Asked::default(), Instant::now());
        for lease_s in [0.0, -1.0, f64::NEG_INFINITY, f64::NAN] {
            asked.take(&ask(lease_s), start);
            assert_eq!((asked.ends(), asked.taken()), (None, 0), "{lease_s}");
        }
        for lease_s in [61.0, 1e12, f64::INFINITY] {
            asked.take(&ask(lease_s), start);
            assert_eq!(asked.ends(), Some(start + LONGEST), "{lease_s}");
        }
    }
}
