//! The node's settings: declared once here, with default and help; read from TOML, wrong ones refused with their line.
//!
//! `slackwater-monitor config --list` prints the declarations; the documentation is made from them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use slackwater_messages::is_name;
use slackwater_sniffer::MOST_ROUTES;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::status::Page;
use crate::watched::{Port, RouteClass};

/// One setting, as declared.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// `section.key`, or `key` outside the sections.
    pub name: String,
    /// The default, as TOML.
    pub default: String,
    /// What it does.
    pub help: String,
}

macro_rules! settings {
    (
        $(#[$about:meta])* struct $top:ident { $( #[doc = $help:literal] $key:ident: $kind:ty = $default:expr; )* }
        $( $(#[$section_about:meta])* [$section:ident] struct $name:ident {
            $( #[doc = $s_help:literal] $s_key:ident: $s_kind:ty = $s_default:expr; )*
        } )*
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct $top {
            $( #[doc = $help] pub $key: $kind, )*
            $( $(#[$section_about])* pub $section: $name, )*
        }
        impl Default for $top {
            fn default() -> Self { Self { $( $key: $default, )* $( $section: $name::default(), )* } }
        }
        $(
            $(#[$section_about])*
            #[derive(Debug, Clone, PartialEq, Deserialize)]
            #[serde(default)]
            pub struct $name { $( #[doc = $s_help] pub $s_key: $s_kind, )* }
            impl Default for $name {
                fn default() -> Self { Self { $( $s_key: $s_default, )* } }
            }
        )*
        /// All settings in the order of their declaration.
        pub fn list() -> Vec<Setting> {
            let defaults = $top::default();
            vec![
                $( setting(stringify!($key), &defaults.$key, $help), )*
                $( $( setting(
                    concat!(stringify!($section), ".", stringify!($s_key)), &defaults.$section.$s_key, $s_help
                ), )* )*
            ]
        }
        const SECTIONS: &[&str] = &[$( stringify!($section), )*];
    };
}

settings! {
    /// Everything that a node's monitor is told.
    struct Settings {
        /// The node's name, as the controller knows it; empty: the host name.
        node: String = String::new();
        /// The pool that the node serves in.
        pool: String = "web".to_owned();
        /// Seconds between two Samples.
        period_s: f64 = 0.2;
    }
    /// Where Samples go.
    [bus] struct BusSettings {
        /// URL of the NATS server: nats://HOST:PORT or tls://HOST:PORT.
        url: String = "nats://127.0.0.1:14222".to_owned();
        /// While the bus is away the newest Samples wait for it, this many; older ones are dropped and counted.
        buffer_samples: u32 = 25;
        /// Credentials file of NATS (.creds); empty: none.
        credentials: String = String::new();
        /// File with the seed of an NKey; empty: none.
        nkey_file: String = String::new();
        /// User name, with bus.password_file; empty: none.
        user: String = String::new();
        /// File with the user's password.
        password_file: String = String::new();
        /// File with the certificate authority (PEM) that the server must be of; empty: those of the machine.
        tls_ca: String = String::new();
        /// File with our own certificate (PEM), with bus.tls_key and bus.tls_ca; empty: none.
        tls_cert: String = String::new();
        /// File with the key of our own certificate (PEM).
        tls_key: String = String::new();
    }
    /// What CPU and pressure are measured of.
    [cpu] struct CpuSettings {
        /// Cgroup, as a path below its controller's root; empty: the whole VM.
        cgroup: String = String::new();
    }
    /// Which processes are the web server's.
    [processes] struct ProcessSettings {
        /// Command names, as /proc/PID/comm shows them (the kernel keeps 15 characters).
        names: Vec<String> = vec!["apache2".to_owned(), "php-fpm8.2".to_owned()];
        /// When set: all processes of this cgroup and of those below it, whatever their names.
        cgroup: String = String::new();
    }
    /// The probe that feels for neighbours: arithmetic and chases of pointers through the caches.
    [canary] struct CanarySettings {
        /// false switches the probe off.
        enabled: bool = true;
        /// Largest share of one core that the probe takes.
        max_cpu_share: f64 = 0.002;
        /// Memory of which it walks over one line a page; 0: twice the L2 cache, but 1024 to 4096 KiB.
        working_set_kib: u32 = 0;
    }
    /// Hardware counters through libpfm4 and perf_event.
    [pmu] struct PmuSettings {
        /// false leaves hardware counters alone.
        enabled: bool = true;
        /// What is counted: system (all CPUs), cgroup (the one that cpu.cgroup names), pid (the web server's processes).
        scopes: Vec<String> = vec!["system".to_owned(), "cgroup".to_owned()];
        /// Other libpfm4 names for cycles, instructions, cache_references, cache_misses, llc_load_misses and stalled_cycles, as { cycles = "NAME" }; an empty name leaves the event out.
        events: BTreeMap<String, String> = BTreeMap::new();
        /// true leaves out what the kernel does for the web server; then less permission is needed.
        user_only: bool = false;
        /// Events that are open at a time, one on each CPU or thread, shared by the scopes.
        max_files: u32 = 384;
    }
    /// What the monitor may do once it has started.
    [privileges] struct PrivilegeSettings {
        /// User that it changes to when it was started as root, and who must be able to read the bus's key files and to open status sockets; empty: it stays root, without root's capabilities.
        user: String = String::new();
        /// Other system calls than the monitor's own: deny (they fail), log (the kernel logs them), off.
        seccomp: String = "deny".to_owned();
    }
    /// Response times from the packets on the wire.
    [sniffer] struct SnifferSettings {
        /// Network interface that requests come in by; empty: no capture.
        interface: String = "eth0".to_owned();
        /// TCP ports of the web server; one that doesn't speak what is usual there with what it speaks: "11211:memcached".
        ports: Vec<Port> = vec![Port { number: 80, protocol: None }];
        /// Classes of requests with figures of their own, as in "search=/search*"; the first that matches the path counts.
        routes: Vec<RouteClass> = vec![];
        /// Packets that wait to be read take this much memory.
        buffer_mib: u32 = 2;
    }
    /// Figures for Prometheus, on a page of our own.
    [metrics] struct MetricsSettings {
        /// ADDRESS:PORT of /metrics and /orca; empty: no page.
        listen: String = "127.0.0.1:9465".to_owned();
    }
    /// The web server's own status pages, asked once a second.
    [server] struct ServerSettings {
        /// Apache's mod_status page on loopback, as in http://127.0.0.1/server-status?auto; empty: not asked.
        apache_status_url: String = String::new();
        /// php-fpm's status page: unix:/SOCKET, unix:/SOCKET:/PATH or http://127.0.0.1/PATH?json; empty: not asked.
        php_status: String = String::new();
    }
}

/// Memory that the canary may walk over, in KiB.
const WORKING_SET_KIB: std::ops::RangeInclusive<u32> = 256..=65_536;

fn setting(name: &str, default: &impl Serialize, help: &str) -> Setting {
    // JSON and TOML write numbers, words, truth and lists of them alike.
    let default = serde_json::to_string(default).unwrap_or_default();
    Setting { name: name.to_owned(), default, help: help.trim().to_owned() }
}

/// What is wrong with a configuration: one line a fault, `FILE:LINE: what; what was expected`.
#[derive(Debug)]
pub struct ConfigError(Vec<String>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigError {}

/// Reads and checks a configuration file; an empty `node` is filled in with `hostname`.
///
/// # Errors
/// All that is wrong with it.
pub fn load(path: &Path, hostname: &str) -> Result<Settings, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError(vec![format!("{}: cannot be read: {error}", path.display())]))?;
    parse(&text, &path.display().to_string(), hostname)
}

/// The settings without a file.
///
/// # Errors
/// When the host name is no valid node name.
pub fn defaults(hostname: &str) -> Result<Settings, ConfigError> {
    parse("", "defaults", hostname)
}

/// Reads and checks the text of a configuration; `file` stands in front of each fault.
///
/// # Errors
/// All that is wrong with it.
pub fn parse(text: &str, file: &str, hostname: &str) -> Result<Settings, ConfigError> {
    let line_at = |offset: usize| 1 + text[..offset.min(text.len())].matches('\n').count();
    let at = |offset: usize, fault: &str| format!("{file}:{}: {fault}", line_at(offset));
    let fault_of = |error: &toml::de::Error| match error.span() {
        Some(span) => at(span.start, error.message()),
        None => format!("{file}: {}", error.message()),
    };
    let table = DeTable::parse(text).map_err(|error| ConfigError(vec![fault_of(&error)]))?;
    let entries = entries(table.get_ref());

    let known: Vec<String> = list().into_iter().map(|setting| setting.name).collect();
    let unknown: Vec<String> = entries
        .iter()
        .filter(|entry| !known.contains(&entry.name))
        .map(|entry| at(entry.key.start, &not_known(entry, &known)))
        .collect();
    if !unknown.is_empty() {
        return Err(ConfigError(unknown));
    }

    let mut settings: Settings = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let named = entries.iter().find(|entry| entry.value.contains(&offset));
        ConfigError(vec![match named {
            Some(entry) => at(offset, &format!("`{}`: {}", entry.name, error.message().trim_end())),
            None => fault_of(&error),
        }])
    })?;
    if settings.node.is_empty() {
        settings.node = hostname.to_owned();
    }
    let faults: Vec<String> = faults(&settings)
        .into_iter()
        .map(|(name, fault)| match entries.iter().find(|entry| entry.name == name) {
            Some(entry) => at(entry.key.start, &format!("`{name}` {fault}")),
            None => format!("{file}: `{name}` {fault}"),
        })
        .collect();
    if faults.is_empty() { Ok(settings) } else { Err(ConfigError(faults)) }
}

/// A key of the file with the places of it and of its value.
struct Entry {
    name: String,
    is_table: bool,
    key: std::ops::Range<usize>,
    value: std::ops::Range<usize>,
}

/// The keys of the file as dotted names; of the known sections the keys within.
fn entries(table: &DeTable<'_>) -> Vec<Entry> {
    let entry = |section: Option<&str>, key: &Spanned<std::borrow::Cow<'_, str>>, value: &Spanned<DeValue<'_>>| Entry {
        name: section.map_or(key.get_ref().to_string(), |section| format!("{section}.{}", key.get_ref())),
        is_table: value.get_ref().is_table(),
        key: key.span(),
        value: value.span(),
    };
    let mut found = Vec::new();
    for (key, value) in table {
        match value.get_ref().as_table() {
            Some(inner) if SECTIONS.contains(&key.get_ref().as_ref()) => {
                found.extend(inner.iter().map(|(k, v)| entry(Some(key.get_ref().as_ref()), k, v)));
            }
            _ => found.push(entry(None, key, value)),
        }
    }
    found.sort_by_key(|entry| entry.key.start);
    found
}

/// Says what a wrong key could have been meant as: a section, or a setting (here or in another section).
fn not_known(entry: &Entry, known: &[String]) -> String {
    if !entry.is_table && SECTIONS.contains(&entry.name.as_str()) {
        return format!("`{0}` is a section, not a setting: write [{0}]", entry.name);
    }
    let (what, candidates): (_, Vec<&str>) = if entry.is_table {
        ("section", SECTIONS.to_vec())
    } else {
        ("setting", known.iter().map(String::as_str).collect())
    };
    let key_of = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let distance = |candidate: &&str| {
        // The right key in the wrong section is nearer than any other.
        strsim::damerau_levenshtein(&entry.name, candidate)
            .min(1 + strsim::damerau_levenshtein(&key_of(&entry.name), &key_of(candidate)))
    };
    let near = candidates.iter().copied().min_by_key(|candidate| distance(candidate));
    match near.filter(|candidate| distance(candidate) <= 2 + candidate.len() / 4) {
        Some(near) => format!("unknown {what} `{}`; did you mean `{near}`?", entry.name),
        None => format!("unknown {what} `{}`; `slackwater-monitor config --list` shows what there is", entry.name),
    }
}

/// Settings whose value can't be used, with what was expected.
fn faults(settings: &Settings) -> Vec<(&'static str, String)> {
    let mut faults = Vec::new();
    let mut expect = |name, holds: bool, fault: String| {
        if !holds {
            faults.push((name, fault));
        }
    };
    let name_rule = "must be a name of letters, digits, `_`, `-`, `:` and `.` (no space, no `;`)";
    expect("node", is_name(&settings.node), format!("{name_rule}, got {:?}", settings.node));
    expect("pool", is_name(&settings.pool), format!("{name_rule}, got {:?}", settings.pool));
    let period_s = settings.period_s;
    expect("period_s", (0.05..=60.0).contains(&period_s), format!("must be 0.05 to 60 seconds, got {period_s}"));
    let url = &settings.bus.url;
    let host = ["nats://", "tls://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    expect(
        "bus.url",
        host.is_some_and(|host| !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/')),
        "must be nats://HOST:PORT or tls://HOST:PORT".to_owned(),
    );
    let bus = &settings.bus;
    let given = |text: &String| !text.is_empty();
    let ways = [&bus.credentials, &bus.nkey_file, &bus.user].into_iter().filter(|way| given(way)).count();
    expect("bus.user", ways <= 1, "must be the only one of bus.credentials, bus.nkey_file and bus.user".to_owned());
    let paired = |one, other| given(one) == given(other);
    let needs = |other: &str| format!("must be set together with {other}");
    expect("bus.password_file", paired(&bus.user, &bus.password_file), needs("bus.user"));
    expect("bus.tls_key", paired(&bus.tls_cert, &bus.tls_key), needs("bus.tls_cert"));
    expect("bus.tls_cert", !given(&bus.tls_cert) || given(&bus.tls_ca), needs("bus.tls_ca"));
    let buffer = bus.buffer_samples;
    expect("bus.buffer_samples", (1..=3000).contains(&buffer), format!("must be 1 to 3000, got {buffer}"));
    let listen = &settings.metrics.listen;
    let is_address = listen.is_empty() || listen.parse::<std::net::SocketAddr>().is_ok();
    expect("metrics.listen", is_address, format!("must be ADDRESS:PORT in digits, or empty, got {listen:?}"));
    for (name, cgroup) in [("cpu.cgroup", &settings.cpu.cgroup), ("processes.cgroup", &settings.processes.cgroup)] {
        let safe = !cgroup.split('/').any(|part| part == "..");
        expect(name, safe, format!("must be a path below the controller's root, without `..`, got {cgroup:?}"));
    }
    let share = settings.canary.max_cpu_share;
    expect(
        "canary.max_cpu_share",
        share > 0.0 && share <= 0.05,
        format!("must be above 0 and at most 0.05, got {share}"),
    );
    let kib = settings.canary.working_set_kib;
    expect(
        "canary.working_set_kib",
        kib == 0 || WORKING_SET_KIB.contains(&kib),
        format!("must be 0 or {} to {}, got {kib}", WORKING_SET_KIB.start(), WORKING_SET_KIB.end()),
    );
    let pmu = &settings.pmu;
    expect(
        "pmu.scopes",
        pmu.scopes.iter().all(|scope| crate::pmu::SCOPES.contains(&scope.as_str())),
        format!("must be of {}, got {:?}", crate::pmu::SCOPES.join(", "), pmu.scopes),
    );
    let keys = crate::pmu::events::EVENTS.map(|(_, key, _)| key);
    let strange = pmu.events.keys().find(|key| !keys.contains(&key.as_str()));
    expect(
        "pmu.events",
        strange.is_none(),
        format!("must be a table with keys of {}, got {:?}", keys.join(", "), strange.cloned().unwrap_or_default()),
    );
    let files = pmu.max_files;
    expect("pmu.max_files", (2..=65_536).contains(&files), format!("must be 2 to 65536, got {files}"));
    expect(
        "privileges.seccomp",
        crate::seccomp::MODES.contains(&settings.privileges.seccomp.as_str()),
        format!("must be {}, got {:?}", crate::seccomp::MODES.join(" or "), settings.privileges.seccomp),
    );
    expect("sniffer.ports", !settings.sniffer.ports.is_empty(), "must be at least one port".to_owned());
    let routes = settings.sniffer.routes.len();
    expect("sniffer.routes", routes <= MOST_ROUTES, format!("must be at most {MOST_ROUTES} classes, got {routes}"));
    let server = &settings.server;
    for (name, page) in
        [("server.apache_status_url", &server.apache_status_url), ("server.php_status", &server.php_status)]
    {
        let fault = match Page::parse(page) {
            _ if page.is_empty() => None,
            Ok(Page::FastCgi(..)) if name == "server.apache_status_url" => {
                Some("must be http://127.0.0.1/PATH?auto: Apache speaks no FastCGI".to_owned())
            }
            Ok(_) => None,
            Err(fault) => Some(fault),
        };
        expect(name, fault.is_none(), fault.unwrap_or_default());
    }
    let mib = settings.sniffer.buffer_mib;
    expect("sniffer.buffer_mib", (1..=256).contains(&mib), format!("must be 1 to 256, got {mib}"));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        parse(text, "node.toml", "host").expect_err("refused").to_string()
    }

    #[test]
    fn an_empty_file_gives_the_defaults_with_the_host_name() {
        let settings = parse("", "node.toml", "vm-7").expect("fine");
        assert_eq!(settings, Settings { node: "vm-7".to_owned(), ..Settings::default() });
    }

    #[test]
    fn every_setting_can_be_set() {
        let text: String = list()
            .iter()
            .map(|setting| match setting.name.as_str() {
                "node" => "node = \"n\"\n".to_owned(),
                name => format!("{name} = {}\n", setting.default),
            })
            .collect();
        let settings = parse(&text, "node.toml", "host").unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(settings, Settings { node: "n".to_owned(), ..Settings::default() });
        assert!(list().iter().all(|setting| setting.help.ends_with('.')), "each setting has a sentence of help");
    }

    #[test]
    fn a_wrong_key_is_named_with_its_line_and_the_nearest_one() {
        assert_eq!(
            fault("node = \"a\"\nperoid_s = 0.2\n"),
            "node.toml:2: unknown setting `peroid_s`; did you mean `period_s`?"
        );
        assert_eq!(
            fault("[canary]\nenabled = true\n\nworking_set = 1\n"),
            "node.toml:4: unknown setting `canary.working_set`; did you mean `canary.working_set_kib`?"
        );
        assert_eq!(
            fault("[cpu]\ninterface = \"eth0\"\n"),
            "node.toml:2: unknown setting `cpu.interface`; did you mean `sniffer.interface`?"
        );
        assert_eq!(fault("[snifer]\nports = [80]\n"), "node.toml:1: unknown section `snifer`; did you mean `sniffer`?");
        assert_eq!(
            fault("quite_another_thing = 1\n"),
            "node.toml:1: unknown setting `quite_another_thing`; `slackwater-monitor config --list` shows what there is"
        );
        assert_eq!(fault("bus = \"nats://a:1\"\n"), "node.toml:1: `bus` is a section, not a setting: write [bus]");
    }

    #[test]
    fn all_wrong_keys_are_named_at_once() {
        assert_eq!(fault("nod = 1\n[cpu]\ncgrup = \"\"\n").lines().count(), 2);
    }

    #[test]
    fn a_wrong_type_is_named_with_its_line() {
        let text = fault("node = \"a\"\n\n[sniffer]\nports = \"80\"\n");
        assert!(text.starts_with("node.toml:4: `sniffer.ports`: invalid type: string \"80\""), "{text}");
        let text = fault("[sniffer]\nports = [80, \"8080:smtp\"]\n");
        assert!(text.starts_with("node.toml:2: `sniffer.ports`: \"smtp\" is no protocol known here"), "{text}");
        let text = fault("[sniffer]\nroutes = [\"/search*\"]\n");
        assert!(text.starts_with("node.toml:2: `sniffer.routes`: \"/search*\" is not NAME=PATTERN"), "{text}");
        let text = fault("period_s = true\n");
        assert!(text.starts_with("node.toml:1: `period_s`: invalid type: boolean"), "{text}");
    }

    #[test]
    fn text_that_is_not_toml_is_refused_with_its_line() {
        assert!(fault("node = \"a\"\npool = \n").starts_with("node.toml:2: "));
    }

    #[test]
    fn names_that_are_not_safe_in_subjects_are_refused() {
        for bad in ["a;b", "a b", "a\\nb", "*", "a..b"] {
            assert!(fault(&format!("node = \"{bad}\"\n")).starts_with("node.toml:1: `node` must be a name"), "{bad}");
            assert!(fault(&format!("pool = \"{bad}\"\n")).starts_with("node.toml:1: `pool` must be a name"), "{bad}");
        }
        let error = parse("", "node.toml", "bad host").expect_err("refused").to_string();
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
            ("[pmu]\nscopes = [\"vm\"]", "pmu.scopes"),
            ("[pmu]\nevents = { cycels = \"cycles\" }", "pmu.events"),
            ("[pmu]\nmax_files = 1", "pmu.max_files"),
            ("[privileges]\nseccomp = \"maybe\"", "privileges.seccomp"),
            ("[bus]\nuser = \"a\"", "bus.password_file"),
            ("[bus]\ntls_cert = \"a\"", "bus.tls_key"),
            ("[bus]\ntls_cert = \"a\"\ntls_key = \"b\"", "bus.tls_cert"),
            ("[bus]\nnkey_file = \"a\"\ncredentials = \"b\"", "bus.user"),
            ("[bus]\nbuffer_samples = 0", "bus.buffer_samples"),
            ("[metrics]\nlisten = \"localhost\"", "metrics.listen"),
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
        ] {
            let said = fault(text);
            assert!(said.contains(&format!("`{name}` must be ")), "{text}: {said}");
        }
    }
}
