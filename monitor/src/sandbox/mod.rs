//! Privileges are given up once everything is open: another user, the few capabilities that opening again needs, no new
//! privileges, and only the monitor's own system calls.

use std::path::Path;

use rustix::thread::{CapabilitySet, capabilities};
use slackwater_sniffer::keep_privileges;

use crate::config::Settings;
use crate::error::Error;
use crate::system::System;

pub mod seccomp;

/// A capability that the monitor goes on with, and what for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kept {
    /// It.
    pub set: CapabilitySet,
    /// Its name.
    pub name: &'static str,
    /// What fails without it.
    pub why: &'static str,
}

const NET_RAW: Kept = Kept {
    set: CapabilitySet::NET_RAW,
    name: "CAP_NET_RAW",
    why: "the capture is opened again when its interface comes back",
};
const PERFMON: Kept = Kept {
    set: CapabilitySet::PERFMON,
    name: "CAP_PERFMON",
    why: "hardware counters are opened again for new CPUs, cgroups and processes",
};
const SYS_PTRACE: Kept = Kept {
    set: CapabilitySet::SYS_PTRACE,
    name: "CAP_SYS_PTRACE",
    why: "/proc is mounted with hidepid, which hides the web server's processes",
};

/// The capabilities that these settings need on this machine, beyond the start.
pub fn needed(settings: &Settings, system: &System) -> Vec<Kept> {
    let mut needed = Vec::new();
    if settings.is_on("traffic") && !settings.sniffer.interface.is_empty() {
        needed.push(NET_RAW);
    }
    if settings.is_on("pmu") {
        needed.push(PERFMON);
    }
    if hides_processes(&std::fs::read_to_string(system.proc.join("self/mounts")).unwrap_or_default(), &system.proc) {
        needed.push(SYS_PTRACE);
    }
    needed
}

/// Says whether /proc hides the processes of other users, from the lines of /proc/self/mounts.
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

/// Gives up everything but what is needed; returns a line with what is left. It changes the calling thread only: call it
/// before there are others.
///
/// # Errors
/// The user is not there, or the kernel refuses. A kernel without seccomp filters is only mentioned.
pub fn enter(settings: &Settings, system: &System) -> Result<String, Error> {
    let needed = needed(settings, system);
    let keep = needed.iter().fold(CapabilitySet::empty(), |all, kept| all | kept.set);
    let user = Some(settings.privileges.user.as_str()).filter(|user| !user.is_empty());
    let is_root = rustix::process::geteuid().is_root();
    keep_privileges(user.filter(|_| is_root), keep)?;
    let filter = match settings.privileges.seccomp.as_str() {
        _ if !seccomp::is_available() => "none in this kernel".to_owned(),
        mode => seccomp::apply(mode).map(|()| mode.to_owned())?,
    };
    let left = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let names: Vec<&str> = needed.iter().filter(|kept| left.contains(kept.set)).map(|kept| kept.name).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Ok(format!("user {}, capabilities {names}, seccomp {filter}", rustix::process::geteuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::fixture::Fixture;

    #[test]
    fn only_the_configured_parts_keep_their_capability() {
        let fixture = Fixture::new(&[]);
        let names =
            |settings: &Settings| needed(settings, &fixture.system()).iter().map(|kept| kept.name).collect::<Vec<_>>();
        let mut settings = Settings::default();
        assert_eq!(names(&settings), ["CAP_NET_RAW", "CAP_PERFMON"]);
        settings.sniffer.interface = String::new();
        assert_eq!(names(&settings), ["CAP_PERFMON"]);
        settings.pmu.enabled = false;
        assert!(names(&settings).is_empty());
        let proc = fixture.path("proc");
        fixture.write("proc/self/mounts", &format!("proc {} proc rw,nosuid,hidepid=invisible 0 0\n", proc.display()));
        assert_eq!(names(&settings), ["CAP_SYS_PTRACE"]);
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
