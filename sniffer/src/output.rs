//! What the command prints: lines of JSON for programs, a short table for people.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use slackwater_sniffer::{Period, Summary, Times, Tracker};

#[derive(Serialize)]
struct ExchangeLine<'a> {
    request_frame: u64,
    response_frame: u64,
    stream: u64,
    seconds: Option<f64>,
    seconds_first_byte: Option<f64>,
    method: &'a str,
    status: u16,
    protocol: &'a str,
}

#[derive(Serialize)]
struct SummaryLine<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    /// Absent values: a file does not say how many packets were dropped when it was written.
    drops: Option<u64>,
}

#[derive(Serialize)]
struct PeriodLine<'a> {
    period_s: f64,
    rps: f64,
    drops: u64,
    #[serde(flatten)]
    period: &'a Period,
}

fn seconds(ns: Option<u64>) -> Option<f64> {
    ns.map(|ns| ns as f64 / 1e9)
}

/// A line of JSON for each exchange since the last call.
pub fn exchanges(out: &mut impl Write, tracker: &mut Tracker) -> io::Result<()> {
    for exchange in tracker.take_exchanges() {
        let line = ExchangeLine {
            request_frame: exchange.request_frame,
            response_frame: exchange.response_frame,
            stream: exchange.stream,
            seconds: seconds(exchange.last_byte_ns),
            seconds_first_byte: seconds(exchange.first_byte_ns),
            method: exchange.method.as_str(),
            status: exchange.status,
            protocol: exchange.protocol,
        };
        json(out, &line)?;
    }
    Ok(())
}

/// The figures of a period. Text goes to standard error when exchanges are printed.
pub fn period(
    out: &mut impl Write,
    period: &Period,
    drops: u64,
    every: Duration,
    as_json: bool,
    with_exchanges: bool,
) -> io::Result<()> {
    let period_s = every.as_secs_f64();
    let rps = period.exchanges as f64 / period_s;
    if as_json {
        return json(out, &PeriodLine { period_s, rps, drops, period });
    }
    let text = format!(
        "{rps:>9.1} rps  mean {:>9}  p50 {:>9}  p95 {:>9}  p99 {:>9} ms  in flight {:>4}  errors {:>4}  drops {drops}\n",
        ms(period.rt_mean_ms),
        ms(period.rt_p50_ms),
        ms(period.rt_p95_ms),
        ms(period.rt_p99_ms),
        period.in_flight,
        period.errors,
    );
    people(out, &text, with_exchanges)
}

/// The figures of the whole run; `drops` is `None` for a file.
pub fn summary(
    out: &mut impl Write,
    summary: &Summary,
    drops: Option<u64>,
    as_json: bool,
    with_exchanges: bool,
) -> io::Result<()> {
    if as_json {
        return json(out, &SummaryLine { summary, drops });
    }
    let counts = &summary.counts;
    let rows: [(&str, u64); 12] = [
        ("packets", counts.packets),
        ("connections", summary.connections),
        ("exchanges", counts.exchanges),
        ("errors (status 500 and above)", counts.errors),
        ("unmatched requests", counts.unmatched_requests),
        ("orphan responses", counts.orphan_responses),
        ("unfinished responses", counts.unfinished_responses),
        ("retransmitted segments", counts.retransmitted),
        ("holes", counts.holes),
        ("malformed messages", counts.malformed),
        ("evicted connections", counts.evicted),
        ("requests refused", counts.refused),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        text += &format!("{name:<30}{value:>12}\n");
    }
    let drops = drops.map_or("not known".into(), |drops| drops.to_string());
    text += &format!("{:<30}{drops:>12}\n", "dropped packets");
    text += &format!("\n{:<12}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "ms", "mean", "p50", "p95", "p99", "max");
    for (name, times) in [("first byte", &summary.first_byte_ms), ("last byte", &summary.last_byte_ms)] {
        text += &row(name, times);
    }
    people(out, &text, with_exchanges)
}

fn row(name: &str, times: &Times) -> String {
    let [mean, p50, p95, p99, max] = [times.mean, times.p50, times.p95, times.p99, times.max].map(ms);
    format!("{name:<12}{mean:>10}{p50:>10}{p95:>10}{p99:>10}{max:>10}\n")
}

fn ms(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.3}"))
}

fn people(out: &mut impl Write, text: &str, with_exchanges: bool) -> io::Result<()> {
    if with_exchanges { io::stderr().write_all(text.as_bytes()) } else { out.write_all(text.as_bytes()) }
}

fn json(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}
