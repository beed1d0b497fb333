//! A knob that is one directive of Apache's configuration.

use std::rc::Rc;

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::{Knob, PlannedValue, Reading, text_of};
use crate::apache::Apache;
use crate::apache_config::ParsedConfig;
use crate::drop_in::DropInServer as _;
use crate::error::{Error, Result};

/// The knob of one directive.
pub struct Directive {
    apache: Rc<Apache>,
    name: &'static str,
    names: Vec<&'static str>,
    effective: fn(&ParsedConfig) -> Result<Reading>,
    plan: fn(&ParsedConfig, &Value) -> Result<PlannedValue>,
    /// Whether the running Apache has this value.
    runs: fn(&Apache, &Value) -> Result<()>,
}

impl Directive {
    /// The knob of directive `name`, also known by `others`.
    pub fn new(
        apache: Rc<Apache>,
        name: &'static str,
        others: &[&'static str],
        effective: fn(&ParsedConfig) -> Result<Reading>,
        plan: fn(&ParsedConfig, &Value) -> Result<PlannedValue>,
    ) -> Directive {
        Directive { apache, name, names: [&[name], others].concat(), effective, plan, runs: |_, _| Ok(()) }
    }

    /// The same knob, for a directive whose value the running Apache shows.
    pub fn checked_by(self, runs: fn(&Apache, &Value) -> Result<()>) -> Directive {
        Directive { runs, ..self }
    }

    /// The site's own value; null when it leaves the default.
    fn sites_own(&self, config: &ParsedConfig) -> Json {
        let theirs = config.without(&self.apache.settings().drop_in);
        theirs.last(&self.names).map_or(Json::Null, |line| Json::from(line.value.clone()))
    }
}

impl Knob for Directive {
    fn reload_group(&self) -> &'static str {
        "apache"
    }

    fn min_interval_s(&self) -> f64 {
        self.apache.settings().reload_min_interval_s
    }

    fn read(&self) -> Result<Reading> {
        let config = self.apache.config()?;
        self.apache.pid(&config)?;
        let reading = (self.effective)(&config)?;
        (self.runs)(&self.apache, &reading.value)?;
        Ok(reading)
    }

    fn baseline(&self) -> Result<Json> {
        let config = self.apache.config()?;
        self.apache.pid(&config)?;
        if self.apache.directives()?.contains_key(self.name) {
            let place = self.apache.drop_in().display();
            let name = self.name;
            return Err(Error::SomeoneElse(format!("{place} sets {name} already, and no lease of ours explains it")));
        }
        Ok(self.sites_own(&config))
    }

    fn plan(&self, _baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        (self.plan)(&self.apache.config()?, wanted)
    }

    fn drift(&self, baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        let (name, drop_in) = (self.name, self.apache.drop_in().display());
        let in_file = match self.apache.directives() {
            Ok(directives) => directives.get(name).map_or(Json::Null, |value| Json::from(value.clone())),
            Err(error) => return Ok(Some(error.to_string())),
        };
        if !in_file.is_null() && !written.contains(&in_file) {
            return Ok(Some(format!("{drop_in} sets {name} to {in_file}, which is not ours")));
        }
        let theirs = self.sites_own(&self.apache.config()?);
        let show = |value: &Json| value.as_str().unwrap_or("the default").to_owned();
        let changed = || format!("the site's own {name} is {} now, it was {}", show(&theirs), show(baseline));
        Ok((theirs != *baseline).then(changed))
    }

    fn apply(&self, written: &Json) -> Result<()> {
        self.apache.stage(self.name, Some(text_of(written)?.to_owned()));
        Ok(())
    }

    fn restore(&self, _baseline: &Json, _ours: &[Json]) -> Result<Vec<String>> {
        self.apache.stage(self.name, None);
        Ok(Vec::new())
    }

    fn commit(&self, restoring: bool) -> Result<()> {
        self.apache.commit(restoring)
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let config = self.apache.config()?;
        let mut reading = (self.effective)(&config)?;
        match config.last(&self.names) {
            Some(line) if self.apache.is_ours(line) && Some(line.value.as_str()) == written.as_str() => {}
            other => {
                let now = other.map(|line| &line.value);
                return Err(Error::NotInEffect(format!("{} is {now:?} now", self.name)));
            }
        }
        (self.runs)(&self.apache, &reading.value)?;
        if let Some(generation) = self.apache.generation() {
            reading.how.push_str(&format!(", in effect since generation {generation}"));
        }
        Ok(reading)
    }
}
