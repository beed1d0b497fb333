//! Apache: its configuration as mod_info prints it, our drop-in file, graceful restarts, server-status.
//!
//! Apache itself reads the configuration (`-t -D DUMP_CONFIG`), with its conditions, variables and includes. Only the
//! drop-in file is ever written, so its directives are the changes in force.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use slackwater_messages::Value;
use slackwater_node::status::apache::ApacheStatus;
use slackwater_node::status::http;
use slackwater_node::system::System;

use crate::apache_config::{ConfigLine, ParsedConfig, parse_dump};
use crate::command;
use crate::config::ApacheSettings;
use crate::drop_in::DropInServer;
use crate::error::{Error, Result};
use crate::processes::{children, pid_in_file, send_signal};
use crate::wait::wait_for;

/// A graceful restart that takes longer has failed.
const RESTARTED_WITHIN_S: f64 = 10.0;
const STATUS_WITHIN: Duration = Duration::from_secs(2);
/// For this time after a restart an old child may still answer, with the old number of workers.
const AGREES_WITHIN_S: f64 = 3.0;

/// Directives of our drop-in file, by name.
type Directives = BTreeMap<String, String>;

/// The Apache of this node.
pub struct Apache {
    settings: ApacheSettings,
    proc: PathBuf,
    /// Directives to set, or to remove (`None`), with the next restart.
    staged: RefCell<BTreeMap<&'static str, Option<String>>>,
}

impl Apache {
    /// The Apache of these settings.
    pub fn new(settings: &ApacheSettings, system: &System) -> Apache {
        Apache { settings: settings.clone(), proc: system.proc.clone(), staged: RefCell::default() }
    }

    /// Its settings.
    pub fn settings(&self) -> &ApacheSettings {
        &self.settings
    }

    /// The configuration with a `directive` after it, if it passes Apache's test.
    fn config_with(&self, directive: Option<String>) -> Result<ParsedConfig> {
        let info = format!("LoadModule info_module \"{}\"", self.settings.info_module);
        let mut arguments = ["-t", "-D", "DUMP_CONFIG", "-C"].map(str::to_owned).to_vec();
        arguments.push(info);
        arguments.extend(directive.into_iter().flat_map(|directive| ["-c".to_owned(), directive]));
        let run = |arguments: Vec<String>| {
            let output = command::run(&[self.settings.command.clone(), arguments].concat());
            let context = "Apache's configuration does not pass its test";
            output.map(|output| output.stdout).map_err(|error| Error::from(error).during(context))
        };
        let (dump, version) = (run(arguments)?, run(vec!["-V".to_owned()])?);
        let mpm =
            version.lines().find_map(|line| line.strip_prefix("Server MPM:")).map(|mpm| mpm.trim().to_lowercase());
        let mpm = mpm.ok_or_else(|| Error::Unavailable("`apache2 -V` names no MPM".to_owned()))?;
        Ok(ParsedConfig { lines: parse_dump(&dump), mpm })
    }

    /// The page server-status.
    ///
    /// # Errors
    /// When the page cannot be fetched or read.
    pub fn status(&self) -> Result<ApacheStatus> {
        let url = &self.settings.status_url;
        let page = http::get(url, STATUS_WITHIN)?;
        ApacheStatus::parse(&page).ok_or_else(|| Error::Unavailable(format!("{url}: no page of server-status?auto")))
    }

    /// Directives of our drop-in file.
    ///
    /// # Errors
    /// [`Error::SomeoneElse`] for a file that somebody else wrote.
    pub fn directives(&self) -> Result<Directives> {
        let text = self.written()?.unwrap_or_default();
        let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Sets a directive, or removes it (`None`), with the next [`Apache::commit`].
    pub fn stage(&self, name: &'static str, value: Option<String>) {
        self.staged.borrow_mut().insert(name, value);
    }

    /// Writes the staged directives, tests the configuration and restarts Apache gracefully.
    ///
    /// # Errors
    /// The step that failed. When `restoring` is false, everything is as it was before.
    pub fn commit(&self, restoring: bool) -> Result<()> {
        let staged = std::mem::take(&mut *self.staged.borrow_mut());
        let text = self.directives().map(|mut directives| {
            for (name, value) in &staged {
                match value {
                    Some(value) => directives.insert((*name).to_owned(), value.clone()),
                    None => directives.remove(*name),
                };
            }
            let lines: String = directives.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
            (!directives.is_empty()).then(|| format!("{}\n{lines}", Self::HEAD))
        });
        if restoring {
            return self.put_back(text);
        }
        if !self.settings.status_url.is_empty() {
            // A page that cannot be fetched does not stand in the way.
            self.status().map_or(Ok(()), |status| status.has_room())?;
        }
        self.change(text?.as_deref(), |config| {
            let mut values = staged.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
            values.try_for_each(|(name, value)| self.counts(config, name, value))
        })
    }

    /// Whether Apache takes this directive from the drop-in file.
    fn counts(&self, config: &ParsedConfig, name: &str, value: &str) -> Result<()> {
        // Apache also accepts MaxRequestWorkers by its older name MaxClients.
        let names: &[&str] = if name == "MaxRequestWorkers" { &[name, "MaxClients"] } else { &[name] };
        let drop_in = &self.settings.drop_in;
        match config.last(names) {
            Some(line) if !self.is_ours(line) && config.lines.iter().any(|line| self.is_ours(line)) => {
                let place = line.place();
                Err(Error::NotInEffect(format!("{place} sets {name} after our {drop_in}: include ours last")))
            }
            Some(line) if self.is_ours(line) && line.value.eq_ignore_ascii_case(value) => Ok(()),
            _ => Err(Error::NotInEffect(format!(
                "Apache's configuration does not include {drop_in}: add `IncludeOptional {drop_in}` at its end"
            ))),
        }
    }

    /// Whether a line stands in our drop-in file.
    pub fn is_ours(&self, line: &ConfigLine) -> bool {
        line.file == self.settings.drop_in
    }

    /// Whether the running Apache has this number of workers, as far as server-status shows it.
    ///
    /// # Errors
    /// Both numbers, where they stay different.
    pub fn runs_with(&self, workers: &Value) -> Result<()> {
        let Value::Integer(workers) = workers else { return Ok(()) };
        let mut last = Ok(());
        let agreed = wait_for(AGREES_WITHIN_S, || {
            last = self.status().map_or(Ok(()), |status| status.fits(*workers));
            last.is_ok().then_some(())
        });
        Ok(agreed.map_or(last, Ok)?)
    }

    /// The number of restarts, as far as server-status shows it.
    pub fn generation(&self) -> Option<u64> {
        self.status().ok()?.generation
    }
}

impl DropInServer for Apache {
    type Config = ParsedConfig;

    const NAME: &'static str = "Apache";
    const HEAD: &'static str = "# Written by slackwater-wsengine, which removes it again; changes here are lost.";

    fn drop_in(&self) -> &Path {
        Path::new(&self.settings.drop_in)
    }

    fn config(&self) -> Result<ParsedConfig> {
        self.config_with(None)
    }

    fn test_next(&self, next: &Path) -> Result<()> {
        self.config_with(Some(format!("Include \"{}\"", next.display()))).map(|_| ())
    }

    fn pid(&self, config: &ParsedConfig) -> Result<u32> {
        let no_file = || Error::Unavailable("Apache's configuration names no PidFile".to_owned());
        let line = config.last(&["PidFile"]).ok_or_else(no_file)?;
        let path = Path::new(&line.value);
        if !path.is_absolute() {
            let message = format!("{}: PidFile must be a path from the root, got {:?}", line.place(), line.value);
            return Err(Error::Unavailable(message));
        }
        pid_in_file(&self.proc, path, Self::NAME, &["apache", "httpd"])
    }

    /// Restarts gracefully and waits for the restart: for a new generation in server-status, else for new children.
    fn reload(&self, pid: u32) -> Result<()> {
        let before = if self.settings.status_url.is_empty() { None } else { self.generation() };
        let old = children(&self.proc, pid);
        let newest = |children: &[(u32, u64)]| children.iter().map(|(_, started)| *started).max().unwrap_or(0);
        send_signal(pid, Signal::USR1, Self::NAME)?;
        let restarted = wait_for(RESTARTED_WITHIN_S, || match before {
            Some(before) => self.generation().filter(|now| *now > before).map(|_| ()),
            None => {
                let now = children(&self.proc, pid);
                let is_new = now.iter().any(|child| !old.contains(child)) && newest(&now) >= newest(&old);
                is_new.then_some(())
            }
        });
        restarted.ok_or_else(|| {
            let within_s = RESTARTED_WITHIN_S;
            Error::NotInEffect(format!("Apache ({pid}) has not restarted within {within_s} s of a SIGUSR1"))
        })
    }
}
