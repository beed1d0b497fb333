//! The bell with which the thread `gaps` wakes the loop when a signal of its own leaves the usual range, so that the loop
//! need not look while nothing happens.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Longer than any gap: nothing rings.
const NEVER_NS: u64 = u64::MAX;

/// Rings once for each time that it was set.
#[derive(Debug)]
pub struct Bell {
    gap_ns: AtomicU64,
    queued_ns: AtomicU64,
    notify: Notify,
}

impl Default for Bell {
    /// A bell that is not set.
    fn default() -> Bell {
        Bell { gap_ns: AtomicU64::new(NEVER_NS), queued_ns: AtomicU64::new(NEVER_NS), notify: Notify::new() }
    }
}

impl Bell {
    /// Lets it ring for a gap, or a wait in the run queue, that is longer than these.
    pub fn set(&self, gap_ms: f64, queued_ms: f64) {
        // An infinite limit becomes the longest time.
        self.gap_ns.store((gap_ms * 1e6) as u64, Ordering::Relaxed);
        self.queued_ns.store((queued_ms * 1e6) as u64, Ordering::Relaxed);
    }

    /// Keeps it from ringing.
    pub fn unset(&self) {
        self.gap_ns.store(NEVER_NS, Ordering::Relaxed);
        self.queued_ns.store(NEVER_NS, Ordering::Relaxed);
    }

    /// Takes in the longest gap and wait since the last Sample.
    pub fn longest(&self, gap_ns: u64, queued_ns: u64) {
        if gap_ns > self.gap_ns.load(Ordering::Relaxed) || queued_ns > self.queued_ns.load(Ordering::Relaxed) {
            self.unset();
            self.notify.notify_one();
        }
    }

    /// Waits until it rings.
    pub async fn rings(&self) {
        self.notify.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn has_rung(bell: &Bell) -> bool {
        pin!(bell.rings()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn it_rings_once_each_time_that_it_was_set_and_a_value_lies_beyond() {
        let bell = Bell::default();
        bell.longest(u64::MAX - 1, u64::MAX - 1);
        assert!(!has_rung(&bell), "it was not set");
        bell.set(2.0, f64::INFINITY);
        bell.longest(2_000_000, u64::MAX - 1);
        assert!(!has_rung(&bell), "nothing lies beyond");
        bell.longest(2_000_001, 0);
        assert!(has_rung(&bell));
        bell.longest(9_000_000, 0);
        assert!(!has_rung(&bell), "once");
        bell.set(2.0, 3.0);
        bell.longest(0, 3_000_001);
        assert!(has_rung(&bell));
        bell.set(2.0, 3.0);
        bell.unset();
        bell.longest(9_000_000, 9_000_000);
        assert!(!has_rung(&bell));
    }
}
