//! The system calls that stay allowed once everything is open. All others fail with "operation not permitted", so that
//! a part that misses one reports it and the rest goes on.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

macro_rules! calls {
    ($($name:ident)*) => { &[$( (libc::$name, stringify!($name)) ),*] };
}

type Calls = &'static [(libc::c_long, &'static str)];

/// The allowed calls, each list with its reason. There is no execve, no fork, no ptrace, no mount, no kill, no bpf and
/// no module loading.
pub const ALLOWED: &[(&str, Calls)] = &[
    (
        "files of /proc, /sys and cgroups; openat is narrowed to reading below",
        calls! {
            SYS_openat SYS_read SYS_pread64 SYS_readv SYS_close SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs
            SYS_getdents64 SYS_lseek SYS_readlinkat SYS_faccessat SYS_faccessat2 SYS_fcntl SYS_dup SYS_getcwd
        },
    ),
    ("printing", calls! { SYS_write SYS_writev }),
    (
        "sockets: the bus, status pages, /metrics, name servers, and the capture that is opened again",
        calls! {
            SYS_socket SYS_connect SYS_bind SYS_listen SYS_accept4 SYS_getsockopt SYS_setsockopt SYS_getsockname
            SYS_getpeername SYS_sendto SYS_recvfrom SYS_sendmsg SYS_sendmmsg SYS_recvmsg SYS_recvmmsg SYS_shutdown
            SYS_socketpair SYS_ioctl SYS_ppoll
        },
    ),
    ("hardware counters, opened again for new CPUs and processes", calls! { SYS_perf_event_open }),
    (
        "the loop: waiting for sockets, signals and time",
        calls! {
            SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_pipe2 SYS_timerfd_create
            SYS_timerfd_settime SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall
            SYS_nanosleep SYS_clock_nanosleep SYS_pselect6
        },
    ),
    (
        "clocks where the vDSO has none, and the canary's CPU time",
        calls! {
            SYS_clock_gettime SYS_clock_getres SYS_gettimeofday SYS_getrusage SYS_times SYS_getcpu SYS_sched_getaffinity
            SYS_sched_yield
        },
    ),
    ("memory", calls! { SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_brk }),
    (
        "threads that look names up; clone is narrowed to threads below",
        calls! {
            SYS_futex SYS_set_robust_list SYS_rseq SYS_gettid SYS_set_tid_address SYS_membarrier SYS_exit
        },
    ),
    (
        "itself: its own limits, capabilities and end",
        calls! {
            SYS_exit_group SYS_getpid SYS_getppid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_prlimit64 SYS_capget
            SYS_prctl SYS_uname SYS_sysinfo SYS_getrandom SYS_tgkill
        },
    ),
];

/// Older forms that only x86-64 still has.
#[cfg(target_arch = "x86_64")]
const OLDER: Calls = calls! {
    SYS_access SYS_readlink SYS_poll SYS_epoll_wait SYS_select SYS_pipe
};
#[cfg(not(target_arch = "x86_64"))]
const OLDER: Calls = &[];

/// Whether this kernel can filter system calls.
pub fn is_available() -> bool {
    std::path::Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()
}

/// Filters the calls of this thread and of the threads that it starts, for the rest of their lives.
///
/// # Errors
/// When the filter cannot be compiled or the kernel refuses it.
pub fn apply(mode: &str) -> Result<(), seccompiler::Error> {
    let denied = match mode {
        "off" => return Ok(()),
        "log" => SeccompAction::Log,
        _ => SeccompAction::Errno(libc::EPERM as u32),
    };
    let allowed = program(rules()?, denied, SeccompAction::Allow)?;
    // A filter cannot look at the flags of clone3. Where clone3 is missing, the C library falls back to clone.
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let no_clone3 = program(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
    for filter in [no_clone3, allowed] {
        seccompiler::apply_filter(&filter)?;
    }
    Ok(())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules() -> Result<Rules, BackendError> {
    let calls = ALLOWED.iter().flat_map(|(_, calls)| calls.iter()).chain(OLDER);
    let mut rules: Rules = calls.map(|(number, _)| (*number, Vec::new())).collect();
    // The other filter refuses clone3, and the stricter of two filters wins.
    rules.insert(libc::SYS_clone3, Vec::new());
    let writes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
    let only_reads =
        SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(u64::from(writes.unsigned_abs())), 0)?;
    rules.insert(libc::SYS_openat, vec![SeccompRule::new(vec![only_reads])?]);
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    let is_thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is_thread])?]);
    Ok(rules)
}

fn program(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram, BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_stands_in_the_table_once_and_the_dangerous_ones_do_not() {
        let mut all: Vec<_> = ALLOWED.iter().flat_map(|(_, calls)| calls.iter()).chain(OLDER).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        let forbidden = [libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_mount, libc::SYS_kill];
        assert!(all.iter().all(|(number, _)| !forbidden.contains(number)), "{all:?}");
    }

    #[test]
    fn a_filtered_thread_reads_files_and_starts_threads_but_no_programs() {
        if !is_available() {
            println!("skipped: this kernel has no seccomp filters");
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("a");
        std::fs::write(&file, "").expect("a file");
        std::thread::spawn(move || {
            apply("deny").expect("a filter");
            assert!(std::fs::read_to_string("/proc/self/stat").is_ok());
            let mut open = std::fs::OpenOptions::new();
            for open in [open.clone().write(true), open.clone().read(true).append(true), open.write(true).create(true)]
            {
                let error = open.open(&file).expect_err("writing fails");
                assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
            }
            std::thread::spawn(|| ()).join().expect("a thread");
            let error = std::process::Command::new("/bin/true").spawn().expect_err("starting a program fails");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
            let error = std::fs::remove_file(file).expect_err("removing fails");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
        })
        .join()
        .expect("the filter is this thread's");
    }
}
