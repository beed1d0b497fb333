//! `streaming.num_threads`: a number of worker threads that stands in a file of any server: a media server, nginx.

use std::cell::RefCell;
use std::path::Path;

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::{Knob, Parts, PlannedValue, Reading, number, show, text_of};
use crate::config::StreamingSettings;
use crate::error::{Error, Result};
use crate::wait::wait_for;
use crate::{command, files};

const PLACE: &str = "{value}";

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    Box::new(NumThreads { settings: parts.settings.streaming.clone(), before: RefCell::default() })
}

struct NumThreads {
    settings: StreamingSettings,
    /// The file's text before it was written, until the server has reloaded.
    before: RefCell<Option<String>>,
}

impl NumThreads {
    fn file(&self) -> &Path {
        Path::new(&self.settings.file)
    }

    fn text(&self) -> Result<String> {
        let unusable = |fault: &str| Error::Unavailable(format!("{} {fault}", self.settings.file));
        let bytes = files::contents(self.file())?;
        let bytes = bytes.ok_or_else(|| unusable("is not there; write it with its usual number"))?;
        String::from_utf8(bytes).map_err(|_| unusable("is no text"))
    }

    /// The number in a text that follows the template.
    fn number_in(&self, text: &str) -> Option<i64> {
        let (head, tail) = self.settings.template.trim_end().split_once(PLACE)?;
        text.trim_end().strip_prefix(head)?.strip_suffix(tail)?.trim().parse().ok()
    }

    /// Replaces the file; puts its text back when the server's own test fails.
    fn write(&self, text: &str) -> Result<()> {
        let before = self.text()?;
        files::replace(self.file(), text.as_bytes(), 0o644)?;
        let tested = command::run(&self.settings.test);
        if tested.is_ok() {
            *self.before.borrow_mut() = Some(before.clone());
        }
        tested.map(|_| ()).map_err(|error| {
            let error = Error::from(error).during("the configuration does not pass its test");
            error.undone(files::replace(self.file(), before.as_bytes(), 0o644).map_err(Error::from))
        })
    }
}

impl Knob for NumThreads {
    fn reload_group(&self) -> &'static str {
        "streaming"
    }

    fn min_interval_s(&self) -> f64 {
        self.settings.reload_min_interval_s
    }

    fn read(&self) -> Result<Reading> {
        if self.settings.read.is_empty() {
            let text = self.text()?;
            let message = || format!("{} does not follow the template", self.settings.file);
            let number = self.number_in(&text).ok_or_else(|| Error::Unavailable(message()))?;
            return Ok(Reading { value: Value::Integer(number), how: format!("from {}", self.settings.file) });
        }
        let printed = command::run(&self.settings.read)?.stdout;
        let message = || format!("streaming.read printed {:?}, no number", printed.trim());
        let number = printed.trim().parse().map_err(|_| Error::Unavailable(message()))?;
        Ok(Reading { value: Value::Integer(number), how: "printed by streaming.read".to_owned() })
    }

    /// The whole file.
    fn baseline(&self) -> Result<Json> {
        self.text().map(Json::from)
    }

    fn plan(&self, _baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let number = number(wanted)?;
        let text = self.settings.template.trim_end().replace(PLACE, &number.to_string()) + "\n";
        Ok(PlannedValue { effective: Value::Integer(number), note: String::new(), written: Json::from(text) })
    }

    fn drift(&self, baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        let now = Json::from(self.text()?);
        let is_known = now == *baseline || written.contains(&now);
        Ok((!is_known).then(|| format!("{} was changed by somebody else", self.settings.file)))
    }

    fn apply(&self, written: &Json) -> Result<()> {
        self.write(text_of(written)?)
    }

    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>> {
        if let Some(change) = self.drift(baseline, written)? {
            return Ok(vec![change]);
        }
        let text = text_of(baseline)?;
        // The earlier text passes the server's test, unless another part of its configuration is broken by now.
        files::replace(self.file(), text.as_bytes(), 0o644)?;
        command::run(&self.settings.test)
            .map(|_| Vec::new())
            .map_err(|error| Error::from(error).during("put back on disk, but the server is not reloaded"))
    }

    fn commit(&self, restoring: bool) -> Result<()> {
        let reload = || -> Result<()> { Ok(command::run(&self.settings.reload).map(|_| ())?) };
        let before = self.before.borrow_mut().take();
        reload().map_err(|error| {
            let error = error.during("the server does not reload");
            let Some(before) = before.filter(|_| !restoring) else { return error };
            let undone = files::replace(self.file(), before.as_bytes(), 0o644).map_err(Error::from);
            error.undone(undone.and_then(|()| reload()))
        })
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let text = self.text()?;
        let wanted = self.number_in(&text).filter(|_| written.as_str() == Some(text.as_str()));
        let wanted = wanted
            .ok_or_else(|| Error::NotInEffect(format!("{} does not hold what was written", self.settings.file)))?;
        let as_wanted = || self.read().ok().filter(|reading| reading.value == Value::Integer(wanted));
        wait_for(5.0, as_wanted).ok_or_else(|| match self.read() {
            Ok(Reading { value, how }) => {
                Error::NotInEffect(format!("it is {} after the reload ({how})", show(&value)))
            }
            Err(error) => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn knob(fixture: &Fixture, test: &str) -> NumThreads {
        NumThreads {
            before: RefCell::default(),
            settings: StreamingSettings {
                file: fixture.path("threads.conf").display().to_string(),
                template: "worker_processes {value};".to_owned(),
                test: vec![test.to_owned()],
                reload: vec!["true".to_owned()],
                ..StreamingSettings::default()
            },
        }
    }

    #[test]
    fn the_number_is_written_read_and_put_back() {
        let fixture = Fixture::new(&[("threads.conf", "# two\nworker_processes 2;\n")]);
        let knob = knob(&fixture, "true");
        assert!(knob.read().unwrap_err().to_string().ends_with("does not follow the template"));
        let baseline = knob.baseline().expect("a value");
        let plan = knob.plan(&baseline, &Value::Integer(6)).expect("a plan");
        knob.apply(&plan.written).expect("the kernel takes it");
        knob.commit(false).expect("the server is reloaded");
        assert_eq!(knob.verify(&plan.written).expect("the wanted value").value, Value::Integer(6));
        assert_eq!(knob.restore(&baseline, &[plan.written]), Ok(vec![]));
        assert_eq!(fixture.read("threads.conf"), "# two\nworker_processes 2;");
    }

    #[test]
    fn a_failed_test_leaves_the_file_and_somebody_elses_text_is_left_alone() {
        let fixture = Fixture::new(&[("threads.conf", "worker_processes 2;\n")]);
        let broken = knob(&fixture, "false");
        let (baseline, written) = (broken.baseline().expect("a value"), Json::from("worker_processes 6;\n"));
        assert!(
            broken.apply(&written).unwrap_err().to_string().starts_with("the configuration does not pass its test")
        );
        assert_eq!(fixture.read("threads.conf"), "worker_processes 2;");
        fixture.write("threads.conf", "worker_processes 3;\n");
        let left = knob(&fixture, "true").restore(&baseline, &[written]).expect("a restored value");
        assert!(left[0].ends_with("threads.conf was changed by somebody else"), "{left:?}");
        assert_eq!(fixture.read("threads.conf"), "worker_processes 3;");
    }
}
