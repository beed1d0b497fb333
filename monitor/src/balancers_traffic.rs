//! A node's traffic as the balancer's host sees it. While the controller sends it, this node need not capture packets.
//!
//! It counts for its lease alone. And it takes the capture's place only where the capture sees no more requests: those
//! of another balancer, or of clients that ask this server directly, are in no packet of the balancer's host.

use slackwater_messages::{Sample, Traffic};

use crate::absence::{absent, put};
use crate::pace::Watch;

/// The longest time for which the controller is believed to tell of the traffic without saying so again.
const LONGEST_LEASE_S: f64 = 60.0;
/// Requests that decide whether both see the same.
const REQUESTS: f64 = 100.0;
/// Shortest time in which they are counted: both count up to a look of different moments.
const COMPARED_NS: u64 = 3_000_000_000;
/// Time after which the capture is opened again, to compare anew.
const AGAIN_NS: u64 = 300_000_000_000;
/// The part of the requests that the capture may see in addition.
const MOST_OFF: f64 = 0.1;
/// Time told of for each second that passed, above which two controllers tell of this node.
const ONE_TELLS: f64 = 1.5;
/// Why the capture's own figures are absent meanwhile.
pub const NO_CAPTURE_NEEDED: &str = "the balancer's host tells of the requests, so nothing is captured here";

/// What was told, summed up over some time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Told {
    period_s: f64,
    exchanges: f64,
    errors: f64,
    unmatched: u64,
    /// Sums over the exchanges of the mean, p50, p95 and p99 of each look, in ms.
    times_ms: [f64; 4],
    /// Exchanges whose times are known.
    timed: f64,
}

impl Told {
    fn of(traffic: &Traffic, period_s: f64) -> Told {
        let count = |rate: Option<f64>| rate.unwrap_or(0.0) * period_s;
        let exchanges = count(traffic.rps);
        let times_ms = [traffic.rt_mean_ms, traffic.rt_p50_ms, traffic.rt_p95_ms, traffic.rt_p99_ms];
        let known = times_ms.iter().all(Option::is_some);
        Told {
            period_s,
            exchanges,
            errors: count(traffic.errors_per_s),
            unmatched: traffic.unmatched.unwrap_or(0),
            times_ms: times_ms.map(|ms| if known { ms.unwrap_or(0.0) * exchanges } else { 0.0 }),
            timed: if known { exchanges } else { 0.0 },
        }
    }

    fn add(&mut self, other: &Told) {
        self.period_s += other.period_s;
        self.exchanges += other.exchanges;
        self.errors += other.errors;
        self.unmatched += other.unmatched;
        self.timed += other.timed;
        for (sum, ms) in self.times_ms.iter_mut().zip(other.times_ms) {
            *sum += ms;
        }
    }
}

/// The requests that both counted since some moment.
#[derive(Debug, Clone, Copy, Default)]
struct Comparison {
    begun_ns: u64,
    told: f64,
    told_s: f64,
    captured: f64,
}

/// The traffic that the controller tells of.
#[derive(Debug, Default)]
pub struct BalancersTraffic {
    ends_ns: u64,
    in_flight: Option<u64>,
    oldest_unanswered_ms: Option<f64>,
    /// The newest look, and all looks since the last Sample.
    newest: Told,
    since_sample: Told,
    comparison: Option<Comparison>,
    /// The capture sees no more than this.
    is_whole: bool,
    compared_again_ns: u64,
}

impl BalancersTraffic {
    /// Takes in a look of the balancer's host, which covered `period_s` and counts for `lease_s`. One that makes no sense
    /// is ignored.
    pub fn hear(&mut self, traffic: &Traffic, period_s: f64, lease_s: f64, now_ns: u64) {
        let is_time = |s: f64| s.is_finite() && s > 0.0;
        if !is_time(period_s) || !is_time(lease_s) || traffic.rps.is_none() {
            return;
        }
        if !self.is_told(now_ns) {
            *self = BalancersTraffic::default();
        }
        self.ends_ns = now_ns.saturating_add((lease_s.min(LONGEST_LEASE_S) * 1e9) as u64);
        (self.in_flight, self.oldest_unanswered_ms) = (traffic.in_flight, traffic.oldest_unanswered_ms);
        self.newest = Told::of(traffic, period_s);
        self.since_sample.add(&self.newest);
    }

    /// Whether the controller tells of the traffic now.
    pub fn is_told(&self, now_ns: u64) -> bool {
        now_ns < self.ends_ns
    }

    /// Whether it stands in the capture's place.
    pub fn stands_in(&self, now_ns: u64) -> bool {
        self.is_told(now_ns) && self.is_whole
    }

    /// Whether the capture is needed: in its own right, or to compare anew.
    pub fn needs_capture(&self, now_ns: u64) -> bool {
        !self.stands_in(now_ns) || now_ns >= self.compared_again_ns
    }

    /// Compares with the exchanges that the capture saw since the last Sample; None: it can see none. Called once for each
    /// Sample while the capture is open, before `section`.
    pub fn compare(&mut self, captured: Option<u64>, now_ns: u64) {
        let Some(captured) = captured else {
            (self.is_whole, self.comparison) = (true, None);
            self.compared_again_ns = now_ns.saturating_add(AGAIN_NS);
            return;
        };
        // The Sample in which it begins was told of in part only.
        let Some(comparison) = &mut self.comparison else {
            self.comparison = Some(Comparison { begun_ns: now_ns, ..Comparison::default() });
            return;
        };
        comparison.told += self.since_sample.exchanges;
        comparison.told_s += self.since_sample.period_s;
        comparison.captured += captured as f64;
        let Comparison { begun_ns, told, told_s, captured } = *comparison;
        let elapsed_ns = now_ns.saturating_sub(begun_ns);
        if told.max(captured) < REQUESTS || elapsed_ns < COMPARED_NS {
            return;
        }
        self.is_whole = captured <= told * (1.0 + MOST_OFF) && told_s <= ONE_TELLS * elapsed_ns as f64 / 1e9;
        self.comparison = None;
        if self.is_whole {
            self.compared_again_ns = now_ns.saturating_add(AGAIN_NS);
        }
    }

    /// Fills in the signals that are looked at between Samples.
    pub fn watch(&self, watch: &mut Watch) {
        watch.oldest_unanswered_ms = self.oldest_unanswered_ms;
        watch.in_flight = self.in_flight.map(|count| count as f64);
    }

    /// Ends the period of a Sample that is made of the capture.
    pub fn leave_out(&mut self) {
        self.since_sample = Told::default();
    }

    /// The section of a Sample: of all looks since the last one, or where none has ended the newest look's rates again.
    pub fn section(&mut self, sample: &mut Sample) -> Traffic {
        let told = std::mem::take(&mut self.since_sample);
        let unmatched = told.unmatched;
        let told = if told.period_s > 0.0 { told } else { self.newest };
        let mut traffic = Traffic {
            rps: Some(told.exchanges / told.period_s),
            errors_per_s: Some(told.errors / told.period_s),
            in_flight: self.in_flight,
            oldest_unanswered_ms: self.oldest_unanswered_ms,
            unmatched: Some(unmatched),
            sampled_share: Some(1.0),
            rps_error: Some(0.0),
            cpu_share: Some(0.0),
            ..Traffic::default()
        };
        let reason = "no exchange ended in this period";
        let [mean, p50, p95, p99] =
            told.times_ms.map(|sum| if told.timed > 0.0 { Ok(sum / told.timed) } else { Err(reason) });
        put!(sample, traffic.rt_mean_ms, mean);
        put!(sample, traffic.rt_p50_ms, p50);
        put!(sample, traffic.rt_p95_ms, p95);
        put!(sample, traffic.rt_p99_ms, p99);
        for name in ["traffic.drops", "traffic.holes"] {
            absent(sample, name, NO_CAPTURE_NEEDED);
        }
        traffic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn look(rps: f64, ms: f64) -> Traffic {
        Traffic {
            rps: Some(rps),
            rt_mean_ms: Some(ms),
            rt_p50_ms: Some(ms),
            rt_p95_ms: Some(2.0 * ms),
            rt_p99_ms: Some(3.0 * ms),
            in_flight: Some(3),
            oldest_unanswered_ms: Some(7.0),
            ..Traffic::default()
        }
    }

    /// Five looks a second at `told_rps`, and a Sample a second for which the capture saw `captured_rps`.
    fn play(traffic: &mut BalancersTraffic, seconds: std::ops::Range<u64>, told_rps: f64, captured_rps: u64) {
        for second in seconds {
            for part in 1..=5 {
                traffic.hear(&look(told_rps, 2.0), 0.2, 3.0, second * S + part * S / 5);
            }
            let now_ns = (second + 1) * S;
            if traffic.needs_capture(now_ns) {
                traffic.compare(Some(captured_rps), now_ns);
            }
            traffic.leave_out();
        }
    }

    #[test]
    fn it_stands_in_once_the_capture_saw_as_many_requests_and_only_for_its_lease() {
        let mut traffic = BalancersTraffic::default();
        assert!(traffic.needs_capture(0) && !traffic.is_told(0), "nobody has told anything");
        play(&mut traffic, 0..2, 100.0, 100);
        assert!(traffic.is_told(2 * S) && !traffic.stands_in(2 * S), "not compared long enough");
        play(&mut traffic, 2..6, 100.0, 100);
        assert!(traffic.stands_in(6 * S) && !traffic.needs_capture(6 * S));
        assert!(!traffic.stands_in(9 * S) && traffic.needs_capture(9 * S), "the lease is over");
        play(&mut traffic, 20..21, 100.0, 100);
        assert!(traffic.needs_capture(21 * S), "it is compared anew");
    }

    #[test]
    fn requests_that_the_balancer_does_not_see_keep_the_capture() {
        for (told, captured, stands_in) in [(100.0, 109, true), (100.0, 120, false), (100.0, 0, true), (0.0, 50, false)]
        {
            let mut traffic = BalancersTraffic::default();
            play(&mut traffic, 0..8, told, captured);
            assert_eq!(traffic.stands_in(8 * S), stands_in, "{told} told, {captured} captured");
        }
        let mut traffic = BalancersTraffic::default();
        play(&mut traffic, 0..8, 2.0, 2);
        assert!(traffic.needs_capture(8 * S), "too few requests to say");
        play(&mut traffic, 8..60, 2.0, 2);
        assert!(traffic.stands_in(60 * S));
    }

    #[test]
    fn it_is_compared_anew_now_and_then_and_stands_in_meanwhile() {
        let mut traffic = BalancersTraffic::default();
        play(&mut traffic, 0..300, 100.0, 100);
        assert!(!traffic.needs_capture(300 * S));
        play(&mut traffic, 300..305, 100.0, 100);
        assert!(traffic.needs_capture(305 * S) && traffic.stands_in(305 * S));
        let mut other = BalancersTraffic::default();
        play(&mut other, 0..305, 100.0, 100);
        play(&mut traffic, 305..310, 100.0, 100);
        assert!(!traffic.needs_capture(310 * S));
        play(&mut other, 305..310, 100.0, 300);
        assert!(!other.stands_in(310 * S), "clients ask the server directly now");
    }

    #[test]
    fn of_two_controllers_that_tell_of_the_same_node_none_is_believed() {
        let mut traffic = BalancersTraffic::default();
        for second in 0..10 {
            for part in 1..=5 {
                for _ in 0..2 {
                    traffic.hear(&look(50.0, 2.0), 0.2, 3.0, second * S + part * S / 5);
                }
            }
            traffic.compare(Some(100), (second + 1) * S);
            traffic.leave_out();
        }
        assert!(!traffic.stands_in(10 * S));
    }

    #[test]
    fn where_the_capture_can_see_nothing_there_is_nothing_to_compare() {
        let mut traffic = BalancersTraffic::default();
        traffic.hear(&look(10.0, 2.0), 0.2, 3.0, S);
        traffic.compare(None, S);
        assert!(traffic.stands_in(S) && !traffic.needs_capture(S));
    }

    #[test]
    fn a_sample_has_all_looks_since_the_last_one_or_the_newest_rates_again() {
        let mut traffic = BalancersTraffic::default();
        traffic.hear(&look(100.0, 2.0), 0.2, 3.0, S);
        traffic.hear(&Traffic { errors_per_s: Some(5.0), unmatched: Some(1), ..look(300.0, 6.0) }, 0.2, 3.0, S);
        let mut sample = Sample::default();
        let section = traffic.section(&mut sample);
        let close = |value: Option<f64>, expected: f64| value.is_some_and(|value| (value - expected).abs() < 1e-9);
        assert!(close(section.rps, 200.0) && close(section.errors_per_s, 2.5), "{section:?}");
        assert!(close(section.rt_mean_ms, 5.0) && close(section.rt_p95_ms, 10.0), "weighted by requests: {section:?}");
        assert_eq!((section.in_flight, section.oldest_unanswered_ms, section.unmatched), (Some(3), Some(7.0), Some(1)));
        assert_eq!(sample.absent["traffic.holes"], NO_CAPTURE_NEEDED);
        let again = traffic.section(&mut sample);
        assert!(close(again.rps, 300.0) && close(again.rt_mean_ms, 6.0) && again.unmatched == Some(0), "{again:?}");
        traffic.hear(&Traffic { rps: Some(0.0), ..Traffic::default() }, 1.0, 3.0, 2 * S);
        let idle = traffic.section(&mut sample);
        assert_eq!((idle.rps, idle.rt_mean_ms), (Some(0.0), None));
        assert_eq!(sample.absent["traffic.rt_mean_ms"], "no exchange ended in this period");
    }

    #[test]
    fn what_makes_no_sense_is_ignored_and_a_lease_without_end_is_cut() {
        let mut traffic = BalancersTraffic::default();
        for (period_s, lease_s) in [(0.0, 3.0), (-1.0, 3.0), (f64::NAN, 3.0), (0.2, 0.0), (0.2, f64::NAN)] {
            traffic.hear(&look(1.0, 1.0), period_s, lease_s, S);
            assert!(!traffic.is_told(S), "{period_s} {lease_s}");
        }
        traffic.hear(&Traffic::default(), 0.2, 3.0, S);
        assert!(!traffic.is_told(S), "no rate");
        traffic.hear(&look(1.0, 1.0), 0.2, 1e300, S);
        assert!(traffic.is_told(60 * S) && !traffic.is_told(61 * S));
    }
}
