use slackwater_messages::AbsenceCause;

use super::*;
use slackwater_node::fixture::Fixture;

const MS: u64 = 1_000_000;

fn thread(fixture: &Fixture, pid: u32, tid: u32, cpu_ms: u64, run_delay_ms: u64) {
    fixture.write(&format!("proc/{pid}/comm"), "apache2\n");
    fixture.write(&format!("proc/{pid}/task/{tid}/schedstat"), &format!("{} {} 12\n", cpu_ms * MS, run_delay_ms * MS));
}

fn close(value: Option<f64>, expected: f64) -> bool {
    value.is_some_and(|value| (value - expected).abs() < 1e-6)
}

#[test]
fn threads_are_summed_over_the_period() {
    let fixture = Fixture::new(&[]);
    thread(&fixture, 10, 10, 100, 1000);
    thread(&fixture, 10, 11, 200, 2000);
    thread(&fixture, 20, 20, 300, 3000);
    let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
    fixture.advance_s(0.2);
    thread(&fixture, 10, 11, 220, 2030);
    thread(&fixture, 20, 20, 320, 3090);
    let sched = collector.sample().sched.expect("a value");
    assert_eq!((sched.processes, sched.threads), (Some(2), Some(3)));
    assert!(close(sched.cpu_s_per_s, 0.2), "{sched:?}");
    assert!(close(sched.run_delay_s_per_s, 0.6) && close(sched.run_delay_per_cpu_s, 3.0), "{sched:?}");
}

#[test]
fn turns_divide_into_voluntary_and_involuntary_switches() {
    let fixture = Fixture::new(&[]);
    let turns = |turns: u64, voluntary: u64, involuntary: u64| {
        thread(&fixture, 10, 10, 100, 1000);
        fixture.write("proc/10/task/10/schedstat", &format!("{} 7 {turns}\n", turns * MS));
        let status = format!("voluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{involuntary}\n");
        fixture.write("proc/10/task/10/status", &status);
    };
    turns(100, 60, 40);
    let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
    fixture.advance_s(0.5);
    turns(110, 68, 42);
    let sched = collector.sample().sched.expect("a value");
    assert!(close(sched.voluntary_switches_per_s, 16.0) && close(sched.involuntary_switches_per_s, 4.0), "{sched:?}");
    fixture.advance_s(0.5);
    let sched = collector.sample().sched.expect("a value");
    assert!(close(sched.voluntary_switches_per_s, 0.0) && close(sched.involuntary_switches_per_s, 0.0), "{sched:?}");
    fixture.remove("proc/10/task/10/status");
    fixture.advance_s(0.5);
    fixture.write("proc/10/task/10/schedstat", &format!("{} 7 120\n", 120 * MS));
    let sample = collector.sample();
    assert!(sample.sched.expect("a value").cpu_s_per_s.is_some());
    assert!(sample.absent["sched.involuntary_switches_per_s"].contains("status"), "{:?}", sample.absent);
}

#[test]
fn an_idle_web_server_has_no_run_delay_per_cpu_second() {
    let fixture = Fixture::new(&[]);
    thread(&fixture, 10, 10, 100, 1000);
    let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
    fixture.advance_s(0.2);
    let sample = collector.sample();
    assert_eq!(sample.sched.as_ref().expect("a value").cpu_s_per_s, Some(0.0));
    assert_eq!(sample.absent["sched.run_delay_per_cpu_s"], "the processes used next to no CPU");
}

#[test]
fn a_thread_that_comes_counts_from_its_second_reading_on() {
    let fixture = Fixture::new(&[]);
    thread(&fixture, 10, 10, 100, 1000);
    let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
    fixture.advance_s(1.5);
    thread(&fixture, 30, 30, 9_000_000, 9_000_000);
    let sched = collector.sample().sched.expect("a value");
    assert_eq!((sched.threads, sched.cpu_s_per_s, sched.run_delay_s_per_s), (Some(2), Some(0.0), Some(0.0)));
    fixture.advance_s(0.5);
    thread(&fixture, 30, 30, 9_000_100, 9_000_200);
    let sched = collector.sample().sched.expect("a value");
    assert!(close(sched.cpu_s_per_s, 0.2) && close(sched.run_delay_s_per_s, 0.4), "{sched:?}");
}

#[test]
fn a_thread_number_that_went_to_another_thread_gives_no_negative_and_no_huge_value() {
    let fixture = Fixture::new(&[]);
    thread(&fixture, 10, 10, 5000, 5000);
    thread(&fixture, 10, 11, 0, 10);
    let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
    fixture.advance_s(0.2);
    thread(&fixture, 10, 10, 3, 4);
    thread(&fixture, 10, 11, 70_000, 20);
    let sample = collector.sample();
    assert_eq!(sample.sched.expect("a value").cpu_s_per_s, None);
    assert_eq!(
        sample.absent["sched.cpu_s_per_s"],
        "the threads were first seen in this period, or their counts went back or leapt"
    );
}

#[test]
fn processes_that_end_leave_nothing_behind() {
    let fixture = Fixture::new(&[]);
    thread(&fixture, 10, 10, 100, 1000);
    thread(&fixture, 20, 20, 100, 1000);
    let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
    fixture.advance_s(1.1);
    fixture.remove("proc/20");
    let sched = collector.sample().sched.expect("a value");
    assert_eq!((sched.processes, sched.threads, sched.cpu_s_per_s), (Some(1), Some(1), Some(0.0)));
    fixture.advance_s(1.1);
    fixture.remove("proc/10");
    let sample = collector.sample();
    assert!(sample.sched.is_none());
    assert_eq!(sample.absent["sched"], "no process is named apache2 or php-fpm8.2");
    assert_eq!(sample.absence_causes["sched"], AbsenceCause::NoProcess);
}

#[test]
fn while_the_kernel_made_no_process_only_the_end_of_a_known_one_is_looked_for() {
    let made = |count: u32| format!("cpu  1\nprocesses {count}\n");
    let fixture = Fixture::new(&[("proc/stat", &made(7))]);
    thread(&fixture, 10, 10, 100, 1000);
    let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
    let mut counts = || {
        fixture.advance_s(1.1);
        collector.sample().sched.map(|sched| (sched.processes, sched.threads))
    };
    assert_eq!([counts(), counts(), counts()], [Some((Some(1), Some(1))); 3]);
    thread(&fixture, 20, 20, 100, 1000);
    assert_eq!(counts(), Some((Some(1), Some(1))), "no scan: the kernel made no process");
    fixture.write("proc/stat", &made(8));
    assert_eq!([counts(), counts(), counts(), counts()], [Some((Some(2), Some(2))); 4]);
    fixture.write("proc/20/task/20/schedstat", "");
    fixture.remove("proc/20");
    assert_eq!([counts(), counts()], [Some((Some(2), Some(1))), Some((Some(1), Some(1)))]);
}

#[test]
fn after_a_reload_the_new_processes_are_found_within_seconds_however_long_a_scan_takes() {
    let fixture = Fixture::new(&[]);
    thread(&fixture, 10, 10, 100, 1000);
    thread(&fixture, 20, 20, 100, 1000);
    let (clock, looks) = (fixture.system().monotonic_ns, std::cell::Cell::new(0));
    let slow_clock = move || {
        looks.set(looks.get() + 1);
        clock() + looks.get() * 3 * MS
    };
    let system = System { monotonic_ns: std::rc::Rc::new(slow_clock), ..fixture.system() };
    let mut collector = COLLECTOR.open(&Settings::default(), &system);
    let mut processes = |seconds: f64| {
        fixture.advance_s(seconds);
        collector.sample().sched.and_then(|sched| sched.processes)
    };
    assert_eq!(processes(40.0), Some(2));
    fixture.write("proc/20/task/20/schedstat", "");
    fixture.remove("proc/20");
    assert_eq!([processes(0.2), processes(2.0)], [Some(2), Some(1)]);
    thread(&fixture, 21, 21, 100, 1000);
    assert_eq!([processes(2.1), processes(2.1)], [Some(2); 2]);
}

#[test]
fn the_cpus_are_those_that_the_first_process_may_run_on() {
    let fixture = Fixture::new(&[]);
    thread(&fixture, 10, 10, 100, 1000);
    let affinity = std::rc::Rc::new(std::cell::Cell::new(Some(3)));
    let cpus = affinity.clone();
    let system = System { cpus_of: std::rc::Rc::new(move |_| cpus.get()), ..fixture.system() };
    let mut collector = COLLECTOR.open(&Settings::default(), &system);
    fixture.advance_s(0.2);
    assert_eq!(collector.sample().sched.expect("a value").cpus, Some(3));
    affinity.set(None);
    fixture.advance_s(60.0);
    let sample = collector.sample();
    assert_eq!(sample.sched.expect("a value").cpus, None);
    assert_eq!(sample.absent["sched.cpus"], "the CPUs of no process can be read");
}

#[test]
fn a_process_that_is_listed_but_gone_is_passed_over() {
    let fixture = Fixture::new(&[("cgroup/cpu/web/cgroup.procs", "4000\n10\n")]);
    thread(&fixture, 10, 10, 100, 1000);
    let mut settings = Settings::default();
    settings.processes.cgroup = "web".to_owned();
    let mut collector = COLLECTOR.open(&settings, &fixture.system());
    fixture.advance_s(0.2);
    let sched = collector.sample().sched.expect("a value");
    assert_eq!((sched.processes, sched.threads, sched.cpu_s_per_s), (Some(1), Some(1), Some(0.0)));
}

#[test]
fn a_kernel_that_keeps_no_schedstat_is_named() {
    let fixture = Fixture::new(&[]);
    thread(&fixture, 10, 10, 0, 0);
    fixture.write("proc/10/task/10/schedstat", "0 0 0\n");
    let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
    fixture.advance_s(0.2);
    let sample = collector.sample();
    assert_eq!(sample.absent["sched.run_delay_s_per_s"], "the kernel keeps no schedstat (CONFIG_SCHED_INFO)");
}

#[test]
fn a_real_process_that_is_killed_is_noticed_in_the_next_period() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("the command sleep");
    let (pid, fixture) = (child.id(), Fixture::new(&[]));
    fixture.write("cgroup/cpu/web/cgroup.procs", &format!("{pid}\n"));
    let system = System { proc: "/proc".into(), ..fixture.system() };
    let mut settings = Settings::default();
    settings.processes.cgroup = "web".to_owned();
    let mut collector = COLLECTOR.open(&settings, &system);
    fixture.advance_s(0.2);
    assert_eq!(collector.sample().sched.expect("a value").threads, Some(1));
    child.kill().expect("the process is killed");
    child.wait().expect("the thread ends");
    fixture.advance_s(0.2);
    let sample = collector.sample();
    assert_eq!(sample.sched.expect("a value").threads, Some(0));
    assert!(sample.absent.contains_key("sched.run_delay_s_per_s"));
}
