//! The capture on the node's interface. It follows only a sample of the connections when all would cost too much.

use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Duration;

use slackwater_messages::AbsenceCause;
use slackwater_sniffer::{CaptureError, CpuBudget, Live, LiveSettings, Period, Tracker, TrackerSettings};

use crate::probe::Stopwatch;
use crate::reason::Reason;

/// Time between two comparisons of the sniffer's CPU time with its budget.
const LOOK_NS: u64 = 1_000_000_000;
/// Shortest time between two drains, so that a flood of packets does not become a flood of wake-ups.
const SHORTEST: Duration = Duration::from_millis(10);
/// Longest time between two drains, which bounds how late a packet is read.
const LONGEST: Duration = Duration::from_millis(40);
/// Time without a packet or an open request after which the next packet tells of itself. Packets that come more often
/// than this would wake the monitor more often than the drains do.
const IDLE_AFTER_NS: u64 = 200_000_000;
/// The part of the ring that may fill between two drains, at the present rate of packets.
const PART_OF_RING: f64 = 0.25;
/// Bytes of the ring that a packet takes in addition to its own.
const PACKET_HEAD: usize = 96;

/// A capture that keeps to a budget of CPU time.
pub struct Capture {
    live: Live,
    /// Follows the connections.
    pub tracker: Tracker,
    budget: CpuBudget,
    /// CPU time since the last look at the budget, and since the last period.
    looked_cpu_ns: u64,
    period_cpu_ns: u64,
    looked_ns: u64,
    drops: u64,
    /// Packets arrived since the drops were last read; an empty ring drops none.
    is_used: bool,
    ring_bytes: f64,
    drained_ns: u64,
    drain_within: Duration,
    /// When the last drain was that brought packets, or after which a request waited for its answer.
    used_ns: u64,
}

impl Capture {
    /// Opens the capture; the sniffer may take `max_cpu_share` of a core.
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
        Ok(Capture {
            live,
            tracker: Tracker::new(tracker),
            budget: CpuBudget::new(max_cpu_share),
            looked_cpu_ns: 0,
            period_cpu_ns: 0,
            looked_ns: now_ns,
            drops: 0,
            is_used: true,
            ring_bytes: f64::from(settings.buffer_mib) * f64::from(1 << 20),
            drained_ns: now_ns,
            drain_within: SHORTEST,
            used_ns: now_ns,
        })
    }

    /// Takes the packets in the ring, and adapts the share of the connections to the budget.
    ///
    /// # Errors
    /// When the capture ended.
    pub fn drain(&mut self, now_ns: u64) -> Result<(), CaptureError> {
        let stopwatch = Stopwatch::start();
        let (tracker, mut bytes) = (&mut self.tracker, 0);
        self.live.drain_each(|packet| {
            bytes += packet.bytes.len() + PACKET_HEAD;
            tracker.packet(packet);
        })?;
        self.is_used |= bytes > 0;
        if bytes > 0 || self.tracker.in_flight() > 0 {
            self.used_ns = now_ns;
        }
        let since = Duration::from_nanos(now_ns.saturating_sub(std::mem::replace(&mut self.drained_ns, now_ns)));
        self.drain_within = drain_within(since, bytes as f64 / self.ring_bytes);
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

    /// The time within which to drain again: the more packets the last drain brought, the sooner.
    pub fn drain_within(&self) -> Duration {
        self.drain_within
    }

    /// While nothing comes: what becomes readable with the next packet, so that nobody need look for one.
    pub fn next_packet(&self) -> Option<RawFd> {
        let is_idle = self.drained_ns.saturating_sub(self.used_ns) >= IDLE_AFTER_NS;
        is_idle.then(|| self.live.as_raw_fd())
    }

    /// The figures since the last call.
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

/// The time in which `PART_OF_RING` fills, when `filled` (a part of the ring) arrived in the time `since`.
fn drain_within(since: Duration, filled: f64) -> Duration {
    let fills_in_s = since.as_secs_f64() * PART_OF_RING / filled.max(f64::MIN_POSITIVE);
    Duration::from_secs_f64(fills_in_s.clamp(SHORTEST.as_secs_f64(), LONGEST.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_packets_come_the_sooner_the_ring_is_drained_again() {
        let after_ms = |since_ms, filled| drain_within(Duration::from_millis(since_ms), filled).as_millis();
        assert_eq!([0.0, 0.01, 0.25].map(|filled| after_ms(40, filled)), [40, 40, 40]);
        assert_eq!([0.5, 1.0].map(|filled| after_ms(40, filled)), [20, 10]);
        assert_eq!(after_ms(10, 0.9), 10, "a flood of packets does not become a flood of wake-ups");
        assert_eq!([0.0, 0.1].map(|filled| after_ms(0, filled)), [10, 10], "two drains at once show no rate");
    }
}
