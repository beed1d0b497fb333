//! The privileges of the real command once root has started it: user, capabilities, system calls.

mod support;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slackwater_messages::Sample;
use slackwater_monitor::sandbox::seccomp;
use support::{Running, free_port, nats_program, start_nats};
use tokio_stream::StreamExt as _;

const DEADLINE: Duration = Duration::from_secs(60);
const NOBODY: &str = "65534";
const CAP_NET_RAW: u64 = 1 << 13;
const CAP_PERFMON: u64 = 1 << 38;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only root has privileges to give up");
    }
    is_root
}

fn nats_server() -> Option<(Running, u16)> {
    let port = free_port();
    Some((start_nats(&nats_program()?, port), port))
}

/// The fields of /proc/PID/status.
fn status(pid: u32) -> HashMap<String, String> {
    status_while_there(pid).expect("status")
}

/// The fields of /proc/PID/status of a thread that may end at any moment.
fn status_while_there(thread: u32) -> Option<HashMap<String, String>> {
    let text = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let field = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    Some(text.lines().filter_map(field).collect())
}

fn config(folder: &Path, bus: u16, web: u16, more: &str) -> PathBuf {
    let file = folder.join("node.toml");
    let text = format!(
        "node = \"n1\"\nperiod_s = 0.1\n\
         [pace]\nby_event = false\n[bus]\nurl = \"nats://localhost:{bus}\"\n\
         [sniffer]\ninterface = \"lo\"\nports = [{web}]\n{more}\n"
    );
    fs::write(&file, text).expect("node.toml");
    file
}

/// Sends requests and responses over loopback until `stop` is set.
fn traffic(listener: TcpListener, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut client = TcpStream::connect(address).expect("a connection");
        let (mut server, _) = listener.accept().expect("a connection");
        let mut room = [0; 200];
        while !stop.load(Ordering::Relaxed) {
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("the peer reads");
            let _ = server.read(&mut room).expect("a request");
            server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").expect("the peer reads");
            let _ = client.read(&mut room).expect("a response");
            std::thread::sleep(Duration::from_millis(2));
        }
    })
}

fn start(config: &Path) -> Running {
    start_as(Command::new(env!("CARGO_BIN_EXE_slackwater-monitor")), config)
}

fn start_as(mut command: Command, config: &Path) -> Running {
    Running(command.args(["run", "--config"]).arg(config).stderr(Stdio::piped()).spawn().expect("slackwater-monitor"))
}

/// A Sample with requests in it, from the bus.
fn with_traffic(bus: u16) -> Sample {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = async_nats::connect(format!("127.0.0.1:{bus}")).await.expect("a bus");
        let mut samples = client.subscribe("slackwater.sample.web.n1").await.expect("a subscription");
        let with_traffic = async {
            loop {
                let sample: Sample =
                    rmp_serde::from_slice(&samples.next().await.expect("a message").payload).expect("a Sample");
                if sample.traffic.as_ref().is_some_and(|traffic| traffic.rps > Some(0.0)) {
                    return sample;
                }
            }
        };
        tokio::time::timeout(DEADLINE, with_traffic).await.expect("traffic in time")
    })
}

/// Finds a program by its name, unpacked or the machine's own.
fn program(name: &str) -> Option<PathBuf> {
    let unpacked = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.build/bin");
    let places = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::iter::once(unpacked).chain(places).map(|folder| folder.join(name)).find(|program| program.exists())
}

/// A copy of the monitor that others may run. Its libraries may be below the build's folder: the loader looks beside a
/// program with file capabilities only where an absolute path names them, so the copy gets one, a link of the same length
/// or less.
fn copy_for_others(folder: &Path) -> PathBuf {
    const RELATIVE: &[u8] = b"$ORIGIN/../../.build/debian/usr/lib/x86_64-linux-gnu";
    let copy = folder.join("slackwater-monitor");
    let mut program = fs::read(env!("CARGO_BIN_EXE_slackwater-monitor")).expect("the program");
    if let Some(start) = program.windows(RELATIVE.len()).position(|bytes| bytes == RELATIVE) {
        let libraries = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.build/debian/usr/lib/x86_64-linux-gnu");
        let link = folder.join("lib");
        std::os::unix::fs::symlink(fs::canonicalize(libraries).expect("the libraries"), &link).expect("a link");
        let link = link.to_str().expect("text").as_bytes();
        let end = start + program[start..].iter().position(|byte| *byte == 0).expect("the path's end");
        assert!(link.len() < end - start, "the temporary folder's name is too long");
        program[start..end].fill(0);
        program[start..start + link.len()].copy_from_slice(link);
    }
    fs::write(&copy, program).expect("a copy");
    for path in [folder, &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
    }
    copy
}

#[test]
fn started_by_another_user_with_file_capabilities_it_keeps_these_two_and_publishes_traffic() {
    if !is_root() {
        return;
    }
    let (Some((_server, bus)), Some(setcap)) = (nats_server(), program("setcap")) else {
        println!("skipped: nats-server or setcap is not there (make setup)");
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let copy = copy_for_others(folder.path());
    let set = Command::new(setcap).arg("cap_perfmon,cap_net_raw+ep").arg(&copy).output().expect("setcap");
    if !set.status.success() {
        println!("skipped: this file system keeps no capabilities: {}", String::from_utf8_lossy(&set.stderr));
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let web = listener.local_addr().expect("an address").port();
    let stop = Arc::new(AtomicBool::new(false));
    let client = traffic(listener, stop.clone());
    let nobody = NOBODY.parse().expect("a number");
    let mut command = Command::new(&copy);
    command.uid(nobody).gid(nobody);
    let mut monitor = start_as(command, &config(folder.path(), bus, web, ""));
    let log = log_until(&mut monitor, ": connected");
    assert!(log.contains("running as user 65534, capabilities CAP_NET_RAW, CAP_PERFMON, seccomp "), "{log}");
    assert!(with_traffic(bus).traffic.expect("traffic").rt_p95_ms.is_some());
    let status = status(monitor.0.id());
    let number = |name: &str| u64::from_str_radix(&status[name], 16).expect("a number");
    let allowed = CAP_NET_RAW | CAP_PERFMON;
    assert_eq!((number("CapEff"), number("CapPrm"), number("CapInh")), (allowed, allowed, 0));
    assert_eq!((status["NoNewPrivs"].as_str(), status["Uid"].split('\t').next()), ("1", Some(NOBODY)));
    stop.store(true, Ordering::Relaxed);
    client.join().expect("the thread ends");
}

/// The process's log until a line contains `words`.
fn log_until(running: &mut Running, words: &str) -> String {
    let mut stderr = BufReader::new(running.0.stderr.take().expect("stderr"));
    let mut log = String::new();
    while !log.contains(words) {
        assert!(stderr.read_line(&mut log).expect("text") > 0, "it ended: {log}");
    }
    running.0.stderr = Some(stderr.into_inner());
    log
}

#[test]
fn started_as_root_it_goes_on_as_another_user_with_two_capabilities_and_still_publishes_traffic() {
    if !is_root() {
        return;
    }
    let Some((_server, bus)) = nats_server() else { return };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let web = listener.local_addr().expect("an address").port();
    let stop = Arc::new(AtomicBool::new(false));
    let client = traffic(listener, stop.clone());
    let mut monitor = start(&config(folder.path(), bus, web, "[privileges]\nuser = \"nobody\""));
    let log = log_until(&mut monitor, ": connected");
    assert!(log.contains("running as user 65534, capabilities CAP_NET_RAW, CAP_PERFMON, seccomp "), "{log}");

    let sample = with_traffic(bus);
    assert!(sample.cpu.is_some() && sample.traffic.expect("traffic").rt_p95_ms.is_some());
    assert!(sample.absent.values().all(|reason| !reason.contains("ermi")), "{:?}", sample.absent);

    let tasks = fs::read_dir(format!("/proc/{}/task", monitor.0.id())).expect("threads").flatten();
    let threads: Vec<u32> = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
    for thread in threads {
        let Some(status) = status_while_there(thread) else { continue };
        let number = |name: &str| u64::from_str_radix(&status[name], 16).expect("a number");
        let allowed = CAP_NET_RAW | CAP_PERFMON;
        assert_eq!((number("CapEff"), number("CapPrm"), number("CapInh")), (allowed, allowed, 0));
        assert_eq!((number("CapBnd"), status["NoNewPrivs"].as_str()), (0, "1"));
        assert!(status["Uid"].split('\t').chain(status["Gid"].split('\t')).all(|id| id == NOBODY), "{status:?}");
        assert_eq!(status["Groups"], "");
        assert!(!seccomp::is_available() || status["Seccomp"] == "2", "{status:?}");
    }
    stop.store(true, Ordering::Relaxed);
    client.join().expect("the thread ends");
}

#[test]
fn what_is_not_configured_keeps_no_capability() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = config(folder.path(), 9, 80, "[pmu]\nenabled = false\n[privileges]\nseccomp = \"off\"");
    let text = fs::read_to_string(&file).expect("node.toml").replace("interface = \"lo\"", "interface = \"\"");
    fs::write(&file, text).expect("node.toml");
    let mut monitor = start(&file);
    let log = log_until(&mut monitor, "running as");
    assert!(log.contains("user 0, capabilities none, seccomp off"), "{log}");
    let status = status(monitor.0.id());
    assert_eq!((status["CapEff"].as_str(), status["Seccomp"].as_str()), ("0000000000000000", "0"));
    assert_eq!((&status["NoNewPrivs"][..], status["Uid"].split('\t').next()), ("1", Some("0")));
}

#[test]
fn each_command_finds_the_same_with_and_without_its_filter() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let run = |mode: &str, command: &str| {
        let file = config(folder.path(), 9, 80, &format!("[privileges]\nuser = \"nobody\"\nseccomp = \"{mode}\""));
        let mut monitor = Command::new(env!("CARGO_BIN_EXE_slackwater-monitor"));
        let output = monitor.args([command, "--json", "--config"]).arg(file).output().expect("the command runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.code().is_some(), "{command} with {mode} was killed: {output:?}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let absent = |mode: &str| {
        let sample = run(mode, "once");
        let sections = sample["absent"].as_object().expect("absent").clone();
        sections.into_iter().filter(|(name, _)| !name.contains('.')).collect::<Vec<_>>()
    };
    assert_eq!(absent("deny"), absent("off"));
    assert_eq!(absent("log"), absent("off"));
    let results = |mode: &str| {
        let items = run(mode, "check");
        let items = items.as_array().expect("a list").clone();
        items.into_iter().filter(|item| item["what"] != "seccomp").map(|item| item["works"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(results("deny"), results("off"));
}

#[test]
fn a_user_that_is_not_there_is_a_reason_not_to_start() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = config(folder.path(), 9, 80, "[privileges]\nuser = \"no-such-user\"");
    let mut monitor = Command::new(env!("CARGO_BIN_EXE_slackwater-monitor"));
    let output = monitor.args(["run", "--config"]).arg(&file).output().expect("the command runs");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(log.contains("privileges.user") && log.contains("no-such-user"), "{log}");
    let mut monitor = Command::new(env!("CARGO_BIN_EXE_slackwater-monitor"));
    let output = monitor.args(["check", "--json", "--config"]).arg(&file).output().expect("the command runs");
    let items: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("a list");
    let user = items.iter().find(|item| item["what"] == "user").expect("an item");
    assert_eq!((&user["works"], &user["needed"], output.status.code()), (&false.into(), &true.into(), Some(1)));
}
