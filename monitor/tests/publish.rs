//! The real command against a real nats-server.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::{Client, ConnectOptions, Subscriber};
use rustix::process::{Pid, Signal, kill_process};
use slackwater_messages::{Sample, decode};
use tokio_stream::StreamExt as _;

const DEADLINE: Duration = Duration::from_secs(20);

/// Ends the process whatever becomes of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nats_server(program: &Path, port: u16) -> Running {
    let child = Command::new(program)
        .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Running(child.expect("nats-server"))
}

fn monitor(folder: &Path, port: u16) -> Running {
    let config = folder.join("node.toml");
    let text = format!(
        "node = \"web-1.example\"\npool = \"web\"\nperiod_s = 0.1\n\
         [bus]\nurl = \"nats://127.0.0.1:{port}\"\n[sniffer]\ninterface = \"\"\n"
    );
    std::fs::write(&config, text).expect("node.toml");
    let child = Command::new(env!("CARGO_BIN_EXE_slackwater-monitor"))
        .args(["run", "--config"])
        .arg(&config)
        .stderr(Stdio::piped())
        .spawn();
    Running(child.expect("slackwater-monitor"))
}

/// Comes back quicker than the monitor does, so that it sees the monitor's first message.
async fn client(port: u16) -> Client {
    ConnectOptions::new()
        .retry_on_initial_connect()
        .reconnect_delay_callback(|_| Duration::from_millis(10))
        .connect(format!("127.0.0.1:{port}"))
        .await
        .expect("an address")
}

async fn next(samples: &mut Subscriber) -> Sample {
    let message = tokio::time::timeout(DEADLINE, samples.next()).await;
    decode(&message.expect("a Sample in time").expect("a subscription").payload).expect("a Sample")
}

fn wall_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs_f64()
}

/// Waits for the end of a process; its exit code and what it said.
fn ended(running: &mut Running) -> (Option<i32>, String) {
    let deadline = Instant::now() + DEADLINE;
    while running.0.try_wait().expect("a child").is_none() {
        assert!(Instant::now() < deadline, "the process goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = std::io::read_to_string(running.0.stderr.take().expect("stderr")).expect("text");
    (running.0.wait().expect("a child").code(), said)
}

#[test]
fn samples_count_up_survive_a_restart_of_the_bus_and_end_with_a_signal() {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.build/bin/nats-server");
    if !program.exists() {
        println!("skipped: {} is not there (make setup)", program.display());
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // The monitor comes first: it waits for the bus.
        let mut monitor = monitor(folder.path(), port);
        let client = client(port).await;
        let mut samples = client.subscribe("slackwater.sample.web.web-1.example").await.expect("a subscription");
        let server = nats_server(&program, port);

        let first = next(&mut samples).await;
        let second = next(&mut samples).await;
        assert_eq!((first.node.as_str(), first.pool.as_str()), ("web-1.example", "web"));
        assert!(second.seq > first.seq && second.time_unix_s > first.time_unix_s, "{} {}", first.seq, second.seq);
        assert_eq!(first.boot_id, second.boot_id);

        drop(server);
        let away_from_s = wall_s();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let back_at_s = wall_s();
        let server = nats_server(&program, port);

        let mut after = next(&mut samples).await;
        // What was sent while the connection broke may still come.
        while after.time_unix_s < away_from_s + 0.2 {
            after = next(&mut samples).await;
        }
        assert!(after.time_unix_s >= back_at_s, "a Sample of the time without a bus was kept");
        assert!(after.seq > second.seq + 5, "{} after {}", after.seq, second.seq);
        assert!(next(&mut samples).await.seq > after.seq);

        let pid = Pid::from_raw(i32::try_from(monitor.0.id()).expect("a pid")).expect("a pid");
        kill_process(pid, Signal::TERM).expect("a signal");
        let (code, said) = ended(&mut monitor);
        assert_eq!(code, Some(0), "{said}");
        for line in ["connected\n", "Samples were dropped while the bus was away\n", "ended by a signal\n"] {
            assert!(said.contains(line), "{line:?} is missing: {said}");
        }
        drop(server);
    });
}

#[test]
fn an_interrupt_ends_it_also_without_a_bus() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut monitor = monitor(folder.path(), 9);
    // It listens for signals before it says so.
    let mut line = String::new();
    let mut said = std::io::BufReader::new(monitor.0.stderr.take().expect("stderr"));
    while !line.contains("publishing slackwater.sample.web.web-1.example every 0.1 s") {
        assert!(std::io::BufRead::read_line(&mut said, &mut line).expect("text") > 0, "{line}");
    }
    let pid = Pid::from_raw(i32::try_from(monitor.0.id()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::INT).expect("a signal");
    assert_eq!(monitor.0.wait().expect("a child").code(), Some(0));
}
