//! Why the kernel forbids counting, and how to allow it.

use std::io;
use std::path::Path;

use rustix::thread::{CapabilitySet, capabilities};
use slackwater_messages::AbsenceCause;
use slackwater_node::system::System;

use crate::kernel_file::line;
use crate::reason::Reason;

/// The highest `kernel.perf_event_paranoid` that means something in Linux itself.
pub const MAINLINE_MOST: i32 = 2;

/// The facts that decide whether this process may count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permission {
    /// CAP_PERFMON or CAP_SYS_ADMIN is in effect.
    pub is_capable: bool,
    /// `kernel.perf_event_paranoid`; absent where the kernel has no perf_event.
    pub paranoid: Option<i32>,
}

impl Permission {
    /// This process's permission, now.
    pub fn now(system: &System) -> Permission {
        let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        let paranoid = line(&system.proc.join("sys/kernel/perf_event_paranoid"));
        Permission {
            is_capable: effective.intersects(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN),
            paranoid: paranoid.ok().and_then(|text| text.parse().ok()),
        }
    }

    /// Why counting was denied, for a scope that needs `kernel.perf_event_paranoid` to be at most `needed`.
    pub fn denied(&self, needed: i32) -> Reason {
        match (self.is_capable, self.paranoid) {
            (_, None) => Reason::new(
                AbsenceCause::NoPerfEvent,
                "this kernel has no perf_event (no /proc/sys/kernel/perf_event_paranoid)",
            ),
            (true, Some(paranoid)) if paranoid > MAINLINE_MOST => Reason::new(
                AbsenceCause::MayNotCount,
                format!("denied in spite of CAP_PERFMON: {}", wants_admin(paranoid)),
            ),
            (true, Some(_)) => Reason::new(
                AbsenceCause::ContainerForbids,
                "denied in spite of CAP_PERFMON: a container's seccomp profile must allow perf_event_open",
            ),
            (false, Some(paranoid)) => Reason::new(
                AbsenceCause::MayNotCount,
                format!(
                    "denied: CAP_PERFMON is missing and kernel.perf_event_paranoid is {paranoid}; allow it with \
                     `setcap cap_perfmon,cap_net_raw+ep {}` or `sysctl kernel.perf_event_paranoid={needed}`",
                    program().display()
                ),
            ),
        }
    }
}

/// Explains a `kernel.perf_event_paranoid` above [`MAINLINE_MOST`] to an operator.
pub fn wants_admin(paranoid: i32) -> String {
    format!(
        "kernel.perf_event_paranoid is {paranoid}, and above {MAINLINE_MOST} the kernels of Debian and Ubuntu want \
         CAP_SYS_ADMIN, which the monitor does not keep; allow it with `sysctl kernel.perf_event_paranoid={MAINLINE_MOST}`"
    )
}

/// Where this program is, for advice.
pub fn program() -> std::path::PathBuf {
    std::env::current_exe().unwrap_or_else(|_| Path::new("slackwater-monitor").to_owned())
}

/// Why an event could not be opened, in few words.
pub fn why_refused(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL) => {
            "this machine's hardware or hypervisor does not offer it".to_owned()
        }
        Some(libc::EMFILE | libc::ENFILE) => "too many open files (pmu.max_files bounds them)".to_owned(),
        Some(libc::EACCES | libc::EPERM) => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_command_that_allows_it() {
        let reason = Permission { is_capable: false, paranoid: Some(2) }.denied(0);
        assert!(reason.starts_with("denied: CAP_PERFMON is missing and kernel.perf_event_paranoid is 2"), "{reason}");
        assert!(reason.contains("`setcap cap_perfmon,cap_net_raw+ep /"), "{reason}");
        assert!(reason.ends_with("or `sysctl kernel.perf_event_paranoid=0`"), "{reason}");
        assert!(Permission { is_capable: false, paranoid: None }.denied(0).contains("no perf_event"));
        assert!(Permission { is_capable: true, paranoid: Some(2) }.denied(0).contains("seccomp"));
        let reason = Permission { is_capable: true, paranoid: Some(3) }.denied(0);
        assert_eq!(reason.cause, Some(AbsenceCause::MayNotCount));
        assert!(reason.ends_with("allow it with `sysctl kernel.perf_event_paranoid=2`"), "{reason}");
    }

    #[test]
    fn the_kernels_answers_are_told_apart() {
        let reason = |code| why_refused(&io::Error::from_raw_os_error(code));
        assert_eq!(reason(libc::ENOENT), "this machine's hardware or hypervisor does not offer it");
        assert!(reason(libc::EMFILE).contains("pmu.max_files") && reason(libc::EACCES) == "permission denied");
        assert!(reason(libc::EIO).contains("error"));
    }
}
