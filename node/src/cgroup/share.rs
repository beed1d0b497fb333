//! A cgroup's weight and quota: what may be changed of its CPU time.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{CgroupError, Quota, Version, find, not_found};
use crate::files::{text, write_kernel};

/// Names that version 1 systems mount the controller of CPU time under.
const V1_CPU: &[&str] = &["cpu,cpuacct", "cpu"];

/// What may be changed of a cgroup's CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Version 1: cpu.shares; version 2: cpu.weight.
    pub weight: i64,
    /// The quota.
    #[serde(flatten)]
    pub quota: Quota,
}

/// The files that set a cgroup's [`Share`].
#[derive(Debug, Clone, PartialEq)]
pub struct ShareFiles {
    version: Version,
    directory: PathBuf,
}

impl ShareFiles {
    /// Those of cgroup `name` below `root`.
    ///
    /// # Errors
    /// When they are not there.
    pub fn find(root: &Path, name: &str) -> Result<ShareFiles, CgroupError> {
        let v2 = find(root, &[""], name, "cpu.weight").map(|directory| ShareFiles { version: Version::V2, directory });
        let v1 = || find(root, V1_CPU, name, "cpu.shares");
        v2.or_else(|| v1().map(|directory| ShareFiles { version: Version::V1, directory })).ok_or_else(|| {
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

    /// What is set now.
    ///
    /// # Errors
    /// The file that cannot be read, or is not in the expected form.
    pub fn read(&self) -> Result<Share, CgroupError> {
        let path = self.weight();
        let text = text(&path)?;
        let weight = text.parse().map_err(|_| CgroupError::Number { path, text })?;
        let quota = Quota::read(self.version, &self.directory)?;
        Ok(Share { weight, quota: quota.ok_or_else(|| CgroupError::Quota(self.directory.clone()))? })
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
        let share = |weight, quota_us, period_us| Share { weight, quota: Quota { quota_us, period_us } };
        let one = ShareFiles::find(&root, "/a").expect("version 1");
        assert_eq!(one.read(), Ok(share(1024, None, 50_000)));
        one.write_quota(Quota { quota_us: Some(20_000), period_us: 50_000 }).expect("written");
        assert_eq!(fixture.read("cgroup/cpu,cpuacct/a/cpu.cfs_quota_us"), "20000");
        let two = ShareFiles::find(&root, "b").expect("version 2");
        assert_eq!(two.read(), Ok(share(100, Some(40_000), 100_000)));
        two.write_quota(Quota { quota_us: None, period_us: 100_000 }).expect("written");
        assert_eq!(fixture.read("cgroup/b/cpu.max"), "max 100000");
        let none = ShareFiles::find(&root, "c").unwrap_err().to_string();
        assert!(none.starts_with("cgroup c: neither cpu.weight"), "{none}");
        assert!(find_cpuset(&root, "b").unwrap_err().to_string().contains("is the cpuset controller on for it?"));
    }
}
