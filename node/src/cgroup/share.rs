//! A cgroup's weight and quota, which set its CPU time.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{CgroupError, Quota, Version, find, not_found};
use crate::files::{text, write_kernel};

/// Names that version 1 systems mount the controller of CPU time under.
const V1_CPU: &[&str] = &["cpu,cpuacct", "cpu"];

/// A cgroup's weight and quota.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CpuAllowance {
    /// Version 1: cpu.shares; version 2: cpu.weight.
    pub weight: i64,
    /// The quota.
    #[serde(flatten)]
    pub quota: Quota,
}

/// The files that set a cgroup's [`CpuAllowance`].
#[derive(Debug, Clone, PartialEq)]
pub struct AllowanceFiles {
    version: Version,
    directory: PathBuf,
}

impl AllowanceFiles {
    /// The files of cgroup `name` below `root`.
    ///
    /// # Errors
    /// When the files are not there.
    pub fn find(root: &Path, name: &str) -> Result<AllowanceFiles, CgroupError> {
        let v2 =
            find(root, &[""], name, "cpu.weight").map(|directory| AllowanceFiles { version: Version::V2, directory });
        let v1 = || find(root, V1_CPU, name, "cpu.shares");
        v2.or_else(|| v1().map(|directory| AllowanceFiles { version: Version::V1, directory })).ok_or_else(|| {
            not_found(
                root,
                name,
                "neither cpu.weight (version 2; is the cpu controller on for it?) nor cpu.shares (version 1)",
            )
        })
    }

    fn weight(&self) -> PathBuf {
        self.directory.join(if self.version == Version::V1 { "cpu.shares" } else { "cpu.weight" })
    }

    /// The weight and quota that are set now.
    ///
    /// # Errors
    /// The file that cannot be read, or is not in the expected form.
    pub fn read(&self) -> Result<CpuAllowance, CgroupError> {
        let path = self.weight();
        let text = text(&path)?;
        let weight = text.parse().map_err(|_| CgroupError::Number { path, text })?;
        let quota = Quota::read(self.version, &self.directory)?;
        Ok(CpuAllowance { weight, quota: quota.ok_or_else(|| CgroupError::Quota(self.directory.clone()))? })
    }

    /// The bounds of a weight.
    pub fn weights(&self) -> RangeInclusive<i64> {
        match self.version {
            Version::V1 => 2..=262_144,
            Version::V2 => 1..=10_000,
        }
    }

    /// Sets the weight.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn write_weight(&self, weight: i64) -> Result<(), CgroupError> {
        Ok(write_kernel(&self.weight(), &weight.to_string())?)
    }

    /// Sets the quota. Version 1 keeps its period.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn write_quota(&self, quota: Quota) -> Result<(), CgroupError> {
        let (name, value) = match (self.version, quota.quota_us) {
            (Version::V1, us) => ("cpu.cfs_quota_us", us.unwrap_or(-1).to_string()),
            (Version::V2, Some(us)) => ("cpu.max", format!("{us} {}", quota.period_us)),
            (Version::V2, None) => ("cpu.max", format!("max {}", quota.period_us)),
        };
        Ok(write_kernel(&self.directory.join(name), &value)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::find_cpuset;
    use crate::fixture::Fixture;

    #[test]
    fn shares_of_both_versions_are_found_read_and_written() {
        let fixture = Fixture::new(&[
            ("cgroup/cpu,cpuacct/a/cpu.shares", "1024\n"),
            ("cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"),
            ("cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n"),
            ("cgroup/b/cpu.weight", "100\n"),
            ("cgroup/b/cpu.max", "40000 100000\n"),
        ]);
        let root = fixture.path("cgroup");
        let allowance = |weight, quota_us, period_us| CpuAllowance { weight, quota: Quota { quota_us, period_us } };
        let v1 = AllowanceFiles::find(&root, "/a").expect("version 1");
        assert_eq!(v1.read(), Ok(allowance(1024, None, 50_000)));
        v1.write_quota(Quota { quota_us: Some(20_000), period_us: 50_000 }).expect("a file that can be written");
        assert_eq!(fixture.read("cgroup/cpu,cpuacct/a/cpu.cfs_quota_us"), "20000");
        let v2 = AllowanceFiles::find(&root, "b").expect("version 2");
        assert_eq!(v2.read(), Ok(allowance(100, Some(40_000), 100_000)));
        v2.write_quota(Quota { quota_us: None, period_us: 100_000 }).expect("a file that can be written");
        assert_eq!(fixture.read("cgroup/b/cpu.max"), "max 100000");
        let error = AllowanceFiles::find(&root, "c").unwrap_err().to_string();
        assert!(error.starts_with("cgroup c: neither cpu.weight"), "{error}");
        assert!(find_cpuset(&root, "b").unwrap_err().to_string().contains("is the cpuset controller on for it?"));
    }
}
