//! On trees of files in the shape of sysfs; a real cpufreq is in `tests/wsengine/test_cpufreq.py`.

use super::*;
use crate::knobs::from_json;
use slackwater_node::fixture::Fixture;

const ROOT: &str = "sys/devices/system/cpu/cpufreq";

fn tree(policies: &[(&str, &str)]) -> Fixture {
    let fixture = Fixture::new(&[]);
    for (name, cores) in policies {
        for (file, text) in [
            ("affected_cpus", *cores),
            ("scaling_driver", "cpufreq-dt"),
            ("scaling_available_governors", "userspace schedutil"),
            ("scaling_available_frequencies", "1000000 2000000 3000000"),
            ("scaling_governor", "schedutil"),
            ("scaling_setspeed", "<unsupported>"),
            ("scaling_min_freq", "1000000"),
            ("scaling_max_freq", "3000000"),
            ("cpuinfo_min_freq", "1000000"),
            ("cpuinfo_max_freq", "3000000"),
        ] {
            fixture.write(&format!("{ROOT}/{name}/{file}"), &format!("{text}\n"));
        }
    }
    fixture
}

fn knob(fixture: &Fixture, cpus: &[u32]) -> CoreFrequency {
    CoreFrequency(Frequency { folder: fixture.path(ROOT), cpus: cpus.to_vec() })
}

fn word(text: &str) -> Value {
    Value::Word(text.to_owned())
}

#[test]
fn each_core_gets_its_own_and_all_is_put_back() {
    let fixture = tree(&[("policy0", "0"), ("policy1", "1")]);
    let knob = knob(&fixture, &[]);
    assert_eq!(knob.read().expect("a value").value, word("3000000,3000000"));
    let baseline = knob.baseline().expect("a value");
    let plan = knob.plan(&baseline, &word("1000000,2000000")).expect("a plan");
    assert_eq!((plan.effective, plan.note.as_str()), (word("1000000,2000000"), ""));
    knob.apply(&plan.written).expect("the kernel takes it");
    assert_eq!(fixture.read(&format!("{ROOT}/policy0/scaling_setspeed")), "1000000");
    assert_eq!(fixture.read(&format!("{ROOT}/policy1/scaling_setspeed")), "2000000");
    assert_eq!(knob.read().expect("a value").value, word("1000000,2000000"));
    assert_eq!(knob.drift(&baseline, std::slice::from_ref(&plan.written)), Ok(None));
    assert_eq!(knob.restore(&baseline, std::slice::from_ref(&plan.written)), Ok(vec![]));
    assert_eq!(fixture.read(&format!("{ROOT}/policy1/scaling_governor")), "schedutil");
}

#[test]
fn the_hardware_limits_it_and_cores_of_one_clock_get_the_highest() {
    let fixture = tree(&[("policy0", "0 1"), ("policy2", "2")]);
    let knob = knob(&fixture, &[]);
    let baseline = knob.baseline().expect("a value");
    let plan = knob.plan(&baseline, &word("1000000,2000000,9000000")).expect("a plan");
    assert_eq!(plan.effective, word("2000000,2000000,3000000"));
    assert_eq!(plan.note, "3000000 kHz is the highest possible");
    let all = knob.plan(&baseline, &Value::Integer(1_500_000)).expect("a plan");
    assert_eq!(all.effective, word("2000000,2000000,2000000"), "one for all, rounded up to the table");
}

#[test]
fn only_our_cores_count() {
    let fixture = tree(&[("policy0", "0"), ("policy1", "1")]);
    let knob = knob(&fixture, &[1]);
    assert_eq!(knob.cores(), Ok(vec![1]));
    let baseline = knob.baseline().expect("a value");
    let refused = knob.plan(&baseline, &word("1000000,1000000")).unwrap_err().to_string();
    assert_eq!(refused, "expected a frequency for each of 1 cores, got 2");
    let written: BTreeMap<String, Json> =
        from_json(&knob.plan(&baseline, &word("1000000")).expect("a plan").written).expect("policies");
    assert_eq!(written.into_keys().collect::<Vec<_>>(), ["policy1"]);
}

#[test]
fn without_cpufreq_it_is_not_here() {
    let message = knob(&Fixture::new(&[]), &[]).read().unwrap_err().to_string();
    assert!(message.contains("has no policy of our cores"), "{message}");
}
