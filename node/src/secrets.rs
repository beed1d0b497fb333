//! Files with passwords and keys, which are refused when other users can read them.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::files::reason;

/// A file that a setting names and that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum SecretError {
    #[error("{setting}: {}: {reason}", path.display())]
    Unreadable { setting: &'static str, path: PathBuf, reason: String },
    #[error(
        "{setting}: {} can be used by everybody on this machine (mode {mode:04o}); \
         give it to the program's user alone: chmod 0600, or 0640 with its group", path.display()
    )]
    Exposed { setting: &'static str, path: PathBuf, mode: u32 },
}

fn unreadable(setting: &'static str, path: &Path, error: &io::Error) -> SecretError {
    SecretError::Unreadable { setting, path: path.to_owned(), reason: reason(error) }
}

/// The text of a secret file that `setting` names.
///
/// # Errors
/// The file cannot be read, or users other than its owner and its group can use it.
pub fn read(setting: &'static str, path: &Path) -> Result<String, SecretError> {
    let unreadable = |error: io::Error| unreadable(setting, path, &error);
    let mode = fs::metadata(path).map_err(unreadable)?.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(SecretError::Exposed { setting, path: path.to_owned(), mode });
    }
    fs::read_to_string(path).map_err(unreadable)
}

/// The bytes of a file that is no secret, such as a certificate.
///
/// # Errors
/// When it cannot be read.
pub fn read_open(setting: &'static str, path: &Path) -> Result<Vec<u8>, SecretError> {
    fs::read(path).map_err(|error| unreadable(setting, path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_others_can_read_is_refused_with_its_mode_and_the_way_out() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("password");
        fs::write(&file, "secret\n").expect("a file");
        for (mode, fine) in [(0o600, true), (0o640, true), (0o644, false), (0o602, false)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("permissions");
            match read("bus.password_file", &file) {
                Ok(text) => assert!(fine && text == "secret\n", "{mode:o}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(!fine && error.starts_with("bus.password_file: /"), "{error}");
                    assert!(error.contains(&format!("(mode {mode:04o})")) && error.contains("chmod 0600"), "{error}");
                }
            }
        }
        assert_eq!(read_open("bus.tls_ca", &file), Ok(b"secret\n".to_vec()));
        assert!(read("x", &folder.path().join("y")).is_err_and(|error| error.to_string().ends_with("y: is not there")));
    }
}
