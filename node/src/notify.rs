//! Messages to systemd: ready, still at work (sd_notify(3), `WatchdogSec=`), stopping. Without systemd none are sent.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The connection to the service manager; there is one in a process.
#[derive(Debug)]
pub struct Notify {
    every: Option<Duration>,
    sent: Option<Instant>,
}

impl Notify {
    /// Reports that the program is ready. How often [`Notify::alive`] sends follows from the unit's `WatchdogSec=`.
    pub fn ready() -> Notify {
        send(NotifyState::Ready);
        Notify { every: sd_notify::watchdog_enabled().map(|limit| limit / 4), sent: None }
    }

    /// Reports that the work goes on; call it at each turn of the loop that does the work.
    pub fn alive(&mut self, now: Instant) {
        if self.is_due(now) {
            send(NotifyState::Watchdog);
        }
    }

    /// Reports that the program ends, which may take a while.
    pub fn stopping(&self) {
        send(NotifyState::Stopping);
    }

    /// Whether a report is due, which happens at most four times in the unit's limit.
    fn is_due(&mut self, now: Instant) -> bool {
        let Some(every) = self.every else { return false };
        let due = self.sent.is_none_or(|sent| now.saturating_duration_since(sent) >= every);
        if due {
            self.sent = Some(now);
        }
        due
    }
}

/// Sends a state. A manager that cannot be reached is ignored: it notices the missing reports itself.
fn send(state: NotifyState<'_>) {
    let _ = sd_notify::notify(&[state]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_watchdog_nothing_is_sent() {
        let mut notify = Notify { every: None, sent: None };
        assert!(!notify.is_due(Instant::now()));
    }

    #[test]
    fn a_fast_loop_reports_four_times_in_the_limit() {
        let (mut notify, start) = (Notify { every: Some(Duration::from_millis(2500)), sent: None }, Instant::now());
        let reports = (0..50).filter(|turn| notify.is_due(start + Duration::from_millis(200) * *turn)).count();
        assert_eq!(reports, 4);
    }
}
