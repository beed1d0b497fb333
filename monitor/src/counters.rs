//! `slackwater-monitor counters`: how far each event gets in each scope (encoded, opened, counting).

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use slackwater_node::system::System;

use crate::config::Settings;
use crate::pmu::scope::Scope;
use crate::pmu::{self, events::WantedEvent};
use crate::reason::Reason;

/// How long the events count.
const WINDOW: Duration = Duration::from_millis(500);

/// One event in one scope.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// `system`, `cgroup` or `pid`.
    pub scope: &'static str,
    /// The event's name in the configuration.
    pub event: &'static str,
    /// libpfm4's name.
    pub name: String,
    /// Whether libpfm4 knows it.
    pub encodable: bool,
    /// Whether the kernel opens it.
    pub openable: bool,
    /// Whether it counted something within half a second.
    pub counting: bool,
    /// Its count, scaled to the whole time.
    pub count: Option<f64>,
    /// Share of the time in which it was on the hardware.
    pub running: Option<f64>,
    /// CPUs or threads on which it is open.
    pub targets: usize,
    /// Kind of event source and its number there, as perf_event_open takes them.
    pub encoding: Option<(u32, u64)>,
    /// Why it does not count.
    pub reason: Option<String>,
}

/// Opens all events of the configured scopes as `run` does, and lets them count for half a second.
///
/// # Errors
/// Why there are no scopes.
pub fn list(settings: &Settings, system: &System) -> Result<Vec<Row>, Reason> {
    let mut scopes = pmu::scopes(settings, system)?;
    // The first call opens, and has no counts yet.
    for scope in &mut scopes {
        let _ = scope.advance();
    }
    std::thread::sleep(WINDOW);
    let rows = scopes.iter_mut().flat_map(|scope| {
        let reason = scope.advance().err();
        let scope = &*scope;
        scope.wanted().iter().map(|wanted| row(scope, wanted, reason.as_ref())).collect::<Vec<_>>()
    });
    Ok(rows.collect())
}

fn row(scope: &Scope, wanted: &WantedEvent, failure: Option<&Reason>) -> Row {
    let record = scope.record(wanted.event);
    let muted = scope.mute()[wanted.event as usize].clone();
    let is_open = failure.is_none() && record.opened > 0;
    let unencodable = wanted.encoding.as_ref().err().cloned();
    let idle = || {
        (is_open && record.running_ns == 0).then(|| {
            let fault = "is open but was never on the hardware: nothing ran, or others hold the counters";
            Reason::from(format!("{} {fault}", wanted.name))
        })
    };
    let scale = (record.running_ns > 0).then(|| record.enabled_ns as f64 / record.running_ns as f64);
    Row {
        scope: scope.name(),
        event: wanted.event.key(),
        name: wanted.name.clone(),
        encodable: unencodable.is_none(),
        openable: is_open,
        counting: is_open && record.counted > 0,
        count: scale.filter(|_| is_open).map(|scale| record.counted as f64 * scale),
        running: scale.filter(|_| is_open).map(|scale| 1.0 / scale),
        targets: if is_open { record.opened } else { 0 },
        encoding: wanted.encoding.as_ref().ok().map(|encoding| (encoding.kind, encoding.config)),
        reason: unencodable.or_else(|| failure.cloned()).or(muted).or_else(idle).map(|reason| reason.text),
    }
}

/// The rows for people.
pub fn table(rows: &[Row]) -> String {
    let mut text =
        format!("{:<8} {:<17} {:<9} {:>16} {:>8}  name, and why not\n", "scope", "event", "is", "count", "running");
    for row in rows {
        let state = match row {
            Row { counting: true, .. } => "counting",
            Row { openable: true, .. } => "open",
            Row { encodable: true, .. } => "encodable",
            _ => "unknown",
        };
        let count = row.count.map_or_else(|| "-".to_owned(), |count| format!("{count:.0}"));
        let running = row.running.map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0));
        let reason = row.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<8} {:<17} {state:<9} {count:>16} {running:>8}  {}{reason}",
            row.scope, row.event, row.name
        );
    }
    text
}
