//! The rules against Python's, over the inputs that it drew; parameters, lines, the socket and the waits.

use std::io::Write;
use std::os::unix::net::UnixStream;

use serde::Deserialize;

use super::events::{EventLine, Ignored, Inside, Lines, parse};
use super::hurry_up::{HotEvent, HurryUp};
use super::parameters::{Lever, Parameters, Rule};
use super::pareto::{Pareto, Rung, ladder};
use super::socket::EventSocket;
use super::thread_waits::{ThreadWaits, Waits, core_of};
use slackwater_node::fixture::Fixture;

#[derive(Deserialize)]
struct Cases {
    hurry_up: Vec<HurryUpCase>,
    pareto: Vec<ParetoCase>,
}

#[derive(Deserialize)]
struct HurryUpCase {
    threads: u32,
    clocks: Vec<i64>,
    after_s: f64,
    steps: Vec<HurryUpStep>,
}

#[derive(Deserialize)]
struct HurryUpStep {
    now_s: f64,
    events: Vec<(f64, u32, bool)>,
    clocks: Vec<i64>,
}

#[derive(Deserialize)]
struct ParetoCase {
    cores: i64,
    clocks: Vec<i64>,
    up_delay_ms: f64,
    steps: Vec<ParetoStep>,
}

#[derive(Deserialize)]
struct ParetoStep {
    now_s: f64,
    delay_ms: f64,
    busy: f64,
    cores: i64,
    clock: i64,
}

fn cases() -> Cases {
    serde_json::from_str(include_str!("../../../tests/traces/fast_policies.json")).expect("Python's cases")
}

#[test]
fn hurry_up_decides_as_pythons() {
    for (number, case) in cases().hurry_up.into_iter().enumerate() {
        let mut policy = HurryUp::new(case.clocks, case.after_s);
        for step in case.steps {
            let event = |(time_s, thread, entered): (f64, u32, bool)| HotEvent { thread, time_s, entered };
            policy.see(&step.events.into_iter().map(event).collect::<Vec<_>>());
            let clocks: Vec<i64> = (0..case.threads).map(|thread| policy.clock(thread, step.now_s)).collect();
            assert_eq!(clocks, step.clocks, "case {number} at {} s", step.now_s);
        }
    }
}

#[test]
fn pareto_decides_as_pythons() {
    for (number, case) in cases().pareto.into_iter().enumerate() {
        let mut policy = Pareto::new(ladder(1, case.cores, &case.clocks), case.up_delay_ms);
        for step in case.steps {
            let rung = policy.decide(step.now_s, step.delay_ms, step.busy);
            assert_eq!(rung, Rung { cores: step.cores, clock: step.clock }, "case {number} at {} s", step.now_s);
        }
    }
}

#[test]
fn what_was_not_measured_gives_all_there_is() {
    let mut policy = Pareto::new(ladder(1, 2, &[10, 20]), 0.3);
    assert_eq!(policy.decide(10.0, 0.0, 0.0), Rung { cores: 2, clock: 10 });
    assert_eq!(policy.highest(11.0), Rung { cores: 2, clock: 20 });
}

const HURRY_UP: &str = "hurry-up lever=cpu.quota clocks=20,40,60 cores=2 period_ms=50 after_ms=450";
const PARETO: &str =
    "pareto lever=cpu.core_frequency clocks=1000000,2000000 cores=4 period_ms=100 up_delay_us=300 fewest=2";

#[test]
fn a_policy_is_written_as_it_is_read_and_knows_all_that_it_may_set() {
    let hurry_up: Parameters = HURRY_UP.parse().expect("valid parameters");
    assert_eq!((hurry_up.to_string().as_str(), hurry_up.rule), (HURRY_UP, Rule::HurryUp { after_ms: 450 }));
    assert_eq!(hurry_up.lever_values(), [40, 60, 80, 100, 120], "each sum of two cores' shares");
    assert!(hurry_up.core_counts().is_empty());
    let pareto: Parameters = PARETO.parse().expect("valid parameters");
    assert_eq!((pareto.to_string().as_str(), pareto.lever), (PARETO, Lever::Frequency));
    assert_eq!((pareto.lever_values(), pareto.core_counts()), (vec![1_000_000, 2_000_000], vec![2, 3, 4]));
    let by_quota: Parameters = PARETO
        .replace("cpu.core_frequency", "cpu.quota")
        .replace("1000000,2000000", "20,40")
        .parse()
        .expect("valid parameters");
    assert_eq!(by_quota.lever_values(), [40, 60, 80, 160]);
}

#[test]
fn a_text_that_is_no_policy_is_refused_with_what_was_expected() {
    for (from, to, message) in [
        ("hurry-up", "hurry", "expected hurry-up or pareto, got \"hurry\""),
        ("50 ", "49 ", "`period_ms`: expected a whole number, 50 to 1000, got \"49\""),
        ("20,40,60", "20,40,60,80", "`clocks`: expected 2 to 3 ascending whole numbers, got \"20,40,60,80\""),
        ("20,40,60", "40,20", "`clocks`: expected 2 to 3 ascending whole numbers, got \"40,20\""),
        ("20,40,60", "0,20", "`clocks`: expected 2 to 3"),
        ("cores=2", "cores=65", "`cores`: expected a whole number, 1 to 64, got \"65\""),
        ("cores=2 ", "", "the parameter `cores` is missing"),
        ("cores=2", "cores=2 cores=2", "`cores` is there twice"),
        ("cores=2", "cores=2 nice=1", "hurry-up has no parameter `nice`"),
        ("cores=2", "cores", "expected NAME=VALUE, got \"cores\""),
        ("cpu.quota", "cpu.share", "`lever`: expected cpu.core_frequency or cpu.quota, got \"cpu.share\""),
        ("after_ms=450", &"9".repeat(400), "expected at most 300 characters"),
    ] {
        let text = HURRY_UP.replacen(from, to, 1);
        let error = text.parse::<Parameters>().expect_err(&text).to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }
    assert!(PARETO.replace("fewest=2", "fewest=5").parse::<Parameters>().is_err(), "more than there are");
}

#[test]
fn lines_are_taken_or_malformed() {
    let line = |begins, name, thread| Some(EventLine { begins, name, thread });
    assert_eq!(parse(b"begin render"), line(true, "render", None));
    assert_eq!(parse(b"end App\\View:render-2 7"), line(false, "App\\View:render-2", Some(7)));
    let long = format!("begin {}", "x".repeat(65));
    for bad in [
        "",
        "begin",
        "begin ",
        "begin  x",
        "stop x",
        "begin x ",
        "begin x 0",
        "begin x +1",
        "begin x -1",
        "begin x 1 2",
        "begin x 99999999999",
        "begin a;b",
        "begin \u{e9}",
        &long,
    ] {
        assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
    }
    assert_eq!(parse(b"begin \xff"), None);
}

#[test]
fn bytes_become_lines_however_they_are_cut() {
    let text = format!("begin a\n{}\nend a\nbeg", "x".repeat(1000));
    for size in [1, 2, 7, 128, 129, 130, 5000] {
        let (mut lines, mut texts, mut too_long) = (Lines::default(), Vec::new(), 0);
        for part in text.as_bytes().chunks(size) {
            too_long += lines.feed(part, |line| texts.push(String::from_utf8_lossy(line).into_owned()));
        }
        assert_eq!((texts, too_long), (vec!["begin a".to_owned(), "end a".to_owned()], 1), "in parts of {size}");
    }
}

#[test]
fn a_thread_is_inside_from_its_first_begin_to_its_last_end() {
    let mut inside = Inside::default();
    let mut take = |text: &str, time_s| inside.take(7, &parse(text.as_bytes()).expect("a line"), time_s);
    let event = |time_s, entered| Ok(Some(HotEvent { thread: 7, time_s, entered }));
    assert_eq!(take("end a", 0.5), Err(Ignored), "it never began");
    assert_eq!(take("begin a", 1.0), event(1.0, true));
    assert_eq!(take("begin b", 2.0), Ok(None));
    assert_eq!(take("end a", 3.0), Ok(None));
    assert_eq!(take("end a", 3.0), Err(Ignored));
    assert_eq!(take("end b", 4.0), event(4.0, false));
    for number in 0..8 {
        assert!(take(&format!("begin f{number}"), 5.0).is_ok());
    }
    assert_eq!(take("begin f8", 5.0), Err(Ignored), "no thread is in so many");
    assert!(inside.overdue(60.0).is_empty());
    assert_eq!(inside.overdue(65.1), [7]);
}

#[test]
fn threads_inside_are_bounded() {
    let (mut inside, line) = (Inside::default(), EventLine { begins: true, name: "f", thread: None });
    let taken = (0..5000).filter(|thread| inside.take(*thread, &line, 0.0).is_ok()).count();
    assert_eq!(taken, 1024);
}

#[test]
fn a_connection_speaks_of_its_own_threads_and_its_end_takes_them_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    std::fs::write(&path, "left of a run that died").expect("the file is written");
    let mut socket = EventSocket::open(&path, std::path::Path::new("/proc")).expect("it opens");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).expect("a value"));
    assert_eq!(mode & 0o777, 0o660);
    let me = std::process::id();
    let mut application = UnixStream::connect(&path).expect("a connection");
    application.write_all(b"begin f\nnonsense\nbegin f 1\n").expect("the peer reads");
    assert_eq!(socket.read(1.0), [HotEvent { thread: me, time_s: 1.0, entered: true }]);
    assert_eq!((socket.counts.accepted, socket.counts.ignored), (1, 2), "process 1 is somebody else");
    assert!(socket.read(1.05).is_empty());
    drop(application);
    assert_eq!(socket.read(1.1), [HotEvent { thread: me, time_s: 1.1, entered: false }]);
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn a_period_reads_no_more_than_its_share_of_a_flood() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let mut socket = EventSocket::open(&path, std::path::Path::new("/proc")).expect("it opens");
    let mut application = UnixStream::connect(&path).expect("a connection");
    application.write_all(&b"end f\n".repeat(5000)).expect("the peer reads");
    assert!(socket.read(1.0).is_empty());
    assert_eq!(socket.counts.ignored, 4096 / 6);
}

#[test]
fn waits_are_the_longest_of_the_threads_means() {
    let fixture = Fixture::new(&[
        ("cgroup/w/cgroup.procs", "10\n"),
        ("cgroup/w/cgroup.threads", "10\n11\n12\n"),
        ("proc/self/schedstat", "0 0 0\n"),
        ("proc/10/schedstat", "1000000000 5000000 10\n"),
        ("proc/11/schedstat", "2000000000 9000000 10\n"),
    ]);
    let mut waits = ThreadWaits::open(&fixture.path("proc"), &fixture.path("cgroup"), "w", &[]).expect("it opens");
    assert_eq!(waits.read(1.0), Ok(None));
    fixture.write("proc/10/schedstat", "1050000000 9000000 12\n"); // 50 ms of CPU time, 2 ms each time
    fixture.write("proc/11/schedstat", "2050000000 9500000 20\n");
    assert_eq!(waits.read(1.1).map(|waits| waits.map(|waits| waits.delay_ms)), Ok(Some(2.0)));
    let again = waits.read(1.2).expect("a value").expect("a second reading");
    assert_eq!(again, Waits { delay_ms: 0.0, busy_cores: 0.0 });
    assert!(ThreadWaits::open(&fixture.path("nothing"), &fixture.path("cgroup"), "w", &[]).is_err());
}

#[test]
fn the_core_that_a_thread_ran_on_last_is_read() {
    let stat = format!("11 (a) b) R {}3 0\n", "0 ".repeat(35));
    let fixture = Fixture::new(&[("proc/11/stat", &stat)]);
    assert_eq!((core_of(&fixture.path("proc"), 11), core_of(&fixture.path("proc"), 12)), (Some(3), None));
}
