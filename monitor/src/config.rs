//! The node's settings: declared once here, with default and help; read from TOML, wrong ones refused with their line.
//!
//! `slackwater-monitor config --list` prints the declarations; the documentation is made from them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use slackwater_node::bus::BusSettings;
use slackwater_node::settings::{Faults, Program};
use slackwater_node::status::Page;
use slackwater_sniffer::{MOST_ROUTES, Port, Route};

/// The program's name in logs and error messages.
pub const PROGRAM: &str = "slackwater-monitor";

slackwater_node::settings! {
    /// All settings of a node's monitor.
    struct Settings {
        /// The node's name, as the controller knows it; empty: the host name.
        node: String = String::new();
        /// The pool that the node serves in.
        pool: String = "web".to_owned();
        /// Seconds between two Samples: without pace.by_event always, else in long events.
        period_s: f64 = 0.2;
    }
    use [bus] BusSettings;
    /// Samples by event: seldom while nothing happens, often while a signal is outside its usual range.
    [pace] struct PaceSettings {
        /// true: Samples follow events; false: there is one each period_s.
        by_event: bool = true;
        /// Longest time between two Samples.
        quiet_s: f64 = 1.0;
        /// Seconds between two looks at the signals, and between two Samples while an event is young.
        event_s: f64 = 0.05;
    }
    /// The collectors, each of which measures a part of a Sample.
    [collectors] struct CollectorSettings {
        /// Names of the collectors that are switched off, as in ["disk", "frequency"].
        off: Vec<String> = vec![];
    }
    /// The scope of the figures of CPU and pressure.
    [cpu] struct CpuSettings {
        /// Cgroup, as a path below its controller's root; empty: the whole VM.
        cgroup: String = String::new();
    }
    /// The web server's processes.
    [processes] struct ProcessSettings {
        /// Command names, as /proc/PID/comm shows them (the kernel keeps 15 characters).
        names: Vec<String> = vec!["apache2".to_owned(), "php-fpm8.2".to_owned()];
        /// When set: all processes of this cgroup and of those below it, whatever their names.
        cgroup: String = String::new();
    }
    /// The probe that is slowed by neighbours: arithmetic and chases of pointers through the caches.
    [canary] struct CanarySettings {
        /// false switches the probe off.
        enabled: bool = true;
        /// Largest share of one core that the probe takes.
        max_cpu_share: f64 = 0.002;
        /// Memory of which it walks over one line a page; 0: twice the L2 cache, but 1024 to 4096 KiB.
        working_set_kib: u32 = 0;
    }
    /// The thread that wakes at random moments and finds those at which the machine did not run.
    [gaps] struct GapSettings {
        /// Moments per second; each costs some ten microseconds of CPU time.
        moments_per_s: f64 = 20.0;
    }
    /// Hardware counters through libpfm4 and perf_event.
    [pmu] struct PmuSettings {
        /// false leaves hardware counters alone.
        enabled: bool = true;
        /// Scopes of the counters: system (all CPUs), cgroup (the one of cpu.cgroup), pid (the web server's processes).
        scopes: Vec<String> = vec!["system".to_owned(), "cgroup".to_owned()];
        /// Other libpfm4 names for cycles, instructions, cache_references, cache_misses, llc_load_misses and stalled_cycles, as { cycles = "NAME" }; an empty name leaves the event out.
        events: BTreeMap<String, String> = BTreeMap::new();
        /// true leaves out the kernel's work for the web server; then less permission is needed.
        user_only: bool = false;
        /// Most events that are open at a time, counted for each CPU or thread; the scopes share them.
        max_files: u32 = 384;
    }
    /// The monitor's privileges once it has started.
    [privileges] struct PrivilegeSettings {
        /// User that the monitor changes to after a start as root; it must be able to read the bus's key files and to open status sockets. Empty: it stays root, without root's capabilities.
        user: String = String::new();
        /// Treatment of system calls that the monitor does not need: deny (they fail), log (the kernel logs them), off.
        seccomp: String = "deny".to_owned();
    }
    /// Response times from the packets on the wire.
    [sniffer] struct SnifferSettings {
        /// Network interface on which requests arrive; empty: no capture.
        interface: String = "eth0".to_owned();
        /// TCP ports of the web server, each with its protocol where that is not the port's usual one: "11211:memcached".
        ports: Vec<Port> = vec![Port { number: 80, protocol: None }];
        /// Classes of requests with figures of their own, as in "search=/search*"; the first that matches the path counts.
        routes: Vec<Route> = vec![];
        /// Memory for packets that wait to be read.
        buffer_mib: u32 = 4;
        /// Above this share of one core, only a sample of the connections is looked at, and figures are estimated from it; 1: always all.
        max_cpu_share: f64 = 0.02;
    }
    /// Figures for Prometheus, on a page of our own.
    [metrics] struct MetricsSettings {
        /// ADDRESS:PORT of /metrics and /orca; empty: no page.
        listen: String = "127.0.0.1:9465".to_owned();
    }
    /// HAProxy's agent-check, for pools with `weight_delivery = "agent-check"`.
    [agent] struct AgentSettings {
        /// ADDRESS:PORT that answers HAProxy with the weight that lbengine wants for this node; empty: no answers.
        listen: String = String::new();
    }
    /// The web server's own status pages, asked once a second.
    [server] struct ServerSettings {
        /// Apache's mod_status page on loopback, as in http://127.0.0.1/server-status?auto; empty: not asked.
        apache_status_url: String = String::new();
        /// php-fpm's status page: unix:/SOCKET, unix:/SOCKET:/PATH or http://127.0.0.1/PATH?json; empty: not asked.
        php_status: String = String::new();
    }
}

/// The names that `pmu.scopes` may hold, from the widest to the narrowest.
pub const PMU_SCOPES: [&str; 3] = ["system", "cgroup", "pid"];
/// The names of events in `pmu.events`, in the order of `pmu::events::Event`.
pub const PMU_EVENTS: [&str; 6] =
    ["cycles", "instructions", "cache_references", "cache_misses", "llc_load_misses", "stalled_cycles"];
/// The values of `privileges.seccomp`.
pub const SECCOMP_MODES: [&str; 3] = ["deny", "log", "off"];
/// Memory that the canary may walk over, in KiB.
const WORKING_SET_KIB: RangeInclusive<u32> = 256..=65_536;

impl Settings {
    /// Whether a collector is switched on.
    pub fn is_on(&self, collector: &str) -> bool {
        let is_enabled = match collector {
            "canary" => self.canary.enabled,
            "pmu" => self.pmu.enabled,
            _ => true,
        };
        is_enabled && !self.collectors.off.iter().any(|name| name == collector)
    }
}

impl Program for Settings {
    const NAME: &'static str = PROGRAM;

    fn node(&mut self) -> &mut String {
        &mut self.node
    }

    fn check(&self, faults: &mut Faults) {
        faults.expect_name("node", &self.node);
        faults.expect_name("pool", &self.pool);
        self.bus.check(faults);
        faults.expect_cgroup("cpu.cgroup", &self.cpu.cgroup);
        faults.expect_cgroup("processes.cgroup", &self.processes.cgroup);
        let mut within = |name: &str, value: f64, range: RangeInclusive<f64>| {
            let fault = || format!("must be {} to {}, got {value}", range.start(), range.end());
            faults.expect(name, range.contains(&value), fault);
        };
        within("period_s", self.period_s, 0.05..=60.0);
        within("pace.event_s", self.pace.event_s, 0.02..=1.0);
        within("pace.quiet_s", self.pace.quiet_s, self.pace.event_s..=60.0);
        within("gaps.moments_per_s", self.gaps.moments_per_s, 1.0..=200.0);
        within("pmu.max_files", self.pmu.max_files.into(), 2.0..=65_536.0);
        within("sniffer.buffer_mib", self.sniffer.buffer_mib.into(), 1.0..=256.0);
        within("sniffer.max_cpu_share", self.sniffer.max_cpu_share, 0.001..=1.0);
        let mut expect = |name: &str, holds: bool, fault: String| faults.expect(name, holds, || fault);
        for (name, listen) in [("metrics.listen", &self.metrics.listen), ("agent.listen", &self.agent.listen)] {
            let is_address = listen.is_empty() || listen.parse::<std::net::SocketAddr>().is_ok();
            expect(name, is_address, format!("must be ADDRESS:PORT in digits, or empty, got {listen:?}"));
        }
        let share = self.canary.max_cpu_share;
        expect(
            "canary.max_cpu_share",
            share > 0.0 && share <= 0.05,
            format!("must be above 0 and at most 0.05, got {share}"),
        );
        let kib = self.canary.working_set_kib;
        expect(
            "canary.working_set_kib",
            kib == 0 || WORKING_SET_KIB.contains(&kib),
            format!("must be 0 or {} to {}, got {kib}", WORKING_SET_KIB.start(), WORKING_SET_KIB.end()),
        );
        let pmu = &self.pmu;
        expect(
            "pmu.scopes",
            pmu.scopes.iter().all(|scope| PMU_SCOPES.contains(&scope.as_str())),
            format!("must be of {}, got {:?}", PMU_SCOPES.join(", "), pmu.scopes),
        );
        let strange = pmu.events.keys().find(|key| !PMU_EVENTS.contains(&key.as_str()));
        expect(
            "pmu.events",
            strange.is_none(),
            format!(
                "must be a table with keys of {}, got {:?}",
                PMU_EVENTS.join(", "),
                strange.cloned().unwrap_or_default()
            ),
        );
        expect(
            "privileges.seccomp",
            SECCOMP_MODES.contains(&self.privileges.seccomp.as_str()),
            format!("must be {}, got {:?}", SECCOMP_MODES.join(" or "), self.privileges.seccomp),
        );
        expect("sniffer.ports", !self.sniffer.ports.is_empty(), "must be at least one port".to_owned());
        let routes = self.sniffer.routes.len();
        expect("sniffer.routes", routes <= MOST_ROUTES, format!("must be at most {MOST_ROUTES} classes, got {routes}"));
        let server = &self.server;
        for (name, page) in
            [("server.apache_status_url", &server.apache_status_url), ("server.php_status", &server.php_status)]
        {
            let fault = match Page::parse(page) {
                _ if page.is_empty() => None,
                Ok(Page::FastCgi { .. }) if name == "server.apache_status_url" => {
                    Some("must be http://127.0.0.1/PATH?auto: Apache speaks no FastCGI".to_owned())
                }
                Ok(_) => None,
                Err(error) => Some(error.to_string()),
            };
            expect(name, fault.is_none(), fault.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::settings::{Declared, parse};

    fn fault(text: &str) -> String {
        parse::<Settings>(text, "node.toml", "host").expect_err("a refusal").to_string()
    }

    #[test]
    fn an_empty_file_gives_the_defaults_with_the_host_name() {
        let settings: Settings = parse("", "node.toml", "vm-7").expect("valid settings");
        assert_eq!(settings, Settings { node: "vm-7".to_owned(), ..Settings::default() });
    }

    #[test]
    fn every_setting_can_be_set() {
        let text: String = Settings::list()
            .iter()
            .map(|setting| match setting.name.as_str() {
                "node" => "node = \"n\"\n".to_owned(),
                name => format!("{name} = {}\n", setting.default),
            })
            .collect();
        let settings: Settings = parse(&text, "node.toml", "host").unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(settings, Settings { node: "n".to_owned(), ..Settings::default() });
        assert!(
            Settings::list().iter().all(|setting| setting.help.ends_with('.')),
            "each setting has a sentence of help"
        );
    }

    #[test]
    fn a_wrong_type_is_named_with_its_line() {
        let text = fault("node = \"a\"\n\n[sniffer]\nports = \"80\"\n");
        assert!(text.starts_with("node.toml:4: `sniffer.ports`: invalid type: string \"80\""), "{text}");
        let text = fault("[sniffer]\nports = [80, \"8080:smtp\"]\n");
        assert!(text.starts_with("node.toml:2: `sniffer.ports`: \"smtp\" is no protocol known here"), "{text}");
        let text = fault("[sniffer]\nroutes = [\"/search*\"]\n");
        assert!(text.starts_with("node.toml:2: `sniffer.routes`: \"/search*\" is not NAME=PATTERN"), "{text}");
    }

    #[test]
    fn names_that_are_not_safe_in_subjects_are_refused() {
        for bad in ["a;b", "a b", "a\\nb", "*", "a..b"] {
            assert!(fault(&format!("node = \"{bad}\"\n")).starts_with("node.toml:1: `node` must be a name"), "{bad}");
            assert!(fault(&format!("pool = \"{bad}\"\n")).starts_with("node.toml:1: `pool` must be a name"), "{bad}");
        }
        let error = parse::<Settings>("", "node.toml", "bad host").expect_err("a refusal").to_string();
        assert!(error.starts_with("node.toml: `node` must be a name"), "{error}");
    }

    #[test]
    fn values_outside_their_range_are_refused() {
        for (text, name) in [
            ("period_s = 0.0", "period_s"),
            ("period_s = nan", "period_s"),
            ("[bus]\nurl = \"http://a\"", "bus.url"),
            ("[cpu]\ncgroup = \"../x\"", "cpu.cgroup"),
            ("[canary]\nmax_cpu_share = 0.5", "canary.max_cpu_share"),
            ("[canary]\nworking_set_kib = 1", "canary.working_set_kib"),
            ("[pace]\nevent_s = 0.001", "pace.event_s"),
            ("[pace]\nquiet_s = 0.04", "pace.quiet_s"),
            ("[gaps]\nmoments_per_s = 0.0", "gaps.moments_per_s"),
            ("[pmu]\nscopes = [\"vm\"]", "pmu.scopes"),
            ("[pmu]\nevents = { cycels = \"cycles\" }", "pmu.events"),
            ("[pmu]\nmax_files = 1", "pmu.max_files"),
            ("[privileges]\nseccomp = \"maybe\"", "privileges.seccomp"),
            ("[bus]\nuser = \"a\"", "bus.password_file"),
            ("[bus]\ntls_cert = \"a\"", "bus.tls_key"),
            ("[bus]\ntls_cert = \"a\"\ntls_key = \"b\"", "bus.tls_cert"),
            ("[bus]\nnkey_file = \"a\"\ncredentials = \"b\"", "bus.user"),
            ("[metrics]\nlisten = \"localhost\"", "metrics.listen"),
            ("[agent]\nlisten = \"9777\"", "agent.listen"),
            ("[sniffer]\nports = []", "sniffer.ports"),
            (
                "[sniffer]\nroutes = [\"a=/\",\"b=/\",\"c=/\",\"d=/\",\"e=/\",\"f=/\",\"g=/\",\"h=/\",\"i=/\",\"j=/\",\
              \"k=/\",\"l=/\",\"m=/\",\"n=/\",\"o=/\",\"p=/\",\"q=/\"]",
                "sniffer.routes",
            ),
            ("[server]\napache_status_url = \"http://192.0.2.1/server-status?auto\"", "server.apache_status_url"),
            ("[server]\napache_status_url = \"unix:/run/a.sock\"", "server.apache_status_url"),
            ("[server]\nphp_status = \"/run/php.sock\"", "server.php_status"),
            ("[sniffer]\nbuffer_mib = 0", "sniffer.buffer_mib"),
            ("[sniffer]\nmax_cpu_share = 0", "sniffer.max_cpu_share"),
            ("[sniffer]\nmax_cpu_share = 2.0", "sniffer.max_cpu_share"),
        ] {
            let fault = fault(text);
            assert!(fault.contains(&format!("`{name}` must be ")), "{text}: {fault}");
        }
    }
}
