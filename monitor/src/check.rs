//! `slackwater-monitor check`: which parts work on this machine, and a remedy for each part that does not.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use slackwater_messages::{AbsenceCause, Sample};
use slackwater_node::cgroup;
use slackwater_node::login::{Caller, NoBus};
use slackwater_node::status::http;
use slackwater_node::system::System;
use slackwater_sniffer::user_exists;

use crate::asks;
use crate::collectors::COLLECTORS;
use crate::config::Settings;
use crate::pmu::libpfm::Libpfm;
use crate::pmu::permission::{MAINLINE_MOST, Permission, program, wants_admin};
use crate::reason::Reason;
use crate::sampler::Sampler;
use crate::sandbox;
use crate::sandbox::seccomp;

/// Long enough for at least one health check of the balancer; HAProxy makes one every 2 s.
const WATCHED_FOR: Duration = Duration::from_millis(2500);
const PAGE_WITHIN: Duration = Duration::from_secs(2);
/// Values without which a needed section is useless.
const NEEDED_VALUES: [&str; 2] = ["cpu.utilisation", "traffic.rps"];

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckItem {
    /// The part that was checked.
    pub what: String,
    /// Whether it works.
    pub works: bool,
    /// Whether the node is useless to the cluster without it.
    pub needed: bool,
    /// Details, or why it does not work.
    pub detail: String,
    /// How to make it work.
    pub remedy: Option<String>,
}

/// Whether the detector can't judge the node without this section of the Sample.
fn is_needed(section: &str, settings: &Settings) -> bool {
    match section {
        "cpu" => true,
        "traffic" => settings.is_on("traffic") && !settings.sniffer.interface.is_empty(),
        _ => false,
    }
}

/// How to remove the cause; `None` when the reason itself says so, or when nothing can be done.
fn remedy(cause: AbsenceCause) -> Option<String> {
    let text = match cause {
        AbsenceCause::LacksCapability => "start it as root, or once: setcap cap_perfmon,cap_net_raw+ep PROGRAM",
        AbsenceCause::SwitchedOff => "switch it on in the configuration if it is wanted",
        AbsenceCause::NoInterface => "name the interface that requests come in by: sniffer.interface",
        AbsenceCause::NoCapture => {
            "name the interface that requests come in by: sniffer.interface (`ip link` lists them)"
        }
        AbsenceCause::OtherProtocol => {
            "`unknown` measures turns (bytes of the client, then of the server) without reading them, so over TLS too; \
             when it is written: systemctl restart slackwater-monitor"
        }
        AbsenceCause::NoLibpfm => "apt-get install libpfm4, then start the monitor again",
        AbsenceCause::NoHardwareCounters => {
            "ask the hypervisor for a virtual PMU (KVM: host CPU model with pmu=on); without it the canary measures"
        }
        AbsenceCause::NoPerfEvent => "a kernel with CONFIG_PERF_EVENTS",
        AbsenceCause::NoProcess => "start the web server, or name its processes: processes.names, or processes.cgroup",
        AbsenceCause::NoPsi => "a kernel with CONFIG_PSI, started with psi=1",
        AbsenceCause::NoCgroup => "make the cgroup, or name another one: cpu.cgroup, processes.cgroup",
        AbsenceCause::PermissionDenied => "start it as root: it gives up what it does not need",
        AbsenceCause::MayNotCount | AbsenceCause::ContainerForbids => return None,
    };
    Some(text.replace("PROGRAM", &program().display().to_string()))
}

fn item(what: impl Into<String>, needed: bool, result: Result<String, impl Into<Reason>>) -> CheckItem {
    let (works, detail, cause) = match result {
        Ok(detail) => (true, detail, None),
        Err(reason) => {
            let Reason { cause, text } = reason.into();
            (false, text, cause)
        }
    };
    CheckItem { what: what.into(), works, needed, detail, remedy: cause.and_then(remedy) }
}

/// Checks everything; takes a period, and the time that the bus takes to answer. `source` names the origin of the
/// settings.
pub fn check(settings: &Settings, source: &str, system: &System) -> Vec<CheckItem> {
    let read = format!("{source}: node {}, pool {}", settings.node, settings.pool);
    let mut items = vec![
        item("settings", true, Ok::<_, Reason>(read)),
        bus(settings),
        running(&settings.metrics.listen),
        item("libpfm4", false, Libpfm::load().map(|libpfm| described(&libpfm))),
        item("perf_event", false, perf_event(system)),
        item("cgroups", !settings.cpu.cgroup.is_empty(), cgroups(settings, system)),
        item("user", true, user(settings)),
        item("capabilities", false, capabilities(settings, system)),
        item("seccomp", false, filter(settings)),
    ];
    match Sampler::open(settings, system) {
        Ok(mut sampler) => {
            let watches = is_needed("traffic", settings);
            let period = Duration::from_secs_f64(settings.period_s);
            let sample = sampler.take_after(if watches { period.max(WATCHED_FOR) } else { period });
            items.extend(sections(&sample, settings));
        }
        Err(reason) => items.push(item("sample", true, Err(reason))),
    }
    items
}

/// Each collector's section, then each scope of the hardware counters.
fn sections(sample: &Sample, settings: &Settings) -> Vec<CheckItem> {
    let written = serde_json::to_value(sample).unwrap_or_default();
    let mut items = Vec::new();
    for section in COLLECTORS.iter().map(|kind| kind.name) {
        let result = match (written.get(section), sample.absent.get(section)) {
            (None, Some(reason)) => {
                Err(Reason { cause: sample.absence_causes.get(section).copied(), text: reason.clone() })
            }
            (None, None) => Err(Reason { cause: cause_below(sample, section), text: reasons_below(sample, section) }),
            (Some(_), _) if lacks_needed_value(sample, section) => Err(Reason {
                cause: cause_below(sample, section),
                text: format!("without {}", reasons_below(sample, section)),
            }),
            (Some(_), _) => Ok(match reasons_below(sample, section) {
                missing if missing.is_empty() => "all of it".to_owned(),
                missing => format!("without {missing}"),
            }),
        };
        items.push(item(section, is_needed(section, settings), result));
    }
    items
}

/// The field in "section.field", if it belongs to this section.
fn field_of<'a>(section: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(section)?.strip_prefix('.')
}

/// Whether the section lacks a value without which it is useless.
fn lacks_needed_value(sample: &Sample, section: &str) -> bool {
    let mut needed = NEEDED_VALUES.iter().filter(|name| field_of(section, name).is_some());
    needed.any(|name| sample.absent.contains_key(*name))
}

/// "field, field (reason), ..." of the absent fields of a section.
fn reasons_below(sample: &Sample, section: &str) -> String {
    let mut fields_by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reason) in &sample.absent {
        if let Some(field) = field_of(section, name) {
            fields_by_reason.entry(reason).or_default().push(field);
        }
    }
    let parts = fields_by_reason.iter().map(|(reason, fields)| format!("{} ({reason})", fields.join(", ")));
    parts.collect::<Vec<_>>().join(", ")
}

/// The first cause among the absent fields of a section.
fn cause_below(sample: &Sample, section: &str) -> Option<AbsenceCause> {
    sample.absence_causes.iter().find(|(name, _)| field_of(section, name).is_some()).map(|(_, cause)| *cause)
}

/// Logs in as the monitor does.
fn bus(settings: &Settings) -> CheckItem {
    let listens_to = asks::subject(settings);
    let caller = Caller { bus: &settings.bus, pool: &settings.pool, node: &settings.node, listens_to: &listens_to };
    match caller.log_in() {
        Ok(detail) => item("bus", true, Ok::<_, Reason>(detail)),
        Err(NoBus { why, remedy }) => CheckItem { remedy: Some(remedy), ..item("bus", true, Err(Reason::from(why))) },
    }
}

/// Whether a monitor runs here, by its own page. (The other checks show what a monitor could do.)
fn running(listen: &str) -> CheckItem {
    let absent = |why: String, remedy: &str| CheckItem {
        remedy: Some(remedy.to_owned()),
        ..item("monitor", false, Err(Reason::from(why)))
    };
    if listen.is_empty() {
        return absent("whether one runs is not known: it has no page".to_owned(), "metrics.listen gives it one");
    }
    let page = match http::get(&format!("http://{listen}/metrics"), PAGE_WITHIN) {
        Ok(page) => page,
        Err(error) => {
            let why = format!("none runs here that reads these settings: {error}");
            return absent(
                why,
                "systemctl enable --now slackwater-monitor; `journalctl -u slackwater-monitor` says why one ended",
            );
        }
    };
    let count = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(name))?;
        line.rsplit_once(' ')?.1.parse::<f64>().ok()
    };
    match (count("slackwater_samples_published_total"), count("slackwater_samples_dropped_total")) {
        (Some(published), Some(dropped)) if published > 0.0 => {
            item("monitor", false, Ok::<_, Reason>(format!("runs: {published} Samples published, {dropped} dropped")))
        }
        (Some(_), _) => absent(
            "runs, and has published no Sample".to_owned(),
            "it reads its settings and passwords when it starts: systemctl restart slackwater-monitor",
        ),
        (None, _) => absent(format!("{listen} answers, but not as a monitor"), "metrics.listen must be free"),
    }
}

fn described(libpfm: &Libpfm) -> String {
    let models = libpfm.models();
    let models = if models.is_empty() { "an unknown CPU".to_owned() } else { models.join(", ") };
    format!("version {}, this is {models}", libpfm.version())
}

fn perf_event(system: &System) -> Result<String, Reason> {
    let permission = Permission::now(system);
    match permission {
        Permission { paranoid: None, .. } => Err(permission.denied(0)),
        Permission { is_capable: true, paranoid: Some(paranoid) } if paranoid > MAINLINE_MOST => {
            Ok(format!("allowed to who runs this; {}", wants_admin(paranoid)))
        }
        Permission { is_capable: true, paranoid: Some(_) } => Ok("allowed by capability".to_owned()),
        Permission { paranoid: Some(paranoid), .. } if paranoid <= 0 => {
            Ok(format!("allowed by kernel.perf_event_paranoid = {paranoid}"))
        }
        _ => Err(permission.denied(0)),
    }
}

fn cgroups(settings: &Settings, system: &System) -> Result<String, Reason> {
    let is_there = |path: &str| system.cgroup.join(path).exists();
    let version = match (is_there("cgroup.controllers"), is_there("unified/cgroup.controllers")) {
        (true, _) => "version 2",
        (_, true) => "version 1, with version 2 beside it",
        _ if is_there("cpu") || is_there("cpu,cpuacct") => "version 1",
        _ => return Err(format!("no cgroups below {}", system.cgroup.display()).into()),
    };
    if !settings.cpu.cgroup.is_empty() {
        cgroup::find_cpu(&system.cgroup, &settings.cpu.cgroup)?;
    }
    if !settings.processes.cgroup.is_empty() {
        cgroup::find_processes(&system.cgroup, &settings.processes.cgroup)?;
    }
    Ok(version.to_owned())
}

fn user(settings: &Settings) -> Result<String, Reason> {
    let user = settings.privileges.user.as_str();
    match (rustix::process::geteuid().is_root(), user) {
        (false, _) => Ok(format!("stays {}", rustix::process::geteuid().as_raw())),
        (true, "") => Ok("stays root, without its capabilities; privileges.user names a lesser one".to_owned()),
        (true, user) => user_exists(user)
            .map(|()| format!("changes to {user}"))
            .map_err(|error| format!("privileges.user: {error}").into()),
    }
}

fn capabilities(settings: &Settings, system: &System) -> Result<String, Reason> {
    let permitted = rustix::thread::capabilities(None).map_err(|error| error.to_string())?.permitted;
    let needed = sandbox::needed(settings, system);
    let (kept, missing) = (needed & permitted, needed - permitted);
    match (kept.is_empty(), missing.is_empty()) {
        (true, true) => Ok("none are needed".to_owned()),
        (false, true) => Ok(format!("keeps {} and no others", sandbox::names(kept))),
        _ => {
            let text = format!("{} missing (it may need CAP_NET_RAW and CAP_PERFMON)", sandbox::names(missing));
            Err(Reason::new(AbsenceCause::LacksCapability, text))
        }
    }
}

fn filter(settings: &Settings) -> Result<String, Reason> {
    match settings.privileges.seccomp.as_str() {
        "off" => {
            let text = "switched off in the configuration (privileges.seccomp)";
            Err(Reason::new(AbsenceCause::SwitchedOff, text))
        }
        _ if !seccomp::is_available() => Err("this kernel has no seccomp filters (CONFIG_SECCOMP_FILTER)".into()),
        mode => Ok(format!("available, mode {mode}")),
    }
}

/// Whether everything that is needed works.
pub fn is_enough(items: &[CheckItem]) -> bool {
    items.iter().all(|item| item.works || !item.needed)
}

/// The items for people: one line each, with the remedy below it.
pub fn table(items: &[CheckItem]) -> String {
    let mut text = String::new();
    for item in items {
        let mark = match (item.works, item.needed) {
            (true, _) => "ok",
            (false, true) => "MISSING",
            (false, false) => "absent",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{mark:<8} {:<13} {}", item.what, item.detail);
        if let Some(remedy) = &item.remedy {
            let _ = writeln!(text, "{:<22} -> {remedy}", "");
        }
    }
    text.push_str(if is_enough(items) {
        "everything that is needed works\n"
    } else {
        "something that is needed is missing\n"
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_has_a_remedy_and_what_is_needed_decides() {
        let fine = item("cpu", true, Ok::<_, Reason>("all of it".to_owned()));
        let absent = item("pmu", false, Err(Reason::new(AbsenceCause::NoHardwareCounters, "none")));
        assert!(absent.remedy.as_deref().expect("a remedy").contains("virtual PMU"));
        assert!(is_enough(&[fine.clone(), absent.clone()]));
        let missing = item("traffic", true, Err(Reason::new(AbsenceCause::LacksCapability, "no capture")));
        assert!(missing.remedy.as_deref().expect("a remedy").contains("setcap cap_perfmon,cap_net_raw+ep /"));
        assert!(!is_enough(std::slice::from_ref(&missing)));
        let text = table(&[fine, absent, missing]);
        assert!(text.starts_with("ok       cpu           all of it\nabsent   pmu "), "{text}");
        assert!(
            text.contains("MISSING  traffic ") && text.ends_with("something that is needed is missing\n"),
            "{text}"
        );
    }

    #[test]
    fn a_section_that_is_there_names_what_it_lacks() {
        let mut sample = Sample { cpu: Some(slackwater_messages::Cpu::default()), ..Sample::default() };
        sample.absent.insert("cpu.steal".to_owned(), "none here".to_owned());
        sample.absent.insert("sched".to_owned(), "words of any kind: no PSI".to_owned());
        sample.absence_causes.insert("sched".to_owned(), AbsenceCause::NoProcess);
        sample.absent.insert("frequency".to_owned(), "permission denied".to_owned());
        let items = sections(&sample, &Settings::default());
        let named = |what: &str| items.iter().find(|item| item.what == what).expect("an item").clone();
        assert_eq!((named("cpu").works, named("cpu").detail.as_str()), (true, "without steal (none here)"));
        assert!(!named("sched").works && named("sched").remedy.expect("a remedy").contains("processes.names"));
        assert_eq!(named("frequency").remedy, None, "words decide nothing");
        assert!(named("traffic").needed && !named("pressure").needed);
        sample.absent.insert("cpu.utilisation".to_owned(), "it leapt".to_owned());
        let items = sections(&sample, &Settings::default());
        assert!(!is_enough(&items[..1]), "a `cpu` without utilisation is none");
    }
}
