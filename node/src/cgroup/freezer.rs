//! The freezer, which stops all processes of a cgroup and of those below it and lets them run on.
//!
//! Forms: the kernel's Documentation/admin-guide/cgroup-v2.rst (`cgroup.freeze`) and cgroup-v1/freezer-subsystem.rst.

use std::path::{Path, PathBuf};

use super::{CgroupError, Version, find, not_found};
use crate::files::{text, write_kernel};

/// The files that stop a cgroup's processes.
#[derive(Debug, Clone, PartialEq)]
pub struct FreezerFiles {
    version: Version,
    directory: PathBuf,
}

impl FreezerFiles {
    /// The files of cgroup `name` below `root`.
    ///
    /// # Errors
    /// When they are not there.
    pub fn find(root: &Path, name: &str) -> Result<FreezerFiles, CgroupError> {
        let v1 = find(root, &["freezer"], name, "freezer.state").map(|directory| (Version::V1, directory));
        let v2 = || find(root, &["", "unified"], name, "cgroup.freeze").map(|directory| (Version::V2, directory));
        v1.or_else(v2)
            .map(|(version, directory)| FreezerFiles { version, directory })
            .ok_or_else(|| not_found(root, name, "neither cgroup.freeze (version 2) nor freezer.state (version 1)"))
    }

    /// Whether this cgroup itself was told to stop, whatever the cgroups above it were told.
    ///
    /// # Errors
    /// The file that cannot be read.
    pub fn is_told_to_stop(&self) -> Result<bool, CgroupError> {
        let name = if self.version == Version::V1 { "freezer.self_freezing" } else { "cgroup.freeze" };
        Ok(text(&self.directory.join(name))? != "0")
    }

    /// Whether all of its processes have stopped; the kernel needs a moment for that.
    ///
    /// # Errors
    /// The file that cannot be read.
    pub fn has_stopped(&self) -> Result<bool, CgroupError> {
        Ok(match self.version {
            Version::V1 => text(&self.directory.join("freezer.state"))? == "FROZEN",
            Version::V2 => text(&self.directory.join("cgroup.events"))?.lines().any(|line| line == "frozen 1"),
        })
    }

    /// Tells the cgroup to stop, or to run.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn write(&self, stop: bool) -> Result<(), CgroupError> {
        let (name, value) = match (self.version, stop) {
            (Version::V1, true) => ("freezer.state", "FROZEN"),
            (Version::V1, false) => ("freezer.state", "THAWED"),
            (Version::V2, true) => ("cgroup.freeze", "1"),
            (Version::V2, false) => ("cgroup.freeze", "0"),
        };
        Ok(write_kernel(&self.directory.join(name), value)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn both_versions_are_found_read_and_written() {
        let fixture = Fixture::new(&[
            ("cgroup/freezer/a/freezer.state", "FREEZING\n"),
            ("cgroup/freezer/a/freezer.self_freezing", "1\n"),
            ("cgroup/b/cgroup.freeze", "0\n"),
            ("cgroup/b/cgroup.events", "populated 1\nfrozen 1\n"),
        ]);
        let root = fixture.path("cgroup");
        let v1 = FreezerFiles::find(&root, "/a").expect("version 1");
        assert_eq!((v1.is_told_to_stop(), v1.has_stopped()), (Ok(true), Ok(false)), "it needs a moment");
        v1.write(true).expect("a file that can be written");
        assert_eq!((fixture.read("cgroup/freezer/a/freezer.state").as_str(), v1.has_stopped()), ("FROZEN", Ok(true)));
        v1.write(false).expect("a file that can be written");
        assert_eq!(fixture.read("cgroup/freezer/a/freezer.state"), "THAWED");
        let v2 = FreezerFiles::find(&root, "b").expect("version 2");
        assert_eq!((v2.is_told_to_stop(), v2.has_stopped()), (Ok(false), Ok(true)), "a cgroup above it is stopped");
        v2.write(true).expect("a file that can be written");
        assert_eq!((fixture.read("cgroup/b/cgroup.freeze").as_str(), v2.is_told_to_stop()), ("1", Ok(true)));
        let error = FreezerFiles::find(&root, "c").unwrap_err().to_string();
        assert!(error.starts_with("cgroup c: neither cgroup.freeze (version 2)"), "{error}");
    }
}
