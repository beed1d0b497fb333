//! The real command against a real nats-server.

mod support;

use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::{Client, ConnectOptions, Subscriber};
use rustix::process::{Pid, Signal, kill_process};
use slackwater_messages::Sample;
use slackwater_monitor::bus::MOST_WAITING;
use support::{Running, free_port, nats_program, start_nats};
use tokio_stream::StreamExt as _;

const DEADLINE: Duration = Duration::from_secs(60);

fn monitor(folder: &Path, port: u16, page_port: u16) -> Running {
    let config = folder.join("node.toml");
    let text = format!(
        "node = \"web-1.example\"\npool = \"web\"\nperiod_s = 0.1\n\
         [pace]\nby_event = false\n\
         [bus]\nurl = \"nats://127.0.0.1:{port}\"\n[sniffer]\ninterface = \"\"\n\
         [metrics]\nlisten = \"127.0.0.1:{page_port}\"\n"
    );
    std::fs::write(&config, text).expect("node.toml");
    let child = Command::new(env!("CARGO_BIN_EXE_slackwater-monitor"))
        .args(["run", "--config"])
        .arg(&config)
        .stderr(Stdio::piped())
        .spawn();
    Running(child.expect("slackwater-monitor"))
}

/// A client that tries to reconnect far more often than the monitor does.
async fn client(port: u16) -> Client {
    ConnectOptions::new()
        .retry_on_initial_connect()
        .reconnect_delay_callback(|_| Duration::from_millis(10))
        .connect(format!("127.0.0.1:{port}"))
        .await
        .expect("an address")
}

/// Waits until a published message comes back: the server knows this client's subscriptions then.
async fn reconnected(client: &Client) {
    let deadline = Instant::now() + DEADLINE;
    let mut own = client.subscribe("slackwater.test").await.expect("a subscription");
    loop {
        client.publish("slackwater.test", "".into()).await.expect("the peer reads");
        if tokio::time::timeout(Duration::from_millis(100), own.next()).await.is_ok() {
            return;
        }
        assert!(Instant::now() < deadline, "the client does not come back");
    }
}

async fn next(samples: &mut Subscriber) -> Sample {
    let message = tokio::time::timeout(DEADLINE, samples.next()).await;
    rmp_serde::from_slice(&message.expect("a Sample in time").expect("a subscription").payload).expect("a Sample")
}

/// A figure of the monitor's page.
fn figure(page_port: u16, name: &str) -> f64 {
    let mut stream = TcpStream::connect(("127.0.0.1", page_port)).expect("the page");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("the peer reads");
    let page = std::io::read_to_string(stream).expect("a page");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing: {page}")).parse().expect("a number")
}

/// Waits until a figure of the page has reached a value.
async fn grown(page_port: u16, name: &str, to: f64) {
    let deadline = Instant::now() + DEADLINE;
    while figure(page_port, name) < to {
        assert!(Instant::now() < deadline, "{name} stays below {to}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits for the end of a process and returns its exit code and its log.
fn ended(running: &mut Running) -> (Option<i32>, String) {
    let deadline = Instant::now() + DEADLINE;
    while running.0.try_wait().expect("a child").is_none() {
        assert!(Instant::now() < deadline, "the process goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = std::io::read_to_string(running.0.stderr.take().expect("stderr")).expect("text");
    (running.0.wait().expect("a child").code(), log)
}

#[test]
fn while_the_bus_is_away_the_newest_samples_wait_and_the_others_are_counted() {
    let Some(program) = nats_program() else { return };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (port, page_port) = (free_port(), free_port());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // The monitor comes first: it waits for the bus.
        let mut monitor = monitor(folder.path(), port, page_port);
        let pid = Pid::from_raw(i32::try_from(monitor.0.id()).expect("a pid")).expect("a pid");
        let client = client(port).await;
        let mut samples = client.subscribe("slackwater.sample.web.web-1.example").await.expect("a subscription");
        let server = start_nats(&program, port);

        let first = next(&mut samples).await;
        let second = next(&mut samples).await;
        assert_eq!(second.samples_dropped, 0);
        assert_eq!((first.node.as_str(), first.pool.as_str()), ("web-1.example", "web"));
        assert!(second.seq > first.seq && second.time_unix_s > first.time_unix_s, "{} {}", first.seq, second.seq);
        assert_eq!(first.boot_id, second.boot_id);

        let before = figure(page_port, "slackwater_samples_dropped_total");
        drop(server);
        grown(page_port, "slackwater_samples_dropped_total", before + 20.0).await;
        // The monitor's first message must find the client there.
        kill_process(pid, Signal::STOP).expect("a signal");
        let server = start_nats(&program, port);
        reconnected(&client).await;
        kill_process(pid, Signal::CONT).expect("a signal");

        // Samples that were sent before the connection broke may still come.
        let (mut last, mut after) = (second.seq, next(&mut samples).await);
        let deadline = Instant::now() + DEADLINE;
        while after.samples_dropped == 0 {
            assert!(after.seq > last && Instant::now() < deadline, "{} after {last}", after.seq);
            last = after.seq;
            after = next(&mut samples).await;
        }
        // Samples on their way when the connection broke are lost besides.
        let missing = after.seq - last - 1;
        assert!(after.samples_dropped >= 20 && after.samples_dropped <= missing, "{missing}, {after:?}");
        assert!(missing - after.samples_dropped <= 25, "{missing} are missing, {} dropped", after.samples_dropped);
        for seq in 1..MOST_WAITING as u64 {
            let kept = next(&mut samples).await;
            assert_eq!((kept.seq, kept.samples_dropped), (after.seq + seq, 0), "the newest were kept, in order");
        }
        let dropped = figure(page_port, "slackwater_samples_dropped_total");
        assert!(
            (dropped - before - after.samples_dropped as f64).abs() < 0.5,
            "{dropped} and {before}, {} at {}, after {last}",
            after.samples_dropped,
            after.seq
        );
        grown(page_port, "slackwater_samples_published_total", 4.0).await;

        // Stopped for a while, it leaves the missed periods out, says how many, and makes up for none.
        let mut last = next(&mut samples).await;
        kill_process(pid, Signal::STOP).expect("a signal");
        tokio::time::sleep(Duration::from_millis(700)).await;
        kill_process(pid, Signal::CONT).expect("a signal");
        let late = loop {
            let sample = next(&mut samples).await;
            assert_eq!(sample.seq, last.seq + 1);
            if sample.periods_missed >= 4 {
                break sample;
            }
            last = sample;
        };
        assert!(late.period_s > 0.5, "{late:?}");

        kill_process(pid, Signal::TERM).expect("a signal");
        let (code, log) = ended(&mut monitor);
        assert_eq!(code, Some(0), "{log}");
        for line in ["connected\n", "Samples were dropped while the bus was away\n", "ended by a signal\n"] {
            assert!(log.contains(line), "{line:?} is missing: {log}");
        }
        drop(server);
    });
}

#[test]
fn an_interrupt_ends_it_also_without_a_bus() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut monitor = monitor(folder.path(), 9, free_port());
    // It listens for signals before it logs this line.
    let mut line = String::new();
    let mut stderr = std::io::BufReader::new(monitor.0.stderr.take().expect("stderr"));
    while !line.contains("publishing slackwater.sample.web.web-1.example every 0.1 s") {
        assert!(std::io::BufRead::read_line(&mut stderr, &mut line).expect("text") > 0, "{line}");
    }
    let pid = Pid::from_raw(i32::try_from(monitor.0.id()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::INT).expect("a signal");
    assert_eq!(monitor.0.wait().expect("a child").code(), Some(0));
}
