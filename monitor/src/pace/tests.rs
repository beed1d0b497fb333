use super::*;

const MS: u64 = 1_000_000;

/// Times, each from one look on to before another one.
type Looks = &'static [(u64, u64)];

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
    assert_eq!(pace.next_within_s(), 1.0);
    let waits = Watch { oldest_unanswered_ms: Some(90.0), ..watch(9.0, 1.0) };
    assert_eq!(sent_ms(&mut pace, 30.05, 30.5, &waits).len(), 9, "something else begins");
    // Without requests, as once it is drained.
    sent_ms(&mut pace, 30.5, 33.0, &watch(9.0, 0.0));
    assert_eq!(sent_ms(&mut pace, 33.0, 38.0, &watch(9.0, 0.0)).len(), 25);
}

#[test]
fn the_next_sample_comes_within_the_time_that_was_promised() {
    // Requests begin to wait and cease; gaps go on meanwhile; a request is in flight at some looks; an ask ends.
    let stories: [(Looks, Looks, Looks); 4] = [
        (&[(400, 410), (600, 601), (700, 790)], &[], &[]),
        (&[(610, 611), (700, 790)], &[(400, 900)], &[]),
        (&[], &[(400, 900)], &[(450, 451), (455, 456), (530, 532), (600, 601)]),
        (&[], &[(400, 900)], &[(0, 1000)]),
    ];
    for (waits, gaps, served) in stories {
        let mut pace = pace();
        let mut promised_by_ms = f64::INFINITY;
        for look in 0..1000 {
            let ms = look * 50;
            let during = |times: Looks| times.iter().any(|(begin, end)| (*begin..*end).contains(&look));
            let watch = Watch {
                oldest_unanswered_ms: Some(if during(waits) { 90.0 } else { 15.0 }),
                in_flight: Some(if during(served) { 1.0 } else { 0.0 }),
                gap_ms: Some(if during(gaps) { 9.0 } else { 1.0 }),
                ..Watch::default()
            };
            if look == 600 {
                pace.ask(33_030 * MS);
            }
            if pace.look(ms * MS, &watch) {
                promised_by_ms = ms as f64 + pace.next_within_s() * 1e3;
            } else {
                assert!((ms as f64) < promised_by_ms, "at {ms} ms, promised by {promised_by_ms}: {waits:?} {gaps:?}");
            }
        }
        assert!(pace.look(50_000 * MS, &unanswered(90.0)), "an event");
        assert_eq!(pace.next_within_s(), 0.05, "it is believed to go on");
    }
}

#[test]
fn an_event_that_lasts_has_a_sample_a_second_however_seldom_quiet_samples_are() {
    let watch = |gap_ms| Watch { in_flight: Some(1.0), ..gap(gap_ms) };
    let mut pace = Pace::new(0, 10_000 * MS, 50 * MS, 200 * MS);
    assert_eq!(sent_ms(&mut pace, 0.0, 30.0, &watch(1.0)), [10_000, 20_000]);
    sent_ms(&mut pace, 30.0, 33.0, &watch(9.0));
    assert_eq!(sent_ms(&mut pace, 33.0, 43.0, &watch(9.0)).len(), 10);
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
    assert_eq!(pace.next_within_s(), 0.05);
    assert!(pace.look(23_450 * MS, &unanswered(15.0)));
    assert_eq!(pace.next_within_s(), 1.0);
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
