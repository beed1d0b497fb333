//! Where the files of a cgroup are that say on which cores and how much it may run, version 1 or 2.
//!
//! Forms: the kernel's Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/cpusets.rst and scheduler/sched-bwc.rst.

use std::path::{Path, PathBuf};

use crate::world::text;

/// Names that version 1 systems mount the controller of CPU time under.
const V1_CPU: &[&str] = &["cpu,cpuacct", "cpu"];

/// The file with the cores that the cgroup may run on.
///
/// # Errors
/// Where it was looked for.
pub fn cpuset(root: &Path, name: &str) -> Result<PathBuf, String> {
    let name = name.trim_matches('/');
    ["", "cpuset"]
        .iter()
        .map(|tree| root.join(tree).join(name).join("cpuset.cpus"))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            format!("cgroup {name}: no cpuset.cpus below {} (is the cpuset controller on for it?)", root.display())
        })
}

/// The cores that a cgroup beside `cpuset.cpus` really has: its own, or what it inherits.
pub fn effective_cores(cpuset: &Path) -> Result<String, String> {
    ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"]
        .iter()
        .map(|name| cpuset.with_file_name(name))
        .find(|path| path.is_file())
        .map_or_else(|| Err(format!("{}: it is not there", cpuset.display())), |path| text(&path))
}

/// The two forms of the CPU files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `cpu.shares`, `cpu.cfs_quota_us`.
    V1,
    /// `cpu.weight`, `cpu.max`.
    V2,
}

/// Where a cgroup's weight and quota stand.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuFiles {
    /// Which form they have.
    pub version: Version,
    /// The cgroup's directory.
    pub folder: PathBuf,
}

/// Finds them.
///
/// # Errors
/// Where they were looked for.
pub fn cpu(root: &Path, name: &str) -> Result<CpuFiles, String> {
    let name = name.trim_matches('/');
    let folder = root.join(name);
    if folder.join("cpu.weight").is_file() {
        return Ok(CpuFiles { version: Version::V2, folder });
    }
    V1_CPU
        .iter()
        .map(|tree| root.join(tree).join(name))
        .find(|folder| folder.join("cpu.shares").is_file())
        .map(|folder| CpuFiles { version: Version::V1, folder })
        .ok_or_else(|| {
            format!("cgroup {name}: neither cpu.weight (version 2) nor cpu.shares (version 1) below {}", root.display())
        })
}

/// What may be changed of a cgroup's CPU time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Version 1: cpu.shares; version 2: cpu.weight.
    pub weight: i64,
    /// Microseconds of CPU time a period; `None`: no quota.
    pub quota_us: Option<i64>,
    /// The period.
    pub period_us: i64,
}

impl CpuFiles {
    /// What stands there now.
    ///
    /// # Errors
    /// The file that is not in the expected form.
    pub fn read(&self) -> Result<Share, String> {
        let number = |name: &str, text: &str| {
            text.parse::<i64>()
                .map_err(|_| format!("{}: expected a number, got {text:?}", self.folder.join(name).display()))
        };
        let read = |name: &str| text(&self.folder.join(name)).and_then(|text| number(name, &text));
        match self.version {
            Version::V1 => {
                let quota_us = read("cpu.cfs_quota_us")?;
                Ok(Share {
                    weight: read("cpu.shares")?,
                    quota_us: (quota_us > 0).then_some(quota_us),
                    period_us: read("cpu.cfs_period_us")?,
                })
            }
            Version::V2 => {
                let max = text(&self.folder.join("cpu.max"))?;
                let (quota, period) = max.split_once(' ').unwrap_or((&max, ""));
                Ok(Share {
                    weight: read("cpu.weight")?,
                    quota_us: if quota == "max" { None } else { Some(number("cpu.max", quota)?) },
                    period_us: number("cpu.max", period)?,
                })
            }
        }
    }

    /// The bounds of a weight.
    pub fn weights(&self) -> std::ops::RangeInclusive<i64> {
        match self.version {
            Version::V1 => 2..=262_144,
            Version::V2 => 1..=10_000,
        }
    }

    /// Writes a weight.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn write_weight(&self, weight: i64) -> Result<(), String> {
        let name = if self.version == Version::V1 { "cpu.shares" } else { "cpu.weight" };
        write(&self.folder.join(name), &weight.to_string())
    }

    /// Writes a quota (`None`: no quota).
    ///
    /// # Errors
    /// What the kernel said.
    pub fn write_quota(&self, quota_us: Option<i64>, period_us: i64) -> Result<(), String> {
        match self.version {
            Version::V1 => write(&self.folder.join("cpu.cfs_quota_us"), &quota_us.unwrap_or(-1).to_string()),
            Version::V2 => {
                let quota = quota_us.map_or("max".to_owned(), |quota| quota.to_string());
                write(&self.folder.join("cpu.max"), &format!("{quota} {period_us}"))
            }
        }
    }
}

/// Writes a file of the kernel, in one write and without a line end.
///
/// # Errors
/// What the kernel said.
pub fn write(path: &Path, value: &str) -> Result<(), String> {
    use std::io::Write;
    // Never made: a file of the kernel is there or it is not.
    std::fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|error| crate::files::why(path, &format!("does not take {value}"), &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::fixture::Fixture;

    #[test]
    fn both_versions_are_found_read_and_written() {
        let fixture = Fixture::new(&[
            ("cgroup/cpu,cpuacct/a/cpu.shares", "1024\n"),
            ("cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"),
            ("cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n"),
            ("cgroup/b/cpu.weight", "100\n"),
            ("cgroup/b/cpu.max", "40000 100000\n"),
        ]);
        let root = fixture.path("cgroup");
        let one = cpu(&root, "/a").expect("version 1");
        assert_eq!(one.read(), Ok(Share { weight: 1024, quota_us: None, period_us: 50_000 }));
        one.write_quota(Some(20_000), 50_000).expect("written");
        assert_eq!(fixture.read("cgroup/cpu,cpuacct/a/cpu.cfs_quota_us"), "20000");
        let two = cpu(&root, "b").expect("version 2");
        assert_eq!(two.read(), Ok(Share { weight: 100, quota_us: Some(40_000), period_us: 100_000 }));
        two.write_quota(None, 100_000).expect("written");
        assert_eq!(fixture.read("cgroup/b/cpu.max"), "max 100000");
        assert!(cpu(&root, "c").unwrap_err().starts_with("cgroup c: neither cpu.weight"));
        assert!(cpuset(&root, "b").unwrap_err().contains("is the cpuset controller on for it?"));
    }
}
