//! What systemd is told: that we are ready, that we are still at work (sd_notify(3), `WatchdogSec=`), that we end.
//! Started by anything else, nothing is said.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The way to the service manager; there is one in a process.
#[derive(Debug)]
pub struct Notify {
    every: Option<Duration>,
    said: Option<Instant>,
}

impl Notify {
    /// Says that the program is ready. How often [`Notify::alive`] speaks follows from the unit's `WatchdogSec=`.
    pub fn ready() -> Notify {
        say(NotifyState::Ready);
        Notify { every: sd_notify::watchdog_enabled().map(|limit| limit / 4), said: None }
    }

    /// Says that the work goes on; call it at each turn of the loop that does the work.
    pub fn alive(&mut self, now: Instant) {
        if self.is_due(now) {
            say(NotifyState::Watchdog);
        }
    }

    /// Says that the program ends, which may take a while.
    pub fn stopping(&self) {
        say(NotifyState::Stopping);
    }

    /// True when a turn should be told, at most four times in the unit's limit.
    fn is_due(&mut self, now: Instant) -> bool {
        let Some(every) = self.every else { return false };
        let due = self.said.is_none_or(|said| now.saturating_duration_since(said) >= every);
        if due {
            self.said = Some(now);
        }
        due
    }
}

/// A manager that cannot be reached is not worth a word: it will say so itself.
fn say(state: NotifyState<'_>) {
    let _ = sd_notify::notify(&[state]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_watchdog_nothing_is_said() {
        let mut notify = Notify { every: None, said: None };
        assert!(!notify.is_due(Instant::now()));
    }

    #[test]
    fn a_fast_loop_speaks_four_times_in_the_limit() {
        let (mut notify, start) = (Notify { every: Some(Duration::from_millis(2500)), said: None }, Instant::now());
        let spoken = (0..50).filter(|turn| notify.is_due(start + Duration::from_millis(200) * *turn)).count();
        assert_eq!(spoken, 4);
    }
}
