//! The command's output: lines of JSON for programs, tables for people.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use slackwater_sniffer::{Exchange, Period, Summary, Tracker};

use crate::arguments::TrafficOptions;
use crate::screen::Screen;
use crate::table::{self, Subject};

/// The status of an exchange: a number, a word, or nothing where the protocol is unknown.
#[derive(Serialize)]
#[serde(untagged)]
enum StatusField {
    Number(u16),
    Word(&'static str),
    None,
}

#[derive(Serialize)]
struct ExchangeLine<'a> {
    /// When the request's last byte was captured.
    time_unix_s: f64,
    client: SocketAddr,
    server: SocketAddr,
    request_frame: u64,
    response_frame: u64,
    stream: u64,
    seconds: Option<f64>,
    seconds_first_byte: Option<f64>,
    method: &'a str,
    status: StatusField,
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
    /// Absent for a file: it does not record how many packets were dropped when it was written.
    drops: Option<u64>,
}

#[derive(Serialize)]
struct PeriodLine<'a> {
    period_s: f64,
    /// Absent when a port speaks another protocol and no request was understood; `foreign_ports` names the protocol.
    rps: Option<f64>,
    drops: Option<u64>,
    #[serde(flatten)]
    period: &'a Period,
}

fn seconds(ns: Option<u64>) -> Option<f64> {
    ns.map(|ns| ns as f64 / 1e9)
}

/// Prints as the arguments demand.
pub struct Printer<W: Write> {
    out: W,
    as_json: bool,
    with_exchanges: bool,
    /// Names of the route classes.
    routes: Vec<String>,
    /// The interface or file, and the ports.
    source: String,
    /// The screen on which the table is refreshed, if it is.
    screen: Option<Screen>,
    /// Sum of the lengths of all periods.
    running: Duration,
}

impl<W: Write> Printer<W> {
    /// `refreshes`: on a terminal, each period replaces the one before.
    pub fn new(out: W, options: &TrafficOptions, source: &str, refreshes: bool) -> Self {
        let routes = options.routes.iter().map(|route| route.name.clone()).chain(["other".to_owned()]);
        let refreshes = refreshes && options.every.is_some() && !options.json && !options.exchanges;
        let ports: Vec<String> = options.ports.iter().map(|port| port.number.to_string()).collect();
        let word = if ports.len() == 1 { "port" } else { "ports" };
        Self {
            out,
            as_json: options.json,
            with_exchanges: options.exchanges,
            routes: if options.routes.is_empty() { Vec::new() } else { routes.collect() },
            source: format!("{source}, {word} {}", ports.join(" ")),
            screen: if refreshes { Screen::of_stdout() } else { None },
            running: Duration::ZERO,
        }
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Shows a placeholder until the first period is over.
    pub fn begin(&mut self) -> io::Result<()> {
        let Some(screen) = &mut self.screen else { return Ok(()) };
        let size = Screen::size();
        screen.draw(&mut self.out, &table::placeholder(&self.source, size), size)
    }

    /// Prints a line of JSON for each exchange since the last call; returns their number.
    pub fn exchanges(&mut self, tracker: &mut Tracker) -> io::Result<usize> {
        let exchanges = tracker.take_exchanges();
        for exchange in &exchanges {
            json(&mut self.out, &line(exchange, &self.routes))?;
        }
        Ok(exchanges.len())
    }

    /// Prints the figures of a period; `drops` is `None` for a file. Text goes to standard error when exchanges are
    /// printed.
    pub fn period(&mut self, period: &Period, drops: Option<u64>, length: Duration) -> io::Result<()> {
        let period_s = length.as_secs_f64();
        self.running += length;
        if self.as_json {
            let is_absent = table::is_absent(period.exchanges, &period.foreign_ports);
            let rps = (!is_absent).then(|| period.exchanges as f64 / period_s);
            return json(&mut self.out, &PeriodLine { period_s, rps, drops, period });
        }
        let source = self.source.clone();
        let subject = Subject { source, period_s, running_s: self.running.as_secs_f64(), drops };
        match &mut self.screen {
            Some(screen) => {
                let size = Screen::size();
                screen.draw(&mut self.out, &table::period(&subject, period, size), size)
            }
            None => self.write_text(&table::plain(&subject, period)),
        }
    }

    /// Prints the figures of the whole run; `drops` is `None` for a file.
    pub fn summary(&mut self, summary: &Summary, drops: Option<u64>) -> io::Result<()> {
        if self.as_json {
            json(&mut self.out, &SummaryLine { summary, drops })?;
        } else {
            self.leave()?;
            self.write_text(&table::summary(summary, drops, columns()))?;
        }
        self.out.flush()
    }

    fn write_text(&mut self, text: &str) -> io::Result<()> {
        if self.with_exchanges { io::stderr().write_all(text.as_bytes()) } else { self.out.write_all(text.as_bytes()) }
    }

    fn leave(&mut self) -> io::Result<()> {
        self.screen.as_mut().map_or(Ok(()), |screen| screen.leave(&mut self.out))
    }
}

/// Restores the terminal, also after an error.
impl<W: Write> Drop for Printer<W> {
    fn drop(&mut self) {
        let _ = self.leave().and_then(|()| self.out.flush());
    }
}

/// Columns for a table: those of the window; unlimited outside of a terminal.
pub fn columns() -> usize {
    if io::stdout().is_terminal() { Screen::size().columns } else { usize::from(u16::MAX) }
}

fn line<'a>(exchange: &'a Exchange, routes: &'a [String]) -> ExchangeLine<'a> {
    ExchangeLine {
        time_unix_s: exchange.time_ns as f64 / 1e9,
        client: exchange.client,
        server: exchange.server,
        request_frame: exchange.request_frame,
        response_frame: exchange.response_frame,
        stream: exchange.stream,
        seconds: seconds(exchange.last_byte_ns),
        seconds_first_byte: seconds(exchange.first_byte_ns),
        method: exchange.method.as_str(),
        status: match exchange {
            Exchange { protocol: "unknown", .. } => StatusField::None,
            Exchange { word: "", status, .. } => StatusField::Number(*status),
            Exchange { word, .. } => StatusField::Word(word),
        },
        protocol: exchange.protocol,
        route: routes.get(usize::from(exchange.route)).map(String::as_str),
        request_bytes: exchange.request_bytes,
        response_bytes: exchange.response_bytes,
    }
}

#[derive(Serialize)]
struct ErrorLine<'a> {
    error: &'a str,
}

/// An error as a line of JSON, for programs that read only standard output.
pub fn error(error: &dyn std::error::Error) -> io::Result<()> {
    json(&mut io::stdout().lock(), &ErrorLine { error: &error.to_string() })
}

/// A line of JSON.
pub fn json(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}
