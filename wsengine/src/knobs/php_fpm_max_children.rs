//! `php_fpm.max_children`: how many requests php-fpm works on at once, with start and spare servers that fit.

use serde_json::Value as Json;
use slackwater_messages::Value;

use super::{Knob, Parts, Plan, Reading, number};
use crate::php_fpm::{PhpFpm, lines_for};

/// Makes the knob.
pub fn make(parts: &Parts<'_>) -> Box<dyn Knob> {
    let door = PhpFpm::new(&parts.settings.php_fpm, &parts.settings.state_dir, parts.world);
    Box::new(MaxChildren { door, staged: std::cell::RefCell::default() })
}

struct MaxChildren {
    door: PhpFpm,
    staged: std::cell::RefCell<Option<String>>,
}

impl Knob for MaxChildren {
    fn door(&self) -> &'static str {
        "php_fpm"
    }

    fn min_interval_s(&self) -> f64 {
        self.door.settings().reload_min_interval_s
    }

    fn read(&self) -> Result<Reading, String> {
        let all = self.door.all()?;
        self.door.pid(&all)?;
        let manager = self.door.manager(&all)?;
        let (processes, how) = self.door.processes(&all)?;
        let how = format!("pm = {}; {processes} processes now by the {how}", manager.pm);
        Ok(Reading { value: Value::Integer(manager.max_children), how })
    }

    /// The site's own pm.max_children.
    fn baseline(&self) -> Result<Json, String> {
        let sections = self.door.sites_own()?;
        self.door.pid(&sections)?;
        self.door.patience_s(&sections)?;
        if self.door.ours()?.is_some() {
            return Err(format!("{} is there already, which nothing of ours explains", self.door.settings().drop_in));
        }
        Ok(Json::from(self.door.manager(&sections)?.max_children))
    }

    fn plan(&self, _baseline: &Json, wanted: &Value) -> Result<Plan, String> {
        let wanted = number(wanted)?;
        if wanted < 1 {
            return Err(format!("pm.max_children must be at least 1, got {wanted}"));
        }
        let sections = self.door.sites_own()?;
        self.door.patience_s(&sections)?;
        let lines = lines_for(&self.door.manager(&sections)?, wanted);
        let also: Vec<String> = lines[1..].iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let note = if also.is_empty() { String::new() } else { format!("with {}", also.join(", ")) };
        Ok(Plan { effective: Value::Integer(wanted), note, ours: Json::from(self.door.render(&lines)) })
    }

    fn drift(&self, baseline: &Json, ours: &[Json]) -> Result<Option<String>, String> {
        match self.door.ours() {
            Ok(Some(text)) if !ours.contains(&Json::from(text.as_str())) => {
                return Ok(Some(format!("{} was changed by somebody else", self.door.settings().drop_in)));
            }
            Err(said) => return Ok(Some(said)),
            Ok(_) => {}
        }
        let theirs = self.door.manager(&self.door.sites_own()?)?.max_children;
        Ok((baseline.as_i64() != Some(theirs))
            .then(|| format!("the site's own pm.max_children is {theirs} now, it was {baseline}")))
    }

    fn apply(&self, ours: &Json) -> Result<(), String> {
        *self.staged.borrow_mut() = Some(ours.as_str().ok_or("what was kept is no text")?.to_owned());
        Ok(())
    }

    fn restore(&self, _baseline: &Json, _ours: &[Json]) -> Result<Vec<String>, String> {
        *self.staged.borrow_mut() = None;
        Ok(Vec::new())
    }

    fn commit(&self, restoring: bool) -> Result<(), String> {
        match self.staged.borrow_mut().take() {
            Some(text) if !restoring => self.door.change(&text),
            _ => self.door.put_back(),
        }
    }

    fn verify(&self, ours: &Json) -> Result<Reading, String> {
        let reading = self.read()?;
        let text = self.door.ours()?;
        if text.as_deref() != ours.as_str() {
            return Err(format!("{} does not say what was written", self.door.settings().drop_in));
        }
        let all = self.door.all()?;
        let manager = self.door.manager(&all)?;
        if manager.pm == "static" {
            // The master makes its children one after the other.
            let enough = |count: u64| i64::try_from(count).is_ok_and(|count| count == manager.max_children);
            crate::world::wait_for(5.0, || self.door.processes(&all).ok().filter(|(count, _)| enough(*count)))
                .ok_or_else(|| format!("pm = static, but there are {}", reading.how))?;
            return self.read();
        }
        Ok(reading)
    }
}
