//! What the programs on a web server's VM share.
//!
//! - [`settings`]: settings declared once with default and help, read from TOML; wrong ones refused with their line
//! - [`bus`]: a connection to NATS that comes back by itself for ever; [`secrets`]: files with passwords; [`files`]: why one
//!   cannot be used; [`list`]: numbers as the kernel lists them
//! - [`notify`]: what systemd is told

pub mod bus;
pub mod files;
pub mod list;
pub mod notify;
pub mod secrets;
pub mod settings;
