//! Waiting for an answer.

use std::time::{Duration, Instant};

/// Tries every 20 ms until there is an answer; `None` when there was none within `seconds`.
pub fn wait_for<T>(seconds: f64, mut answer: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        if let Some(found) = answer() {
            return Some(found);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
