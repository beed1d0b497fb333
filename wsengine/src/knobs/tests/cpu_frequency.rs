//! On trees of files as several drivers show them; a real cpufreq is in `tests/wsengine/test_cpufreq.py`.

use super::*;
use slackwater_node::fixture::Fixture;

const ROOT: &str = "sys/devices/system/cpu/cpufreq";

/// A policy's files: driver, governors, table, and what stands there.
fn tree(policies: &[(&str, &[(&str, &str)])]) -> Fixture {
    let fixture = Fixture::new(&[]);
    for (name, files) in policies {
        for (file, text) in *files {
            fixture.write(&format!("{ROOT}/{name}/{file}"), &format!("{text}\n"));
        }
    }
    fixture
}

const ACPI: &[(&str, &str)] = &[
    ("affected_cpus", "0"),
    ("scaling_driver", "acpi-cpufreq"),
    ("scaling_available_governors", "conservative ondemand userspace powersave performance schedutil"),
    ("scaling_available_frequencies", "3000000 2200000 1000000"),
    ("scaling_governor", "schedutil"),
    ("scaling_setspeed", "<unsupported>"),
    ("scaling_min_freq", "1000000"),
    ("scaling_max_freq", "3000000"),
    ("cpuinfo_min_freq", "1000000"),
    ("cpuinfo_max_freq", "3000000"),
    ("bios_limit", "3000000"),
];
/// intel_pstate in active mode: two governors of its own, no table, no userspace. amd-pstate-epp is alike.
const PSTATE: &[(&str, &str)] = &[
    ("affected_cpus", "1 2"),
    ("scaling_driver", "intel_pstate"),
    ("scaling_available_governors", "performance powersave"),
    ("scaling_governor", "powersave"),
    ("scaling_setspeed", "<unsupported>"),
    ("scaling_cur_freq", "1234567"),
    ("scaling_min_freq", "800000"),
    ("scaling_max_freq", "4200000"),
    ("cpuinfo_min_freq", "800000"),
    ("cpuinfo_max_freq", "4200000"),
];

fn knob(fixture: &Fixture, cpus: &[u32]) -> Frequency {
    Frequency { folder: fixture.path(ROOT), cpus: cpus.to_vec() }
}

fn with<'a>(files: &[(&'a str, &'a str)], changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let kept = files.iter().filter(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
    kept.chain(changes).copied().collect()
}

#[test]
fn a_governor_is_set_where_the_driver_has_it_and_put_back() {
    let fixture = tree(&[("policy0", ACPI), ("policy1", PSTATE)]);
    let knob = knob(&fixture, &[]);
    let baseline = knob.baseline().expect("a value");
    let plan = knob.plan(&baseline, &Value::Word("performance".to_owned())).expect("both have it");
    knob.apply(&plan.written).expect("the kernel takes it");
    let governors = || ["policy0", "policy1"].map(|name| fixture.read(&format!("{ROOT}/{name}/scaling_governor")));
    assert_eq!(governors(), ["performance", "performance"]);
    assert!(
        knob.verify(&plan.written)
            .expect("the wanted value")
            .how
            .contains("policy1: governor performance, 800000 to 4200000")
    );
    assert_eq!(knob.restore(&baseline, &[plan.written]), Ok(vec![]));
    assert_eq!(governors(), ["schedutil", "powersave"]);
    let message = knob.plan(&baseline, &Value::Word("ondemand".to_owned())).unwrap_err().to_string();
    assert_eq!(message, "driver intel_pstate has the governors performance, powersave, not `ondemand`");
}

#[test]
fn a_frequency_is_held_by_userspace_and_rounded_as_the_kernel_will() {
    let fixture = tree(&[("policy0", ACPI)]);
    let knob = knob(&fixture, &[]);
    let baseline = knob.baseline().expect("a value");
    let planned =
        |khz| knob.plan(&baseline, &Value::Integer(khz)).map(|plan| (plan.effective, plan.note)).expect("a plan");
    assert_eq!(planned(2_200_000), (Value::Integer(2_200_000), String::new()));
    assert_eq!(planned(2_200_001), (Value::Integer(3_000_000), "3000000 kHz is the next in the table".to_owned()));
    assert_eq!(planned(9_000_000), (Value::Integer(3_000_000), "3000000 kHz is the highest possible".to_owned()));
    assert_eq!(planned(1), (Value::Integer(1_000_000), "1000000 kHz is the lowest possible".to_owned()));
    let written = knob.plan(&baseline, &Value::Integer(2_200_000)).expect("a plan").written;
    // A file takes the write before the governor's, which the kernel would make readable by then.
    fixture.write(&format!("{ROOT}/policy0/scaling_setspeed"), "1000000");
    knob.apply(&written).expect("the kernel takes it");
    assert_eq!(fixture.read(&format!("{ROOT}/policy0/scaling_governor")), "userspace");
    assert_eq!(fixture.read(&format!("{ROOT}/policy0/scaling_setspeed")), "2200000");
}

#[test]
fn without_userspace_a_frequency_is_held_between_the_limits() {
    let fixture = tree(&[("policy1", PSTATE)]);
    let knob = knob(&fixture, &[]);
    let baseline = knob.baseline().expect("a value");
    let plan = knob.plan(&baseline, &Value::Integer(4_000_000)).expect("a plan");
    knob.apply(&plan.written).expect("the kernel takes it");
    let limits = || ["min", "max"].map(|end| fixture.read(&format!("{ROOT}/policy1/scaling_{end}_freq")));
    assert_eq!(limits(), ["4000000", "4000000"]);
    // Its scaling_cur_freq is measured and not compared.
    knob.verify(&plan.written).expect("the wanted value");
    assert_eq!(knob.restore(&baseline, &[plan.written]), Ok(vec![]));
    assert_eq!(limits(), ["800000", "4200000"]);
}

#[test]
fn the_firmwares_limit_is_said() {
    let limited = with(ACPI, &[("bios_limit", "2200000")]);
    let fixture = tree(&[("policy0", &limited)]);
    let knob = knob(&fixture, &[]);
    let plan = knob.plan(&knob.baseline().expect("a value"), &Value::Integer(3_000_000)).expect("a plan");
    assert_eq!(
        (plan.effective, plan.note),
        (Value::Integer(2_200_000), "2200000 kHz is the firmware's limit".to_owned())
    );
}

#[test]
fn a_write_that_changes_nothing_is_noticed() {
    let stuck = with(ACPI, &[("scaling_cur_freq", "1000000")]);
    let fixture = tree(&[("policy0", &stuck)]);
    let knob = knob(&fixture, &[]);
    let baseline = knob.baseline().expect("a value");
    let plan = knob.plan(&baseline, &Value::Word("performance".to_owned())).expect("a plan");
    knob.apply(&plan.written).expect("the kernel takes it");
    let message = knob.verify(&plan.written).unwrap_err().to_string();
    assert_eq!(message, "policy0: the kernel took 3000000 kHz and runs at 1000000 kHz all the same");
    let clamped = with(ACPI, &[("scaling_max_freq", "2200000")]);
    let fixture = tree(&[("policy0", &clamped)]);
    let message =
        super::Frequency { folder: fixture.path(ROOT), cpus: vec![] }.verify(&baseline).unwrap_err().to_string();
    assert!(
        message.starts_with("policy0: it became governor schedutil, 1000000 to 2200000 kHz, not governor"),
        "{message}"
    );
}

#[test]
fn only_the_policies_of_our_cores_are_set_and_only_what_nobody_else_changed_is_put_back() {
    let fixture = tree(&[("policy0", ACPI), ("policy1", PSTATE)]);
    let knob = knob(&fixture, &[2]);
    let baseline = knob.baseline().expect("a value");
    let plan = knob.plan(&baseline, &Value::Integer(2_000_000)).expect("a plan");
    knob.apply(&plan.written).expect("the kernel takes it");
    assert_eq!(fixture.read(&format!("{ROOT}/policy0/scaling_governor")), "schedutil");
    fixture.write(&format!("{ROOT}/policy1/scaling_governor"), "performance");
    let message = knob.drift(&baseline, std::slice::from_ref(&plan.written)).expect("a reading").expect("a change");
    assert_eq!(message, "somebody else set policy1 to governor performance, 2000000 to 2000000 kHz");
    let left = knob.restore(&baseline, &[plan.written]).expect("a restored value");
    assert_eq!(left, ["policy1: governor performance is somebody else's"]);
    assert_eq!(fixture.read(&format!("{ROOT}/policy1/scaling_governor")), "performance");
    assert_eq!(fixture.read(&format!("{ROOT}/policy1/scaling_min_freq")), "800000");
}

#[test]
fn without_a_driver_it_is_not_here_and_says_why() {
    let fixture = tree(&[("policy3", &[("affected_cpus", ""), ("scaling_driver", "acpi-cpufreq")])]);
    let message = knob(&fixture, &[]).read().unwrap_err().to_string();
    assert!(message.contains("has no policy of our cores: this kernel has no cpufreq driver"), "{message}");
}

/// intel_pstate in passive mode and amd-pstate in passive or guided mode: the kernel's governors, no table.
const PASSIVE: &[(&str, &str)] = &[
    ("affected_cpus", "0"),
    ("scaling_driver", "intel_cpufreq"),
    ("scaling_available_governors", "conservative ondemand userspace powersave performance schedutil"),
    ("scaling_governor", "schedutil"),
    ("scaling_setspeed", "<unsupported>"),
    ("scaling_cur_freq", "1712345"),
    ("scaling_min_freq", "800000"),
    ("scaling_max_freq", "4200000"),
    ("cpuinfo_min_freq", "800000"),
    ("cpuinfo_max_freq", "4200000"),
];

#[test]
fn passive_pstate_drivers_take_governors_and_any_frequency_within_the_limits() {
    let guided = with(
        PASSIVE,
        &[("scaling_driver", "amd-pstate"), ("amd_pstate_max_freq", "4200000"), ("cpuinfo_min_freq", "400000")],
    );
    for files in [PASSIVE, &guided] {
        let fixture = tree(&[("policy0", files)]);
        let knob = knob(&fixture, &[]);
        let baseline = knob.baseline().expect("a value");
        let fast = knob.plan(&baseline, &Value::Word("performance".to_owned())).expect("a value");
        knob.apply(&fast.written).expect("the kernel takes it");
        // What runs is measured there: an idle core says nothing against the governor.
        assert!(knob.verify(&fast.written).expect("the wanted value").how.contains("governor performance"));
        assert_eq!(knob.restore(&baseline, &[fast.written]), Ok(vec![]));
        let held = knob.plan(&baseline, &Value::Integer(3_141_593)).expect("an exact value");
        assert_eq!((held.effective, held.note.as_str()), (Value::Integer(3_141_593), ""));
        fixture.write(&format!("{ROOT}/policy0/scaling_setspeed"), "1712345");
        knob.apply(&held.written).expect("the kernel takes it");
        assert_eq!(fixture.read(&format!("{ROOT}/policy0/scaling_governor")), "userspace");
        assert_eq!(fixture.read(&format!("{ROOT}/policy0/scaling_setspeed")), "3141593");
        assert_eq!(knob.restore(&baseline, &[held.written]), Ok(vec![]));
        assert_eq!(fixture.read(&format!("{ROOT}/policy0/scaling_governor")), "schedutil");
    }
}

#[test]
fn amd_pstate_in_active_mode_has_two_governors_and_its_limits() {
    let active =
        with(PSTATE, &[("scaling_driver", "amd-pstate-epp"), ("energy_performance_preference", "balance_performance")]);
    let fixture = tree(&[("policy0", &active)]);
    let knob = knob(&fixture, &[]);
    let baseline = knob.baseline().expect("a value");
    let message = knob.plan(&baseline, &Value::Word("schedutil".to_owned())).unwrap_err().to_string();
    assert_eq!(message, "driver amd-pstate-epp has the governors performance, powersave, not `schedutil`");
    let plan = knob.plan(&baseline, &Value::Word("performance".to_owned())).expect("a value");
    knob.apply(&plan.written).expect("the kernel takes it");
    knob.verify(&plan.written).expect("its frequency is measured, and not compared");
    assert_eq!(knob.restore(&baseline, &[plan.written]), Ok(vec![]));
    assert_eq!(fixture.read(&format!("{ROOT}/policy0/scaling_governor")), "powersave");
}
