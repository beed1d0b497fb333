//! Settings, declared once (see [`crate::settings!`]) and read from TOML; a wrong one is refused with its line.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::files::reason;
use serde::Serialize;
use serde::de::DeserializeOwned;
use slackwater_messages::is_name;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One setting, as declared.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// `section.key`, or `key` outside the sections.
    pub name: String,
    /// The default, as TOML.
    pub default: String,
    /// The setting's effect.
    pub help: String,
}

/// A program's settings, as [`crate::settings!`] declares them.
pub trait Declared: DeserializeOwned {
    /// The names of the sections.
    const SECTIONS: &'static [&'static str];

    /// All settings in the order of their declaration.
    fn list() -> Vec<Setting>;
}

/// A program with settings.
pub trait Program: Declared {
    /// Its name, for messages.
    const NAME: &'static str;

    /// The setting with the node's name.
    fn node(&mut self) -> &mut String;

    /// Notes values that cannot be used.
    fn check(&self, faults: &mut Faults);
}

/// Declares the settings of a program: `struct Settings { /// Help. \n key: Kind = default; }`, then the sections that
/// are declared elsewhere as `use [section] SectionSettings;`, and its own as `[section] struct SectionSettings { ... }`
/// (see [`crate::section!`]). The structs have `Default`, the first one is [`Declared`].
#[macro_export]
macro_rules! settings {
    (
        $(#[$about:meta])* struct $top:ident { $( #[doc = $help:literal] $key:ident: $kind:ty = $default:expr; )* }
        $( use [$shared:ident] $shared_name:ident; )*
        $( $(#[$section_about:meta])* [$section:ident] struct $name:ident { $($settings:tt)* } )*
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, serde::Deserialize)]
        #[serde(default)]
        pub struct $top {
            $( #[doc = $help] pub $key: $kind, )*
            $( #[doc = concat!("Section `", stringify!($shared), "`.")] pub $shared: $shared_name, )*
            $( $(#[$section_about])* pub $section: $name, )*
        }
        impl Default for $top {
            fn default() -> Self {
                Self {
                    $( $key: $default, )*
                    $( $shared: $shared_name::default(), )*
                    $( $section: $name::default(), )*
                }
            }
        }
        $( $crate::section! { $(#[$section_about])* struct $name { $($settings)* } } )*
        impl $crate::settings::Declared for $top {
            const SECTIONS: &'static [&'static str] = &[$( stringify!($shared), )* $( stringify!($section), )*];

            fn list() -> Vec<$crate::settings::Setting> {
                let defaults = $top::default();
                let mut list = vec![ $( $crate::settings::setting("", stringify!($key), &defaults.$key, $help), )* ];
                $( list.extend(defaults.$shared.list(stringify!($shared))); )*
                $( list.extend(defaults.$section.list(stringify!($section))); )*
                list
            }
        }
    };
}

/// Declares the settings of one section: `struct SectionSettings { /// Help. \n key: Kind = default; }`.
#[macro_export]
macro_rules! section {
    (
        $(#[$about:meta])* struct $name:ident { $( #[doc = $help:literal] $key:ident: $kind:ty = $default:expr; )* }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, serde::Deserialize)]
        #[serde(default)]
        pub struct $name { $( #[doc = $help] pub $key: $kind, )* }
        impl Default for $name {
            fn default() -> Self { Self { $( $key: $default, )* } }
        }
        impl $name {
            /// The settings with these values as their defaults, in the order of their declaration.
            pub fn list(&self, section: &str) -> Vec<$crate::settings::Setting> {
                vec![ $( $crate::settings::setting(section, stringify!($key), &self.$key, $help), )* ]
            }
        }
    };
}

/// Makes a [`Setting`]; for [`crate::settings!`].
pub fn setting(section: &str, key: &str, default: &impl Serialize, help: &str) -> Setting {
    // JSON and TOML write numbers, words, truth and lists of them alike.
    let default = serde_json::to_string(default).unwrap_or_default();
    let name = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
    Setting { name, default, help: help.trim().to_owned() }
}

/// The faults of a configuration, one line each: `FILE:LINE: fault; expectation`.
#[derive(Debug)]
pub struct ConfigError(Vec<String>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigError {}

/// Settings whose value cannot be used, each with what was expected.
#[derive(Default)]
pub struct Faults(Vec<(String, String)>);

impl Faults {
    /// The faults, without the settings' names.
    #[cfg(test)]
    pub(crate) fn texts(self) -> Vec<String> {
        self.0.into_iter().map(|(_, fault)| fault).collect()
    }

    /// Notes the fault of setting `name`, unless it `holds`.
    pub fn expect(&mut self, name: &str, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.0.push((name.to_owned(), fault()));
        }
    }

    /// Expects a name that is safe in subjects.
    pub fn expect_name(&mut self, name: &str, value: &str) {
        self.expect(name, is_name(value), || {
            format!("must be a name of letters, digits, `_`, `-`, `:` and `.` (no space, no `;`), got {value:?}")
        });
    }

    /// Expects the address of a NATS server.
    pub fn expect_bus_url(&mut self, name: &str, url: &str) {
        let host = ["nats://", "tls://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let is_url =
            host.is_some_and(|host| !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/'));
        self.expect(name, is_url, || "must be nats://HOST:PORT or tls://HOST:PORT".to_owned());
    }

    /// Expects a path of a cgroup below its controller's root.
    pub fn expect_cgroup(&mut self, name: &str, cgroup: &str) {
        self.expect(name, !cgroup.split('/').any(|part| part == ".."), || {
            format!("must be a path below the controller's root, without `..`, got {cgroup:?}")
        });
    }
}

/// Reads and checks a configuration file. See [`parse`].
///
/// # Errors
/// All faults of the configuration.
pub fn load<S: Program>(path: &Path, hostname: &str) -> Result<S, ConfigError> {
    let file = path.display().to_string();
    let bytes = std::fs::read(path)
        .map_err(|error| ConfigError(vec![format!("{file}: cannot be read: {}", reason(&error))]))?;
    let text = text(&bytes).map_err(|fault| ConfigError(vec![format!("{file}:{fault}")]))?;
    parse(text, &file, hostname)
}

/// The text of a file: UTF-8, as TOML demands, with or without a byte order mark before it.
fn text(bytes: &[u8]) -> Result<&str, String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let byte = bytes.get(before.len()).copied().unwrap_or_default();
        format!("{line}: byte 0x{byte:02x} is not UTF-8, which TOML is written in; save the file as UTF-8")
    })
}

/// The configuration that a command reads: the given one, else the program's usual one if it exists.
pub fn file_or_usual(given: Option<PathBuf>, usual: &str) -> Option<PathBuf> {
    let is_missing = |path: &Path| std::fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    given.or_else(|| Some(PathBuf::from(usual)).filter(|path| !is_missing(path)))
}

/// Reads and checks the text of a configuration; each fault begins with `file`. A nameless node takes the host's name.
///
/// # Errors
/// All faults of the configuration.
pub fn parse<S: Program>(text: &str, file: &str, hostname: &str) -> Result<S, ConfigError> {
    let line_at = |offset: usize| 1 + text[..offset.min(text.len())].matches('\n').count();
    let fault_at = |offset: usize, fault: &str| format!("{file}:{}: {fault}", line_at(offset));
    let fault_of = |error: &toml::de::Error| match error.span() {
        Some(span) => fault_at(span.start, error.message()),
        None => format!("{file}: {}", error.message()),
    };
    let table = DeTable::parse(text).map_err(|error| ConfigError(vec![fault_of(&error)]))?;
    let entries = entries(table.get_ref(), S::SECTIONS);
    let known: Vec<String> = S::list().into_iter().map(|setting| setting.name).collect();
    let unknown: Vec<String> = entries
        .iter()
        .filter(|entry| !known.contains(&entry.name))
        .map(|entry| fault_at(entry.key.start, &not_known(entry, S::SECTIONS, &known, S::NAME)))
        .collect();
    if !unknown.is_empty() {
        return Err(ConfigError(unknown));
    }

    let mut settings: S = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        ConfigError(vec![match entries.iter().find(|entry| entry.value.contains(&offset)) {
            Some(entry) => fault_at(offset, &format!("`{}`: {}", entry.name, error.message().trim_end())),
            None => fault_of(&error),
        }])
    })?;
    if settings.node().is_empty() {
        hostname.clone_into(settings.node());
    }
    let mut faults = Faults::default();
    settings.check(&mut faults);
    let faults: Vec<String> = faults
        .0
        .into_iter()
        .map(|(name, fault)| match entries.iter().find(|entry| entry.name == name) {
            Some(entry) => fault_at(entry.key.start, &format!("`{name}` {fault}")),
            None => format!("{file}: `{name}` {fault}"),
        })
        .collect();
    if faults.is_empty() { Ok(settings) } else { Err(ConfigError(faults)) }
}

/// A key of the file, with its place and its value's.
struct Entry {
    name: String,
    is_table: bool,
    key: std::ops::Range<usize>,
    value: std::ops::Range<usize>,
}

/// The keys of the file as dotted names; a known section stands with its keys.
fn entries(table: &DeTable<'_>, sections: &[&str]) -> Vec<Entry> {
    let entry = |section: Option<&str>, key: &Spanned<std::borrow::Cow<'_, str>>, value: &Spanned<DeValue<'_>>| Entry {
        name: section.map_or(key.get_ref().to_string(), |section| format!("{section}.{}", key.get_ref())),
        is_table: value.get_ref().is_table(),
        key: key.span(),
        value: value.span(),
    };
    let mut entries = Vec::new();
    for (key, value) in table {
        match value.get_ref().as_table() {
            Some(inner) if sections.contains(&key.get_ref().as_ref()) => {
                entries.extend(inner.iter().map(|(k, v)| entry(Some(key.get_ref().as_ref()), k, v)));
            }
            _ => entries.push(entry(None, key, value)),
        }
    }
    entries.sort_by_key(|entry| entry.key.start);
    entries
}

/// The fault of an unknown key, with the section or setting (here or in another section) that was probably meant.
fn not_known(entry: &Entry, sections: &[&str], known: &[String], program: &str) -> String {
    if !entry.is_table && sections.contains(&entry.name.as_str()) {
        return format!("`{0}` is a section, not a setting: write [{0}]", entry.name);
    }
    let (kind, candidates): (_, Vec<&str>) = if entry.is_table {
        ("section", sections.to_vec())
    } else {
        ("setting", known.iter().map(String::as_str).collect())
    };
    match nearest(&entry.name, &candidates) {
        Some(near) => format!("unknown {kind} `{}`; did you mean `{near}`?", entry.name),
        None => format!("unknown {kind} `{}`; `{program} config --list` lists all settings", entry.name),
    }
}

/// The candidate that was probably meant by a wrong dotted name; the right key in the wrong section is nearest.
pub fn nearest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let key_of = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let distance = |candidate: &&str| {
        strsim::damerau_levenshtein(name, candidate)
            .min(1 + strsim::damerau_levenshtein(&key_of(name), &key_of(candidate)))
    };
    let near = candidates.iter().copied().min_by_key(|candidate| distance(candidate));
    near.filter(|candidate| distance(candidate) <= 2 + candidate.len() / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    section! {
        /// A section.
        struct Bus {
            /// Where it is.
            url: String = "nats://a:1".to_owned();
        }
    }

    settings! {
        /// For the tests.
        struct Sample {
            /// The node's name.
            node: String = "n".to_owned();
            /// Seconds between two looks.
            period_s: f64 = 0.2;
        }
        use [bus] Bus;
        /// Another section.
        [canary] struct Canary {
            /// Ports.
            ports: Vec<u16> = vec![80];
        }
    }

    impl Program for Sample {
        const NAME: &'static str = "prog";

        fn node(&mut self) -> &mut String {
            &mut self.node
        }

        fn check(&self, faults: &mut Faults) {
            faults.expect_name("node", &self.node);
            faults.expect_bus_url("bus.url", &self.bus.url);
        }
    }

    fn read(text: &str) -> Result<Sample, String> {
        parse(text, "f.toml", "host").map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_gives_the_defaults_and_every_setting_can_be_set() {
        assert_eq!(read(""), Ok(Sample::default()));
        let text: String =
            Sample::list().iter().map(|setting| format!("{} = {}\n", setting.name, setting.default)).collect();
        assert_eq!(read(&text), Ok(Sample::default()));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_text_and_other_encodings_are_named_with_their_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("f.toml");
        let read = |bytes: &[u8]| {
            std::fs::write(&file, bytes).expect("the file is written");
            load::<Sample>(&file, "host").map_err(|error| error.to_string())
        };
        let named = Sample { node: "a".to_owned(), ..Sample::default() };
        for text in ["node = \"a\"\n", "\u{feff}node = \"a\"\n", "\u{feff}node = \"a\"\r\n# comment\r\n"] {
            assert_eq!(read(text.as_bytes()), Ok(named.clone()), "{text:?}");
        }
        let fault = |bytes: &[u8]| read(bytes).expect_err("a refusal").replace(&file.display().to_string(), "f.toml");
        assert_eq!(
            fault(b"node = \"a\"\n# M\xfcnchen\n"),
            "f.toml:2: byte 0xfc is not UTF-8, which TOML is written in; save the file as UTF-8"
        );
        assert!(fault("\u{feff}nod = 1\n".as_bytes()).starts_with("f.toml:1: unknown setting `nod`"));
        assert!(file_or_usual(None, "/nowhere/f.toml").is_none());
        assert_eq!(file_or_usual(Some(file.clone()), "/nowhere/f.toml"), Some(file.clone()));
        assert_eq!(file_or_usual(None, file.to_str().expect("a path")), Some(file.clone()));
    }

    #[test]
    fn wrong_keys_types_and_values_are_named_with_their_line() {
        for (text, message) in [
            ("peroid_s = 1", "f.toml:1: unknown setting `peroid_s`; did you mean `period_s`?"),
            ("[bus]\n\nports = [1]", "f.toml:3: unknown setting `bus.ports`; did you mean `canary.ports`?"),
            ("[cannary]\nports = [1]", "f.toml:1: unknown section `cannary`; did you mean `canary`?"),
            ("elsewhere = 1", "f.toml:1: unknown setting `elsewhere`; `prog config --list` lists all settings"),
            (
                "nod = 1\n[bus]\nurk = 1",
                "f.toml:1: unknown setting `nod`; did you mean `node`?\nf.toml:3: unknown setting `bus.urk`; did you mean `bus.url`?",
            ),
            ("bus = 1", "f.toml:1: `bus` is a section, not a setting: write [bus]"),
            ("[bus]\nurl = \"http://a\"", "f.toml:2: `bus.url` must be nats://HOST:PORT or tls://HOST:PORT"),
        ] {
            assert_eq!(read(text).unwrap_err(), message);
        }
        assert!(read("\n[canary]\nports = \"80\"").unwrap_err().starts_with("f.toml:3: `canary.ports`: invalid type"));
        assert!(read("node = \"a;b\"").unwrap_err().starts_with("f.toml:1: `node` must be a name"));
        assert!(read("node = \n").unwrap_err().starts_with("f.toml:1: "));
        assert_eq!(read("node = \"\"").expect("valid settings").node, "host");
    }
}
