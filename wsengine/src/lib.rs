//! Retunes a web server for a while, by signed Orders, and puts everything back. The binary is `slackwater-wsengine`.
//!
//! # Layout
//! - [`config`]: the settings, declared once; among them the knobs that Orders may set, and their bounds
//! - [`allowed`]: the values that Orders may set
//! - [`identity`]: the controller's public key, with which Orders are checked
//! - [`order`]: decides whether an Order is accepted, without changing anything
//! - [`engine`]: leases: one for each knob that is set; applying, renewing, expiring, restoring
//! - [`state`]: baselines, leases and seen Orders on disk, and the Changes that nobody has received yet
//! - [`knobs`]: the trait and the table; one file for each knob
//! - [`apache`], [`apache_config`], [`php_fpm`], [`php_fpm_config`], [`drop_in`]: the web servers that knobs change, and
//!   their files
//! - [`fast`]: policies that decide on the node, every 50 ms or so
//! - [`files`], [`command`]: durable writing, programs without a shell
//! - [`processes`]: finding, signalling and waiting for a server's processes
//! - [`error`]: why an action failed; [`wait`]: waiting with a limit
//! - [`run`]: bus, signals and the engine together
//! - [`cli`]: the command line

pub mod allowed;
pub mod apache;
pub mod apache_config;
pub mod cli;
pub mod command;
pub mod config;
pub mod drop_in;
pub mod engine;
pub mod error;
pub mod fast;
pub mod files;
pub mod identity;
pub mod knobs;
pub mod order;
pub mod php_fpm;
pub mod php_fpm_config;
pub mod processes;
pub mod run;
pub mod state;
pub mod wait;
