//! The files of a cgroup, in version 1 (one tree for each controller) or 2 (one tree).
//!
//! Forms: the kernel's Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/cpuacct.rst, cgroup-v1/cpusets.rst and
//! scheduler/sched-bwc.rst.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{FileError, text};

mod freezer;
mod share;

pub use freezer::FreezerFiles;
pub use share::{AllowanceFiles, CpuAllowance};

/// Names that version 1 systems mount the controller of CPU time under.
const V1_CPUACCT: &[&str] = &["cpu,cpuacct", "cpuacct", "cpu"];
/// Trees that list the processes of a cgroup, in the order in which they are searched.
const TREES: &[&str] = &["", "cpu,cpuacct", "cpuacct", "cpu", "systemd", "unified", "pids", "memory"];

/// The two forms of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `cpuacct.usage`, `cpu.shares`, `cpu.cfs_quota_us`, `cpu.cfs_period_us`.
    V1,
    /// `cpu.stat`, `cpu.weight`, `cpu.max`.
    V2,
}

/// Why a cgroup's files cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum CgroupError {
    #[error("cgroup {name}: {missing} below {}", root.display())]
    NotFound { name: String, missing: &'static str, root: PathBuf },
    #[error("{}: the CPU quota is not in the expected form", .0.display())]
    Quota(PathBuf),
    #[error("{}: expected a number, got {text:?}", path.display())]
    Number { path: PathBuf, text: String },
    #[error(transparent)]
    File(#[from] FileError),
}

/// The directory of cgroup `name` in the first of these trees where it has `file`.
fn find(root: &Path, trees: &[&str], name: &str, file: &str) -> Option<PathBuf> {
    let name = name.trim_matches('/');
    trees.iter().map(|tree| root.join(tree).join(name)).find(|directory| directory.join(file).is_file())
}

fn not_found(root: &Path, name: &str, missing: &'static str) -> CgroupError {
    CgroupError::NotFound { name: name.trim_matches('/').to_owned(), missing, root: root.to_owned() }
}

/// The files with the CPU time and the quotas of a cgroup.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuFiles {
    /// The files' form.
    pub version: Version,
    /// The file with the CPU time used.
    pub usage: PathBuf,
    /// Directories whose quota applies: the cgroup's, then its ancestors' up to the root.
    pub quotas: Vec<PathBuf>,
}

/// Finds the CPU files of cgroup `name` (relative to the root of its tree) below `root` (`/sys/fs/cgroup`).
///
/// # Errors
/// When they are not there.
pub fn find_cpu(root: &Path, name: &str) -> Result<CpuFiles, CgroupError> {
    let name = name.trim_matches('/');
    if root.join("cgroup.controllers").is_file()
        && let Some(directory) = find(root, &[""], name, "cpu.stat")
    {
        return Ok(CpuFiles { version: Version::V2, usage: directory.join("cpu.stat"), quotas: ancestors(root, name) });
    }
    for tree in V1_CPUACCT {
        if let Some(directory) = find(root, &[tree], name, "cpuacct.usage") {
            // With one tree for each controller the quota stands in the other one.
            let quota_tree = if *tree == "cpuacct" { root.join("cpu") } else { root.join(tree) };
            let usage = directory.join("cpuacct.usage");
            return Ok(CpuFiles { version: Version::V1, usage, quotas: ancestors(&quota_tree, name) });
        }
    }
    Err(not_found(root, name, "neither cpu.stat (version 2) nor cpuacct.usage (version 1)"))
}

/// The directory that lists the processes of cgroup `name`.
///
/// # Errors
/// When there is none.
pub fn find_processes(root: &Path, name: &str) -> Result<PathBuf, CgroupError> {
    find(root, TREES, name, "cgroup.procs").ok_or_else(|| not_found(root, name, "no cgroup.procs"))
}

/// The directory with the pressure files of cgroup `name`, where version 2 keeps them.
pub fn find_pressure(root: &Path, name: &str) -> Option<PathBuf> {
    find(root, &["", "unified"], name, "cpu.pressure")
}

/// The file `cpu.uclamp.min`: the least share of the highest clock that the cgroup's threads are given.
///
/// # Errors
/// When it is not there.
pub fn find_uclamp_min(root: &Path, name: &str) -> Result<PathBuf, CgroupError> {
    find(root, &["", "cpu,cpuacct", "cpu"], name, "cpu.uclamp.min")
        .map(|directory| directory.join("cpu.uclamp.min"))
        .ok_or_else(|| not_found(root, name, "no cpu.uclamp.min (is the kernel without CONFIG_UCLAMP_TASK_GROUP?)"))
}

/// The file with the cores that the cgroup may run on.
///
/// # Errors
/// When it is not there.
pub fn find_cpuset(root: &Path, name: &str) -> Result<PathBuf, CgroupError> {
    find(root, &["", "cpuset"], name, "cpuset.cpus")
        .map(|directory| directory.join("cpuset.cpus"))
        .ok_or_else(|| not_found(root, name, "no cpuset.cpus (is the cpuset controller on for it?)"))
}

/// The cores that the cgroup of a `cpuset.cpus` really has: its own, or the inherited ones.
///
/// # Errors
/// When there is no such cgroup.
pub fn effective_cores(cpuset: &Path) -> Result<String, CgroupError> {
    let effective = ["cpuset.cpus.effective", "cpuset.effective_cpus"]
        .iter()
        .map(|name| cpuset.with_file_name(name))
        .find(|path| path.is_file());
    Ok(text(effective.as_deref().unwrap_or(cpuset))?)
}

fn ancestors(tree: &Path, name: &str) -> Vec<PathBuf> {
    let depth = name.split('/').filter(|part| !part.is_empty()).count();
    tree.join(name).ancestors().take(1 + depth).map(Path::to_path_buf).collect()
}

/// CPU time in nanoseconds from `cpuacct.usage`.
pub fn parse_usage_v1(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// CPU time in nanoseconds from `cpu.stat`.
pub fn parse_usage_v2(text: &str) -> Option<u64> {
    only(text, "usage_usec")?.checked_mul(1000)
}

/// The value of a name that stands in a list exactly once.
fn only(text: &str, name: &str) -> Option<u64> {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = values.next()?;
    if values.next().is_some() { None } else { value.trim().parse().ok() }
}

/// CPU time that a cgroup may use in each period.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Quota {
    /// Microseconds of CPU time; `None`: no quota.
    pub quota_us: Option<i64>,
    /// The period.
    pub period_us: i64,
}

impl Quota {
    /// Parses `cpu.max`: "50000 100000" or "max 100000".
    pub fn parse_v2(text: &str) -> Option<Quota> {
        let (quota, period) = text.trim().split_once(' ')?;
        let quota_us = if quota == "max" { None } else { Some(quota.parse().ok()?) };
        Quota { quota_us, period_us: period.parse().ok()? }.valid()
    }

    /// Parses `cpu.cfs_quota_us` (-1 is no quota) and `cpu.cfs_period_us`.
    pub fn parse_v1(quota: &str, period: &str) -> Option<Quota> {
        let quota_us = Some(quota.trim().parse().ok()?).filter(|us| *us != -1);
        Quota { quota_us, period_us: period.trim().parse().ok()? }.valid()
    }

    fn valid(self) -> Option<Quota> {
        (self.period_us > 0 && self.quota_us.is_none_or(|us| us > 0)).then_some(self)
    }

    /// The quota in cores; `None` without a quota.
    pub fn cores(&self) -> Option<f64> {
        self.quota_us.map(|us| us as f64 / self.period_us as f64)
    }

    /// The quota of a directory; `None` where it has no quota file, as at a tree's root.
    fn read(version: Version, directory: &Path) -> Result<Option<Quota>, CgroupError> {
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
        let quota = match version {
            Version::V2 => read("cpu.max").map(|text| Quota::parse_v2(&text)),
            Version::V1 => read("cpu.cfs_quota_us")
                .map(|quota| Quota::parse_v1(&quota, &read("cpu.cfs_period_us").unwrap_or_default())),
        };
        quota.map(|quota| quota.ok_or_else(|| CgroupError::Quota(directory.to_owned()))).transpose()
    }
}

/// The tightest quota, in cores, of those directories, and which of them sets it (the nearest of equals).
///
/// # Errors
/// The directory whose quota is not in the expected form.
pub fn tightest_quota(files: &CpuFiles) -> Result<Option<(f64, &Path)>, CgroupError> {
    let mut tightest: Option<(f64, &Path)> = None;
    for directory in &files.quotas {
        let cores = Quota::read(files.version, directory)?.and_then(|quota| quota.cores());
        if let Some(cores) = cores.filter(|cores| tightest.is_none_or(|(least, _)| *cores < least)) {
            tightest = Some((cores, directory));
        }
    }
    Ok(tightest)
}

/// Periods of the quota, those in which the cgroup was throttled, and the nanoseconds that it was throttled (summed over
/// its cores), from `cpu.stat`: version 1 has `throttled_time` in nanoseconds, version 2 `throttled_usec`.
pub fn parse_throttling(text: &str) -> Option<[Option<u64>; 3]> {
    let value = |name: &str| only(text, name);
    let throttled_ns = match value("throttled_time") {
        Some(ns) => ns,
        None => value("throttled_usec")?.checked_mul(1000)?,
    };
    Some([Some(value("nr_periods")?), Some(value("nr_throttled")?), Some(throttled_ns)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn quotas_of_both_versions_are_in_cores() {
        let v2 = |text: &str| Quota::parse_v2(text).map(|quota| quota.cores());
        assert_eq!([v2("40000 100000\n"), v2("max 100000\n")], [Some(Some(0.4)), Some(None)]);
        for bad in ["", "max", "1 0", "-5 100", "x 100000"] {
            assert_eq!(v2(bad), None, "{bad:?}");
        }
        let v1 = |quota: &str, period: &str| Quota::parse_v1(quota, period).map(|quota| quota.cores());
        assert_eq!([v1("20000\n", "50000\n"), v1("-1\n", "100000\n")], [Some(Some(0.4)), Some(None)]);
        assert_eq!(v1("50000", "0"), None);
    }

    #[test]
    fn cpu_time_of_both_versions_is_in_nanoseconds() {
        assert_eq!(parse_usage_v1("123456789\n"), Some(123_456_789));
        assert_eq!(parse_usage_v2("usage_usec 42\nuser_usec 40\nsystem_usec 2\n"), Some(42_000));
        assert_eq!(parse_usage_v2("user_usec 40\n"), None);
        assert_eq!(parse_usage_v2("usage_usec 42\nusage_usec 43\n"), None);
        assert_eq!(parse_usage_v1("-1"), None);
    }

    #[test]
    fn throttling_of_both_versions_is_in_nanoseconds() {
        let v1 = "nr_periods 10\nnr_throttled 4\nthrottled_time 5000\nnr_bursts 0\nburst_time 0\n";
        assert_eq!(parse_throttling(v1), Some([Some(10), Some(4), Some(5000)]));
        let v2 = "usage_usec 9\nuser_usec 8\nsystem_usec 1\nnr_periods 10\nnr_throttled 4\nthrottled_usec 5\n";
        assert_eq!(parse_throttling(v2), Some([Some(10), Some(4), Some(5000)]));
        assert_eq!(parse_throttling("usage_usec 9\nuser_usec 8\nsystem_usec 1\n"), None);
    }

    #[test]
    fn the_tightest_quota_above_a_nested_cgroup_counts_in_version_2() {
        let fixture = Fixture::new(&[
            ("cgroup/cgroup.controllers", "cpu io memory\n"),
            ("cgroup/a/cpu.max", "50000 100000\n"),
            ("cgroup/a/b/cpu.max", "max 100000\n"),
            ("cgroup/a/b/c/cpu.max", "80000 100000\n"),
            ("cgroup/a/b/c/cpu.stat", "usage_usec 1\n"),
        ]);
        let files = find_cpu(&fixture.path("cgroup"), "/a/b/c").expect("the files are found");
        assert_eq!(files.version, Version::V2);
        assert_eq!(files.quotas.len(), 4);
        assert_eq!(tightest_quota(&files), Ok(Some((0.5, fixture.path("cgroup/a").as_path()))));
    }

    #[test]
    fn version_1_finds_the_quota_in_the_cpu_tree() {
        let fixture = Fixture::new(&[
            ("cgroup/cpuacct/a/b/cpuacct.usage", "5\n"),
            ("cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("cgroup/cpu/a/cpu.cfs_quota_us", "-1\n"),
            ("cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
            ("cgroup/cpu/a/b/cpu.cfs_quota_us", "40000\n"),
            ("cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n"),
        ]);
        let files = find_cpu(&fixture.path("cgroup"), "a/b").expect("the files are found");
        let quota = Some((0.4, fixture.path("cgroup/cpu/a/b")));
        let tightest = tightest_quota(&files).map(|quota| quota.map(|(cores, place)| (cores, place.to_owned())));
        assert_eq!((files.version, tightest), (Version::V1, Ok(quota)));
        let joined = Fixture::new(&[
            ("cgroup/cpu,cpuacct/a/cpuacct.usage", "5\n"),
            ("cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"),
            ("cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"),
        ]);
        let files = find_cpu(&joined.path("cgroup"), "a").expect("the files are found");
        assert_eq!((files.version, tightest_quota(&files)), (Version::V1, Ok(None)));
    }

    #[test]
    fn a_missing_cgroup_and_a_malformed_quota_are_errors() {
        let fixture = Fixture::new(&[
            ("cgroup/cgroup.controllers", "cpu\n"),
            ("cgroup/a/cpu.stat", "usage_usec 1\n"),
            ("cgroup/a/cpu.max", "lots\n"),
        ]);
        let root = fixture.path("cgroup");
        assert!(find_cpu(&root, "b").unwrap_err().to_string().starts_with("cgroup b: neither cpu.stat"));
        let error = tightest_quota(&find_cpu(&root, "a").expect("the files are found")).unwrap_err().to_string();
        assert!(error.ends_with("cgroup/a: the CPU quota is not in the expected form"), "{error}");
    }

    #[test]
    fn pressure_files_are_found_where_version_2_keeps_them() {
        let fixture = Fixture::new(&[("cgroup/unified/a/cpu.pressure", ""), ("cgroup/cpu/b/cgroup.procs", "")]);
        let root = fixture.path("cgroup");
        assert_eq!(find_pressure(&root, "a"), Some(fixture.path("cgroup/unified/a")));
        assert_eq!(find_pressure(&root, "b"), None);
        assert_eq!(find_processes(&root, "b"), Ok(fixture.path("cgroup/cpu/b")));
        assert!(find_processes(&root, "a").is_err());
    }
}
