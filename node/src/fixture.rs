//! A tree of files for tests, with a clock that the test moves.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use crate::system::System;

/// A temporary folder; removed with this value.
pub struct Fixture {
    folder: tempfile::TempDir,
    now_ns: Rc<Cell<u64>>,
}

/// All functions panic when the file system refuses.
impl Fixture {
    /// A folder with these files: path and text.
    pub fn new(files: &[(&str, &str)]) -> Fixture {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let fixture = Fixture { folder, now_ns: Rc::new(Cell::new(1_000_000_000)) };
        for (path, text) in files {
            fixture.write(path, text);
        }
        fixture
    }

    /// The whole path of a file in it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Writes a file, with the folders above it.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, text).expect("a file");
    }

    /// The text of a file, without the white space around it.
    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).expect("a file").trim().to_owned()
    }

    /// Removes a file or a folder.
    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.expect("the file is removed");
    }

    /// Lets time pass.
    pub fn advance_s(&self, seconds: f64) {
        self.now_ns.set(self.now_ns.get() + (seconds * 1e9).round() as u64);
    }

    /// The tree as a machine: `proc`, `sys` and `cgroup` are its roots.
    pub fn system(&self) -> System {
        let (monotonic, wall) = (self.now_ns.clone(), self.now_ns.clone());
        System {
            proc: self.path("proc"),
            sys: self.path("sys"),
            cgroup: self.path("cgroup"),
            monotonic_ns: Rc::new(move || monotonic.get()),
            wall_ns: Rc::new(move || wall.get() + 1_795_000_000_000_000_000),
            cpus_of: Rc::new(|_| Some(2)),
        }
    }
}
