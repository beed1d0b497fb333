//! The real command: `once`, `config`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::time::Duration;

use slackwater_messages::{AbsenceCause, Sample, decode};

/// Each value that a Sample can carry.
const VALUES: &[(&str, &[&str])] = &[
    ("cpu", &["utilisation", "steal", "cores", "user", "system", "irq", "iowait", "throttled", "throttled_s_per_s"]),
    (
        "sched",
        &[
            "processes",
            "threads",
            "cpus",
            "cpu_s_per_s",
            "run_delay_s_per_s",
            "run_delay_per_cpu_s",
            "voluntary_switches_per_s",
            "involuntary_switches_per_s",
        ],
    ),
    ("pressure", &["cpu_some", "memory_some", "memory_full", "io_some", "io_full", "cgroup_cpu_some"]),
    ("memory", &["available", "minor_faults_per_s", "major_faults_per_s", "swapped_pages_per_s", "oom_kills"]),
    ("disk", &["busy", "queue", "read_bytes_per_s", "written_bytes_per_s", "wait_ms"]),
    ("network", &["received_bytes_per_s", "packets_per_s", "saturation", "drops_per_s", "retransmits_per_s"]),
    ("frequency", &["mean_mhz", "lowest_mhz", "throttles_per_s"]),
    ("server", &["apache_busy_workers", "php_listen_queue"]),
    ("counters", &["cpi", "cache_miss_rate", "wall_cpu_ratio", "instructions_per_s"]),
    ("gaps", &["moments", "lost_share", "queued_share", "longest_ms", "cpu_share"]),
    (
        "traffic",
        &[
            "rps",
            "rt_mean_ms",
            "rt_p50_ms",
            "rt_p95_ms",
            "rt_p99_ms",
            "in_flight",
            "oldest_unanswered_ms",
            "errors_per_s",
            "drops",
            "sampled_share",
            "rps_error",
            "cpu_share",
        ],
    ),
];

fn monitor() -> Command {
    Command::new(env!("CARGO_BIN_EXE_slackwater-monitor"))
}

/// A directory with the configuration `node.toml` that every user can read.
fn folder(config: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    fs::write(folder.path().join("node.toml"), config).expect("node.toml");
    folder
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn sample(output: &Output) -> Sample {
    assert!(output.status.success(), "{}", out(output));
    decode(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", out(output)))
}

#[test]
fn once_prints_a_sample_in_which_each_value_is_there_or_has_its_reason() {
    let folder = folder("node = \"n1\"\npool = \"p1\"\n[sniffer]\ninterface = \"slackwater-none\"\n");
    let output = monitor().args(["once", "--json", "--config"]).arg(folder.path().join("node.toml")).output();
    let output = output.expect("the command runs");
    let sample = sample(&output);
    assert_eq!((sample.v, sample.node.as_str(), sample.pool.as_str(), sample.seq), (1, "n1", "p1", 0));
    assert!(sample.period_s >= 0.2 && !sample.boot_id.is_empty() && sample.time_unix_s > 1.7e9, "{sample:?}");

    let written: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for (section, names) in VALUES {
        if let Some(values) = written.get(section) {
            for name in *names {
                let reason = sample.absent.get(&format!("{section}.{name}"));
                assert_ne!(values.get(name).is_some(), reason.is_some(), "{section}.{name}: {}", out(&output));
                assert!(
                    values.get(name).is_none_or(|value| value.as_f64().is_some_and(|value| value >= 0.0)),
                    "{name}"
                );
            }
        } else {
            assert!(sample.absent.contains_key(*section), "{section}: {}", out(&output));
        }
    }
    assert!(sample.absent["traffic"].starts_with("no capture: "), "{:?}", sample.absent);
    assert!(sample.cpu.is_some() && sample.counters.is_some());
    let gaps = sample.gaps.expect("a section");
    assert!(gaps.moments.is_some_and(|moments| moments > 0) && gaps.lost_share.is_some(), "{gaps:?}");
}

#[test]
fn once_without_a_configuration_takes_the_host_name() {
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").expect("a host name");
    let output = monitor().args(["once", "--json"]).output().expect("the command runs");
    assert_eq!(sample(&output).node, hostname.trim());
}

#[test]
fn collectors_are_switched_off_by_name_in_the_configuration_and_on_the_command_line() {
    let folder = folder("node = \"n1\"\n[sniffer]\ninterface = \"\"\n[collectors]\noff = [\"disk\"]\n");
    let file = folder.path().join("node.toml");
    let mut command = monitor();
    command.args(["once", "--json", "--no-collector.canary", "--no-collector.memory", "--config"]).arg(&file);
    let sample = sample(&command.output().expect("the command runs"));
    assert!(sample.disk.is_none() && sample.memory.is_none() && sample.canary.is_none() && sample.cpu.is_some());
    for name in ["disk", "memory", "canary"] {
        assert_eq!(sample.absence_causes[name], AbsenceCause::SwitchedOff, "{name}");
    }
    fs::write(&file, "[collectors]\noff = [\"dsik\"]\n").expect("node.toml");
    let output = monitor().arg("config").arg(&file).output().expect("the command runs");
    assert!(!output.status.success() && out(&output).contains("did you mean \"disk\"?"), "{}", out(&output));
}

#[test]
fn an_ordinary_user_gets_everything_but_the_capture() {
    let folder = folder("node = \"n1\"\n[sniffer]\ninterface = \"lo\"\n");
    // The command and its library need not be where everybody can read.
    let mut command = monitor();
    command.args(["once", "--json", "--config"]).arg(folder.path().join("node.toml"));
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    match command.output() {
        Ok(output) => {
            let sample = sample(&output);
            let reason = &sample.absent["traffic"];
            assert!(reason.starts_with("no capture: ") && reason.contains("CAP_NET_RAW"), "{reason}");
            assert!(sample.cpu.is_some());
        }
        Err(error) => println!("skipped: another user cannot start the command: {error}"),
    }
}

/// Answers each connection's requests until the test ends.
fn serve(listener: TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|length| length > 0) {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
                if line.ends_with("\r\n\r\n") && stream.get_mut().write_all(answer).is_err() {
                    break;
                }
                if line.ends_with("\r\n\r\n") {
                    line.clear();
                }
            }
        });
    }
}

#[test]
fn requests_on_the_wire_become_a_rate_and_response_times() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || serve(listener));
    let folder = folder(&format!(
        "node = \"n1\"\nperiod_s = 1.0\n[sniffer]\ninterface = \"lo\"\nports = [9, \"{}:http1\"]\n\
         routes = [\"start=/\", \"search=/search*\"]\n",
        address.port()
    ));
    let mut client = BufReader::new(TcpStream::connect(address).expect("a connection"));
    let mut while_it_asks = || {
        let mut command = monitor();
        command.args(["once", "--json", "--config"]).arg(folder.path().join("node.toml"));
        let measured = std::thread::spawn(move || command.output().expect("the command runs"));
        while !measured.is_finished() {
            client.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("the peer reads");
            let mut answer = [0; 40];
            client.read_exact(&mut answer).expect("an answer");
            std::thread::sleep(Duration::from_millis(2));
        }
        sample(&measured.join().expect("an output"))
    };
    let has_asked = |sample: &Sample| sample.traffic.as_ref().is_none_or(|traffic| traffic.rps > Some(1.0));
    // A machine that is busy with something else may leave the client no time to ask in.
    let sample = (0..10).map(|_| while_it_asks()).find(has_asked).expect("requests were seen");
    let Some(traffic) = sample.traffic else {
        assert!(sample.absent["traffic"].contains("CAP_NET_RAW"), "{:?}", sample.absent);
        println!("skipped: {}", sample.absent["traffic"]);
        return;
    };
    assert!(traffic.errors_per_s == Some(0.0) && traffic.drops.is_some(), "{traffic:?}");
    assert!(traffic.unmatched.is_some() && traffic.holes.is_some(), "{traffic:?}");
    let routes: Vec<(&str, bool)> =
        traffic.routes.iter().map(|route| (route.route.as_str(), route.rps > Some(0.0))).collect();
    assert_eq!(routes, [("start", true), ("search", false), ("other", false)]);
    let (p50, p99) = (traffic.rt_p50_ms.expect("p50"), traffic.rt_p99_ms.expect("p99"));
    assert!(p50 > 0.0 && p50 <= p99, "{traffic:?}");
}

#[test]
fn once_prints_a_table_for_people() {
    let folder = folder("node = \"n1\"\n[sniffer]\ninterface = \"\"\n[canary]\nenabled = false\n");
    let output =
        monitor().args(["once", "--config"]).arg(folder.path().join("node.toml")).output().expect("the command runs");
    let text = out(&output);
    assert!(text.starts_with("n1 in pool web, Sample 0 over 0.2") && text.contains("cpu.utilisation "), "{text}");
    assert!(text.contains("absent, and why:\n"), "{text}");
    assert!(
        text.contains("counters                     the collector `canary` is switched off in the configuration"),
        "{text}"
    );
}

#[test]
fn config_names_file_line_and_nearest_setting() {
    let folder = folder("node = \"n1\"\nperoid_s = 0.2\n");
    let file = folder.path().join("node.toml");
    let expected = format!("{}:2: unknown setting `peroid_s`; did you mean `period_s`?\n", file.display());
    let run = |arguments: &[&str]| monitor().args(arguments).arg(&file).output().expect("the command runs");
    for arguments in [&["config"][..], &["once", "--config"], &["run", "--config"]] {
        let output = run(arguments);
        assert_eq!((output.status.code(), out(&output)), (Some(1), expected.clone()), "{arguments:?}");
    }
    let output = run(&["config", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &answer["valid"]), (Some(1), &serde_json::json!(false)));
    assert_eq!(answer["faults"][0], expected.trim_end());

    fs::write(&file, "node = \"n1\"\n").expect("node.toml");
    let output = run(&["config"]);
    assert_eq!(out(&output), format!("{}: fine (node n1, pool web)\n", file.display()));
    let output = monitor().args(["config", "/nowhere/node.toml"]).output().expect("the command runs");
    assert!(out(&output).starts_with("/nowhere/node.toml: cannot be read: "), "{}", out(&output));
}

#[test]
fn config_lists_every_setting_with_default_and_help() {
    let output = monitor().args(["config", "--list", "--json"]).output().expect("the command runs");
    let list: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let period = list.iter().find(|setting| setting["name"] == "period_s").expect("period_s");
    assert_eq!(
        (&period["default"], &period["help"]),
        (&"0.2".into(), &"Seconds between two Samples: without pace.by_event always, else in long events.".into())
    );
    let text = out(&monitor().args(["config", "--list"]).output().expect("the command runs"));
    for setting in &list {
        assert!(text.contains(&format!("{} = ", setting["name"].as_str().expect("a name"))), "{setting}");
    }
}

#[test]
fn each_command_has_help_with_an_example() {
    for arguments in [&["--help"][..], &["run", "--help"], &["once", "--help"], &["config", "--help"]] {
        let output = monitor().args(arguments).output().expect("the command runs");
        assert!(output.status.success() && out(&output).contains("Example"), "{arguments:?}: {}", out(&output));
    }
}
