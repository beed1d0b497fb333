//! What ends a command of the monitor before its work is done. What only keeps a value from a Sample is a
//! [`Reason`](crate::reason::Reason).

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
        /// What it names.
        name: String,
        /// The collector that may be meant, in words.
        hint: String,
    },
    /// A value that nothing works without cannot be had.
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
        /// What failed.
        action: &'static str,
        /// What the kernel answered.
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
        /// What the connection answered.
        reason: async_nats::SubscribeError,
    },
    /// An address cannot be listened on.
    #[error("{setting}: {address}: {reason}")]
    Listen {
        /// Where the address stands.
        setting: &'static str,
        /// The address.
        address: String,
        /// What is wrong with it.
        reason: io::Error,
    },
    /// The answer cannot be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}
