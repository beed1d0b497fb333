//! What is said of files that cannot be used.

use std::io;
use std::path::Path;

/// "PATH: what the system said", in few words.
pub fn why(path: &Path, error: &io::Error) -> String {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "is not there".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    };
    format!("{}: {reason}", path.display())
}
