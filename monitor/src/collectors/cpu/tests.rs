//! The collector on trees of files.

use slackwater_messages::AbsenceCause;

use super::*;
use crate::collectors::ActiveCollector;
use slackwater_node::fixture::Fixture;

const STAT: &str = "cpu  100 5 50 1000 20 3 2 10 7 0\ncpu0 50 0 0 0 0 0 0 0 0 0\ncpu1 1 0 0 0 0 0 0 0 0 0\nintr 5\n";

fn group(fixture: &Fixture) -> ActiveCollector {
    let mut settings = Settings::default();
    settings.cpu.cgroup = "web/h1".to_owned();
    COLLECTOR.open(&settings, &fixture.system())
}

#[test]
fn the_vm_is_full_when_nothing_is_idle_also_beside_a_thief() {
    let fixture = Fixture::new(&[("proc/stat", STAT)]);
    let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
    fixture.advance_s(0.2);
    fixture.write("proc/stat", &STAT.replace("cpu  100 5 50 1000 20 3 2 10", "cpu  120 5 60 1000 20 3 2 20"));
    let cpu = collector.sample().cpu.expect("a value");
    assert_eq!((cpu.utilisation, cpu.steal, cpu.cores), (Some(1.0), Some(0.25), Some(2.0)));
    assert_eq!((cpu.user, cpu.system, cpu.irq, cpu.iowait), (Some(0.5), Some(0.25), Some(0.0), Some(0.0)));
}

#[test]
fn ticks_that_stand_still_go_back_or_leap_are_no_zero() {
    let fixture = Fixture::new(&[("proc/stat", STAT)]);
    let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
    for (text, why) in [
        (STAT.to_owned(), "no tick of /proc/stat passed"),
        (STAT.replace("cpu  100", "cpu  50"), "user in /proc/stat: the counter went back"),
        (STAT.replace("2 10 7 0", "2 1000000010 7 0"), "steal in /proc/stat: the counter leapt"),
    ] {
        fixture.write("proc/stat", STAT);
        fixture.advance_s(1.0);
        collector.sample();
        fixture.write("proc/stat", &text);
        fixture.advance_s(1.0);
        let sample = collector.sample();
        assert_eq!(sample.cpu.expect("a value").utilisation, None);
        assert!(sample.absent["cpu.utilisation"].starts_with(why), "{:?}", sample.absent);
        assert_eq!(sample.absent["cpu.utilisation"], sample.absent["cpu.steal"]);
    }
    fixture.remove("proc/stat");
    fixture.write("proc/stat", "");
    let mut fresh = COLLECTOR.open(&Settings::default(), &fixture.system());
    let sample = fresh.sample();
    assert!(sample.cpu.is_none() && sample.absent["cpu"].ends_with("stat: no `cpu` line"));
}

#[test]
fn a_cgroup_of_version_1_is_measured_against_its_quota() {
    let fixture = Fixture::new(&[
        ("proc/stat", STAT),
        ("cgroup/cpuacct/web/h1/cpuacct.usage", "1000000000\n"),
        ("cgroup/cpu/web/h1/cpu.cfs_quota_us", "40000\n"),
        ("cgroup/cpu/web/h1/cpu.cfs_period_us", "100000\n"),
        ("cgroup/cpu/web/h1/cpu.stat", "nr_periods 10\nnr_throttled 2\nthrottled_time 1000000\n"),
    ]);
    let mut collector = group(&fixture);
    fixture.advance_s(0.25);
    fixture.write("proc/stat", &STAT.replace("cpu  100 5 50", "cpu  110 5 80"));
    fixture.write("cgroup/cpu/web/h1/cpu.stat", "nr_periods 14\nnr_throttled 3\nthrottled_time 51000000\n");
    fixture.write("cgroup/cpuacct/web/h1/cpuacct.usage", "1050000000\n");
    let sample = collector.sample();
    let cpu = sample.cpu.expect("a value");
    assert_eq!((cpu.scope.as_str(), cpu.cores, cpu.steal), ("cgroup", Some(0.4), None));
    assert!((cpu.utilisation.expect("a value") - 0.5).abs() < 1e-9);
    assert!(sample.absent.contains_key("cpu.steal"));
    assert_eq!((cpu.throttled, cpu.throttled_s_per_s), (Some(0.25), Some(0.2)));
    assert_eq!((cpu.user, cpu.system), (Some(0.25), Some(0.75)));
}

#[test]
fn throttling_is_that_of_the_cgroup_above_which_sets_the_tightest_quota() {
    let stat = |throttled: u64| {
        format!("usage_usec 9\nnr_periods {}\nnr_throttled {throttled}\nthrottled_usec 50000\n", throttled + 2)
    };
    let fixture = Fixture::new(&[
        ("proc/stat", STAT),
        ("cgroup/cgroup.controllers", "cpu\n"),
        ("cgroup/web/cpu.max", "40000 100000\n"),
        ("cgroup/web/cpu.stat", &stat(5)),
        ("cgroup/web/h1/cpu.max", "max 100000\n"),
        ("cgroup/web/h1/cpu.stat", &stat(0)),
    ]);
    let mut collector = group(&fixture);
    fixture.advance_s(0.5);
    let sample = collector.sample();
    assert_eq!(sample.absent["cpu.throttled"], "no period of the quota ended: the cgroup was idle");
    assert_eq!(sample.cpu.expect("a value").throttled_s_per_s, Some(0.0));
    fixture.advance_s(1.5);
    fixture.write("cgroup/web/cpu.stat", &stat(9));
    assert_eq!(collector.sample().cpu.expect("a value").throttled, Some(1.0));
    fixture.advance_s(1.5);
    fixture.write("cgroup/web/cpu.stat", &stat(3));
    let sample = collector.sample();
    assert_eq!(sample.cpu.expect("a value").throttled, None);
    assert!(sample.absent["cpu.throttled"].starts_with("the counter went back"));
}

#[test]
fn a_cgroup_of_version_2_without_quota_may_use_all_cores() {
    let fixture = Fixture::new(&[
        ("proc/stat", STAT),
        ("cgroup/cgroup.controllers", "cpu\n"),
        ("cgroup/web/h1/cpu.stat", "usage_usec 1000000\n"),
        ("cgroup/web/h1/cpu.max", "max 100000\n"),
    ]);
    let mut collector = group(&fixture);
    fixture.advance_s(1.0);
    fixture.write("cgroup/web/h1/cpu.stat", "usage_usec 1500000\n");
    let cpu = collector.sample().cpu.expect("a value");
    assert_eq!((cpu.cores, cpu.utilisation, cpu.throttled), (Some(2.0), Some(0.25), None));
}

#[test]
fn a_cgroup_may_use_the_cores_of_its_cpuset() {
    let fixture = Fixture::new(&[
        ("proc/stat", STAT),
        ("cgroup/cpuacct/web/h1/cpuacct.usage", "1000000000\n"),
        ("cgroup/cpuset/web/h1/cpuset.cpus", "0-1\n"),
    ]);
    let mut collector = group(&fixture);
    fixture.advance_s(1.5);
    fixture.write("cgroup/cpuacct/web/h1/cpuacct.usage", "1750000000\n");
    let cpu = collector.sample().cpu.expect("a value");
    assert_eq!((cpu.cores, cpu.utilisation), (Some(2.0), Some(0.25)));
    fixture.write("cgroup/cpuset/web/h1/cpuset.cpus", "1\n");
    fixture.advance_s(1.5);
    fixture.write("cgroup/cpuacct/web/h1/cpuacct.usage", "2500000000\n");
    let cpu = collector.sample().cpu.expect("a value");
    assert_eq!((cpu.cores, cpu.utilisation), (Some(1.0), Some(0.5)));
}

#[test]
fn a_cgroup_that_is_removed_and_made_again_gives_reasons_and_then_values() {
    let fixture = Fixture::new(&[
        ("proc/stat", STAT),
        ("cgroup/cgroup.controllers", "cpu\n"),
        ("cgroup/web/h1/cpu.stat", "usage_usec 1000000\n"),
    ]);
    let mut collector = group(&fixture);
    fixture.advance_s(1.0);
    fixture.write("cgroup/web/h1/cpu.stat", "usage_usec 10\n");
    let sample = collector.sample();
    assert_eq!(sample.cpu.expect("a value").utilisation, None);
    assert_eq!(sample.absent["cpu.utilisation"], "the counter went back: it wrapped or began anew");
    fixture.advance_s(1.0);
    fixture.write("cgroup/web/h1/cpu.stat", "usage_usec 200010\n");
    assert_eq!(collector.sample().cpu.expect("a value").utilisation, Some(0.1));

    let mut late = group(&Fixture::new(&[("proc/stat", STAT)]));
    let sample = late.sample();
    assert!(sample.cpu.is_none() && sample.absent["cpu"].starts_with("cgroup web/h1: neither cpu.stat"));
    assert_eq!(sample.absence_causes["cpu"], AbsenceCause::NoCgroup);
}
