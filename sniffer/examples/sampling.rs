//! Prints `docs/results/sampling.md`: the figures of samples of the connections beside those of all connections.
//!
//! `make bench-sampling`. The captures are those of `tests/given.rs`: SLACKWATER_PCAPS names their folder, else it is
//! looked for beside the checkout.

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};

use slackwater_sniffer::{Share, Tracker, TrackerSettings, read_file};
use support::traffic::Traffic;
use support::{Frame, feed};

/// Samples of each share.
const SEEDS: u64 = 100;
/// Halvings of the shares.
const SHARES: u32 = 4;
/// Ports of the servers in the captures.
const PORTS: [u16; 6] = [80, 5000, 8080, 9200, 11211, 6379];

type AnyError = Box<dyn std::error::Error>;

/// A sample's estimates for the whole traffic: exchanges, their standard error, mean and 95th percentile of their
/// times.
struct Estimate {
    exchanges: f64,
    error: f64,
    mean_ms: Option<f64>,
    p95_ms: Option<f64>,
}

/// Traffic that can be read again and again.
enum Source {
    Generated(Vec<Frame>),
    Captures(Vec<PathBuf>),
}

impl Source {
    fn estimate(&self, share: Share, seed: u64) -> Result<Estimate, AnyError> {
        let settings = TrackerSettings { ports: PORTS.to_vec(), sample_seed: seed, ..TrackerSettings::default() };
        let mut tracker = Tracker::new(settings);
        tracker.sample(share, 0);
        match self {
            Self::Generated(frames) => feed(&mut tracker, frames),
            Self::Captures(paths) => {
                for path in paths {
                    read_file(path, |packet| tracker.packet(packet))?;
                }
            }
        }
        let period = tracker.take_period(u64::MAX);
        Ok(Estimate {
            exchanges: period.exchanges as f64,
            error: period.exchanges_error,
            mean_ms: period.rt_mean_ms,
            p95_ms: period.rt_p95_ms,
        })
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    (values.iter().map(|value| (value - middle).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

/// How far the mean over all samples is off, with its standard error, and how far a single sample is off.
fn off(values: &[f64], all: f64) -> String {
    let percent = |value: f64| 100.0 * value / all;
    let error = deviation(values) / (values.len() as f64).sqrt();
    format!("{:+.2} ± {:.2} | {:.1}", percent(mean(values) - all), percent(error), percent(deviation(values)))
}

fn rows(name: &str, source: &Source) -> Result<(), AnyError> {
    let all = source.estimate(Share::ALL, 0)?;
    let (all_mean, all_p95) = (all.mean_ms.ok_or("no exchange")?, all.p95_ms.ok_or("no exchange")?);
    println!("| {name} | 1 | {} | | | {all_mean:.2} ms | | {all_p95:.1} ms | |", all.exchanges);
    let mut share = Share::ALL;
    for _ in 1..SHARES {
        share = share.halved();
        let samples: Vec<Estimate> = (0..SEEDS).map(|seed| source.estimate(share, seed)).collect::<Result<_, _>>()?;
        let exchanges: Vec<f64> = samples.iter().map(|sample| sample.exchanges).collect();
        let errors: Vec<f64> = samples.iter().map(|sample| sample.error).collect();
        // A sample without exchanges has no times.
        let means: Vec<f64> = samples.iter().filter_map(|sample| sample.mean_ms).collect();
        let p95s: Vec<f64> = samples.iter().filter_map(|sample| sample.p95_ms).collect();
        println!(
            "| | {share} | {} | {:.1} | {} | {} |",
            off(&exchanges, all.exchanges),
            100.0 * mean(&errors) / all.exchanges,
            off(&means, all_mean),
            off(&p95s, all_p95)
        );
    }
    Ok(())
}

fn main() -> Result<(), AnyError> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/pcaps/given");
    let folder = std::env::var_os("SLACKWATER_PCAPS").map_or_else(beside, PathBuf::from);
    let no_folder =
        |error| format!("no captures in {} (set SLACKWATER_PCAPS to their folder): {error}", folder.display());
    let captures = std::fs::read_dir(&folder).map_err(no_folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let captures = captures.filter(|path| path.extension().is_some_and(|extension| extension == "pcap")).collect();
    let generated = |connections, most_requests| {
        Source::Generated(Traffic { connections, most_requests, opened_within_ms: 1_000 }.frames(1))
    };
    println!(
        "# Samples of the connections

Do samples of the connections tell what all connections would?

| traffic | share | exchanges off | one | told | mean time off | one | p95 off | one |
|---|---|---|---|---|---|---|---|---|"
    );
    rows("2,000 connections of one request", &generated(2_000, 1))?;
    rows("1,000 connections of up to 12 requests", &generated(1_000, 12))?;
    rows("200 connections of up to 50 requests", &generated(200, 50))?;
    rows("20 connections of up to 200 requests", &generated(20, 200))?;
    rows("the captures", &Source::Captures(captures))?;
    println!(
        "
*Off*: how far the mean over all samples is from what the whole traffic tells, with the standard error of that mean.
Without bias it is zero within some errors. *One*: the standard deviation of one sample. *Told*: the standard error that
the sample itself gives (`traffic.rps_error`), averaged. All in percent, but in the first row of each kind.

- Few connections are no sample: with 20 of them one sample is off by half and more, and its own error is of little use.
  So the share is halved only while at least {} connections with exchanges are left a second, three times over.
- The mean time and p95 are ratios within a sample, which are off by a little where it has few connections.

`make bench-sampling` wrote this: the same traffic, read whole and in samples of its connections, {SEEDS} samples of
each share, each with another seed.",
        slackwater_sniffer::LEAST_CONNECTIONS
    );
    Ok(())
}
