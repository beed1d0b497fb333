//! Hardware counters: events by libpfm4's names, counted by the kernel's perf_event, one set of groups for each scope.
//!
//! - [`events`]: which events are counted, and what they are called on this CPU model
//! - [`libpfm`]: names become encodings
//! - [`group`]: events that are counted and read together
//! - [`targets`]: what is counted: CPUs, a cgroup on each CPU, threads
//! - [`scope`]: the groups of one scope, opened again when what they count has changed; [`fitting`]: with few files;
//!   [`event_record`]: which events count
//! - [`figures`]: counts become cycles per instruction and the like
//! - [`permission`]: why counting is forbidden, and how to allow it

pub mod event_record;
pub mod events;
pub mod figures;
pub mod fitting;
pub mod group;
pub mod libpfm;
pub mod permission;
pub mod scope;
pub mod targets;

use slackwater_node::system::System;

use crate::config::{PMU_SCOPES, Settings};
use crate::reason::Reason;
use libpfm::Libpfm;
use scope::Scope;
use targets::{CgroupTargets, CpuTargets, TargetSource, ThreadTargets};

/// The configured scopes, from the widest to the narrowest. `cgroup` is left out while no cgroup is configured; for the
/// root cgroup, which the kernel counts oddly, there is `system`.
///
/// # Errors
/// Why there are none.
pub fn scopes(settings: &Settings, system: &System) -> Result<Vec<Scope>, Reason> {
    let pmu = &settings.pmu;
    let wanted = events::wanted(&pmu.events, &Libpfm::load()?);
    let names: Vec<&'static str> = PMU_SCOPES
        .into_iter()
        .filter(|name| pmu.scopes.iter().any(|wanted| wanted == name))
        .filter(|name| *name != "cgroup" || !settings.cpu.cgroup.trim_matches('/').is_empty())
        .collect();
    if names.is_empty() {
        return Err("no scope is configured (pmu.scopes; cgroup needs cpu.cgroup)".into());
    }
    let max_files = pmu.max_files as usize / names.len();
    let open = |name: &'static str| {
        let source: Box<dyn TargetSource> = match name {
            "system" => Box::new(CpuTargets::new(system)),
            "cgroup" => Box::new(CgroupTargets::new(&settings.cpu.cgroup, system)),
            _ => Box::new(ThreadTargets::new(&settings.processes, system)),
        };
        Scope::new(name, source, wanted.clone(), pmu.user_only, max_files, system)
    };
    Ok(names.into_iter().map(open).collect())
}
