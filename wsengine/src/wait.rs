//! Waiting until a condition holds.

use std::time::{Duration, Instant};

/// Calls `attempt` every 20 ms until it gives a result; `None` when it gave none within `seconds`.
pub fn wait_for<T>(seconds: f64, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        if let Some(result) = attempt() {
            return Some(result);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
