//! All collectors on the files of several kernels: what is there is plausible, what is not there has its reason.
//!
//! A fixture is one text: `==> PATH` begins a file as it was at first, `==> later PATH` the same file 0.4 s later, or as
//! many milliseconds as stand in `==> step_ms`.

use serde_json::Value;
use slackwater_messages::Sample;
use slackwater_monitor::config::Settings;
use slackwater_monitor::sampler::Sampler;
use slackwater_node::fixture::Fixture;

/// The sections that come from files of the kernel.
const SECTIONS: [&str; 7] = ["cpu", "sched", "pressure", "memory", "disk", "network", "frequency"];
const FIRST_STEP_MS: u64 = 400;
/// Long enough for the sections that are read once a second.
const STEP_S: f64 = 1.2;

/// A fixture laid out in a folder, a clock and a sampler that looks at both.
struct Machine {
    text: &'static str,
    fixture: Fixture,
    sampler: Sampler,
    first_step_s: Option<f64>,
}

impl Machine {
    fn new(text: &'static str, cgroup: &str) -> Machine {
        let fixture = Fixture::new(&[]);
        write(&fixture, text, "");
        let system = fixture.system();
        let mut settings = Settings { node: "n1".to_owned(), ..Settings::default() };
        settings.canary.enabled = false;
        settings.cpu.cgroup = cgroup.to_owned();
        // The collector of the network looks at the fixture; a capture would look at this machine.
        settings.sniffer.ports.clear();
        let sampler = Sampler::open(&settings, &system).expect("a sampler");
        Machine { text, fixture, sampler, first_step_s: Some(first_step_ms(text) as f64 / 1e3) }
    }

    /// The Sample after a step to the files of `moment` ("" or "later ").
    fn step(&mut self, moment: &str) -> Sample {
        self.fixture.advance_s(self.first_step_s.take().unwrap_or(STEP_S));
        write(&self.fixture, self.text, moment);
        self.sampler.take()
    }
}

/// The time between the two moments.
fn first_step_ms(text: &str) -> u64 {
    let Some((_, after)) = text.split_once("==> step_ms\n") else { return FIRST_STEP_MS };
    after.lines().next().and_then(|line| line.parse().ok()).expect("a number of milliseconds")
}

/// Writes the files of a moment over those that are there, as the kernel does: without making them anew.
fn write(fixture: &Fixture, text: &str, moment: &str) {
    let files = text.split("==> ").skip(1).filter_map(|file| file.split_once('\n'));
    for (path, content) in files {
        let Some(path) = path.strip_prefix(moment) else { continue };
        if moment.is_empty() && path.starts_with("later ") {
            continue;
        }
        fixture.write(path, content);
    }
}

/// All values of a section, as the messages' schema names them.
fn names(section: &str) -> Vec<String> {
    let schema: Value = serde_json::from_str(include_str!("../../schema/sample.json")).expect("JSON");
    let title = section[..1].to_uppercase() + &section[1..];
    let properties = schema["$defs"][&title]["properties"].as_object().expect("properties");
    properties.keys().filter(|name| !matches!(name.as_str(), "scope" | "device" | "interface")).cloned().collect()
}

/// Each value is there and plausible, or has a reason; gives the names of those that are absent.
fn absent_of(sample: &Sample) -> Vec<String> {
    let written = serde_json::to_value(sample).expect("JSON");
    let mut absent = Vec::new();
    for section in SECTIONS {
        let Some(values) = written.get(section) else {
            assert!(sample.absent.contains_key(section), "{section} has no reason: {:?}", sample.absent);
            absent.push(section.to_owned());
            continue;
        };
        for name in names(section) {
            let dotted = format!("{section}.{name}");
            match values.get(&name) {
                Some(value) => {
                    let value = value.as_f64().expect("a number");
                    assert!(!sample.absent.contains_key(&dotted), "{dotted} is there and absent");
                    let most = if is_share(&dotted) { 1.0 } else { 1e9 };
                    assert!((0.0..=most).contains(&value), "{dotted} = {value}");
                }
                None => {
                    assert!(sample.absent.contains_key(&dotted), "{dotted} has no reason: {:?}", sample.absent);
                    absent.push(dotted);
                }
            }
        }
    }
    absent
}

fn is_share(dotted: &str) -> bool {
    matches!(
        dotted,
        "cpu.steal"
            | "cpu.user"
            | "cpu.system"
            | "cpu.irq"
            | "cpu.iowait"
            | "cpu.throttled"
            | "memory.available"
            | "disk.busy"
    ) || dotted.starts_with("pressure.")
}

const NO_GROUP: [&str; 6] = [
    "cpu.throttled",
    "cpu.throttled_s_per_s",
    "pressure.cgroup_cpu_full",
    "pressure.cgroup_cpu_some",
    "pressure.cgroup_io_some",
    "pressure.cgroup_memory_some",
];

/// A kernel's fixture, and the expected values.
struct Kernel {
    text: &'static str,
    /// Values that are absent for the whole VM.
    lacks: &'static [&'static str],
    /// Further values that are absent for a cgroup.
    lacks_for_a_cgroup: &'static [&'static str],
    /// The busiest disk.
    disk: &'static str,
    /// Share of the quota's periods in which the cgroup `web`, which may have half a core, was throttled.
    throttled: f64,
    /// The cgroup's CPU time.
    used_s: f64,
    /// The time for which the cgroup was throttled.
    throttled_s: f64,
}

/// The values of fixtures that were written by hand: 60 ms of CPU time and 30 ms of throttling.
const WRITTEN: Kernel = Kernel {
    text: "",
    lacks: &["frequency", "network.saturation"],
    lacks_for_a_cgroup: &[],
    disk: "vda",
    throttled: 0.5,
    used_s: 0.06,
    throttled_s: 0.03,
};

/// All fixtures. Those of Debian's kernels were made with tools/kernel_fixture.py; each fixture's first lines name its
/// source.
const KERNELS: [Kernel; 8] = [
    Kernel { text: include_str!("fixtures/linux-4.15.txt"), lacks: &["frequency", "pressure"], disk: "sda", ..WRITTEN },
    Kernel {
        text: include_str!("fixtures/linux-4.18.txt"),
        lacks: &["frequency", "network.saturation", "pressure"],
        ..WRITTEN
    },
    Kernel {
        text: include_str!("fixtures/linux-5.10-v1.txt"),
        lacks_for_a_cgroup: &[
            "pressure.cgroup_cpu_full",
            "pressure.cgroup_cpu_some",
            "pressure.cgroup_io_some",
            "pressure.cgroup_memory_some",
        ],
        throttled: 1.0,
        used_s: 0.449_891_111,
        throttled_s: 0.635_558_584,
        ..WRITTEN
    },
    Kernel {
        text: include_str!("fixtures/linux-5.10.txt"),
        lacks_for_a_cgroup: &["pressure.cgroup_cpu_full"],
        throttled: 1.0,
        used_s: 0.569_553,
        throttled_s: 0.646_894,
        ..WRITTEN
    },
    Kernel {
        text: include_str!("fixtures/linux-6.1.txt"),
        throttled: 1.0,
        used_s: 0.693_408,
        throttled_s: 0.900_741,
        ..WRITTEN
    },
    Kernel {
        text: include_str!("fixtures/linux-6.12.txt"),
        throttled: 12.0 / 13.0,
        used_s: 0.652_467,
        throttled_s: 0.814_573,
        ..WRITTEN
    },
    Kernel { text: include_str!("fixtures/linux-6.12-server.txt"), lacks: &[], disk: "nvme0n1", ..WRITTEN },
    Kernel { text: include_str!("fixtures/linux-6.18.txt"), ..WRITTEN },
];

#[test]
fn of_each_kernel_the_values_of_the_vm_are_there_or_have_a_reason() {
    for Kernel { text, lacks, disk, .. } in KERNELS {
        let sample = Machine::new(text, "").step("later ");
        let has_psi = !lacks.contains(&"pressure");
        let no_group = NO_GROUP.iter().filter(|name| has_psi || !name.starts_with("pressure"));
        let mut expected: Vec<&str> = lacks.iter().chain(no_group).copied().collect();
        // The disk may have served no request in this time.
        let mut absent = absent_of(&sample);
        absent.retain(|name| name != "disk.wait_ms");
        absent.sort_unstable();
        expected.sort_unstable();
        assert_eq!(absent, expected, "{}", &text[..60]);
        assert_eq!(sample.disk.as_ref().expect("a disk").device, disk);
        let cpu = sample.cpu.as_ref().expect("cpu");
        let kinds = [cpu.user, cpu.system, cpu.irq, cpu.steal].map(|share| share.expect("a value"));
        let used = cpu.utilisation.expect("a value");
        assert!((kinds.iter().sum::<f64>() - used).abs() < 1e-9, "{cpu:?}");
        assert!(sample.sched.as_ref().is_some_and(|sched| sched.involuntary_switches_per_s > Some(0.0)), "{sample:?}");
    }
}

#[test]
fn of_each_kernel_the_values_of_a_cgroup_are_there_or_have_a_reason() {
    for kernel in KERNELS {
        let text = kernel.text;
        let sample = Machine::new(text, "/web").step("later ");
        let lacks = kernel.lacks.iter().chain(kernel.lacks_for_a_cgroup);
        let mut expected: Vec<&str> = lacks.copied().chain(["cpu.steal"]).collect();
        let mut absent = absent_of(&sample);
        absent.retain(|name| name != "disk.wait_ms");
        absent.sort_unstable();
        expected.sort_unstable();
        assert_eq!(absent, expected, "{}", &text[..60]);
        let cpu = sample.cpu.as_ref().expect("cpu");
        assert_eq!((cpu.cores, cpu.throttled), (Some(0.5), Some(kernel.throttled)), "{}", &text[..60]);
        let step_s = first_step_ms(text) as f64 / 1e3;
        let (used, throttled) = (cpu.utilisation.expect("a value"), cpu.throttled_s_per_s.expect("a value"));
        assert!((used - kernel.used_s / step_s / 0.5).abs() < 1e-9, "{cpu:?}");
        assert!((throttled - kernel.throttled_s / step_s).abs() < 1e-9, "{cpu:?}");
    }
}

#[test]
fn counters_that_go_back_give_no_value_and_good_ones_follow() {
    for Kernel { text, .. } in KERNELS {
        let mut machine = Machine::new(text, "/web");
        machine.step("later ");
        // As after a container's restart: everything began anew. `absent_of` checks for negative and enormous values.
        let sample = machine.step("");
        for section in ["memory.minor_faults_per_s", "cpu.throttled_s_per_s", "cpu.utilisation", "cpu.user"] {
            let reason = sample.absent.get(section).map(String::as_str).unwrap_or_default();
            assert!(reason.contains("went back"), "{}: {section}: {reason}", &text[..60]);
        }
        absent_of(&sample);
        let sample = machine.step("later ");
        assert!(sample.cpu.as_ref().is_some_and(|cpu| cpu.utilisation.is_some()), "{:?}", sample.absent);
        absent_of(&sample);
    }
}

#[test]
fn a_clock_that_stands_still_gives_no_rates() {
    for Kernel { text, .. } in KERNELS {
        let mut machine = Machine::new(text, "/web");
        machine.step("later ");
        write(&machine.fixture, text, "");
        let sample = machine.sampler.take();
        assert_eq!(sample.cpu.as_ref().expect("a value").utilisation, None);
        absent_of(&sample);
    }
}
