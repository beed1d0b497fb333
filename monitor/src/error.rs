//! The errors that end a command of the monitor before its work is done. A fault that only keeps a value from a Sample
//! is a [`Reason`](crate::reason::Reason).

use std::io;

use slackwater_node::bus::BusError;
use slackwater_node::cli::PrintError;
use slackwater_node::settings::ConfigError;
use slackwater_sniffer::PrivilegeError;

use crate::reason::Reason;

/// Why the monitor does not start, or a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is wrong: one line for each fault.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `collectors.off` names something else.
    #[error("`collectors.off`: there is no collector {name:?}{hint}")]
    UnknownCollector {
        /// The unknown name.
        name: String,
        /// The collector that may be meant, in words.
        hint: String,
    },
    /// A value is missing without which nothing works.
    #[error(transparent)]
    Absent(#[from] Reason),
    /// The user or the capabilities cannot be changed.
    #[error("privileges cannot be given up (privileges.user): {0}")]
    Privileges(#[from] PrivilegeError),
    /// The filter of system calls cannot be set.
    #[error("seccomp: {0}")]
    Seccomp(#[from] seccompiler::Error),
    /// The kernel refuses what the loop needs.
    #[error("cannot {action}: {reason}")]
    Loop {
        /// The failed action.
        action: &'static str,
        /// The kernel's error.
        reason: io::Error,
    },
    /// The bus cannot be used.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A subject cannot be subscribed to.
    #[error("{subject}: {reason}")]
    Subscribe {
        /// The subject.
        subject: String,
        /// The connection's error.
        reason: async_nats::SubscribeError,
    },
    /// An address cannot be listened on.
    #[error("{setting}: {address}: {reason}")]
    Listen {
        /// The setting that holds the address.
        setting: &'static str,
        /// The address.
        address: String,
        /// The address's fault, or the kernel's error.
        reason: io::Error,
    },
    /// The answer cannot be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}
