//! The system: roots of the kernel's trees, and the clocks. Tests point the roots at trees of files.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where to look, and what time it is.
#[derive(Clone)]
pub struct System {
    /// Usually `/proc`.
    pub proc: PathBuf,
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
    /// Seconds that only go forward, from an arbitrary start.
    pub monotonic_s: Rc<dyn Fn() -> f64>,
    /// Seconds since 1970: to judge an Order's age, and as a label.
    pub unix_s: Rc<dyn Fn() -> f64>,
}

impl System {
    /// This machine.
    pub fn machine() -> System {
        let start = Instant::now();
        System {
            proc: PathBuf::from("/proc"),
            sys: PathBuf::from("/sys"),
            cgroup: PathBuf::from("/sys/fs/cgroup"),
            monotonic_s: Rc::new(move || start.elapsed().as_secs_f64()),
            unix_s: Rc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()),
        }
    }
}

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

#[cfg(test)]
pub(crate) mod fixture {
    //! A tree of files and a clock that a test moves.

    use std::cell::Cell;
    use std::ops::Deref;
    use std::rc::Rc;

    use slackwater_node::fixture;

    use super::System;

    pub(crate) struct Fixture {
        files: fixture::Fixture,
        now_s: Rc<Cell<f64>>,
    }

    impl Deref for Fixture {
        type Target = fixture::Fixture;

        fn deref(&self) -> &fixture::Fixture {
            &self.files
        }
    }

    impl Fixture {
        pub(crate) fn new(files: &[(&str, &str)]) -> Fixture {
            Fixture { files: fixture::Fixture::new(files), now_s: Rc::new(Cell::new(100.0)) }
        }

        pub(crate) fn advance_s(&self, seconds: f64) {
            self.now_s.set(self.now_s.get() + seconds);
        }

        pub(crate) fn system(&self) -> System {
            let (monotonic, wall) = (self.now_s.clone(), self.now_s.clone());
            System {
                proc: self.path("proc"),
                sys: self.path("sys"),
                cgroup: self.path("cgroup"),
                monotonic_s: Rc::new(move || monotonic.get()),
                unix_s: Rc::new(move || wall.get() + 1_795_000_000.0),
            }
        }
    }
}
