//! On a tree of files in the shape of the kernel's, with the loop on its thread and a real socket.

use std::io::Write as _;
use std::os::unix::net::UnixStream;

use super::*;
use crate::apache::Apache;
use crate::wait::wait_for;
use slackwater_node::fixture::Fixture;

const QUOTA: &str = "cgroup/w/cpu.max";
const WITHIN_S: f64 = 20.0;

fn site() -> (Fixture, Settings) {
    let fixture =
        Fixture::new(&[("cgroup/w/cpu.weight", "100\n"), (QUOTA, "max 50000\n"), ("cgroup/w/cgroup.procs", "1\n")]);
    let socket = fixture.path("socket");
    let text = format!(
        "[cpu]\ncgroup = \"w\"\nquota = [1, 6400]\npolicy = [\"hurry-up\", \"pareto\"]\nevents_socket = {socket:?}\n"
    );
    (fixture, slackwater_node::settings::parse(&text, "w.toml", "web1").expect("settings"))
}

fn knob(fixture: &Fixture, settings: &Settings) -> Box<dyn Knob> {
    let system = fixture.system();
    make(&Parts { settings, system: &system, apache: std::rc::Rc::new(Apache::new(&settings.apache, &system)) })
}

/// One core, so that it fits on any machine.
fn hurry_up(clocks: &str) -> Value {
    Value::Word(format!("hurry-up lever=cpu.quota clocks={clocks} cores=1 period_ms=50 after_ms=200"))
}

fn becomes(fixture: &Fixture, quota: &str) {
    let reached = wait_for(WITHIN_S, || (fixture.read(QUOTA).trim() == quota).then_some(()));
    assert!(reached.is_some(), "{} is not {quota}", fixture.read(QUOTA));
}

#[test]
fn events_set_the_quota_and_the_end_puts_it_back() {
    let (fixture, settings) = site();
    let knob = knob(&fixture, &settings);
    assert_eq!(knob.read().expect("a value").value, Value::Word("off".to_owned()));
    let baseline = knob.baseline().expect("a value");
    let plan = knob.plan(&baseline, &hurry_up("20,40,60")).expect("a plan");
    knob.apply(&plan.written).expect("the policy starts");
    assert_eq!(fixture.read(QUOTA), "10000 50000", "the low state at once");
    let reading = knob.verify(&plan.written).expect("the command runs");
    assert!(reading.how.contains("cpu.quota, in place of a clock, every 50 ms"), "{}", reading.how);
    let mut application = UnixStream::connect(fixture.path("socket")).expect("a connection");
    application.write_all(b"begin f\n").expect("the peer reads");
    becomes(&fixture, "20000 50000");
    becomes(&fixture, "30000 50000");
    assert_eq!(knob.drift(&baseline, std::slice::from_ref(&plan.written)), Ok(None));
    application.write_all(b"end f\n").expect("the peer reads");
    becomes(&fixture, "10000 50000");
    assert_eq!(knob.restore(&baseline, &[plan.written]), Ok(vec![]));
    assert_eq!(fixture.read(QUOTA), "max 50000");
    assert!(!fixture.path("socket").exists());
}

#[test]
fn what_a_run_that_died_has_set_is_put_back_by_the_next() {
    let (fixture, settings) = site();
    let baseline = knob(&fixture, &settings).baseline().expect("a value");
    let plan = knob(&fixture, &settings).plan(&baseline, &hurry_up("20,40,60")).expect("a plan");
    fixture.write(QUOTA, "20000 50000\n"); // the mid state
    let next = knob(&fixture, &settings);
    assert_eq!(next.restore(&baseline, std::slice::from_ref(&plan.written)), Ok(vec![]));
    assert_eq!(fixture.read(QUOTA), "max 50000");
    fixture.write(QUOTA, "12345 50000\n");
    let left = Ok(vec!["quota 12345 of 50000 us, no clock is somebody else's".to_owned()]);
    assert_eq!(next.restore(&baseline, std::slice::from_ref(&plan.written)), left);
    assert!(next.drift(&baseline, &[plan.written]).expect("a readable file").is_some(), "so the lease ends");
}

#[test]
fn another_policy_takes_over_and_a_write_that_fails_ends_it() {
    let (fixture, settings) = site();
    let knob = knob(&fixture, &settings);
    let baseline = knob.baseline().expect("a value");
    let first = knob.plan(&baseline, &hurry_up("20,40,60")).expect("a plan");
    let second = knob.plan(&baseline, &hurry_up("30,50")).expect("a plan");
    knob.apply(&first.written).expect("the policy starts");
    knob.apply(&second.written).expect("the policy starts");
    assert_eq!(fixture.read(QUOTA), "15000 50000");
    assert_eq!(knob.failure(), None);
    std::fs::remove_dir_all(fixture.path("cgroup/w")).expect("the file is removed");
    let mut application = UnixStream::connect(fixture.path("socket")).expect("a connection");
    application.write_all(b"begin f\n").expect("the peer reads");
    let why = wait_for(WITHIN_S, || knob.failure()).expect("the loop ends");
    assert!(why.starts_with("hurry-up lever=cpu.quota clocks=30,50"), "{why}");
}

#[test]
fn a_policy_is_set_within_the_bounds_of_what_it_sets() {
    let (_fixture, mut settings) = site();
    settings.cpu.quota = serde_json::from_str("[20, 60]").expect("bounds");
    let refused = |value: &Value| check(&settings, value).unwrap_err().to_string();
    assert_eq!(check(&settings, &hurry_up("20,40,60")), Ok(hurry_up("20,40,60")));
    assert_eq!(refused(&hurry_up("10,60")), "`cpu.quota`: 10 is not allowed here; allowed is 20 to 60");
    assert_eq!(refused(&hurry_up("20,61")), "`cpu.quota`: 61 is not allowed here; allowed is 20 to 60");
    let pareto = "pareto lever=cpu.quota clocks=20,30 cores=2 period_ms=100 up_delay_us=300 fewest=1";
    assert!(refused(&Value::Word(pareto.to_owned())).starts_with("`cpu.cores`: 1 is not allowed here"));
    assert!(refused(&Value::Word("off".to_owned())).starts_with("the value is no policy: "));
    settings.cpu.policy = serde_json::from_str("[\"pareto\"]").expect("words");
    assert!(check(&settings, &hurry_up("20,40,60")).unwrap_err().to_string().starts_with("`hurry-up` is not allowed"));
}

#[test]
fn what_is_missing_here_is_said() {
    let (fixture, settings) = site();
    let knob_here = knob(&fixture, &settings);
    let baseline = knob_here.baseline().expect("a value");
    let clock = "hurry-up lever=cpu.core_frequency clocks=1,2 cores=1 period_ms=50 after_ms=200".to_owned();
    let why = knob_here.plan(&baseline, &Value::Word(clock)).unwrap_err().to_string();
    assert!(why.contains("does not list `cpu.core_frequency`"), "{why}");
    let mut elsewhere = settings.clone();
    elsewhere.cpu.events_socket = "/nonexistent/socket".to_owned();
    let why = knob(&fixture, &elsewhere).plan(&baseline, &hurry_up("20,40")).unwrap_err().to_string();
    assert!(why.starts_with("the folder of /nonexistent/socket (cpu.events_socket) is not there"), "{why}");
    elsewhere.cpu.quota = crate::allowed::AllowedValues::default();
    let why = knob(&fixture, &elsewhere).read().unwrap_err().to_string();
    assert!(why.starts_with("neither `cpu.core_frequency` nor `cpu.quota`"), "{why}");
}
