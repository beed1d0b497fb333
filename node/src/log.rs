//! Log lines of `tracing` on standard error, in the form that systemd's journal takes (sd-daemon(3)).

use std::fmt::{self, Write as _};
use std::io::Write as _;

use crate::printable::printable;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// The prefix of our own modules, whose lines alone are shown.
const OURS: &str = "slackwater_";

/// Sends the log lines of this process to standard error, as `PROGRAM: MESSAGE`. Under systemd each line starts with its
/// priority; the journal adds the time. A second call has no effect.
pub fn init(program: &'static str) {
    // systemd sets it where standard error goes to the journal.
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    // Fails only where a test has set a subscriber already.
    let _ = tracing::subscriber::set_global_default(Log { program, journal });
}

struct Log {
    program: &'static str,
    journal: bool,
}

impl Log {
    fn line(&self, level: Level, message: &str) -> String {
        let priority = match level {
            Level::ERROR => "<3>",
            Level::WARN => "<4>",
            Level::INFO => "<6>",
            _ => "<7>",
        };
        let message = printable(message).replace('\n', " ");
        format!("{}{}: {message}\n", if self.journal { priority } else { "" }, self.program)
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with(OURS)
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        // One write for each line; a reader that is gone is no reason to stop.
        let _ = std::io::stderr().write_all(self.line(*event.metadata().level(), &message.0).as_bytes());
    }

    // There are no spans.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The text of an event.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_carry_a_priority_for_the_journal_only() {
        let line = |journal| Log { program: "p", journal }.line(Level::WARN, "low");
        assert_eq!((line(false), line(true)), ("p: low\n".to_owned(), "<4>p: low\n".to_owned()));
    }
}
