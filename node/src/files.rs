//! Small files, and messages about files that cannot be used.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// A file that cannot be used: "PATH ACTION: REASON".
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{} {action}: {reason}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// What failed, as in "cannot be read".
    pub action: String,
    /// The system's error, in words.
    pub reason: String,
}

impl FileError {
    /// The error for a path, an action ("cannot be read") and the system's error.
    pub fn new(path: &Path, action: impl Into<String>, error: &io::Error) -> FileError {
        let reason = match error.kind() {
            ErrorKind::NotFound => "it is not there".to_owned(),
            _ => reason(error),
        };
        FileError { path: path.to_owned(), action: action.into(), reason }
    }
}

/// The error of a path, as "PATH: REASON".
pub fn why(path: &Path, error: &io::Error) -> String {
    format!("{}: {}", path.display(), reason(error))
}

/// The system's error in few words.
pub fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "is not there".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "the disk is full".to_owned(),
        ErrorKind::ReadOnlyFilesystem => "its file system is read-only".to_owned(),
        _ => error.to_string(),
    }
}

/// A small file's text without the white space around it.
///
/// # Errors
/// When it cannot be read.
pub fn text(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .map_err(|error| FileError::new(path, "cannot be read", &error))
}

/// Writes a file of the kernel, in one write and without a line end. The file is never created.
///
/// # Errors
/// When the kernel refuses the value.
pub fn write_kernel(path: &Path, value: &str) -> Result<(), FileError> {
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|error| FileError::new(path, format!("does not take {value}"), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_error_has_the_path_the_action_and_the_reason() {
        let error = FileError::new(Path::new("/a"), "cannot be written", &io::Error::from_raw_os_error(28));
        assert_eq!(error.to_string(), "/a cannot be written: the disk is full");
        assert_eq!(text(Path::new("/no/a")).unwrap_err().to_string(), "/no/a cannot be read: it is not there");
    }
}
