//! A tree of files for tests.

use std::fs;
use std::path::PathBuf;

/// A temporary folder; removed with this value.
pub struct Fixture(tempfile::TempDir);

/// All functions panic when the file system refuses.
#[allow(clippy::missing_panics_doc)]
impl Fixture {
    /// A folder with these files: path and text.
    pub fn new(files: &[(&str, &str)]) -> Fixture {
        let fixture = Fixture(tempfile::tempdir().expect("a temporary directory"));
        for (path, text) in files {
            fixture.write(path, text);
        }
        fixture
    }

    /// The whole path of a file in it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
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
        removed.expect("removed");
    }
}
