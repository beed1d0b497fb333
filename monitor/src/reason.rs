//! Why a figure is absent: in words for people, and as a cause for programs.

use std::io;
use std::ops::Deref;
use std::path::Path;

use slackwater_messages::AbsenceCause;
use slackwater_node::cgroup::CgroupError;

use slackwater_node::files::why;

/// Why a figure is absent. It derefs to its words, and words alone convert into a reason without a cause.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{text}")]
pub struct Reason {
    /// The cause, where there is something that an operator can do about it.
    pub cause: Option<AbsenceCause>,
    /// The words for people.
    pub text: String,
}

impl Reason {
    /// A reason with a cause.
    pub fn new(cause: AbsenceCause, text: impl Into<String>) -> Reason {
        Reason { cause: Some(cause), text: text.into() }
    }

    /// The reason why a file cannot be used.
    pub fn of_file(path: &Path, error: &io::Error) -> Reason {
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        Reason { cause: denied.then_some(AbsenceCause::PermissionDenied), text: why(path, error) }
    }
}

impl From<CgroupError> for Reason {
    fn from(error: CgroupError) -> Reason {
        let not_found = matches!(error, CgroupError::NotFound { .. });
        Reason { cause: not_found.then_some(AbsenceCause::NoCgroup), text: error.to_string() }
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Reason {
        Reason { cause: None, text }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Reason {
        Reason::from(text.to_owned())
    }
}

impl From<&Reason> for Reason {
    fn from(reason: &Reason) -> Reason {
        reason.clone()
    }
}

impl Deref for Reason {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}
