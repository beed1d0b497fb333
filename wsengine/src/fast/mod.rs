//! Policies that decide on the node itself, every 50 ms or more: `hurry-up` and `pareto`. Their rules decide the same
//! as those in `lab/slackwater_lab/governor/policies/` (`tests/traces/fast_policies.json`, which Python writes).
//!
//! - [`parameters`]: a policy with its parameters, as an Order has them
//! - [`hurry_up`], [`pareto`]: the rules, as pure functions
//! - [`events`]: the lines that applications send when they enter and leave their hot function
//! - [`socket`]: the Unix socket on which these lines arrive
//! - [`thread_waits`]: how long threads wait for a core, and how much CPU time they take
//!
//! `knobs/policy_loop.rs` holds the loop that reads, decides and sets once in each period.

pub mod events;
pub mod hurry_up;
pub mod parameters;
pub mod pareto;
pub mod socket;
pub mod thread_waits;

#[cfg(test)]
mod tests;
