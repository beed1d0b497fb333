//! Figures of a sample of the connections are those of all connections, within the error of the sample and without bias.

mod support;

use std::path::Path;

use slackwater_sniffer::{Period, Share, Tracker, TrackerSettings, read_file};
use support::traffic::Traffic;
use support::{Frame, START_NS, Talk, packet};

const MS: u64 = 1_000_000;

fn share(weight: u32) -> Share {
    let mut share = Share::ALL;
    while share.weight() < weight {
        share = share.halved();
    }
    share
}

/// The figures of frames and the number of connections looked at, where the share changes at these times.
fn figures(frames: &[Frame], seed: u64, changes: &[(u64, Share)]) -> (Period, u64) {
    let mut tracker = Tracker::new(TrackerSettings { sample_seed: seed, ..TrackerSettings::default() });
    let mut changes = changes.iter().peekable();
    for (number, frame) in frames.iter().enumerate() {
        if let Some((from_ns, share)) = changes.next_if(|(from_ns, _)| *from_ns <= frame.time_ns) {
            tracker.sample(*share, *from_ns);
        }
        tracker.packet(&packet(1, number as u64 + 1, frame));
    }
    let end_ns = frames.last().map_or(0, |frame| frame.time_ns);
    (tracker.take_period(end_ns), tracker.take_connections())
}

/// Mean and standard error of the mean.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

/// Fails where the mean over all seeds is not what it should be.
fn assert_unbiased(values: &[f64], expected: f64, figure: &str) {
    let (mean, error) = mean_and_error(values);
    assert!((mean - expected).abs() <= 4.0 * error + 1e-9 * expected, "{figure}: {mean} +- {error}, not {expected}");
}

/// The figures that a Sample has of a period.
fn known(period: &Period) -> [f64; 4] {
    let mean_ms = period.rt_mean_ms.expect("exchanges");
    [period.exchanges as f64, period.errors as f64, period.exchanges as f64 * mean_ms, mean_ms]
}

const NAMES: [&str; 4] = ["exchanges", "errors", "sum of times", "mean time"];

#[test]
fn at_each_share_the_figures_are_unbiased_and_the_error_is_told() {
    let frames = Traffic { connections: 400, most_requests: 6, opened_within_ms: 500 }.frames(1);
    let (all, connections) = figures(&frames, 0, &[]);
    assert_eq!((connections, all.exchanges_error), (400, 0.0));
    for weight in [2, 4, 8] {
        let periods: Vec<Period> = (0..100).map(|seed| figures(&frames, seed, &[(0, share(weight))]).0).collect();
        for (index, name) in NAMES.iter().enumerate() {
            let values: Vec<f64> = periods.iter().map(|period| known(period)[index]).collect();
            assert_unbiased(&values, known(&all)[index], &format!("{name} at 1/{weight}"));
        }
        let sums: Vec<f64> = periods.iter().map(|period| period.exchanges as f64).collect();
        let spread = mean_and_error(&sums).1 * (sums.len() as f64).sqrt();
        let estimate = periods.iter().map(|period| period.exchanges_error).sum::<f64>() / periods.len() as f64;
        assert!((estimate / spread - 1.0).abs() < 0.3, "1/{weight}: the error is {spread}, not {estimate}");
        for (class, expected) in all.buckets.classes().iter().enumerate() {
            let values: Vec<f64> = periods.iter().map(|period| period.buckets.classes()[class] as f64).collect();
            assert_unbiased(&values, *expected as f64, &format!("times in class {class} at 1/{weight}"));
        }
        let p95s: Vec<f64> = periods.iter().map(|period| period.rt_p95_ms.expect("exchanges")).collect();
        let (p95, error) = mean_and_error(&p95s);
        let (expected, spread) = (all.rt_p95_ms.expect("exchanges"), error * (p95s.len() as f64).sqrt());
        assert!((p95 - expected).abs() < spread, "p95 at 1/{weight}: {p95}, not {expected} within {spread}");
    }
}

#[test]
fn changes_of_the_share_bias_nothing_and_count_no_request_as_unanswered() {
    let frames = Traffic { connections: 200, most_requests: 10, opened_within_ms: 500 }.frames(2);
    let all = figures(&frames, 0, &[]).0;
    // Often, so that most of the slow requests span a change.
    let path = [2, 4, 8, 4, 2, 1, 2, 4, 2, 1].map(share);
    let changes: Vec<(u64, Share)> =
        (0..40).map(|step| (START_NS + (step as u64 * 50 + 20) * MS, path[step % path.len()])).collect();
    let periods: Vec<Period> = (0..150).map(|seed| figures(&frames, seed, &changes).0).collect();
    assert!(periods.iter().all(|period| (period.counts.unmatched_requests, period.counts.holes) == (0, 0)));
    for (index, name) in NAMES.iter().enumerate().take(3) {
        let values: Vec<f64> = periods.iter().map(|period| known(period)[index]).collect();
        assert_unbiased(&values, known(&all)[index], name);
    }
}

#[test]
fn requests_in_flight_and_given_up_count_for_all_connections() {
    const CONNECTIONS: u16 = 200;
    let mut frames = Vec::new();
    for port in 0..CONNECTIONS {
        let mut talk = Talk::silent();
        talk.client_port = 10_000 + port;
        talk.handshake();
        talk.client(support::GET);
        frames.extend(talk.frames);
    }
    frames.sort_by_key(|frame| frame.time_ns);
    let in_flight: Vec<f64> =
        (0..150).map(|seed| figures(&frames, seed, &[(0, share(4))]).0.in_flight as f64).collect();
    assert_unbiased(&in_flight, f64::from(CONNECTIONS), "requests in flight");
    // Each connection is opened anew: its request gets no answer any more.
    let last_ns = frames.last().expect("frames").time_ns;
    for port in 0..CONNECTIONS {
        let mut talk = Talk::silent();
        (talk.client_port, talk.client, talk.now_ns) = (10_000 + port, 5_000_000, last_ns + 100 * MS);
        talk.handshake();
        frames.extend(talk.frames.into_iter().take(1));
    }
    let given_up: Vec<f64> =
        (0..150).map(|seed| figures(&frames, seed, &[(0, share(4))]).0.counts.unmatched_requests as f64).collect();
    assert_unbiased(&given_up, f64::from(CONNECTIONS), "requests given up");
}

#[test]
fn what_is_looked_at_no_more_leaves_nothing_behind() {
    let frames = Traffic { connections: 300, most_requests: 5, opened_within_ms: 10 }.frames(3);
    let (middle, smallest) = (frames[frames.len() / 2].time_ns, share(1_024));
    for seed in 0..20 {
        let mut tracker = Tracker::new(TrackerSettings { sample_seed: seed, ..TrackerSettings::default() });
        for (number, frame) in frames.iter().enumerate().filter(|(_, frame)| frame.time_ns < middle) {
            tracker.packet(&packet(1, number as u64 + 1, frame));
        }
        assert!(tracker.connections() > 100 && tracker.share() == Share::ALL);
        tracker.sample(smallest, middle);
        let period = tracker.take_period(middle);
        assert_eq!((tracker.share(), period.counts.unmatched_requests, tracker.held_bytes()), (smallest, 0, 0));
        let left = (0..300)
            .filter(|number| tracker.looks_at(([10, 0, 0, 1], 10_000 + number).into(), ([10, 0, 0, 2], 80).into()));
        assert!(tracker.connections() <= left.count());
    }
}

/// Ports of the captures beside the checkout, as in `given.rs`.
const PORTS: [u16; 6] = [80, 5000, 8080, 9200, 11211, 6379];

#[test]
fn real_captures_in_samples_have_no_bias() {
    let folder = match std::env::var_os("SLACKWATER_PCAPS") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/pcaps/given"),
    };
    let Ok(files) = std::fs::read_dir(&folder) else {
        return println!("skipped: no captures in {} (set SLACKWATER_PCAPS to their folder)", folder.display());
    };
    let files: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
    let captures = files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    let measure = |share: Share, seed: u64| {
        let mut sums = (0, 0);
        for path in captures.clone() {
            let settings = TrackerSettings { ports: PORTS.to_vec(), sample_seed: seed, ..TrackerSettings::default() };
            let mut tracker = Tracker::new(settings);
            tracker.sample(share, 0);
            read_file(path, |packet| tracker.packet(packet)).expect("a capture");
            let counts = tracker.finish().counts;
            sums = (sums.0 + counts.exchanges, sums.1 + counts.unmatched_requests);
        }
        sums
    };
    let all = measure(Share::ALL, 0);
    assert!(all.0 > 0, "{all:?}");
    for weight in [2, 4, 8] {
        let samples: Vec<_> = (0..200).map(|seed| measure(share(weight), seed)).collect();
        let exchanges: Vec<f64> = samples.iter().map(|sums| sums.0 as f64).collect();
        assert_unbiased(&exchanges, all.0 as f64, &format!("exchanges at 1/{weight}"));
        let given_up: Vec<f64> = samples.iter().map(|sums| sums.1 as f64).collect();
        assert_unbiased(&given_up, all.1 as f64, &format!("requests given up at 1/{weight}"));
    }
}
