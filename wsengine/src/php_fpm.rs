//! The door to php-fpm: its configuration files, our drop-in file, reloads, the status page.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use slackwater_node::status::Page;
use slackwater_node::status::php_fpm::Status;

use crate::config::PhpFpmSettings;
use crate::world::{World, children, text, wait_for};
use crate::{command, files};

/// A reload is done this much after its old children must have ended, or has failed.
const RELOADED_WITHIN_S: f64 = 10.0;
const STATUS_WITHIN: Duration = Duration::from_secs(2);

/// First line of our drop-in file.
const HEAD: &str = "; Written by slackwater-wsengine, which removes it again; changes here are lost.";
/// Includes within includes end here.
const DEEPEST: usize = 8;

/// Settings of the configuration files by section; of one that is there twice the last.
pub type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Reads php-fpm's configuration files as it does: sections go on across includes, and may be opened again.
///
/// # Errors
/// A file that cannot be read.
pub fn read_files(main: &Path, without: &Path) -> Result<Sections, String> {
    let mut sections = Sections::new();
    let mut section = "global".to_owned();
    read_into(&mut sections, &mut section, main, without, 0)?;
    Ok(sections)
}

fn read_into(
    sections: &mut Sections,
    section: &mut String,
    path: &Path,
    without: &Path,
    depth: usize,
) -> Result<(), String> {
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
        for ((name, theirs), ours) in OTHERS.iter().zip(manager.others).zip([start, min, max]) {
            if theirs != Some(ours) {
                lines.push(((*name).to_owned(), ours.to_string()));
            }
        }
    }
    lines
}

/// The door.
pub struct PhpFpm {
    settings: PhpFpmSettings,
    proc: PathBuf,
    candidate: PathBuf,
}

impl PhpFpm {
    /// The php-fpm of these settings; `state_dir` is for configurations that are only tested.
    pub fn new(settings: &PhpFpmSettings, state_dir: &str, world: &World) -> PhpFpm {
        PhpFpm {
            settings: settings.clone(),
            proc: world.proc.clone(),
            candidate: Path::new(state_dir).join("php-fpm-candidate.conf"),
        }
    }

    /// The settings of this door.
    pub fn settings(&self) -> &PhpFpmSettings {
        &self.settings
    }

    /// The drop-in file.
    pub fn drop_in(&self) -> &Path {
        Path::new(&self.settings.drop_in)
    }

    /// What the site's own files say.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn sites_own(&self) -> Result<Sections, String> {
        read_files(Path::new(&self.settings.config), self.drop_in())
    }

    /// What all files say together.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn all(&self) -> Result<Sections, String> {
        read_files(Path::new(&self.settings.config), Path::new(""))
    }

    /// How the pool's children are managed, by these settings.
    ///
    /// # Errors
    /// What is missing or no number.
    pub fn manager(&self, sections: &Sections) -> Result<Manager, String> {
        let name = &self.settings.pool;
        let pool = sections.get(name).ok_or_else(|| format!("{}: there is no pool [{name}]", self.settings.config))?;
        let number = |key: &str| match pool.get(key) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| format!("pool [{name}]: {key} = {text:?} is no number")),
        };
        let [start, min, max] = OTHERS;
        Ok(Manager {
            pm: pool.get("pm").cloned().ok_or_else(|| format!("pool [{name}]: `pm` is not set"))?,
            max_children: number("pm.max_children")?
                .ok_or_else(|| format!("pool [{name}]: pm.max_children is not set"))?,
            others: [number(start)?, number(min)?, number(max)?],
        })
    }

    /// The master's process id.
    ///
    /// # Errors
    /// Why there is none.
    pub fn pid(&self, sections: &Sections) -> Result<u32, String> {
        let named = sections.get("global").and_then(|global| global.get("pid"));
        let path = named.ok_or_else(|| format!("{}: [global] names no `pid` file", self.settings.config))?;
        if !path.starts_with('/') {
            return Err(format!("{}: `pid` must be a path from the root, got {path:?}", self.settings.config));
        }
        let pid: u32 = text(Path::new(path))
            .map_err(|error| format!("php-fpm does not run: {error}"))?
            .parse()
            .map_err(|_| format!("{path} holds no process id"))?;
        let name = text(&self.proc.join(pid.to_string()).join("comm")).unwrap_or_default();
        if name.starts_with("php-fpm") {
            return Ok(pid);
        }
        Err(format!("php-fpm does not run: {path} names process {pid}, which is {name:?}"))
    }

    /// How long php-fpm lets requests finish at a reload.
    ///
    /// # Errors
    /// When it would not: a reload would cut them.
    pub fn patience_s(&self, sections: &Sections) -> Result<f64, String> {
        let text = sections.get("global").and_then(|global| global.get("process_control_timeout"));
        match text.map(|text| (text, seconds(text))) {
            Some((_, Some(patience_s))) if patience_s > 0.0 => Ok(patience_s),
            Some((text, None)) => Err(format!("process_control_timeout = {text:?} is no time")),
            _ => Err(
                "process_control_timeout is 0: a reload would cut the requests in flight; set it in [global] (10s) \
                and restart php-fpm once"
                    .to_owned(),
            ),
        }
    }

    /// Number of children of the pool now, from the status page (`pm.status_path`), else from the process table.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn processes(&self, sections: &Sections) -> Result<(u64, String), String> {
        let pool = sections.get(&self.settings.pool).cloned().unwrap_or_default();
        let listen = pool.get("pm.status_listen").or_else(|| pool.get("listen"));
        if let (Some(page), Some(listen)) = (pool.get("pm.status_path"), listen) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| format!("no event loop: {error}"))?;
            let fetched = Page::FastCgi { listen: listen.clone(), path: page.clone() }.fetch(&runtime, STATUS_WITHIN);
            let status = Status::parse(&fetched.map_err(|error| error.to_string())?);
            let status = status.ok_or_else(|| format!("{page}: no status in JSON"))?;
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

    /// What our drop-in file says of the pool; refuses a file that somebody else wrote.
    ///
    /// # Errors
    /// As said.
    pub fn ours(&self) -> Result<Option<String>, String> {
        let Some(bytes) = files::contents(self.drop_in())? else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if text.starts_with(HEAD) {
            return Ok(Some(text));
        }
        Err(format!("{} was written by somebody else; it is left alone", self.drop_in().display()))
    }

    /// The drop-in file with these lines.
    pub fn render(&self, lines: &[(String, String)]) -> String {
        let lines: String = lines.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        format!("{HEAD}\n[{}]\n{lines}", self.settings.pool)
    }

    /// Tests a main configuration file.
    fn test(&self, main: &Path) -> Result<(), String> {
        let mut argv = self.settings.command.clone();
        argv.extend(["-t".to_owned(), "-y".to_owned(), main.display().to_string()]);
        command::run(&argv)
            .map(|_| ())
            .map_err(|said| format!("php-fpm's configuration does not pass its test: {said}"))
    }

    /// Writes the drop-in file, tests and reloads; on failure all is as it was.
    ///
    /// # Errors
    /// What went wrong.
    pub fn change(&self, drop_in: &str) -> Result<(), String> {
        let before = files::contents(self.drop_in())?;
        let sections = self.sites_own()?;
        let (pid, patience_s) = (self.pid(&sections)?, self.patience_s(&sections)?);
        self.test(Path::new(&self.settings.config))?;
        let next = files::prepare(self.drop_in(), drop_in.as_bytes(), 0o644)?;
        let main = text(Path::new(&self.settings.config))?;
        let tested = files::replace(&self.candidate, format!("{main}\ninclude={}\n", next.display()).as_bytes(), 0o600)
            .and_then(|()| self.test(&self.candidate));
        let _ = files::remove(&self.candidate);
        if let Err(said) = tested {
            files::discard(self.drop_in());
            return Err(said);
        }
        files::accept(self.drop_in())?;
        let mut reloaded = false;
        let done = self
            .test(Path::new(&self.settings.config))
            .and_then(|()| self.counts(drop_in))
            .and_then(|()| self.reload(pid, patience_s).inspect_err(|_| reloaded = true));
        done.map_err(|said| match files::put_back(self.drop_in(), before.as_deref()) {
            Ok(()) if reloaded => {
                self.reload(pid, patience_s).err().map_or(said.clone(), |more| format!("{said}; and then {more}"))
            }
            Ok(()) => said,
            Err(more) => format!("{said}; and then {more}"),
        })
    }

    /// Whether what the drop-in file says is what counts.
    fn counts(&self, drop_in: &str) -> Result<(), String> {
        let pool = self.all()?.remove(&self.settings.pool).unwrap_or_default();
        for (name, value) in drop_in.lines().filter_map(|line| line.split_once(" = ")) {
            if pool.get(name).map(String::as_str) != Some(value) {
                return Err(format!(
                    "{} does not count: php-fpm's configuration must include it after the pool's own file",
                    self.settings.drop_in
                ));
            }
        }
        Ok(())
    }

    /// Removes the drop-in file, and reloads if the site's configuration is fine.
    ///
    /// # Errors
    /// What went wrong; on disk all is put back unless it says otherwise.
    pub fn put_back(&self) -> Result<(), String> {
        match self.ours() {
            Ok(Some(_)) => files::remove(self.drop_in())?,
            Ok(None) => {}
            Err(_) if files::contents(self.drop_in())?.is_some() => {}
            Err(said) => return Err(said),
        }
        self.test(Path::new(&self.settings.config))
            .map_err(|said| format!("put back on disk, but php-fpm is not reloaded: {said}"))?;
        let sections = self.sites_own()?;
        match self.pid(&sections) {
            Ok(pid) => self.reload(pid, self.patience_s(&sections).unwrap_or(0.0)),
            // It reads its configuration when it starts.
            Err(_) => Ok(()),
        }
    }

    /// Reloads and waits until no child of before is left and the master has made its new ones.
    fn reload(&self, pid: u32, patience_s: f64) -> Result<(), String> {
        let old = children(&self.proc, pid);
        let starts_children = self.manager(&self.all()?).is_ok_and(|manager| manager.pm != "ondemand");
        let target = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no process id")?;
        kill_process(target, Signal::USR2).map_err(|error| format!("php-fpm ({pid}) cannot be signalled: {error}"))?;
        let within_s = patience_s + RELOADED_WITHIN_S;
        let seen = wait_for(within_s, || {
            let now = children(&self.proc, pid);
            let gone = !now.iter().any(|child| old.contains(child));
            (gone && (!starts_children || !now.is_empty())).then_some(())
        });
        seen.ok_or_else(|| format!("php-fpm ({pid}) has not reloaded within {within_s} s of a SIGUSR2"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::fixture::Fixture;

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
