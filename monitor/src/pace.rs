//! When a Sample is due while Samples follow events: seldom while nothing happens, at once when a watched signal leaves its
//! usual range, and often while that lasts or the controller asks for it.
//!
//! Each Sample costs the web server time, most where it has none left. So a token bucket bounds the Samples of events:
//! it holds `BURST` tokens and gains one each `lasting_ns`, whether one long event takes them or many short ones. After
//! `YOUNG_NS` of an event what was to be found is found, and each Sample makes requests wait longer: of a server with
//! requests they come each `quiet_ns` again, until something else begins. A server without requests, as one that is
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
        let after_ns = self.between_ns(now_ns, self.is_event());
        // Looks come a little before or after their time.
        let is_due = now_ns.saturating_sub(self.sent_ns) + self.event_ns / 4 >= after_ns;
        if is_due {
            let filled_ns = self.saved_ns + now_ns.saturating_sub(self.sent_ns);
            self.saved_ns = filled_ns.min(BURST * self.lasting_ns).saturating_sub(self.lasting_ns);
            self.sent_ns = now_ns;
        }
        is_due
    }

    /// When to look again after a look at `now_ns`, so that no Sample comes later than it was promised. `rings`: whatever
    /// leaves its range wakes the loop by itself, so while nothing happens it need not look before the next Sample.
    pub fn look_again_ns(&self, now_ns: u64, rings: bool) -> u64 {
        let due_ns = self.sent_ns + self.between_ns(now_ns, self.is_event());
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

    /// The longest time from a Sample that was sent at `now_ns` to the next one, unless the machine does not run.
    pub fn next_within_s(&self, now_ns: u64) -> f64 {
        let between_ns = self.between_ns(now_ns, true).next_multiple_of(self.event_ns);
        let next_ns = now_ns + between_ns;
        let goes_on = self.event().any(|outside| next_ns.saturating_sub(outside.last_ns) < ENDS_AFTER_NS);
        (if goes_on || next_ns < self.asked_until_ns { between_ns } else { self.quiet_ns }) as f64 / 1e9
    }

    fn event(&self) -> impl Iterator<Item = Outside> {
        self.requests.into_iter().chain(self.machine)
    }

    fn is_event(&self) -> bool {
        self.event().next().is_some()
    }

    /// The time from one Sample to the next. What was promised with the last one holds, so its own time counts.
    fn between_ns(&self, now_ns: u64, is_event: bool) -> u64 {
        let is_young = self.event().any(|outside| self.sent_ns < outside.since_ns + YOUNG_NS);
        let has_requests = self.served_ns.is_some_and(|served_ns| self.sent_ns < served_ns + ENDS_AFTER_NS);
        if now_ns < self.asked_until_ns {
            self.event_ns
        } else if is_event && (is_young || !has_requests) {
            self.lasting_ns.saturating_sub(self.saved_ns).max(self.event_ns)
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
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn unanswered(ms: f64) -> Watch {
        Watch { oldest_unanswered_ms: Some(ms), ..Watch::default() }
    }

    /// Looks every 50 ms from one time to another (in seconds) and returns when Samples were sent, in milliseconds.
    fn sent_ms(pace: &mut Pace, from_s: f64, to_s: f64, watch: &Watch) -> Vec<u64> {
        let looks = (from_s * 20.0).round() as u64..(to_s * 20.0).round() as u64;
        looks.map(|look| look * 50).filter(|ms| pace.look(ms * MS, watch)).collect()
    }

    fn gap(ms: f64) -> Watch {
        Watch { oldest_unanswered_ms: Some(0.0), gap_ms: Some(ms), ..Watch::default() }
    }

    fn pace() -> Pace {
        Pace::new(0, 1000 * MS, 50 * MS, 200 * MS)
    }

    #[test]
    fn a_quiet_node_sends_one_sample_a_second() {
        let mut pace = pace();
        let sent = sent_ms(&mut pace, 0.0, 30.0, &unanswered(15.0));
        assert_eq!(sent, (1..30).map(|s| s * 1000).collect::<Vec<_>>());
    }

    #[test]
    fn what_leaves_its_range_is_sent_at_once_then_at_each_look_until_it_is_over() {
        let mut pace = pace();
        sent_ms(&mut pace, 0.0, 20.0, &unanswered(15.0));
        assert_eq!(sent_ms(&mut pace, 20.0, 20.3, &unanswered(15.0)), [20_000]);
        assert_eq!(sent_ms(&mut pace, 20.3, 20.5, &unanswered(31.0)), [20_300, 20_350, 20_400, 20_450]);
        // Half a second after the last value outside it is over; the second goes on from the last Sample.
        let after = sent_ms(&mut pace, 20.5, 23.0, &unanswered(15.0));
        let often: Vec<u64> = (0..9).map(|look| 20_500 + look * 50).collect();
        assert_eq!(after, [&often[..], &[21_900, 22_900]].concat());
    }

    #[test]
    fn a_long_event_and_many_short_ones_have_a_burst_of_samples_and_then_one_each_200_ms() {
        let mut pace = pace();
        sent_ms(&mut pace, 0.0, 20.0, &gap(1.0));
        assert_eq!(sent_ms(&mut pace, 20.0, 20.75, &gap(9.0)).len(), 15, "one at each look");
        sent_ms(&mut pace, 20.75, 22.0, &gap(9.0));
        assert_eq!(sent_ms(&mut pace, 22.0, 32.0, &gap(9.0)).len(), 50, "one each 200 ms");
        sent_ms(&mut pace, 32.0, 36.0, &gap(1.0));
        assert_eq!(sent_ms(&mut pace, 36.0, 36.5, &gap(9.0)).len(), 10, "the bucket is full again");
        sent_ms(&mut pace, 36.5, 40.0, &unanswered(15.0));
        let mut of_short_ones = 0;
        for second in 40..60 {
            let from_s = f64::from(second);
            of_short_ones += sent_ms(&mut pace, from_s, from_s + 0.2, &unanswered(90.0)).len();
            of_short_ones += sent_ms(&mut pace, from_s + 0.2, from_s + 1.0, &unanswered(15.0)).len();
        }
        assert!(of_short_ones <= 12 + 20 * 5, "{of_short_ones}");
    }

    #[test]
    fn a_server_with_requests_sends_few_samples_of_an_event_that_lasts_and_one_without_goes_on() {
        let watch = |gap_ms, in_flight| Watch { in_flight: Some(in_flight), ..gap(gap_ms) };
        let mut pace = pace();
        sent_ms(&mut pace, 0.0, 20.0, &watch(1.0, 1.0));
        assert_eq!(sent_ms(&mut pace, 20.0, 22.05, &watch(9.0, 1.0)).len(), 22, "as of any event");
        let mut sent = Vec::new();
        for second in 22..30 {
            // At many looks there is none in flight, and that is no end.
            let from_s = f64::from(second) + 0.05;
            sent.extend(sent_ms(&mut pace, from_s, from_s + 0.3, &watch(9.0, 0.0)));
            sent.extend(sent_ms(&mut pace, from_s + 0.3, from_s + 1.0, &watch(9.0, 1.0)));
        }
        assert_eq!(sent, (0..8).map(|s| 23_000 + 1000 * s).collect::<Vec<_>>());
        assert_eq!(pace.next_within_s(30_000 * MS), 1.0);
        let waits = Watch { oldest_unanswered_ms: Some(90.0), ..watch(9.0, 1.0) };
        assert_eq!(sent_ms(&mut pace, 30.05, 30.5, &waits).len(), 9, "something else begins");
        // Without requests, as once it is drained.
        sent_ms(&mut pace, 30.5, 33.0, &watch(9.0, 0.0));
        assert_eq!(sent_ms(&mut pace, 33.0, 38.0, &watch(9.0, 0.0)).len(), 25);
    }

    #[test]
    fn the_next_sample_comes_within_the_time_that_was_promised() {
        let mut pace = pace();
        let mut promised_by_ms = f64::INFINITY;
        for look in 0..1000 {
            let ms = look * 50;
            let is_event = (400..410).contains(&look) || look == 600 || (700..790).contains(&look);
            if pace.look(ms * MS, &unanswered(if is_event { 90.0 } else { 15.0 })) {
                assert!(ms as f64 <= promised_by_ms + 1.0, "at {ms} ms, promised by {promised_by_ms}");
                promised_by_ms = ms as f64 + pace.next_within_s(ms * MS) * 1e3;
            }
        }
        assert!(promised_by_ms > 49_000.0, "Samples came until the end");
        assert!(pace.look(50_000 * MS, &unanswered(90.0)), "an event");
        assert_eq!(pace.next_within_s(50_000 * MS), 0.05, "it is believed to go on");
    }

    #[test]
    fn what_is_asked_for_is_sent_at_each_look_until_it_ends() {
        let mut pace = pace();
        sent_ms(&mut pace, 0.0, 20.0, &unanswered(15.0));
        pace.ask(21_000 * MS);
        let asked = sent_ms(&mut pace, 20.5, 23.0, &unanswered(15.0));
        let often: Vec<u64> = (0..10).map(|look| 20_500 + look * 50).collect();
        assert_eq!(asked, [&often[..], &[21_950, 22_950]].concat());
        pace.ask(23_500 * MS);
        assert!(pace.look(23_400 * MS, &unanswered(15.0)));
        assert_eq!((pace.next_within_s(23_400 * MS), pace.next_within_s(23_450 * MS)), (0.05, 1.0));
    }

    #[test]
    fn below_the_floor_and_before_it_has_learnt_nothing_is_unusual() {
        let mut pace = pace();
        assert_eq!(sent_ms(&mut pace, 0.0, 5.0, &unanswered(9000.0)).len(), 4, "nothing is known yet");
        let mut pace = self::pace();
        sent_ms(&mut pace, 0.0, 20.0, &unanswered(0.1));
        assert_eq!(sent_ms(&mut pace, 20.0, 22.0, &unanswered(19.0)).len(), 2, "20 ms are the least");
    }

    #[test]
    fn each_signal_has_its_own_range_and_an_absent_one_none() {
        for outside in [
            Watch { in_flight: Some(5.0), ..Watch::default() },
            Watch { gap_ms: Some(2.5), ..Watch::default() },
            Watch { queued_ms: Some(2.5), ..Watch::default() },
        ] {
            let mut pace = pace();
            let inside = Watch { in_flight: Some(1.0), gap_ms: Some(0.0), queued_ms: Some(0.4), ..Watch::default() };
            sent_ms(&mut pace, 0.0, 20.0, &inside);
            assert_eq!(sent_ms(&mut pace, 20.0, 20.5, &outside).len(), 10, "{outside:?}");
        }
        let mut pace = pace();
        assert_eq!(sent_ms(&mut pace, 0.0, 30.0, &Watch::default()).len(), 29);
        assert_eq!(sent_ms(&mut pace, 30.0, 32.0, &unanswered(f64::NAN)).len(), 2);
    }

    #[test]
    fn one_spike_teaches_nothing_and_what_lasts_becomes_usual() {
        let mut pace = pace();
        sent_ms(&mut pace, 0.0, 30.0, &unanswered(15.0));
        for second in 0..5 {
            let from_s = 30.0 + f64::from(second) * 2.0;
            assert!(sent_ms(&mut pace, from_s, from_s + 0.1, &unanswered(500.0)).len() == 2, "{second}");
            sent_ms(&mut pace, from_s + 0.1, from_s + 2.0, &unanswered(15.0));
        }
        sent_ms(&mut pace, 40.0, 85.0, &unanswered(500.0));
        assert_eq!(sent_ms(&mut pace, 85.0, 90.0, &unanswered(500.0)).len(), 5, "it has become usual");
    }

    #[test]
    fn looks_at_any_time_send_a_sample_when_it_is_due_and_not_before() {
        let mut pace = pace();
        let (mut sent, mut look_ms) = (Vec::new(), 0);
        // Something else wakes it each 46 ms, its own alarm whenever it asks for that.
        for others_ms in (0..10_000).step_by(46) {
            while look_ms <= others_ms {
                if pace.look(look_ms * MS, &unanswered(15.0)) {
                    sent.push(look_ms);
                }
                let again_ms = pace.look_again_ns(look_ms * MS, false) / MS;
                assert!(again_ms > look_ms && again_ms <= look_ms + 50, "{again_ms} after {look_ms}");
                look_ms = again_ms;
            }
            if pace.look(others_ms * MS, &unanswered(15.0)) {
                sent.push(others_ms);
            }
            look_ms = pace.look_again_ns(others_ms * MS, false) / MS;
        }
        let gaps: Vec<u64> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.len() >= 8 && gaps.iter().all(|gap| (987..=1000).contains(gap)), "{gaps:?}");
    }

    #[test]
    fn where_signals_ring_a_quiet_node_looks_with_each_sample_only_and_in_an_event_as_often_as_ever() {
        let mut pace = pace();
        let (mut looks, mut sent, mut look_ms) = (0, Vec::new(), 0);
        while look_ms <= 20_000 {
            looks += 1;
            if pace.look(look_ms * MS, &Watch { gap_ms: Some(1.0), ..Watch::default() }) {
                sent.push(look_ms);
            }
            look_ms = pace.look_again_ns(look_ms * MS, true) / MS;
        }
        assert_eq!(sent, (1..=20).map(|s| s * 1000).collect::<Vec<_>>());
        assert_eq!(looks, 21);
        assert_eq!(pace.longest_usual_ms(), (2.0, f64::INFINITY));
        assert!(pace.look(20_300 * MS, &Watch { gap_ms: Some(2.1), ..Watch::default() }), "it rang");
        assert_eq!(pace.look_again_ns(20_300 * MS, true), 20_350 * MS);
        let mut asked = self::pace();
        asked.ask(9_000 * MS);
        assert_eq!(asked.look_again_ns(0, true), 50 * MS);
    }

    #[test]
    fn looks_that_were_missed_are_not_made_up_for() {
        let mut pace = pace();
        assert!(pace.look(7_300 * MS, &Watch::default()));
        assert!(!pace.look(7_350 * MS, &Watch::default()));
        assert!(!pace.look(7_000 * MS, &Watch::default()), "a clock that went back");
    }
}
