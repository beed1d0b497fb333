//! The capture on the node's interface, which looks at fewer connections where all would cost too much.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use slackwater_messages::AbsenceCause;
use slackwater_sniffer::{CaptureError, CpuBudget, Live, LiveSettings, Period, Tracker, TrackerSettings};

use crate::probe::Stopwatch;
use crate::reason::Reason;

/// Between two looks at what the sniffer takes of its budget.
const LOOK_NS: u64 = 1_000_000_000;

/// A capture that keeps to a budget of CPU time.
pub struct Capture {
    live: Live,
    /// What is known of the packets so far.
    pub tracker: Tracker,
    budget: CpuBudget,
    /// CPU time since the last look at the budget, and since the last period.
    looked_cpu_ns: u64,
    period_cpu_ns: u64,
    looked_ns: u64,
    drops: u64,
    /// Packets came since the drops were read: a ring that stays empty drops none.
    is_used: bool,
    /// Readable when packets wait. A descriptor of its own, since who waits for it may look later than the capture ends.
    pub readable: Rc<OwnedFd>,
}

impl Capture {
    /// Opens it; the sniffer may take `max_cpu_share` of a core.
    ///
    /// # Errors
    /// Why there is no capture.
    pub fn open(
        settings: &LiveSettings,
        tracker: TrackerSettings,
        max_cpu_share: f64,
        now_ns: u64,
    ) -> Result<Capture, Reason> {
        let live = Live::open(settings).map_err(|error| Reason {
            cause: error.lacks_capability().then_some(AbsenceCause::LacksCapability),
            text: error.to_string(),
        })?;
        // SAFETY: the descriptor stays open as long as `live`, which outlives this borrow.
        let readable = unsafe { BorrowedFd::borrow_raw(live.as_raw_fd()) }.try_clone_to_owned();
        let readable = readable.map_err(|error: io::Error| error.to_string())?;
        Ok(Capture {
            live,
            tracker: Tracker::new(tracker),
            budget: CpuBudget::new(max_cpu_share),
            looked_cpu_ns: 0,
            period_cpu_ns: 0,
            looked_ns: now_ns,
            drops: 0,
            is_used: true,
            readable: Rc::new(readable),
        })
    }

    /// Takes what waits in the ring, and from now on no larger share of the connections than the budget allows.
    ///
    /// # Errors
    /// When the capture ended.
    pub fn drain(&mut self, now_ns: u64) -> Result<(), CaptureError> {
        let stopwatch = Stopwatch::start();
        self.is_used |= self.live.drain(&mut self.tracker)? > 0;
        self.spend(stopwatch);
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns);
        if elapsed_ns < LOOK_NS {
            return Ok(());
        }
        let cpu_share = std::mem::take(&mut self.looked_cpu_ns) as f64 / elapsed_ns as f64;
        self.looked_ns = now_ns;
        let share = self.budget.look(cpu_share, self.tracker.take_connections());
        if share == self.tracker.share() { Ok(()) } else { self.live.sample(&mut self.tracker, share) }
    }

    /// What ended since the last call.
    pub fn take_period(&mut self, wall_ns: u64) -> Period {
        let stopwatch = Stopwatch::start();
        let period = self.tracker.take_period(wall_ns);
        self.spend(stopwatch);
        period
    }

    /// CPU time that the sniffer took since the last call, in seconds.
    pub fn take_cpu_s(&mut self) -> f64 {
        std::mem::take(&mut self.period_cpu_ns) as f64 / 1e9
    }

    /// Packets dropped since the last call.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn take_drops(&mut self) -> Result<u64, Reason> {
        if !std::mem::take(&mut self.is_used) {
            return Ok(0);
        }
        let total = self.live.drops().map_err(|error| error.to_string())?;
        Ok(total.saturating_sub(std::mem::replace(&mut self.drops, total)))
    }

    fn spend(&mut self, stopwatch: Stopwatch) {
        let cpu_ns = stopwatch.spent().cpu_ns;
        self.looked_cpu_ns += cpu_ns;
        self.period_cpu_ns += cpu_ns;
    }
}
