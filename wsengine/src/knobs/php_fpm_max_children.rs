//! `php_fpm.max_children`: how many requests php-fpm works on at once, with numbers of start and spare servers that
//! fit.

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::{Knob, Parts, PlannedValue, Reading, number, text_of};
use crate::drop_in::DropInServer as _;
use crate::error::{Error, Result};
use crate::php_fpm::{PhpFpm, lines_for};
use crate::wait::wait_for;

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    let fpm = PhpFpm::new(&parts.settings.php_fpm, parts.system);
    Box::new(MaxChildren { fpm, staged: std::cell::RefCell::default() })
}

struct MaxChildren {
    fpm: PhpFpm,
    staged: std::cell::RefCell<Option<String>>,
}

impl Knob for MaxChildren {
    fn reload_group(&self) -> &'static str {
        "php_fpm"
    }

    fn min_interval_s(&self) -> f64 {
        self.fpm.settings().reload_min_interval_s
    }

    fn read(&self) -> Result<Reading> {
        let sections = self.fpm.all()?;
        self.fpm.pid(&sections)?;
        let manager = self.fpm.manager(&sections)?;
        let (processes, how) = self.fpm.processes(&sections)?;
        let how = format!("pm = {}; {processes} processes now by the {how}", manager.pm);
        Ok(Reading { value: Value::Integer(manager.max_children), how })
    }

    /// The site's own pm.max_children.
    fn baseline(&self) -> Result<Json> {
        let sections = self.fpm.sites_own()?;
        self.fpm.pid(&sections)?;
        self.fpm.patience_s(&sections)?;
        if self.fpm.written()?.is_some() {
            let place = &self.fpm.settings().drop_in;
            return Err(Error::SomeoneElse(format!("{place} is there already, and no lease of ours explains it")));
        }
        Ok(Json::from(self.fpm.manager(&sections)?.max_children))
    }

    fn plan(&self, _baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let wanted = number(wanted)?;
        if wanted < 1 {
            return Err(Error::InvalidValue(format!("pm.max_children must be at least 1, got {wanted}")));
        }
        let sections = self.fpm.sites_own()?;
        self.fpm.patience_s(&sections)?;
        let lines = lines_for(&self.fpm.manager(&sections)?, wanted);
        let also: Vec<String> = lines[1..].iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let note = if also.is_empty() { String::new() } else { format!("with {}", also.join(", ")) };
        Ok(PlannedValue { effective: Value::Integer(wanted), note, written: Json::from(self.fpm.render(&lines)) })
    }

    fn drift(&self, baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        match self.fpm.written() {
            Ok(Some(text)) if !written.contains(&Json::from(text.as_str())) => {
                return Ok(Some(format!("{} was changed by somebody else", self.fpm.settings().drop_in)));
            }
            Err(error) => return Ok(Some(error.to_string())),
            Ok(_) => {}
        }
        let theirs = self.fpm.manager(&self.fpm.sites_own()?)?.max_children;
        Ok((baseline.as_i64() != Some(theirs))
            .then(|| format!("the site's own pm.max_children is {theirs} now, it was {baseline}")))
    }

    fn apply(&self, written: &Json) -> Result<()> {
        *self.staged.borrow_mut() = Some(text_of(written)?.to_owned());
        Ok(())
    }

    fn restore(&self, _baseline: &Json, _ours: &[Json]) -> Result<Vec<String>> {
        *self.staged.borrow_mut() = None;
        Ok(Vec::new())
    }

    fn commit(&self, restoring: bool) -> Result<()> {
        match self.staged.borrow_mut().take() {
            Some(text) if !restoring => self.fpm.set(&text),
            _ => self.fpm.put_back(self.fpm.written().map(|_| None)),
        }
    }

    fn verify(&self, written: &Json) -> Result<Reading> {
        let reading = self.read()?;
        let text = self.fpm.written()?;
        if text.as_deref() != written.as_str() {
            let place = &self.fpm.settings().drop_in;
            return Err(Error::NotInEffect(format!("{place} does not hold what was written")));
        }
        let sections = self.fpm.all()?;
        let manager = self.fpm.manager(&sections)?;
        if manager.pm == "static" {
            // The master starts its children one after the other.
            let enough = |count: u64| i64::try_from(count).is_ok_and(|count| count == manager.max_children);
            wait_for(5.0, || self.fpm.processes(&sections).ok().filter(|(count, _)| enough(*count)))
                .ok_or_else(|| Error::NotInEffect(format!("pm = static, but there are {}", reading.how)))?;
            return self.read();
        }
        Ok(reading)
    }
}
