//! Hardware counters and their listing, with the real command and the real kernel interface. The tests use software
//! events, which every machine has and which are opened and read like hardware events.

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use slackwater_messages::{Sample, ScopeCounters, decode};
use slackwater_monitor::pmu::events::MODELS;
use slackwater_monitor::pmu::libpfm::Libpfm;
use support::Running;

const SOFTWARE: &str = "events = { cycles = \"cpu-clock\", instructions = \"task-clock\", cache_misses = \"\" }";

/// A process with a name of its own that uses a core until the test ends.
fn busy(folder: &Path) -> (Running, String) {
    let name = format!("swb{}", std::process::id());
    std::os::unix::fs::symlink("/bin/sh", folder.join(&name)).expect("a link");
    let child = Command::new(folder.join(&name)).args(["-c", "while :; do :; done"]).spawn();
    (Running(child.expect("a shell")), name)
}

fn run(command: &str, folder: &Path, config: &str) -> Output {
    let file = folder.join("node.toml");
    fs::write(&file, format!("node = \"n1\"\n{config}\n[sniffer]\ninterface = \"\"\n")).expect("node.toml");
    let mut monitor = Command::new(env!("CARGO_BIN_EXE_slackwater-monitor"));
    monitor
        .args([command, "--json", "--config"])
        .arg(file)
        .env("LIBPFM_ENCODE_INACTIVE", "1")
        .output()
        .expect("the command runs")
}

fn rows(folder: &Path, config: &str) -> Vec<Value> {
    let output = run("counters", folder, config);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The first Sample for which `holds` is true, or the last of some. The compared figures are read one after the other,
/// and a busy machine may take the core away in between.
fn sample_with(folder: &Path, config: &str, holds: impl Fn(&Sample) -> bool) -> Sample {
    let once = || decode::<Sample>(&run("once", folder, config).stdout).expect("a Sample");
    let mut sample = once();
    for _ in 0..20 {
        if holds(&sample) {
            break;
        }
        sample = once();
    }
    sample
}

/// Whether there is one cycle for each instruction, since both events count nanoseconds here.
fn has_cpi_of_one(scope: &ScopeCounters) -> bool {
    scope.cpi.is_some_and(|cpi| (cpi - 1.0).abs() < 0.1)
}

/// Whether a cycle takes a nanosecond of CPU time.
fn has_cycles_of_a_nanosecond(scope: &ScopeCounters) -> bool {
    scope.frequency_mhz.is_some_and(|mhz| (mhz - 1000.0).abs() < 100.0)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Whether events can be counted here; a missing libpfm4 or permission is printed.
fn may_count(folder: &Path) -> bool {
    let reason = match Libpfm::load() {
        Err(reason) => Some(reason.text),
        Ok(_) => rows(folder, &format!("[pmu]\nscopes = [\"system\"]\n{SOFTWARE}"))
            .iter()
            .find(|row| row["event"] == "cycles" && row["openable"] == false)
            .map(|row| row["reason"].to_string()),
    };
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_none()
}

#[test]
fn each_event_counts_or_says_why_not() {
    let folder = folder();
    if Libpfm::load().is_err() {
        let output = run("counters", folder.path(), "");
        assert!(String::from_utf8_lossy(&output.stderr).contains("libpfm4"), "{output:?}");
        return;
    }
    let rows = rows(folder.path(), "");
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert_eq!(row["encodable"], true, "{row}");
        assert_eq!(row["counting"] == true, row["reason"].is_null(), "{row}");
        assert!(row["counting"] == false || row["openable"] == true, "{row}");
    }
}

#[test]
fn software_events_count_in_the_whole_vm_and_in_the_web_servers_processes() {
    let folder = folder();
    if !may_count(folder.path()) {
        return;
    }
    let (_busy, name) = busy(folder.path());
    let config =
        format!("period_s = 0.5\n[processes]\nnames = [\"{name}\"]\n[pmu]\nscopes = [\"pid\", \"system\"]\n{SOFTWARE}");
    for row in rows(folder.path(), &config) {
        let is_clock = row["name"] == "cpu-clock" || row["name"] == "task-clock";
        assert_eq!(row["counting"] == true, is_clock, "{row}");
        assert!(!is_clock || row["running"] == 1.0, "{row}");
    }
    let sample = sample_with(folder.path(), &config, |sample| {
        sample.pmu.iter().all(has_cpi_of_one) && sample.pmu.last().is_none_or(has_cycles_of_a_nanosecond)
    });
    let names: Vec<&str> = sample.pmu.iter().map(|scope| scope.scope.as_str()).collect();
    assert_eq!(names, ["system", "pid"], "{:?}", sample.absent);
    for scope in &sample.pmu {
        assert!(has_cpi_of_one(scope), "{scope:?}");
        assert_eq!(scope.running, Some(1.0), "{scope:?}");
    }
    let pid = &sample.pmu[1];
    assert!(has_cycles_of_a_nanosecond(pid), "{pid:?}");
    let counters = sample.counters.expect("from the narrowest scope");
    assert_eq!((counters.source.as_str(), counters.cpi), ("pmu", pid.cpi));
    assert_eq!(sample.absent["pmu.pid.cache_mpki"], "cache_misses is left out in the configuration");
}

#[test]
fn a_cgroup_of_version_2_is_counted_by_itself() {
    let folder = folder();
    let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .find(|root| Path::new(root).join("cgroup.controllers").exists());
    let name = format!("slackwater-hardware-{}", std::process::id());
    let place = root.map(|root| Path::new(root).join(&name));
    let Some(place) = place.filter(|place| fs::create_dir(place).is_ok()) else {
        println!("skipped: no cgroup of version 2 can be made here");
        return;
    };
    let result = std::panic::catch_unwind(|| {
        if !may_count(folder.path()) {
            return;
        }
        let (busy, _) = busy(folder.path());
        fs::write(place.join("cgroup.procs"), busy.0.id().to_string()).expect("the process is moved");
        let config = format!("period_s = 0.5\n[cpu]\ncgroup = \"{name}\"\n[pmu]\n{SOFTWARE}");
        // The kernel begins to count with the core's next switch of tasks; a task alone on a core has none for a while.
        let is_elsewhere =
            |sample: &Sample| sample.absent.get("pmu.cgroup").is_some_and(|reason| reason.contains("offer"));
        let is_as_expected = |scope: &ScopeCounters| has_cpi_of_one(scope) && has_cycles_of_a_nanosecond(scope);
        let of_cgroup = |sample: &Sample| sample.pmu.iter().find(|scope| scope.scope == "cgroup").cloned();
        let sample = sample_with(folder.path(), &config, |sample| {
            is_elsewhere(sample) || of_cgroup(sample).is_some_and(|scope| is_as_expected(&scope))
        });
        if is_elsewhere(&sample) {
            println!("skipped: perf_event is attached to another tree here");
            return;
        }
        let scope = of_cgroup(&sample).unwrap_or_else(|| panic!("{sample:?}"));
        assert!(is_as_expected(&scope), "{scope:?}");
    });
    // The shell is killed by now, and takes a moment to leave.
    let gone = (0..2000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        fs::remove_dir(&place).is_ok()
    });
    assert!(gone, "{} stays", place.display());
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn names_of_all_cpu_models_in_the_table_are_libpfms() {
    let folder = folder();
    if !cfg!(target_arch = "x86_64") || Libpfm::load().is_err() {
        println!("skipped: the table's models are x86-64, or libpfm4 is not there");
        return;
    }
    for (model, event, name) in MODELS {
        let key = event.key();
        let rows = rows(folder.path(), &format!("[pmu]\nevents = {{ {key} = \"{model}::{name}\" }}"));
        let row = rows.iter().find(|row| row["event"] == key).expect("a row");
        assert_eq!(row["encodable"], true, "{row}");
        assert_eq!(row["encoding"][0], 4, "a raw event of the CPU: {row}");
    }
}

#[test]
fn without_permission_the_way_to_allow_it_is_said() {
    if !rustix::process::geteuid().is_root() || Libpfm::load().is_err() {
        println!("skipped: root starts this test, with libpfm4 there");
        return;
    }
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").expect("perf_event");
    if paranoid.trim().parse::<i32>().is_ok_and(|level| level <= 0) {
        println!("skipped: everybody may count here");
        return;
    }
    let mut monitor = Command::new(env!("CARGO_BIN_EXE_slackwater-monitor"));
    let output = match monitor.args(["counters", "--json"]).uid(65534).gid(65534).output() {
        Ok(output) => output,
        Err(error) => return println!("skipped: another user cannot start the command: {error}"),
    };
    let rows: Vec<Value> = match serde_json::from_slice(&output.stdout) {
        Ok(rows) => rows,
        Err(_) => return println!("skipped: another user cannot load libpfm4: {output:?}"),
    };
    let reason = rows[0]["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("denied: CAP_PERFMON is missing and kernel.perf_event_paranoid is "), "{reason}");
    assert!(
        reason.contains("setcap cap_perfmon") && reason.contains("sysctl kernel.perf_event_paranoid=0"),
        "{reason}"
    );
}
