//! Writing files so that they are complete or not there at all, also after a crash.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use slackwater_node::files::FileError;

/// The name under which a file's next text is written: hidden, and with an ending that no `*.conf` matches.
pub fn next_name(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.slackwater-new"))
}

/// Writes a file's next text to a file beside it, durably, with owner and mode of the present file (else with `mode`).
/// [`accept`] replaces the present file by it.
///
/// # Errors
/// When it cannot be written; nothing is left behind.
pub fn prepare(path: &Path, text: &[u8], mode: u32) -> Result<PathBuf, FileError> {
    let next = next_name(path);
    let write = || -> io::Result<()> {
        let before = fs::metadata(path).ok();
        let _ = fs::remove_file(&next);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&next)?;
        match before {
            Some(before) => {
                let written = file.metadata()?;
                // Only where it is needed: the service's filter of system calls forbids it, as it may not give files
                // away.
                if (written.uid(), written.gid()) != (before.uid(), before.gid()) {
                    fchown(&file, Some(before.uid()), Some(before.gid()))?;
                }
                file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o7777))?;
            }
            None => file.set_permissions(fs::Permissions::from_mode(mode))?,
        }
        file.write_all(text)?;
        file.sync_all()
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&next);
        FileError::new(path, "cannot be written", &error)
    })?;
    Ok(next)
}

/// Replaces the file by the text that [`prepare`] wrote.
///
/// # Errors
/// When it cannot be replaced; the file is as it was.
pub fn accept(path: &Path) -> Result<(), FileError> {
    let next = next_name(path);
    fs::rename(&next, path).and_then(|()| sync_folder(path)).map_err(|error| {
        let _ = fs::remove_file(&next);
        FileError::new(path, "cannot be replaced", &error)
    })
}

/// Removes the text that [`prepare`] wrote.
pub fn discard(path: &Path) {
    let _ = fs::remove_file(next_name(path));
}

/// Replaces a file in one step.
///
/// # Errors
/// When it cannot be replaced; the file is as it was.
pub fn replace(path: &Path, text: &[u8], mode: u32) -> Result<(), FileError> {
    prepare(path, text, mode)?;
    accept(path)
}

/// Removes a file durably; a missing file is no error.
///
/// # Errors
/// When the system refuses.
pub fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Ok(()) => sync_folder(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
    .map_err(|error| FileError::new(path, "cannot be removed", &error))
}

/// Gives a file back the text that it had (`None`: it was not there).
///
/// # Errors
/// When the system refuses.
pub fn put_back(path: &Path, text: Option<&[u8]>) -> Result<(), FileError> {
    match text {
        Some(text) => replace(path, text, 0o644),
        None => remove(path),
    }
}

/// The whole file; `None` when it is not there.
///
/// # Errors
/// When the system refuses.
pub fn contents(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::new(path, "cannot be read", &error)),
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.conf");
        replace(&path, b"one\n", 0o600).expect("the file is written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("a mode");
        replace(&path, b"two\n", 0o600).expect("the file is replaced");
        assert_eq!(contents(&path), Ok(Some(b"two\n".to_vec())));
        assert_eq!(fs::metadata(&path).expect("a value").mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_write_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("gone/a.conf");
        let message = replace(&path, b"x", 0o600).unwrap_err().to_string();
        assert!(message.ends_with("gone/a.conf cannot be written: it is not there"), "{message}");
    }

    #[test]
    fn removing_and_putting_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        put_back(&path, Some(b"x")).expect("the file is written");
        put_back(&path, None).expect("the file is removed");
        put_back(&path, None).expect("it is gone already");
        assert_eq!(contents(&path), Ok(None));
    }
}
