//! Code that the programs on a web server's VM share.
//!
//! - [`settings`]: settings declared once with default and help, read from TOML; wrong ones refused with their line
//! - [`bus`]: a connection to NATS that comes back by itself for ever; [`login`]: whether it works; [`secrets`]: files
//!   with passwords
//! - [`system`]: the kernel's trees and the clocks; [`processes`]: which processes and threads there are, and their CPU
//!   time
//! - [`files`]: small files, and why one cannot be used; [`list`]: lists of numbers as the kernel writes them
//! - [`cgroup`]: the files of a cgroup; [`status`]: the status pages of Apache and php-fpm, over HTTP and FastCGI
//! - [`cli`]: printing, and the command `config`; [`log`]: log lines on standard error; [`notify`]: messages to systemd;
//!   [`sync`]: locks

pub mod bus;
pub mod cgroup;
pub mod cli;
pub mod files;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod list;
pub mod log;
pub mod login;
pub mod notify;
mod printable;
pub mod processes;
pub mod secrets;
pub mod settings;
pub mod status;
pub mod sync;
pub mod system;
