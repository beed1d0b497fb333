//! Gives up privileges once everything is open. What stays is an ordinary user, the few capabilities that opening again
//! needs, and the monitor's own system calls; new privileges cannot be gained.

use std::path::Path;

use rustix::thread::{CapabilitySet, capabilities};
use slackwater_node::system::System;
use slackwater_sniffer::keep_privileges;

use crate::config::Settings;
use crate::error::Error;

pub mod seccomp;

/// The capabilities that these settings need on this machine after the start.
pub fn needed(settings: &Settings, system: &System) -> CapabilitySet {
    let mut needed = CapabilitySet::empty();
    // The capture is opened again when its interface comes back.
    needed.set(CapabilitySet::NET_RAW, settings.is_on("traffic") && !settings.sniffer.interface.is_empty());
    // Hardware counters are opened again for new CPUs, cgroups and processes.
    needed.set(CapabilitySet::PERFMON, settings.is_on("pmu"));
    let mounts = std::fs::read_to_string(system.proc.join("self/mounts")).unwrap_or_default();
    needed.set(CapabilitySet::SYS_PTRACE, hides_processes(&mounts, &system.proc));
    needed
}

/// The capabilities' names, as in "CAP_NET_RAW, CAP_PERFMON".
pub fn names(capabilities: CapabilitySet) -> String {
    capabilities.iter_names().map(|(name, _)| format!("CAP_{name}")).collect::<Vec<_>>().join(", ")
}

/// Whether /proc hides the processes of other users, from the lines of /proc/self/mounts.
fn hides_processes(mounts: &str, proc: &Path) -> bool {
    mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        let is_proc = fields.next() == proc.to_str() && fields.next() == Some("proc");
        let options = fields.next().unwrap_or_default();
        is_proc
            && options
                .split(',')
                .any(|option| option.starts_with("hidepid=") && !matches!(option, "hidepid=0" | "hidepid=off"))
    })
}

/// Gives up all privileges but the needed ones and describes those that are left. It changes the calling thread only,
/// so it must be called before there are others.
///
/// # Errors
/// The user does not exist, or the kernel refuses. A kernel without seccomp filters is only mentioned.
pub fn enter(settings: &Settings, system: &System) -> Result<String, Error> {
    let needed = needed(settings, system);
    let user = Some(settings.privileges.user.as_str()).filter(|user| !user.is_empty());
    let is_root = rustix::process::geteuid().is_root();
    keep_privileges(user.filter(|_| is_root), needed)?;
    let filter = match settings.privileges.seccomp.as_str() {
        _ if !seccomp::is_available() => "none in this kernel".to_owned(),
        mode => seccomp::apply(mode).map(|()| mode.to_owned())?,
    };
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let kept = if needed.intersects(effective) { names(needed & effective) } else { "none".to_owned() };
    Ok(format!("user {}, capabilities {kept}, seccomp {filter}", rustix::process::geteuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    #[test]
    fn only_the_configured_parts_keep_their_capability() {
        let fixture = Fixture::new(&[]);
        let needed = |settings: &Settings| names(needed(settings, &fixture.system()));
        let mut settings = Settings::default();
        assert_eq!(needed(&settings), "CAP_NET_RAW, CAP_PERFMON");
        settings.sniffer.interface = String::new();
        assert_eq!(needed(&settings), "CAP_PERFMON");
        settings.pmu.enabled = false;
        assert!(needed(&settings).is_empty());
        let proc = fixture.path("proc");
        fixture.write("proc/self/mounts", &format!("proc {} proc rw,nosuid,hidepid=invisible 0 0\n", proc.display()));
        assert_eq!(needed(&settings), "CAP_SYS_PTRACE");
    }

    #[test]
    fn hidden_processes_are_seen_by_the_mount_options_of_proc() {
        let hides = |options: &str| {
            hides_processes(&format!("x / ext4 rw 0 0\nproc /proc proc {options} 0 0\n"), Path::new("/proc"))
        };
        assert!(hides("rw,hidepid=2") && hides("hidepid=ptraceable"));
        assert!(!hides("rw,nosuid") && !hides("rw,hidepid=0") && !hides("hidepid=off"));
        assert!(!hides_processes("tmp /tmp proc hidepid=2 0 0\n", Path::new("/proc")));
    }
}
