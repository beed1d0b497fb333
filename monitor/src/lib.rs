//! What a web server's VM can see of itself, as a `Sample` each period. The binary is `slackwater-monitor`.
//!
//! # Layout
//! - [`agent`]: answers HAProxy's agent-check with the weight that lbengine wants
//! - [`asks`]: the controller's requests: more Samples, or the traffic as the balancer's host sees it
//!   ([`balancers_traffic`])
//! - [`config`]: the node's settings, declared once; reading and checking of the TOML file
//! - [`kernel_file`]: files of the kernel that are read again and again
//! - [`collectors`]: the trait and the table; one file for each collector
//! - [`processes`]: which processes are the web server's; [`process_watch`]: whether there may be others than before
//! - [`counter_delta`]: how much the kernel's counters grew
//! - [`pmu`]: hardware counters through libpfm4 and perf_event; [`counters`] lists what they can do here
//! - [`probe`]: the canary's known code: arithmetic and chases of pointers
//! - [`threads`]: the web server's threads; [`switches`]: which turns on a core ended voluntarily
//! - [`ticks`]: CPU time by kind
//! - [`wakeup`]: why a thread woke later than it was to
//! - [`capture`]: packets of the node's interface, within a budget of CPU time; [`captured`]: what it saw
//! - [`sampler`]: all collectors together make one Sample; [`pace`]: when one is due while they follow events;
//!   [`bell`]: what wakes the loop for one
//! - [`bus`]: publishing to NATS; [`backlog`]: what waits while it is away
//! - [`metrics`]: the page for Prometheus
//! - [`sandbox`]: privileges are given up once everything is open, and system calls that are not needed
//! - [`check`]: what works on this machine, and what the rest would take
//! - [`run`]: the loop; [`timer`]: when what is due; [`memory`]: what only the start needed
//! - [`table`]: a Sample for people
//! - [`cli`]: the command line

mod absence;
pub mod agent;
pub mod asks;
pub mod backlog;
pub mod balancers_traffic;
pub mod bell;
pub mod bus;
pub mod capture;
pub mod captured;
pub mod check;
pub mod cli;
pub mod collectors;
pub mod config;
pub mod counter_delta;
pub mod counters;
pub mod error;
pub mod kernel_file;
pub mod listener;
pub mod memory;
pub mod metrics;
pub mod pace;
pub mod pmu;
pub mod probe;
pub mod process_watch;
pub mod processes;
pub mod reason;
pub mod run;
pub mod sampler;
pub mod sandbox;
pub mod switches;
pub mod table;
pub mod threads;
pub mod ticks;
pub mod timer;
pub mod usual_range;
pub mod wakeup;
