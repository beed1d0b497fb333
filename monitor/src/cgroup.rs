//! Where the files of a cgroup are, in version 1 (one tree a controller) or 2 (one tree), and what stands in them.
//!
//! Forms: the kernel's Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/cpuacct.rst and scheduler/sched-bwc.rst.

use std::path::{Path, PathBuf};

use slackwater_messages::AbsenceCause;

use crate::reason::Reason;

/// Names that version 1 systems mount the CPU controllers under.
const V1_CPU: &[&str] = &["cpu,cpuacct", "cpuacct", "cpu"];
/// Trees that list the processes of a cgroup, in the order in which they are asked.
const TREES: &[&str] = &["", "cpu,cpuacct", "cpuacct", "cpu", "systemd", "unified", "pids", "memory"];

/// The two forms of the CPU files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `cpuacct.usage`, `cpu.cfs_quota_us`, `cpu.cfs_period_us`.
    V1,
    /// `cpu.stat`, `cpu.max`.
    V2,
}

/// Where the CPU time and the quotas of a cgroup stand.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuFiles {
    /// Which form they have.
    pub version: Version,
    /// The file with the CPU time used.
    pub usage: PathBuf,
    /// Directories whose quota applies: the cgroup's, then its ancestors' up to the root.
    pub quotas: Vec<PathBuf>,
}

/// Finds the CPU files of cgroup `name` (relative to the root of its tree) below `root` (`/sys/fs/cgroup`).
///
/// # Errors
/// Says where it was looked for.
pub fn find_cpu(root: &Path, name: &str) -> Result<CpuFiles, Reason> {
    let name = name.trim_matches('/');
    let usage = root.join(name).join("cpu.stat");
    if root.join("cgroup.controllers").is_file() && usage.is_file() {
        return Ok(CpuFiles { version: Version::V2, usage, quotas: with_ancestors(root, name) });
    }
    for tree in V1_CPU {
        let usage = root.join(tree).join(name).join("cpuacct.usage");
        if usage.is_file() {
            // With one tree for each controller the quota stands in the other one.
            let quota_tree = if *tree == "cpuacct" { root.join("cpu") } else { root.join(tree) };
            return Ok(CpuFiles { version: Version::V1, usage, quotas: with_ancestors(&quota_tree, name) });
        }
    }
    let looked = format!("neither cpu.stat (version 2) nor cpuacct.usage (version 1) below {}", root.display());
    Err(Reason::new(AbsenceCause::NoCgroup, format!("cgroup {name}: {looked}")))
}

/// The directory that lists the processes of cgroup `name`.
///
/// # Errors
/// Says where it was looked for.
pub fn find_processes(root: &Path, name: &str) -> Result<PathBuf, Reason> {
    let name = name.trim_matches('/');
    TREES
        .iter()
        .map(|tree| root.join(tree).join(name))
        .find(|directory| directory.join("cgroup.procs").is_file())
        .ok_or_else(|| {
            Reason::new(AbsenceCause::NoCgroup, format!("cgroup {name}: no cgroup.procs below {}", root.display()))
        })
}

/// The directory with `cpu.pressure` and its like of cgroup `name`, where version 2 keeps them.
pub fn find_pressure(root: &Path, name: &str) -> Option<PathBuf> {
    let name = name.trim_matches('/');
    ["", "unified"]
        .iter()
        .map(|tree| root.join(tree).join(name))
        .find(|directory| directory.join("cpu.pressure").is_file())
}

fn with_ancestors(tree: &Path, name: &str) -> Vec<PathBuf> {
    tree.join(name)
        .ancestors()
        .take(1 + name.split('/').filter(|part| !part.is_empty()).count())
        .map(Path::to_path_buf)
        .collect()
}

/// CPU time in nanoseconds from `cpuacct.usage`.
pub fn parse_usage_v1(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// CPU time in nanoseconds from `cpu.stat`.
pub fn parse_usage_v2(text: &str) -> Option<u64> {
    let microseconds: u64 = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()?;
    microseconds.checked_mul(1000)
}

/// A quota in cores; `Quota(None)` is "no quota".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quota(pub Option<f64>);

/// `cpu.max`: "50000 100000" or "max 100000".
pub fn parse_cpu_max(text: &str) -> Option<Quota> {
    let (quota, period) = text.trim().split_once(' ')?;
    if quota == "max" {
        return Some(Quota(None));
    }
    cores(quota.parse().ok()?, period.parse().ok()?)
}

/// `cpu.cfs_quota_us` (-1 is none) and `cpu.cfs_period_us`.
pub fn parse_cfs(quota: &str, period: &str) -> Option<Quota> {
    match quota.trim().parse::<i64>().ok()? {
        -1 => Some(Quota(None)),
        quota => cores(quota as f64, period.trim().parse().ok()?),
    }
}

fn cores(quota_us: f64, period_us: f64) -> Option<Quota> {
    let cores = quota_us / period_us;
    (cores.is_finite() && cores > 0.0).then_some(Quota(Some(cores)))
}

/// The tightest quota, in cores, of those directories, and which of them sets it (the nearest of equals); one without a
/// quota file sets none.
///
/// # Errors
/// The file that is not in the expected form.
pub fn tightest_quota(files: &CpuFiles) -> Result<Option<(f64, &Path)>, String> {
    let mut tightest: Option<(f64, &Path)> = None;
    for directory in &files.quotas {
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
        let quota = match files.version {
            Version::V2 => read("cpu.max").map(|text| parse_cpu_max(&text)),
            Version::V1 => {
                read("cpu.cfs_quota_us").map(|quota| parse_cfs(&quota, &read("cpu.cfs_period_us").unwrap_or_default()))
            }
        };
        match quota {
            None => {}
            Some(None) => return Err(format!("{}: the CPU quota is not in the expected form", directory.display())),
            Some(Some(Quota(Some(cores)))) if tightest.is_none_or(|(least, _)| cores < least) => {
                tightest = Some((cores, directory));
            }
            Some(Some(_)) => {}
        }
    }
    Ok(tightest)
}

/// Periods of the quota, those in which the cgroup was throttled, and the nanoseconds that it was throttled (summed over
/// its cores), from `cpu.stat`: version 1 has `throttled_time` in nanoseconds, version 2 `throttled_usec`.
pub fn parse_throttling(text: &str) -> Option<[Option<u64>; 3]> {
    let value = |name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
    };
    let throttled_ns = match value("throttled_time") {
        Some(ns) => ns,
        None => value("throttled_usec")?.checked_mul(1000)?,
    };
    Some([Some(value("nr_periods")?), Some(value("nr_throttled")?), Some(throttled_ns)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::fixture::Fixture;

    #[test]
    fn quotas_of_both_versions_are_in_cores() {
        assert_eq!(parse_cpu_max("40000 100000\n"), Some(Quota(Some(0.4))));
        assert_eq!(parse_cpu_max("max 100000\n"), Some(Quota(None)));
        assert_eq!(parse_cfs("20000\n", "50000\n"), Some(Quota(Some(0.4))));
        assert_eq!(parse_cfs("-1\n", "100000\n"), Some(Quota(None)));
        for bad in ["", "max", "1 0", "-5 100", "x 100000"] {
            assert_eq!(parse_cpu_max(bad), None, "{bad:?}");
        }
        assert_eq!(parse_cfs("50000", "0"), None);
    }

    #[test]
    fn cpu_time_of_both_versions_is_in_nanoseconds() {
        assert_eq!(parse_usage_v1("123456789\n"), Some(123_456_789));
        assert_eq!(parse_usage_v2("usage_usec 42\nuser_usec 40\nsystem_usec 2\n"), Some(42_000));
        assert_eq!(parse_usage_v2("user_usec 40\n"), None);
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
        let files = find_cpu(&fixture.path("cgroup"), "/a/b/c").expect("found");
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
        let files = find_cpu(&fixture.path("cgroup"), "a/b").expect("found");
        let quota = Some((0.4, fixture.path("cgroup/cpu/a/b")));
        let found = tightest_quota(&files).map(|found| found.map(|(cores, place)| (cores, place.to_owned())));
        assert_eq!((files.version, found), (Version::V1, Ok(quota)));
        let joined = Fixture::new(&[
            ("cgroup/cpu,cpuacct/a/cpuacct.usage", "5\n"),
            ("cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"),
            ("cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"),
        ]);
        let files = find_cpu(&joined.path("cgroup"), "a").expect("found");
        assert_eq!((files.version, tightest_quota(&files)), (Version::V1, Ok(None)));
    }

    #[test]
    fn a_missing_cgroup_and_a_strange_quota_are_said() {
        let fixture = Fixture::new(&[
            ("cgroup/cgroup.controllers", "cpu\n"),
            ("cgroup/a/cpu.stat", "usage_usec 1\n"),
            ("cgroup/a/cpu.max", "lots\n"),
        ]);
        let root = fixture.path("cgroup");
        assert!(find_cpu(&root, "b").unwrap_err().starts_with("cgroup b: neither cpu.stat"));
        let error = tightest_quota(&find_cpu(&root, "a").expect("found")).unwrap_err();
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
