//! php-fpm's configuration as `php-fpm -tt` prints it, with variables, defaults, prefixes and includes resolved by
//! php-fpm.
//!
//! php-fpm cannot say what its settings would be without one of its files. For that question alone the `include` lines
//! are followed here, and php-fpm gets the whole configuration as one text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, glob_with};

use crate::error::{Error, Result};
use crate::files;

/// Settings by section; settings without a value are left out.
pub type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Appended to a configuration that is only read: php-fpm prints it as notices, and does not write to the site's log.
pub const READ_ONLY: &str = "\n[global]\nerror_log = /dev/null\nlog_level = notice\n";

/// Deepest nesting of includes that is followed.
const DEEPEST: usize = 8;

/// Reads the output of `php-fpm -tt`.
pub fn parse_dump(dump: &str) -> Sections {
    let mut sections = Sections::new();
    let mut section = String::new();
    for text in dump.lines().filter_map(|line| line.split_once("NOTICE: ").map(|(_, text)| text)) {
        if let Some(name) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
            sections.entry(section.clone()).or_default();
        } else if let Some((key, value)) = text.strip_prefix('\t').and_then(|line| line.split_once(" = "))
            && value != "undefined"
        {
            sections.entry(section.clone()).or_default().insert(key.to_owned(), value.to_owned());
        }
    }
    sections
}

/// The folder that relative includes are in: the option `-p` of php-fpm's command.
pub fn prefix(command: &[String]) -> Option<PathBuf> {
    let mut arguments = command.iter().skip(1);
    while let Some(argument) = arguments.next() {
        let value = match argument.as_str() {
            "-p" | "--prefix" => arguments.next().map(String::as_str),
            joined => joined
                .strip_prefix("--prefix=")
                .or_else(|| joined.strip_prefix("-p").filter(|_| !joined.starts_with("--"))),
        };
        if let Some(value) = value {
            return Some(PathBuf::from(value));
        }
    }
    None
}

/// The environment variables that a text names as `${NAME}`.
pub fn variables(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let named = text.split("${").skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name.to_owned()));
    let mut names: Vec<String> = named.collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The text of a configuration with its includes in their places and without the file `without`.
///
/// # Errors
/// A file that cannot be read.
pub fn expanded(main: &Path, without: &Path, prefix: Option<&Path>) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    expand(&mut text, main, without, prefix, 0)?;
    Ok(text)
}

fn expand(text: &mut Vec<u8>, path: &Path, without: &Path, prefix: Option<&Path>, depth: usize) -> Result<()> {
    let is_same = || path.canonicalize().ok().is_some_and(|path| without.canonicalize().ok() == Some(path));
    let is_left_out = path == without || is_same();
    if is_left_out || depth > DEEPEST {
        return Ok(());
    }
    let gone = || Error::Unavailable(format!("{}: it is not there", path.display()));
    for line in files::contents(path)?.ok_or_else(gone)?.split(|byte| *byte == b'\n') {
        let Some(pattern) = included(line) else {
            text.extend_from_slice(line);
            text.push(b'\n');
            continue;
        };
        let pattern = prefix.map_or_else(|| PathBuf::from(&pattern), |prefix| prefix.join(&pattern));
        // As glob(3): sorted, and hidden files only where they are named.
        let options =
            MatchOptions { require_literal_leading_dot: true, require_literal_separator: true, ..MatchOptions::new() };
        for file in glob_with(&pattern.to_string_lossy(), options).into_iter().flatten().flatten() {
            expand(text, &file, without, prefix, depth + 1)?;
        }
    }
    Ok(())
}

/// The pattern of an `include` line.
fn included(line: &[u8]) -> Option<String> {
    let line = String::from_utf8_lossy(line);
    let (key, value) = line.split_once('=')?;
    if key.trim() != "include" {
        return None;
    }
    let value = value.trim();
    let value = match value.chars().next()? {
        quote @ ('"' | '\'') => value[1..].split(quote).next().unwrap_or_default(),
        _ => value.split(';').next().unwrap_or_default().trim_end(),
    };
    let mut pattern = String::new();
    let mut parts = value.split("${");
    pattern.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        pattern.push_str(&std::env::var(name).unwrap_or_default());
        pattern.push_str(rest);
    }
    Some(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    #[test]
    fn the_dump_is_read_by_section_and_what_is_not_set_is_not_there() {
        let dump = "[28-Nov-2026 05:52:02] NOTICE: [global]\n[28-Nov-2026 05:52:02] NOTICE: \tpid = /run/x.pid\n\
                    [28-Nov-2026 05:52:02] NOTICE:  \n[28-Nov-2026 05:52:02] NOTICE: [shop]\n\
                    [28-Nov-2026 05:52:02] NOTICE: \tpm = dynamic\n[28-Nov-2026 05:52:02] NOTICE: \tprefix = undefined\n\
                    [28-Nov-2026 05:52:02] NOTICE: configuration file /a = b test is successful\n";
        let sections = parse_dump(dump);
        assert_eq!(sections["global"]["pid"], "/run/x.pid");
        assert_eq!(sections["shop"].iter().collect::<Vec<_>>(), [(&"pm".to_owned(), &"dynamic".to_owned())]);
    }

    #[test]
    fn includes_stand_in_their_places_and_one_file_is_left_out() {
        let fixture = Fixture::new(&[
            ("pool.d/www.conf", "[www]\npm = dynamic ; note\nuser = M\u{fc}ller\n"),
            ("pool.d/zz.conf", "[www]\npm.max_children = 9\n"),
            ("pool.d/.hidden.conf", "[hidden]\n"),
        ]);
        for include in ["include=pool.d/*.conf", " include = \"pool.d/*.conf\" ; all", "include='pool.d/*.conf'"] {
            fixture.write("main.conf", &format!("[global]\n;include=/nowhere\n{include}\npid = x\n"));
            let text = |without: &Path| {
                let text = expanded(&fixture.path("main.conf"), without, Some(&fixture.path("")));
                String::from_utf8(text.expect("a reading")).expect("text").replace("\n\n", "\n")
            };
            let whole = "[global]\n;include=/nowhere\n[www]\npm = dynamic ; note\nuser = M\u{fc}ller\n\
                         [www]\npm.max_children = 9\npid = x\n";
            assert_eq!(text(Path::new("")), whole);
            assert_eq!(text(&fixture.path("pool.d/zz.conf")), whole.replace("[www]\npm.max_children = 9\n", ""));
        }
    }

    #[test]
    fn options_and_variables_are_found() {
        let command = |arguments: &[&str]| arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>();
        for (arguments, folder) in [
            (&["php-fpm", "-n", "-p", "/a"][..], Some("/a")),
            (&["php-fpm", "--prefix=/b"], Some("/b")),
            (&["php-fpm", "-p/c", "-n"], Some("/c")),
            (&["php-fpm", "-n"], None),
        ] {
            assert_eq!(prefix(&command(arguments)), folder.map(PathBuf::from));
        }
        assert_eq!(variables(b"a = ${B}\nc = \"${A}/${B}\"\n"), ["A", "B"]);
        assert_eq!(included(b"include = /etc/${NO_SUCH_VARIABLE}x/*.conf"), Some("/etc/x/*.conf".to_owned()));
        assert_eq!(included(b"includes = 1"), None);
    }
}
