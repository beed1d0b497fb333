//! What a web server's VM can see of itself, as a `Sample` each period. The binary is `slackwater-monitor`.
//!
//! # Layout
//! - [`config`]: the node's settings, declared once; reading and checking of the TOML file
//! - [`inputs`]: the outside world: roots of /proc and /sys, clocks, files that are read again and again
//! - [`collectors`]: the trait and the table; one file for each collector
//! - [`cgroup`]: where a cgroup's files are, version 1 or 2, and what stands in them
//! - [`processes`]: which processes are the web server's
//! - [`probe`]: the canary's pointer chase and its calibration
//! - [`pmu`]: hardware counters through libpfm4 and perf_event; [`counters`] lists what they can do here
//! - [`sampler`]: all collectors together make one Sample
//! - [`bus`]: publishing to NATS
//! - [`run`]: the loop
//! - [`confine`]: privileges are given up once everything is open; [`seccomp`]: the system calls that are left
//! - [`check`]: what works on this machine, and what the rest would take
//! - [`table`]: a Sample for people
//! - [`cli`]: the command line

pub mod bus;
pub mod cgroup;
pub mod check;
pub mod cli;
pub mod collectors;
pub mod config;
pub mod confine;
pub mod counters;
pub mod inputs;
pub mod pmu;
pub mod probe;
pub mod processes;
pub mod run;
pub mod sampler;
pub mod seccomp;
pub mod table;
