//! What the command prints: lines of JSON for programs, tables for people.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde::Serialize;
use slackwater_sniffer::{Exchange, Period, RouteFigures, Summary, Times, Tracker};

use crate::arguments::What;

/// A number, a word, or nothing where the protocol is unknown.
#[derive(Serialize)]
#[serde(untagged)]
enum Status {
    Number(u16),
    Word(&'static str),
    None,
}

#[derive(Serialize)]
struct ExchangeLine<'a> {
    request_frame: u64,
    response_frame: u64,
    stream: u64,
    seconds: Option<f64>,
    seconds_first_byte: Option<f64>,
    method: &'a str,
    status: Status,
    protocol: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<&'a str>,
    request_bytes: u32,
    response_bytes: u32,
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
    drops: Option<u64>,
    #[serde(flatten)]
    period: &'a Period,
}

fn seconds(ns: Option<u64>) -> Option<f64> {
    ns.map(|ns| ns as f64 / 1e9)
}

/// Prints in the way that the arguments ask for.
pub struct Printer<W: Write> {
    out: W,
    as_json: bool,
    with_exchanges: bool,
    /// Names of the route classes.
    routes: Vec<String>,
    /// What is looked at.
    source: String,
    on_terminal: bool,
    /// Lines of the table on the terminal that the next one takes the place of.
    drawn: usize,
}

impl<W: Write> Printer<W> {
    pub fn new(out: W, what: &What, source: &str) -> Self {
        let routes = what.routes.iter().map(|route| route.name.clone()).chain(["other".to_owned()]);
        Self {
            out,
            as_json: what.json,
            with_exchanges: what.exchanges,
            routes: if what.routes.is_empty() { Vec::new() } else { routes.collect() },
            source: source.to_owned(),
            on_terminal: io::stdout().is_terminal(),
            drawn: 0,
        }
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// A line of JSON for each exchange since the last call.
    pub fn exchanges(&mut self, tracker: &mut Tracker) -> io::Result<()> {
        for exchange in tracker.take_exchanges() {
            json(&mut self.out, &line(&exchange, &self.routes))?;
        }
        Ok(())
    }

    /// The figures of a period; `drops` is `None` for a file. Text goes to standard error when exchanges are printed.
    pub fn period(&mut self, period: &Period, drops: Option<u64>, length: Duration) -> io::Result<()> {
        let period_s = length.as_secs_f64();
        let rps = period.exchanges as f64 / period_s;
        if self.as_json {
            return json(&mut self.out, &PeriodLine { period_s, rps, drops, period });
        }
        if !self.on_terminal || self.with_exchanges {
            return self.people(&plain(period, rps, drops, period_s));
        }
        let table = table(&self.source, period, rps, drops, period_s);
        // Up to where the last table began, and away with it.
        let back = if self.drawn > 0 { format!("\x1b[{}A\x1b[J", self.drawn) } else { String::new() };
        self.drawn = table.lines().count();
        self.people(&(back + &table))
    }

    /// The figures of the whole run; `drops` is `None` for a file.
    pub fn summary(&mut self, summary: &Summary, drops: Option<u64>) -> io::Result<()> {
        if self.as_json {
            json(&mut self.out, &SummaryLine { summary, drops })?;
        } else {
            let gap = if self.drawn > 0 { "\n" } else { "" };
            self.people(&format!("{gap}{}", summary_text(summary, drops)))?;
        }
        self.out.flush()
    }

    fn people(&mut self, text: &str) -> io::Result<()> {
        if self.with_exchanges { io::stderr().write_all(text.as_bytes()) } else { self.out.write_all(text.as_bytes()) }
    }
}

fn line<'a>(exchange: &'a Exchange, routes: &'a [String]) -> ExchangeLine<'a> {
    ExchangeLine {
        request_frame: exchange.request_frame,
        response_frame: exchange.response_frame,
        stream: exchange.stream,
        seconds: seconds(exchange.last_byte_ns),
        seconds_first_byte: seconds(exchange.first_byte_ns),
        method: exchange.method.as_str(),
        status: match exchange {
            Exchange { protocol: "unknown", .. } => Status::None,
            Exchange { word: "", status, .. } => Status::Number(*status),
            Exchange { word, .. } => Status::Word(word),
        },
        protocol: exchange.protocol,
        route: routes.get(usize::from(exchange.route)).map(String::as_str),
        request_bytes: exchange.request_bytes,
        response_bytes: exchange.response_bytes,
    }
}

/// A period as a line, and one more for each route class.
fn plain(period: &Period, rps: f64, drops: Option<u64>, period_s: f64) -> String {
    let mut text = format!(
        "{rps:>9.1} rps  mean {:>9}  p50 {:>9}  p95 {:>9}  p99 {:>9} ms  in flight {:>4}  errors {:>4}  drops {}\n",
        ms(period.rt_mean_ms),
        ms(period.rt_p50_ms),
        ms(period.rt_p95_ms),
        ms(period.rt_p99_ms),
        period.in_flight,
        period.errors,
        known(drops),
    );
    for route in &period.routes {
        let times = &route.last_byte_ms;
        text += &format!(
            "{:>9.1} rps  mean {:>9}  p50 {:>9}  p95 {:>9}  p99 {:>9} ms  {}\n",
            route.exchanges as f64 / period_s,
            ms(times.mean),
            ms(times.p50),
            ms(times.p95),
            ms(times.p99),
            route.name,
        );
    }
    text
}

/// A period as a table that takes the place of the one before.
fn table(source: &str, period: &Period, rps: f64, drops: Option<u64>, period_s: f64) -> String {
    let counts = &period.counts;
    let mut text = format!("{source}, the last {period_s:.1} s\n\n{:<16}{:>10}{}\n", "", "rps", columns());
    let times = Times {
        mean: period.rt_mean_ms,
        p50: period.rt_p50_ms,
        p95: period.rt_p95_ms,
        p99: period.rt_p99_ms,
        max: period.rt_max_ms,
    };
    text += &format!("{:<16}{rps:>10.1}{}\n", "all", cells(&times));
    text += &format!("{:<16}{:>10}{}\n", "  first byte", "", cells(&period.first_byte_ms));
    for (class, times) in &period.status_ms {
        text += &format!("{:<16}{:>10}{}\n", format!("  {class}"), "", cells(times));
    }
    for RouteFigures { name, exchanges, last_byte_ms, .. } in &period.routes {
        let name: String = name.chars().take(15).collect();
        text += &format!("{name:<16}{:>10.1}{}\n", *exchanges as f64 / period_s, cells(last_byte_ms));
    }
    text += &format!(
        "\nin flight {}   errors {}   unmatched {}   retransmitted {}   holes {}   evicted {}   drops {}\n",
        period.in_flight,
        period.errors,
        counts.unmatched_requests,
        counts.retransmitted,
        counts.holes,
        counts.evicted,
        known(drops),
    );
    text
}

fn summary_text(summary: &Summary, drops: Option<u64>) -> String {
    let counts = &summary.counts;
    let rows: [(&str, u64); 14] = [
        ("packets", counts.packets),
        ("connections", summary.connections),
        ("exchanges", counts.exchanges),
        ("errors (status 500 and above)", counts.errors),
        ("unmatched requests", counts.unmatched_requests),
        ("  that ask for no answer", counts.quiet_requests),
        ("orphan responses", counts.orphan_responses),
        ("unfinished responses", counts.unfinished_responses),
        ("retransmitted segments", counts.retransmitted),
        ("holes", counts.holes),
        ("malformed messages", counts.malformed),
        ("skipped fragments", counts.fragments),
        ("evicted connections", counts.evicted),
        ("requests refused", counts.refused),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        text += &format!("{name:<30}{value:>12}\n");
    }
    text += &format!("{:<30}{:>12}\n", "dropped packets", known(drops));
    text += &format!("\n{}", times_head());
    text += &times_row("first byte", &summary.first_byte_ms);
    text += &times_row("last byte", &summary.last_byte_ms);
    for (class, times) in &summary.status_ms {
        text += &times_row(&format!("  {class}"), times);
    }
    for route in &summary.routes {
        let name: String = route.name.chars().take(15).collect();
        text += &format!("{name:<16}{} {:>9} exchanges\n", cells(&route.last_byte_ms), route.exchanges);
    }
    for (name, sizes) in [("request bytes", &summary.request_bytes), ("response bytes", &summary.response_bytes)] {
        if let (Some(mean), Some(max)) = (sizes.mean, sizes.max) {
            text += &format!("{name:<16}{mean:>10.0} mean{max:>12} max\n");
        }
    }
    text
}

fn columns() -> String {
    format!("{:>10}{:>10}{:>10}{:>10}{:>10}", "mean ms", "p50", "p95", "p99", "max")
}

fn cells(times: &Times) -> String {
    let [mean, p50, p95, p99, max] = [times.mean, times.p50, times.p95, times.p99, times.max].map(ms);
    format!("{mean:>10}{p50:>10}{p95:>10}{p99:>10}{max:>10}")
}

/// Names of the columns of `times_row`.
pub fn times_head() -> String {
    format!("{:<16}{}\n", "", columns())
}

/// Times as a row of a table.
pub fn times_row(name: &str, times: &Times) -> String {
    format!("{name:<16}{}\n", cells(times))
}

fn ms(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.3}"))
}

fn known(drops: Option<u64>) -> String {
    drops.map_or("not known".into(), |drops| drops.to_string())
}

/// A line of JSON.
pub fn json(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}
