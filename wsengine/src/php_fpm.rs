//! php-fpm: its configuration as it prints it, our drop-in file, reloads, the status page.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use slackwater_node::status::Page;
use slackwater_node::status::php_fpm::PhpFpmStatus;
use slackwater_node::system::System;

use crate::config::PhpFpmSettings;
use crate::drop_in::DropInServer;
use crate::error::{Error, Result};
use crate::php_fpm_config::{READ_ONLY, Sections, expanded, parse_dump, prefix, variables};
use crate::processes::{children, pid_in_file, processes_titled, send_signal};
use crate::wait::wait_for;
use crate::{command, files};

/// A reload has failed when it takes longer than this after the old children must have ended.
const RELOADED_WITHIN_S: f64 = 10.0;
const STATUS_WITHIN: Duration = Duration::from_secs(2);

/// Seconds of a time such as `10`, `10s`, `2m`.
pub fn seconds(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Some(digits.trim().parse::<f64>().ok()? * factor)
}

/// How a pool's number of children is managed, and the numbers that must fit together.
#[derive(Debug, Clone, PartialEq)]
pub struct Manager {
    /// `static`, `dynamic` or `ondemand`.
    pub pm: String,
    /// pm.max_children.
    pub max_children: i64,
    /// The values of [`SPARES`], as far as they are set.
    pub spares: [Option<i64>; 3],
}

/// Settings of start and spare servers, which must fit pm.max_children.
const SPARES: [&str; 3] = ["pm.start_servers", "pm.min_spare_servers", "pm.max_spare_servers"];

/// The lines that set `children` for a pool, with start and spare servers that php-fpm accepts beside it.
pub fn lines_for(manager: &Manager, children: i64) -> Vec<(String, String)> {
    let mut lines = vec![("pm.max_children".to_owned(), children.to_string())];
    if manager.pm == "dynamic" {
        let [start, min, max] = manager.spares;
        let max = max.unwrap_or(children).min(children);
        let min = min.unwrap_or(1).min(max);
        // php-fpm's own default, where it is not set.
        let start = start.unwrap_or(min + (max - min) / 2).clamp(min, max);
        for ((name, theirs), written) in SPARES.iter().zip(manager.spares).zip([start, min, max]) {
            if theirs != Some(written) {
                lines.push(((*name).to_owned(), written.to_string()));
            }
        }
    }
    lines
}

/// The php-fpm of this node.
pub struct PhpFpm {
    settings: PhpFpmSettings,
    proc: PathBuf,
}

impl PhpFpm {
    /// The php-fpm of these settings.
    pub fn new(settings: &PhpFpmSettings, system: &System) -> PhpFpm {
        PhpFpm { settings: settings.clone(), proc: system.proc.clone() }
    }

    /// Its settings.
    pub fn settings(&self) -> &PhpFpmSettings {
        &self.settings
    }

    /// The settings of the site's own files: of all files but our drop-in file.
    ///
    /// # Errors
    /// Why php-fpm does not accept them.
    pub fn sites_own(&self) -> Result<Sections> {
        let sections = self.all()?;
        if !self.drop_in().exists() {
            return Ok(sections);
        }
        let main = Path::new(&self.settings.config);
        let prefix = prefix(&self.settings.command);
        let without = |file: &Path| self.dump(&expanded(main, file, prefix.as_deref())?);
        // If our search finds other files than php-fpm does, its answer for these files would be wrong.
        if without(Path::new(""))? != sections {
            let drop_in = &self.settings.drop_in;
            let why = format!(
                "wsengine finds other included files than php-fpm does, so php-fpm's settings without {drop_in} are not known"
            );
            return Err(Error::Unavailable(why));
        }
        without(self.drop_in())
    }

    /// The settings of all files together.
    ///
    /// # Errors
    /// Why php-fpm does not accept them.
    pub fn all(&self) -> Result<Sections> {
        self.dump(&self.main()?)
    }

    fn main(&self) -> Result<Vec<u8>> {
        let path = Path::new(&self.settings.config);
        files::contents(path)?.ok_or_else(|| Error::Unavailable(format!("{}: it is not there", path.display())))
    }

    /// The settings of a main configuration with this text, as php-fpm itself reads it.
    fn dump(&self, text: &[u8]) -> Result<Sections> {
        // The file is in memory and stays open for php-fpm, so this works without a writable disk.
        let unready =
            |error: &dyn std::fmt::Display| Error::Process(format!("no memory for php-fpm's configuration: {error}"));
        let file = memfd_create("php-fpm.conf", MemfdFlags::empty()).map_err(|error| unready(&error))?;
        let mut file = File::from(file);
        file.write_all(&[text, READ_ONLY.as_bytes()].concat()).map_err(|error| unready(&error))?;
        let arguments = ["-tt".to_owned(), "-y".to_owned(), format!("/proc/self/fd/{}", file.as_raw_fd())];
        let tested = command::run(&[self.settings.command.as_slice(), &arguments].concat());
        drop(file);
        tested.map(|output| parse_dump(&output.stderr)).map_err(|error| {
            let whole =
                expanded(Path::new(&self.settings.config), Path::new(""), prefix(&self.settings.command).as_deref());
            let named = variables(whole.as_deref().unwrap_or(text)).into_iter();
            let unset: Vec<String> = named.filter(|name| std::env::var_os(name).is_none()).collect();
            let mut context = "php-fpm's configuration does not pass its test".to_owned();
            if !unset.is_empty() {
                context += &format!(
                    "; it names environment variables that are not set here ({}): give this program those of php-fpm",
                    unset.join(", ")
                );
            }
            Error::from(error).during(context)
        })
    }

    /// How these settings manage the pool's children.
    ///
    /// # Errors
    /// The setting that is missing or no number.
    pub fn manager(&self, sections: &Sections) -> Result<Manager> {
        let name = &self.settings.pool;
        let missing = || Error::Unavailable(format!("{}: there is no pool [{name}]", self.settings.config));
        let pool = sections.get(name).ok_or_else(missing)?;
        let wrong = |fault: String| Error::Unavailable(format!("pool [{name}]: {fault}"));
        let number = |key: &str| match pool.get(key) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| wrong(format!("{key} = {text:?} is no number"))),
        };
        let unset = |key: &str| wrong(format!("{key} is not set"));
        let [start, min, max] = SPARES;
        Ok(Manager {
            pm: pool.get("pm").cloned().ok_or_else(|| unset("`pm`"))?,
            max_children: number("pm.max_children")?.ok_or_else(|| unset("pm.max_children"))?,
            spares: [number(start)?, number(min)?, number(max)?],
        })
    }

    /// How long php-fpm lets requests finish at a reload, in seconds.
    ///
    /// # Errors
    /// When it does not wait: a reload would cut the requests.
    pub fn patience_s(&self, sections: &Sections) -> Result<f64> {
        let text = sections.get("global").and_then(|global| global.get("process_control_timeout"));
        match text.map(|text| (text, seconds(text))) {
            Some((_, Some(patience_s))) if patience_s > 0.0 => Ok(patience_s),
            Some((text, None)) => Err(Error::Unavailable(format!("process_control_timeout = {text:?} is no time"))),
            _ => Err(Error::Unavailable(
                "process_control_timeout is 0: a reload would cut the requests in flight; set it in [global] (10s) \
                and restart php-fpm once"
                    .to_owned(),
            )),
        }
    }

    /// The number of children of the pool, and its source: the status page (`pm.status_path`), else the process table.
    ///
    /// Without `pm.status_listen` a child serves the page, so none comes while all children are busy.
    ///
    /// # Errors
    /// Why the number is not known.
    pub fn processes(&self, sections: &Sections) -> Result<(u64, String)> {
        let pool = sections.get(&self.settings.pool).cloned().unwrap_or_default();
        let listen = pool.get("pm.status_listen").or_else(|| pool.get("listen"));
        let why_not = if let (Some(path), Some(listen)) = (pool.get("pm.status_path"), listen) {
            match status_page(listen, path) {
                Ok(status) => return Ok((status.total, format!("status page {path}"))),
                Err(error) => format!("no status page {path}: {error}"),
            }
        } else {
            "pm.status_path is not set".to_owned()
        };
        let title = format!("php-fpm: pool {}", self.settings.pool);
        let workers = processes_titled(&self.proc, &title);
        let count =
            children(&self.proc, self.pid(sections)?).into_iter().filter(|(pid, _)| workers.contains(pid)).count();
        Ok((count as u64, format!("process table ({why_not})")))
    }

    /// The drop-in file with these lines.
    pub fn render(&self, lines: &[(String, String)]) -> String {
        let lines: String = lines.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        format!("{}\n[{}]\n{lines}", Self::HEAD, self.settings.pool)
    }

    /// Writes the drop-in file, tests and reloads; on failure everything is as it was before.
    ///
    /// # Errors
    /// The step that failed.
    pub fn set(&self, drop_in: &str) -> Result<()> {
        self.patience_s(&self.sites_own()?)?;
        self.change(Some(drop_in), |_| self.counts(drop_in))
    }

    /// Checks that the settings of the drop-in file are in force.
    fn counts(&self, drop_in: &str) -> Result<()> {
        let pool = self.all()?.remove(&self.settings.pool).unwrap_or_default();
        let mut lines = drop_in.lines().filter_map(|line| line.split_once(" = "));
        if lines.all(|(name, value)| pool.get(name).map(String::as_str) == Some(value)) {
            return Ok(());
        }
        let drop_in = &self.settings.drop_in;
        Err(Error::NotInEffect(format!(
            "{drop_in} does not count: php-fpm's configuration must include it after the pool's own file"
        )))
    }
}

impl DropInServer for PhpFpm {
    /// The settings of the site's own files.
    type Config = Sections;

    const NAME: &'static str = "php-fpm";
    const HEAD: &'static str = "; Written by slackwater-wsengine, which removes it again; changes here are lost.";

    fn drop_in(&self) -> &Path {
        Path::new(&self.settings.drop_in)
    }

    fn config(&self) -> Result<Sections> {
        self.sites_own()
    }

    fn test_next(&self, next: &Path) -> Result<()> {
        let include = format!("\ninclude={}\n", next.display());
        self.dump(&[&self.main()?, include.as_bytes()].concat()).map(|_| ())
    }

    fn pid(&self, sections: &Sections) -> Result<u32> {
        if let Some(path) = sections.get("global").and_then(|global| global.get("pid")) {
            return pid_in_file(&self.proc, Path::new(path), Self::NAME, &["php-fpm"]);
        }
        // The official container image has no pid file.
        let config = &self.settings.config;
        let title = format!("php-fpm: master process ({config})");
        let mut masters = processes_titled(&self.proc, &title).into_iter();
        match (masters.next(), masters.next()) {
            (Some(master), None) => Ok(master),
            (None, _) => Err(Error::Unavailable(format!(
                "php-fpm does not run: {config}: [global] names no `pid` file, and no process is \"{title}\""
            ))),
            (Some(_), Some(_)) => Err(Error::Unavailable(format!(
                "{config}: [global] names no `pid` file, and several processes are \"{title}\""
            ))),
        }
    }

    /// Reloads, and waits until all old children have ended and the master has started new ones.
    fn reload(&self, pid: u32) -> Result<()> {
        let patience_s = self.patience_s(&self.sites_own()?).unwrap_or(0.0);
        let old = children(&self.proc, pid);
        let starts_children = self.manager(&self.all()?).is_ok_and(|manager| manager.pm != "ondemand");
        send_signal(pid, Signal::USR2, Self::NAME)?;
        let within_s = patience_s + RELOADED_WITHIN_S;
        let reloaded = wait_for(within_s, || {
            let now = children(&self.proc, pid);
            let gone = !now.iter().any(|child| old.contains(child));
            (gone && (!starts_children || !now.is_empty())).then_some(())
        });
        reloaded.ok_or_else(|| {
            Error::NotInEffect(format!("php-fpm ({pid}) has not reloaded within {within_s} s of a SIGUSR2"))
        })
    }
}

/// The status page of a pool that listens there.
fn status_page(listen: &str, path: &str) -> Result<PhpFpmStatus> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Process(format!("no event loop: {error}")))?;
    let page = Page::FastCgi { listen: listen.to_owned(), path: path.to_owned() };
    let text = page.fetch(&runtime, STATUS_WITHIN)?;
    PhpFpmStatus::parse(&text).ok_or_else(|| Error::Unavailable("no status in JSON".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dynamic(max_children: i64, spares: [Option<i64>; 3]) -> Manager {
        Manager { pm: "dynamic".to_owned(), max_children, spares }
    }

    #[test]
    fn start_and_spare_servers_stay_consistent() {
        let lines = |manager: &Manager, children| {
            lines_for(manager, children)
                .into_iter()
                .map(|(name, value)| format!("{}={value}", name.trim_start_matches("pm.")))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let usual = dynamic(5, [Some(2), Some(1), Some(3)]);
        assert_eq!(lines(&usual, 20), "max_children=20");
        assert_eq!(lines(&usual, 2), "max_children=2 max_spare_servers=2");
        assert_eq!(lines(&usual, 1), "max_children=1 start_servers=1 max_spare_servers=1");
        let unset = dynamic(5, [None, Some(2), Some(6)]);
        assert_eq!(lines(&unset, 4), "max_children=4 start_servers=3 max_spare_servers=4");
        for pm in ["static", "ondemand"] {
            assert_eq!(lines(&Manager { pm: pm.to_owned(), ..usual.clone() }, 1), "max_children=1");
        }
    }

    #[test]
    fn times_are_in_seconds() {
        let times = ["10", "10s", "2m", "1h", "", "x", "5x"].map(seconds);
        assert_eq!(times, [Some(10.0), Some(10.0), Some(120.0), Some(3600.0), None, None, None]);
    }
}
