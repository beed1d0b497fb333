//! When a Sample is due while Samples follow events: seldom while nothing happens, at once when a watched signal leaves its
//! usual range, and often while that lasts or the controller asks for it.
//!
//! Each Sample costs the web server time, most where it has none left. So a token bucket bounds the Samples of events:
//! it holds `BURST` tokens and gains one each `lasting_ns`, whether one long event takes them or many short ones. After
//! `YOUNG_NS` of an event what was to be found is found, and each Sample makes requests wait longer: of a server with
//! requests they come once a second then, until something else begins. A server without requests, as one that is
//! drained, has time to spare, and its Samples go on.
//!
//! The usual range is learnt: it reaches to `USUAL_FACTOR` times the median of the highest values of the last minute's
//! seconds. So one spike teaches nothing, and a change that lasts for half a minute has become usual.

use crate::usual_range::{ENDS_AFTER_NS, Outside, UsualRange};

/// Signals that are looked at between Samples; they cost no more reads than the Samples' own.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Watch {
    /// Age of the oldest request whose response has not begun.
    pub oldest_unanswered_ms: Option<f64>,
    /// Requests whose response has not ended.
    pub in_flight: Option<f64>,
    /// The longest time since the last Sample for which the machine did not run.
    pub gap_ms: Option<f64>,
    /// The longest wait in the machine's own run queue since the last Sample.
    pub queued_ms: Option<f64>,
}

const SIGNALS: usize = 4;
/// The first ones of these tell of requests that wait.
const REQUESTS: usize = 2;
/// Below these values (in the order of the fields) nothing counts as an event, however quiet it was before.
const FLOORS: [f64; SIGNALS] = [20.0, 4.0, 2.0, 2.0];
const SECOND_NS: u64 = 1_000_000_000;
/// Of a server with requests Samples are frequent for this time after requests begin to wait, and after gaps or waits in
/// the run queue begin.
const YOUNG_NS: u64 = 2 * SECOND_NS;
/// Samples that the bucket holds: one at each look in an event's first 0.6 s.
const BURST: u64 = 12;

impl Watch {
    fn values(&self) -> [Option<f64>; SIGNALS] {
        [self.oldest_unanswered_ms, self.in_flight, self.gap_ms, self.queued_ms]
    }
}

/// Decides when a Sample is due.
#[derive(Debug)]
pub struct Pace {
    quiet_ns: u64,
    event_ns: u64,
    lasting_ns: u64,
    usual: [UsualRange; SIGNALS],
    limits: [f64; SIGNALS],
    second_ends_ns: u64,
    sent_ns: u64,
    /// When the next Sample is due at the latest, as was said with the last one.
    promised_ns: u64,
    /// The bucket's content after the last Sample; each Sample takes `lasting_ns` of it.
    saved_ns: u64,
    /// The event, while it lasts: the time in which requests wait, and the time of gaps and waits in the run queue.
    requests: Option<Outside>,
    machine: Option<Outside>,
    /// When it last had a request in flight, if it is known.
    served_ns: Option<u64>,
    /// Until when the controller asks for Samples as often as in an event.
    asked_until_ns: u64,
}

impl Pace {
    /// Samples are `quiet_ns` apart. In an event they are `event_ns` apart while the bucket lasts and then
    /// `lasting_ns`, but no more than `quiet_ns`.
    pub fn new(now_ns: u64, quiet_ns: u64, event_ns: u64, lasting_ns: u64) -> Pace {
        let lasting_ns = lasting_ns.clamp(event_ns, quiet_ns);
        Pace {
            quiet_ns,
            event_ns,
            lasting_ns,
            saved_ns: BURST * lasting_ns,
            usual: std::array::from_fn(|_| UsualRange::default()),
            limits: [f64::INFINITY; SIGNALS],
            second_ends_ns: now_ns + SECOND_NS,
            sent_ns: now_ns,
            promised_ns: u64::MAX,
            requests: None,
            machine: None,
            served_ns: None,
            asked_until_ns: 0,
        }
    }

    /// Makes Samples as frequent as in an event until then, because the controller asks for it.
    pub fn ask(&mut self, until_ns: u64) {
        self.asked_until_ns = until_ns;
    }

    /// Takes in the signals' values and returns whether a Sample is to be sent now.
    pub fn look(&mut self, now_ns: u64, watch: &Watch) -> bool {
        let values = watch.values();
        let outside: [bool; SIGNALS] =
            std::array::from_fn(|signal| values[signal].is_some_and(|value| value > self.limits[signal]));
        self.learn(now_ns, values);
        self.requests = Outside::after(self.requests, now_ns, outside[..REQUESTS].contains(&true));
        self.machine = Outside::after(self.machine, now_ns, outside[REQUESTS..].contains(&true));
        if watch.in_flight.is_some_and(|in_flight| in_flight > 0.0) {
            self.served_ns = Some(now_ns);
        }
        // Looks come a little before or after their time.
        let is_due = now_ns.max(self.sent_ns) + self.event_ns / 4 >= self.due_ns(now_ns);
        if is_due {
            let filled_ns = self.saved_ns + now_ns.saturating_sub(self.sent_ns);
            self.saved_ns = filled_ns.min(BURST * self.lasting_ns).saturating_sub(self.lasting_ns);
            self.sent_ns = now_ns;
            self.promised_ns = now_ns + self.next_within_ns(now_ns);
        }
        is_due
    }

    /// When to look again after a look at `now_ns`, so that no Sample comes later than it was promised. `rings`: whatever
    /// leaves its range wakes the loop by itself, so while nothing happens it need not look before the next Sample.
    pub fn look_again_ns(&self, now_ns: u64, rings: bool) -> u64 {
        let due_ns = self.due_ns(now_ns);
        if due_ns <= now_ns {
            // A Sample that is due already goes out with this look.
            now_ns + if rings && self.is_quiet(now_ns) { self.quiet_ns } else { self.event_ns }
        } else if rings && self.is_quiet(now_ns) {
            due_ns
        } else {
            due_ns.min(now_ns + self.event_ns)
        }
    }

    /// Whether nothing happens and nobody asks for more Samples.
    pub fn is_quiet(&self, now_ns: u64) -> bool {
        !self.is_event() && now_ns >= self.asked_until_ns
    }

    /// The longest gap and the longest wait in the run queue that are usual, in ms; infinite where that is not known.
    pub fn longest_usual_ms(&self) -> (f64, f64) {
        let [.., gap_ms, queued_ms] = self.limits;
        (gap_ms, queued_ms)
    }

    /// The longest time from the Sample that the last look sent to the next one, unless the machine does not run.
    pub fn next_within_s(&self) -> f64 {
        self.promised_ns.saturating_sub(self.sent_ns) as f64 / 1e9
    }

    fn next_within_ns(&self, now_ns: u64) -> u64 {
        let between_ns = self.between_ns(now_ns, true).next_multiple_of(self.event_ns);
        let next_ns = now_ns + between_ns;
        let goes_on = self.event().any(|outside| next_ns.saturating_sub(outside.last_ns) < ENDS_AFTER_NS);
        if goes_on || next_ns < self.asked_until_ns { between_ns } else { self.quiet_ns }
    }

    /// When the next Sample is due: what happens after the last one may bring it forward, and never delays it.
    fn due_ns(&self, now_ns: u64) -> u64 {
        self.promised_ns.min(self.sent_ns + self.between_ns(now_ns, self.is_event()))
    }

    fn event(&self) -> impl Iterator<Item = Outside> {
        self.requests.into_iter().chain(self.machine)
    }

    fn is_event(&self) -> bool {
        self.event().next().is_some()
    }

    /// The time from the last Sample to the next.
    fn between_ns(&self, now_ns: u64, is_event: bool) -> u64 {
        let is_young = self.event().any(|outside| self.sent_ns < outside.since_ns + YOUNG_NS);
        let has_requests = self.served_ns.is_some_and(|served_ns| self.sent_ns < served_ns + ENDS_AFTER_NS);
        if now_ns < self.asked_until_ns {
            self.event_ns
        } else if is_event && (is_young || !has_requests) {
            self.lasting_ns.saturating_sub(self.saved_ns).max(self.event_ns)
        } else if is_event {
            SECOND_NS.clamp(self.lasting_ns, self.quiet_ns)
        } else {
            self.quiet_ns
        }
    }

    fn learn(&mut self, now_ns: u64, values: [Option<f64>; SIGNALS]) {
        for (usual, value) in self.usual.iter_mut().zip(values) {
            // `max` leaves NaN out.
            usual.highest = value.map(|value| value.max(usual.highest.unwrap_or(0.0))).or(usual.highest);
        }
        if now_ns < self.second_ends_ns {
            return;
        }
        self.second_ends_ns = now_ns + SECOND_NS;
        for ((usual, limit), floor) in self.usual.iter_mut().zip(&mut self.limits).zip(FLOORS) {
            usual.end_second();
            *limit = usual.limit(floor);
        }
    }
}

#[cfg(test)]
mod tests;
