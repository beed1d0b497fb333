//! php-fpm: its configuration files, our drop-in file, reloads, the status page.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use slackwater_node::files::text;
use slackwater_node::status::Page;
use slackwater_node::status::php_fpm::Status;

use crate::config::PhpFpmSettings;
use crate::drop_in::Server;
use crate::error::{Error, Result};
use crate::processes::{children, pid_in_file, send_signal};
use crate::system::{System, wait_for};
use crate::{command, files};

/// A reload is done this much after its old children must have ended, or has failed.
const RELOADED_WITHIN_S: f64 = 10.0;
const STATUS_WITHIN: Duration = Duration::from_secs(2);

/// Includes within includes end here.
const DEEPEST: usize = 8;

/// Settings of the configuration files by section; of one that is there twice the last.
pub type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Reads php-fpm's configuration files as it does: sections go on across includes, and may be opened again.
///
/// # Errors
/// A file that cannot be read.
pub fn read_files(main: &Path, without: &Path) -> Result<Sections> {
    let mut sections = Sections::new();
    let mut section = "global".to_owned();
    read_into(&mut sections, &mut section, main, without, 0)?;
    Ok(sections)
}

fn read_into(sections: &mut Sections, section: &mut String, path: &Path, without: &Path, depth: usize) -> Result<()> {
    if path == without || depth > DEEPEST {
        return Ok(());
    }
    for line in text(path)?.lines().map(str::trim).filter(|line| !line.starts_with([';', '#'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            name.0.trim().clone_into(section);
        } else if let Some((key, value)) = line.split_once('=') {
            let value = value.split(';').next().unwrap_or_default().trim().trim_matches('"').to_owned();
            if key.trim() == "include" {
                // `glob` sorts as php-fpm's own glob(3) does.
                for included in glob::glob(&value).into_iter().flatten().flatten() {
                    read_into(sections, section, &included, without, depth + 1)?;
                }
            } else {
                sections.entry(section.clone()).or_default().insert(key.trim().to_owned(), value);
            }
        }
    }
    Ok(())
}

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
    /// pm.start_servers, pm.min_spare_servers, pm.max_spare_servers, as far as they are set.
    pub others: [Option<i64>; 3],
}

const OTHERS: [&str; 3] = ["pm.start_servers", "pm.min_spare_servers", "pm.max_spare_servers"];

/// The lines that set `children` for a pool, with start and spare servers that php-fpm accepts beside it.
pub fn lines_for(manager: &Manager, children: i64) -> Vec<(String, String)> {
    let mut lines = vec![("pm.max_children".to_owned(), children.to_string())];
    if manager.pm == "dynamic" {
        let [start, min, max] = manager.others;
        let max = max.unwrap_or(children).min(children);
        let min = min.unwrap_or(1).min(max);
        // php-fpm's own default, where it is not set.
        let start = start.unwrap_or(min + (max - min) / 2).clamp(min, max);
        for ((name, theirs), written) in OTHERS.iter().zip(manager.others).zip([start, min, max]) {
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
    candidate: PathBuf,
}

impl PhpFpm {
    /// The php-fpm of these settings; `state_dir` is for configurations that are only tested.
    pub fn new(settings: &PhpFpmSettings, state_dir: &str, system: &System) -> PhpFpm {
        PhpFpm {
            settings: settings.clone(),
            proc: system.proc.clone(),
            candidate: Path::new(state_dir).join("php-fpm-candidate.conf"),
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &PhpFpmSettings {
        &self.settings
    }

    /// What the site's own files set.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn sites_own(&self) -> Result<Sections> {
        read_files(Path::new(&self.settings.config), self.drop_in())
    }

    /// What all files set together.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn all(&self) -> Result<Sections> {
        read_files(Path::new(&self.settings.config), Path::new(""))
    }

    /// How the pool's children are managed, by these settings.
    ///
    /// # Errors
    /// What is missing or no number.
    pub fn manager(&self, sections: &Sections) -> Result<Manager> {
        let name = &self.settings.pool;
        let missing = || Error::Unavailable(format!("{}: there is no pool [{name}]", self.settings.config));
        let pool = sections.get(name).ok_or_else(missing)?;
        let wrong = |what: String| Error::Unavailable(format!("pool [{name}]: {what}"));
        let number = |key: &str| match pool.get(key) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| wrong(format!("{key} = {text:?} is no number"))),
        };
        let unset = |key: &str| wrong(format!("{key} is not set"));
        let [start, min, max] = OTHERS;
        Ok(Manager {
            pm: pool.get("pm").cloned().ok_or_else(|| unset("`pm`"))?,
            max_children: number("pm.max_children")?.ok_or_else(|| unset("pm.max_children"))?,
            others: [number(start)?, number(min)?, number(max)?],
        })
    }

    /// How long php-fpm lets requests finish at a reload.
    ///
    /// # Errors
    /// When it would not: a reload would cut them.
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

    /// Number of children of the pool now, from the status page (`pm.status_path`), else from the process table.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn processes(&self, sections: &Sections) -> Result<(u64, String)> {
        let pool = sections.get(&self.settings.pool).cloned().unwrap_or_default();
        let listen = pool.get("pm.status_listen").or_else(|| pool.get("listen"));
        if let (Some(page), Some(listen)) = (pool.get("pm.status_path"), listen) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| Error::Process(format!("no event loop: {error}")))?;
            let page_of_pool = Page::FastCgi { listen: listen.clone(), path: page.clone() };
            let status = Status::parse(&page_of_pool.fetch(&runtime, STATUS_WITHIN)?);
            let status = status.ok_or_else(|| Error::Unavailable(format!("{page}: no status in JSON")))?;
            return Ok((status.total, format!("status page {page}")));
        }
        let title = format!("php-fpm: pool {}", self.settings.pool);
        let of_pool = |pid: u32| {
            let line = std::fs::read(self.proc.join(pid.to_string()).join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).trim_matches('\0').trim() == title
        };
        let count = children(&self.proc, self.pid(sections)?).into_iter().filter(|(pid, _)| of_pool(*pid)).count();
        Ok((count as u64, "process table (pm.status_path is not set)".to_owned()))
    }

    /// The drop-in file with these lines.
    pub fn render(&self, lines: &[(String, String)]) -> String {
        let lines: String = lines.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        format!("{}\n[{}]\n{lines}", Self::HEAD, self.settings.pool)
    }

    /// Writes the drop-in file, tests and reloads; on failure all is as it was.
    ///
    /// # Errors
    /// What failed.
    pub fn set(&self, drop_in: &str) -> Result<()> {
        self.patience_s(&self.sites_own()?)?;
        self.change(Some(drop_in), |_| self.counts(drop_in))
    }

    /// Tests a main configuration file.
    fn test(&self, main: &Path) -> Result<()> {
        let arguments = ["-t".to_owned(), "-y".to_owned(), main.display().to_string()];
        let tested = command::run(&[self.settings.command.as_slice(), &arguments].concat());
        let context = "php-fpm's configuration does not pass its test";
        tested.map(|_| ()).map_err(|error| Error::from(error).during(context))
    }

    /// Whether what the drop-in file sets is in force.
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

impl Server for PhpFpm {
    /// What the site's own files set.
    type Config = Sections;

    const NAME: &'static str = "php-fpm";
    const HEAD: &'static str = "; Written by slackwater-wsengine, which removes it again; changes here are lost.";

    fn drop_in(&self) -> &Path {
        Path::new(&self.settings.drop_in)
    }

    fn config(&self) -> Result<Sections> {
        self.test(Path::new(&self.settings.config))?;
        self.sites_own()
    }

    fn test_next(&self, next: &Path) -> Result<()> {
        let main = text(Path::new(&self.settings.config))?;
        let candidate = format!("{main}\ninclude={}\n", next.display());
        files::replace(&self.candidate, candidate.as_bytes(), 0o600)?;
        let tested = self.test(&self.candidate);
        let _ = files::remove(&self.candidate);
        tested
    }

    fn pid(&self, sections: &Sections) -> Result<u32> {
        let named = sections.get("global").and_then(|global| global.get("pid"));
        let config = &self.settings.config;
        let no_file = || Error::Unavailable(format!("{config}: [global] names no `pid` file"));
        let path = named.ok_or_else(no_file)?;
        if !path.starts_with('/') {
            let message = format!("{config}: `pid` must be a path from the root, got {path:?}");
            return Err(Error::Unavailable(message));
        }
        pid_in_file(&self.proc, Path::new(path), Self::NAME, &["php-fpm"])
    }

    /// Reloads and waits until no child of before is left and the master has made its new ones.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::fixture::Fixture;

    fn dynamic(max_children: i64, others: [Option<i64>; 3]) -> Manager {
        Manager { pm: "dynamic".to_owned(), max_children, others }
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
    fn sections_go_on_across_includes_and_the_last_value_counts() {
        let fixture = Fixture::new(&[
            ("pool.d/www.conf", "; comment\n[www]\npm = dynamic ; note\npm.max_children = 5\n"),
            ("pool.d/zz.conf", "[www]\npm.max_children = 9\n"),
        ]);
        let include = format!("[global]\npid = /run/x.pid\ninclude={}\n", fixture.path("pool.d/*.conf").display());
        fixture.write("main.conf", &include);
        let max = |without: &Path| {
            read_files(&fixture.path("main.conf"), without).expect("read")["www"]["pm.max_children"].clone()
        };
        assert_eq!(max(Path::new("")), "9");
        assert_eq!(max(&fixture.path("pool.d/zz.conf")), "5");
        let all = read_files(&fixture.path("main.conf"), Path::new("")).expect("read");
        assert_eq!((all["www"]["pm"].as_str(), all["global"]["pid"].as_str()), ("dynamic", "/run/x.pid"));
    }

    #[test]
    fn times_are_in_seconds() {
        let times = ["10", "10s", "2m", "1h", "", "x", "5x"].map(seconds);
        assert_eq!(times, [Some(10.0), Some(10.0), Some(120.0), Some(3600.0), None, None, None]);
    }
}
