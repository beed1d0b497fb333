//! What a web server's VM can see of itself, as a `Sample` each period. The binary is `slackwater-monitor`.
//!
//! # Layout
//! - [`config`]: the node's settings, declared once; reading and checking of the TOML file
//! - [`inputs`]: the outside world: roots of /proc and /sys, clocks, files that are read again and again
//! - [`collectors`]: the trait and the table; one file for each collector
//! - [`cgroup`]: where a cgroup's files are, version 1 or 2, and what stands in them
//! - [`processes`]: which processes are the web server's
//! - [`growth`]: how much the kernel's counters grew
//! - [`probe`]: the canary's pointer chase and its calibration
//! - [`status`]: the web server's status pages
//! - [`switches`]: which turns on a core ended voluntarily
//! - [`ticks`]: CPU time by kind
//! - [`sampler`]: all collectors together make one Sample
//! - [`watched`]: ports and route classes of the sniffer, as they are configured
//! - [`bus`]: publishing to NATS
//! - [`run`]: the loop
//! - [`table`]: a Sample for people
//! - [`cli`]: the command line

pub mod bus;
pub mod cgroup;
pub mod cli;
pub mod collectors;
pub mod config;
pub mod growth;
pub mod inputs;
pub mod probe;
pub mod processes;
pub mod run;
pub mod sampler;
pub mod status;
pub mod switches;
pub mod table;
pub mod ticks;
pub mod watched;
