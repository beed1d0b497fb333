//! Tables for people: of a period, and of the whole run.

use slackwater_sniffer::{Counts, ForeignPort, Period, StatusClasses, Summary, Times};

use crate::screen::Size;

/// Width of the name of a row, unless names are longer and there is room.
const NAME: usize = 16;

/// Width of a figure's column.
const CELL: usize = 10;

/// The subject of a table.
pub struct Subject {
    /// The interface or file, and the ports.
    pub source: String,
    /// Length of the period in seconds.
    pub period_s: f64,
    /// Since the start, in seconds.
    pub running_s: f64,
    /// Packets that the kernel dropped in the period; `None`: not known.
    pub drops: Option<u64>,
}

/// A row: its name, a number or rate, and times.
struct Row {
    name: String,
    number: String,
    times: Times,
}

impl Row {
    fn new(name: impl Into<String>, number: impl Into<String>, times: Times) -> Self {
        Self { name: name.into(), number: number.into(), times }
    }
}

/// The columns of times, each with its rank: without room, the columns with the highest ranks are left out.
const TIMES: [(&str, u8); 5] = [("mean ms", 3), ("p50 ms", 2), ("p95 ms", 0), ("p99 ms", 1), ("max ms", 4)];

fn cells(times: &Times) -> [Option<f64>; 5] {
    [times.mean, times.p50, times.p95, times.p99, times.max]
}

/// The lines of a table that fits into `columns` characters.
fn lines(head: &str, rows: &[Row], columns: usize) -> Vec<String> {
    let fitting = columns.saturating_sub(NAME + CELL) / CELL;
    let shown = |rank: u8| usize::from(rank) < fitting;
    let used = NAME + CELL * (1 + fitting.min(TIMES.len()));
    let longest = rows.iter().map(|row| row.name.chars().count() + 1).max().unwrap_or(0);
    let width = longest.clamp(NAME, NAME + columns.saturating_sub(used));
    let line = |name: &str, number: &str, cells: [String; 5]| {
        let mut text = format!("{:<width$}{number:>CELL$}", shortened(name, width - 1));
        for ((_, rank), cell) in TIMES.iter().zip(cells) {
            if shown(*rank) {
                text += &format!("{cell:>CELL$}");
            }
        }
        text
    };
    let names = line("", head, TIMES.map(|(name, _)| name.to_owned()));
    let rows = rows.iter().map(|row| line(&row.name, &row.number, cells(&row.times).map(ms)));
    [names].into_iter().chain(rows).collect()
}

/// A name that was cut ends in `~`.
fn shortened(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    name.chars().take(most.saturating_sub(1)).chain(['~']).collect()
}

/// Words with a gap between them, in as many lines as they need.
fn wrapped<'a>(words: impl Iterator<Item = &'a str>, gap: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.len() + gap.len() + word.len() <= columns => *line += &format!("{gap}{word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A period as a picture for a window. The most important lines come first, because a low window cuts the last ones.
pub fn period(subject: &Subject, period: &Period, size: Size) -> Vec<String> {
    let counts = &period.counts;
    let Subject { source, period_s, running_s, drops } = subject;
    let when = format!("last {period_s:.1} s, running {running_s:.0} s");
    let room = size.columns.saturating_sub(when.len() + 1);
    let mut picture = vec![format!("{:<room$} {when}", shortened(source, room))];
    let errors = [
        ("in flight", period.in_flight),
        ("errors", period.errors),
        ("unmatched", counts.unmatched_requests),
        ("orphans", counts.orphan_responses),
        ("retransmitted", counts.retransmitted),
        ("holes", counts.holes),
        ("evicted", counts.evicted),
        ("refused", counts.refused),
    ];
    let words = errors.map(|(name, value)| format!("{name} {value}")).into_iter();
    let words: Vec<String> = words.chain([format!("drops {}", or_not_known(*drops))]).collect();
    picture.extend(wrapped(words.iter().map(String::as_str), "   ", size.columns));
    for note in not_counted(&period.foreign_ports) {
        picture.extend(wrapped(note.split(' '), " ", size.columns));
    }
    picture.push(String::new());
    if is_absent(period.exchanges, &period.foreign_ports) {
        return picture;
    }
    let rps = |exchanges: u64| format!("{:.1}", exchanges as f64 / period_s);
    let mut rows = vec![
        Row::new("all", rps(period.exchanges), all(period)),
        Row::new("  first byte", "", period.details.first_byte_ms),
    ];
    for (class, times) in &period.details.status_ms {
        rows.push(Row::new(format!("  {class}"), rps(of_class(&counts.status, class)), *times));
    }
    rows.extend(
        period.details.routes.iter().map(|route| Row::new(&route.name, rps(route.exchanges), route.last_byte_ms)),
    );
    picture.extend(lines("rps", &rows, size.columns));
    picture
}

/// The picture until the first period is over.
pub fn placeholder(source: &str, size: Size) -> Vec<String> {
    vec![shortened(&format!("{source}: listening"), size.columns)]
}

/// A period as a line, and one more for each route class.
pub fn plain(subject: &Subject, period: &Period) -> String {
    let line = |exchanges: u64, times: &Times| {
        let [mean, p50, p95, p99, _] = cells(times).map(ms);
        let rps = exchanges as f64 / subject.period_s;
        format!("{rps:>9.1} rps  mean {mean:>9}  p50 {p50:>9}  p95 {p95:>9}  p99 {p99:>9} ms")
    };
    let mut text = joined(&not_counted(&period.foreign_ports));
    let drops = or_not_known(subject.drops);
    if is_absent(period.exchanges, &period.foreign_ports) {
        return format!("{text}rps, times and errors are not known  drops {drops}\n");
    }
    text += &line(period.exchanges, &all(period));
    text += &format!("  in flight {:>4}  errors {:>4}  drops {drops}\n", period.in_flight, period.errors);
    for route in &period.details.routes {
        text += &format!("{}  {}\n", line(route.exchanges, &route.last_byte_ms), route.name);
    }
    text
}

/// Whether the figures of requests are absent instead of zero: no request was understood, and a port speaks another
/// protocol.
pub fn is_absent(exchanges: u64, foreign_ports: &[ForeignPort]) -> bool {
    exchanges == 0 && !foreign_ports.is_empty()
}

/// For each foreign port, why its requests are not counted, and the option that counts them.
fn not_counted(ports: &[ForeignPort]) -> Vec<String> {
    let note =
        |port: &ForeignPort| format!("{port}: its requests are not counted; --port {}:{}", port.port, port.measure_as);
    ports.iter().map(note).collect()
}

fn all(period: &Period) -> Times {
    Times {
        mean: period.rt_mean_ms,
        p50: period.rt_p50_ms,
        p95: period.rt_p95_ms,
        p99: period.rt_p99_ms,
        max: period.rt_max_ms,
    }
}

fn of_class(status: &StatusClasses, class: &str) -> u64 {
    status.named().into_iter().find(|(name, _)| *name == class).map_or(0, |(_, count)| count)
}

/// The figures of the whole run, `columns` characters wide.
pub fn summary(summary: &Summary, drops: Option<u64>, columns: usize) -> String {
    let counts = &summary.counts;
    let Counts { packets, exchanges, errors, .. } = *counts;
    let rows: [(&str, u64); 16] = [
        ("packets", packets),
        ("  not understood", counts.not_understood),
        ("connections", summary.connections),
        ("exchanges", exchanges),
        ("errors (status 500 and above)", errors),
        ("unmatched requests", counts.unmatched_requests),
        ("  that ask for no answer", counts.quiet_requests),
        ("orphan responses", counts.orphan_responses),
        ("unfinished responses", counts.unfinished_responses),
        ("retransmitted segments", counts.retransmitted),
        ("holes", counts.holes),
        ("  in a head", counts.lost_heads),
        ("malformed messages", counts.malformed),
        ("skipped fragments", counts.fragments),
        ("evicted connections", counts.evicted),
        ("requests refused", counts.refused),
    ];
    let mut text = String::new();
    let is_absent = is_absent(exchanges, &summary.foreign_ports);
    for (name, value) in rows {
        let is_of_requests = ["exchanges", "errors (status 500 and above)"].contains(&name);
        let value = if is_absent && is_of_requests { or_not_known(None) } else { value.to_string() };
        text += &format!("{name:<30}{value:>12}\n");
    }
    for (kind, count) in &summary.not_understood_kinds {
        text += &format!("{:<30}{count:>12}\n", format!("not understood: {kind} "));
    }
    text += &format!("{:<30}{:>12}\n\n", "dropped packets", or_not_known(drops));
    for note in not_counted(&summary.foreign_ports) {
        text += &format!("{note}\n\n");
    }
    if is_absent {
        return text;
    }
    let mut rows = vec![
        Row::new("first byte", "", summary.details.first_byte_ms),
        Row::new("last byte", exchanges.to_string(), summary.last_byte_ms),
    ];
    for (class, times) in &summary.details.status_ms {
        rows.push(Row::new(format!("  {class}"), of_class(&counts.status, class).to_string(), *times));
    }
    let routes = summary.details.routes.iter();
    rows.extend(routes.map(|route| Row::new(&route.name, route.exchanges.to_string(), route.last_byte_ms)));
    text += &joined(&lines("exchanges", &rows, columns));
    for (name, sizes) in
        [("request bytes", &summary.details.request_bytes), ("response bytes", &summary.details.response_bytes)]
    {
        if let (Some(mean), Some(max)) = (sizes.mean, sizes.max) {
            text += &format!("{name:<NAME$}{mean:>CELL$.0} mean{max:>CELL$} max\n");
        }
    }
    text
}

/// Merged times.
pub fn merged(first_byte: Option<(u64, Times)>, last_byte: (u64, Times), columns: usize) -> String {
    let row = |name: &str, (exchanges, times): (u64, Times)| Row::new(name, exchanges.to_string(), times);
    let rows = first_byte.map(|merged| row("first byte", merged)).into_iter();
    joined(&lines("exchanges", &rows.chain([row("last byte", last_byte)]).collect::<Vec<_>>(), columns))
}

fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Milliseconds in at most eight characters.
fn ms(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value < 1_000.0 => format!("{value:.3}"),
        Some(value) if value < 100_000.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

fn or_not_known(drops: Option<u64>) -> String {
    drops.map_or("not known".into(), |drops| drops.to_string())
}

#[cfg(test)]
mod tests {
    use slackwater_sniffer::Details;

    use super::*;

    fn rows() -> Vec<Row> {
        let times = |ms: f64| Times { mean: Some(ms), p50: None, p95: Some(ms), p99: Some(ms), max: Some(3_600_000.0) };
        vec![Row::new("all", "123456.7", times(0.015)), Row::new("a route of a long name", "1.0", times(98_765.432))]
    }

    #[test]
    fn tables_are_aligned_and_fit_every_width() {
        for columns in 26..120 {
            let lines = lines("rps", &rows(), columns);
            let widths: Vec<usize> = lines.iter().map(|line| line.chars().count()).collect();
            assert!(widths.iter().all(|width| *width == widths[0] && *width <= columns), "{columns}: {lines:#?}");
        }
        assert!(lines("rps", &rows(), 80)[2].starts_with("a route of a long ~"), "cut where there is no room");
        assert!(lines("rps", &rows(), 90)[2].starts_with("a route of a long name "), "else whole");
    }

    #[test]
    fn the_dearest_columns_go_last() {
        let head = |columns| lines("rps", &rows(), columns).remove(0);
        let words = |text: String| text.split("  ").filter(|s| !s.is_empty()).map(|s| s.trim().to_owned()).collect();
        let shown: [Vec<String>; 3] = [head(80), head(60), head(40)].map(words);
        assert_eq!(shown[0], ["rps", "mean ms", "p50 ms", "p95 ms", "p99 ms", "max ms"]);
        assert_eq!(shown[1], ["rps", "p50 ms", "p95 ms", "p99 ms"]);
        assert_eq!(shown[2], ["rps", "p95 ms"]);
    }

    #[test]
    fn a_port_of_another_protocol_has_no_zeros_but_a_reason() {
        let subject = Subject { source: "eth0, port 80".into(), period_s: 1.0, running_s: 12.0, drops: Some(3) };
        let h2c = ForeignPort { port: 80, taken_for: "http1", speaks: "HTTP/2", measure_as: "unknown" };
        let why = "port 80 is taken for http1, and speaks HTTP/2: its requests are not counted; --port 80:unknown";
        let strange = Period { foreign_ports: vec![h2c.clone()], ..Period::default() };
        let picture = period(&subject, &strange, Size { columns: 50, rows: 24 });
        assert!(picture.iter().all(|line| line.chars().count() <= 50), "{picture:#?}");
        assert!(picture.join(" ").contains(why) && !picture.join(" ").contains("0.0"), "{picture:#?}");
        assert_eq!(plain(&subject, &strange), format!("{why}\nrps, times and errors are not known  drops 3\n"));
        let whole = summary(&Summary { foreign_ports: vec![h2c.clone()], ..Summary::default() }, None, 80);
        assert!(whole.contains("exchanges                        not known\n") && whole.contains(why), "{whole}");
        // Beside a port that is understood, that one's figures stand.
        let both = plain(&subject, &Period { exchanges: 7, ..strange });
        assert!(both.starts_with(why) && both.contains("7.0 rps"), "{both}");
    }

    #[test]
    fn a_period_fits_a_window() {
        let subject = Subject { source: "eth0, port 80".into(), period_s: 1.0, running_s: 12.0, drops: Some(3) };
        let status_ms = [("2xx", Times::default())].into();
        let details = Details { status_ms, ..Details::default() };
        let figures = Period { exchanges: 7, in_flight: u64::MAX, details, ..Period::default() };
        for columns in 40..100 {
            let picture = period(&subject, &figures, Size { columns, rows: 24 });
            assert!(picture.iter().all(|line| line.chars().count() <= columns), "{columns}: {picture:#?}");
            let text = picture.join("\n");
            for part in ["eth0", "last 1.0 s", "drops 3", "evicted 0", "all", "first byte", "2xx"] {
                assert!(text.contains(part), "{columns}: {text}");
            }
        }
    }
}
