//! Samples that follow events, from the real command over a real nats-server.

mod support;

use std::cell::Cell;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::{Client, ConnectOptions, Subscriber};
use rustix::process::{Pid, Signal, kill_process};
use slackwater_messages::{Ask, Sample, encode};
use support::{Running, free_port, nats_program, start_nats};
use tokio_stream::StreamExt as _;

const DEADLINE: Duration = Duration::from_secs(120);

/// The Samples up to and including the first one for which `holds` is true.
async fn until(samples: &mut Subscriber, holds: impl Fn(&Sample) -> bool) -> Vec<Sample> {
    let (mut received, deadline) = (Vec::new(), Instant::now() + DEADLINE);
    while received.last().is_none_or(|last| !holds(last)) {
        assert!(Instant::now() < deadline, "no such Sample comes: {received:?}");
        let message = tokio::time::timeout(DEADLINE, samples.next()).await;
        received.push(
            rmp_serde::from_slice(&message.expect("a message in time").expect("a subscription").payload)
                .expect("a Sample"),
        );
    }
    received
}

/// A client of the bus at this port, the Samples of n1 that come there, and the monitor with this configuration.
async fn started(config: &Path, port: u16) -> (Client, Subscriber, Running) {
    let client = ConnectOptions::new().retry_on_initial_connect().connect(format!("127.0.0.1:{port}")).await;
    let client = client.expect("an address");
    let samples = client.subscribe("slackwater.sample.web.n1").await.expect("a subscription");
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackwater-monitor"));
    command.args(["run", "--config"]).arg(config).stderr(Stdio::null());
    (client, samples, Running(command.spawn().expect("slackwater-monitor")))
}

#[test]
fn a_quiet_node_sends_one_sample_a_second_and_often_when_it_was_stopped_or_is_asked() {
    let Some(program) = nats_program() else { return };
    let (folder, port) = (tempfile::tempdir().expect("a temporary directory"), free_port());
    let config = folder.path().join("node.toml");
    let text = format!(
        "node = \"n1\"\n[bus]\nurl = \"nats://127.0.0.1:{port}\"\n[sniffer]\ninterface = \"\"\n\
         [metrics]\nlisten = \"\"\n"
    );
    std::fs::write(&config, text).expect("node.toml");
    let _server = start_nats(&program, port);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (client, mut samples, monitor) = started(&config, port).await;
        let pid = Pid::from_raw(i32::try_from(monitor.0.id()).expect("a pid")).expect("a pid");

        // By then it has learnt the usual ranges; on a busy machine events may come between.
        let quiet = until(&mut samples, |sample| sample.seq >= 12 && sample.period_s > 0.9).await;
        let covered_s: f64 = quiet.iter().skip(1).map(|sample| sample.period_s).sum();
        let (first, last) = (quiet.first().expect("Samples"), quiet.last().expect("Samples"));
        let passed_s = last.time_unix_s - first.time_unix_s;
        assert!((covered_s - passed_s).abs() < 0.5, "{covered_s} s are covered, {passed_s} s passed");

        kill_process(pid, Signal::STOP).expect("a signal");
        tokio::time::sleep(Duration::from_millis(400)).await;
        kill_process(pid, Signal::CONT).expect("a signal");
        let longest_ms = |sample: &Sample| sample.gaps.as_ref().and_then(|gaps| gaps.longest_ms).unwrap_or(0.0);
        let stopped = until(&mut samples, |sample| longest_ms(sample) > 300.0).await;
        assert_eq!(stopped.last().expect("a Sample").periods_missed, 0, "a look that was missed is no Sample");
        let next = until(&mut samples, |_| true).await;
        assert!(next[0].period_s < 0.5, "Samples come often now: {next:?}");

        // Payloads that are no Ask, and an Ask for another node, are ignored, and the monitor goes on.
        let ask = Ask {
            v: 1,
            node: "n2".to_owned(),
            pool: "web".to_owned(),
            time_unix_s: 0.0,
            lease_s: 30.0,
            ..Ask::default()
        };
        let ours = Ask { node: "n1".to_owned(), ..ask.clone() };
        for payload in [b"{\"lease_s\": 1e999}".to_vec(), vec![0xff; 4096], encode(&ask), encode(&ours)] {
            client.publish("slackwater.ask.web.n1", payload.into()).await.expect("the bus takes it");
        }
        // More in a row than an event of this machine brings: one ends half a second after its last sign.
        let in_row = Cell::new(0);
        until(&mut samples, |sample| {
            in_row.set(if sample.next_within_s.is_some_and(|s| s < 0.5) { in_row.get() + 1 } else { 0 });
            in_row.get() == 60
        })
        .await;
    });
}

#[test]
fn a_request_that_nobody_answers_wakes_a_node_that_had_none_before() {
    let Some(program) = nats_program() else { return };
    let (folder, port) = (tempfile::tempdir().expect("a temporary directory"), free_port());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let config = folder.path().join("node.toml");
    let text = format!(
        "node = \"n1\"\n[bus]\nurl = \"nats://127.0.0.1:{port}\"\n[metrics]\nlisten = \"\"\n\
         [sniffer]\ninterface = \"lo\"\nports = [{}]\n",
        address.port()
    );
    std::fs::write(&config, text).expect("node.toml");
    let _server = start_nats(&program, port);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (_client, mut samples, _monitor) = started(&config, port).await;
        // By then it has learnt the usual ranges.
        let quiet = until(&mut samples, |sample| sample.seq >= 12 && sample.period_s > 0.9).await;
        if let Some(reason) = quiet.last().and_then(|sample| sample.absent.get("traffic")) {
            return println!("skipped: {reason}");
        }
        let mut connection = TcpStream::connect(address).expect("the server listens");
        connection.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("an open connection");
        let waits = |sample: &Sample| sample.traffic.as_ref().and_then(|traffic| traffic.in_flight) == Some(1);
        let woken = until(&mut samples, waits).await;
        let first = woken.last().expect("a Sample");
        assert!(first.period_s < 0.9, "it came at its usual time: {first:?}");
    });
}
