//! Why something could not be done: typed for programs, in sentences for people.

use slackwater_node::bus::BusError;
use slackwater_node::cgroup::CgroupError;
use slackwater_node::cli::PrintError;
use slackwater_node::files::FileError;
use slackwater_node::status::PageError;
use slackwater_node::status::apache::StatusError;

use crate::command::CommandError;

/// The result of a function of wsengine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A cgroup's files cannot be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A status page cannot be fetched.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The running Apache does not allow it.
    #[error(transparent)]
    Apache(#[from] StatusError),
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The bus cannot be used.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Nothing can be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
    /// Something that is needed is missing on this machine, or in its configuration.
    #[error("{0}")]
    Unavailable(String),
    /// A value that cannot be set here.
    #[error("{0}")]
    InvalidValue(String),
    /// An Order that may not be carried out now.
    #[error("{0}")]
    NotAdmitted(String),
    /// Somebody else wrote a file that should be from wsengine.
    #[error("{0}")]
    SomeoneElse(String),
    /// The setting was written, but another one is in effect.
    #[error("{0}")]
    NotInEffect(String),
    /// The state on disk cannot be used.
    #[error("{0}")]
    State(String),
    /// This process cannot go on.
    #[error("{0}")]
    Process(String),
    /// An error with the action that failed.
    #[error("{context}: {source}")]
    During {
        /// The action.
        context: String,
        /// Why it failed.
        source: Box<Error>,
    },
    /// An action failed, and so did undoing it.
    #[error("{first}; and then {second}")]
    NotUndone {
        /// Why the action failed.
        first: Box<Error>,
        /// Why it could not be undone.
        second: Box<Error>,
    },
}

impl Error {
    /// This error with the failed action in front.
    pub fn during(self, context: impl Into<String>) -> Error {
        Error::During { context: context.into(), source: Box::new(self) }
    }

    /// This error with the outcome of undoing the action.
    pub fn undone(self, undone: Result<()>) -> Error {
        match undone {
            Ok(()) => self,
            Err(second) => Error::NotUndone { first: Box::new(self), second: Box::new(second) },
        }
    }
}
