//! Policies that decide every 50 ms or so, on the node itself: `hurry-up` and `pareto`. They decide as those of
//! `lab/slackwater_lab/governor/policies/` do (`tests/traces/fast_policies.json`, which Python writes).
//!
//! - [`parameters`]: a policy with its parameters, as an Order has them
//! - [`hurry_up`], [`pareto`]: the rules, which touch nothing
//! - [`events`]: the lines that applications send when they enter and leave their hot function
//! - [`socket`]: the Unix socket that they come by
//! - [`run_delay`]: how long threads wait for a core, and how much CPU time they take
//!
//! The loop that reads, decides and sets once in each period is the knob's (`knobs/policy_loop.rs`).

pub mod events;
pub mod hurry_up;
pub mod parameters;
pub mod pareto;
pub mod run_delay;
pub mod socket;

#[cfg(test)]
mod tests;
