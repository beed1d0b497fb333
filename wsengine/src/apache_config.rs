//! Apache's configuration as mod_info prints it, and the number of workers that follows from it.

use crate::error::{Error, Result};

/// A line of the configuration, as Apache understood it.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigLine {
    /// The configuration file.
    pub file: String,
    number: u32,
    /// Inside no `<...>`.
    outside: bool,
    /// Inside a `<VirtualHost>`.
    in_host: bool,
    name: String,
    /// Without quotes around it.
    pub value: String,
}

impl ConfigLine {
    /// FILE:LINE.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.number)
    }

    /// Its value as a whole number.
    ///
    /// # Errors
    /// The line whose value is no number.
    pub fn number(&self) -> Result<i64> {
        let message = || format!("{}: {:?} is no number", self.place(), self.value);
        self.value.parse().map_err(|_| Error::Unavailable(message()))
    }

    fn is(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.name.eq_ignore_ascii_case(name))
    }
}

/// The lines of a configuration, from the output of mod_info.
pub fn parse_dump(dump: &str) -> Vec<ConfigLine> {
    let (mut file, mut number) = (String::new(), 0);
    let mut within: Vec<String> = Vec::new();
    let mut lines = Vec::new();
    for raw in dump.lines().map(str::trim) {
        if let Some(name) = raw.strip_prefix("# In file: ") {
            file = name.to_owned();
        } else if let Some(comment) = raw.strip_prefix('#') {
            number = comment.trim().trim_end_matches(':').parse().unwrap_or(number);
        } else if raw.starts_with("</") {
            within.pop();
        } else if let Some(section) = raw.strip_prefix('<') {
            within.push(section.split([' ', '>']).next().unwrap_or_default().to_ascii_lowercase());
        } else if let Some((name, value)) = raw.split_once(char::is_whitespace) {
            lines.push(ConfigLine {
                file: file.clone(),
                number,
                outside: within.is_empty(),
                in_host: within.iter().any(|section| section == "virtualhost"),
                name: name.to_owned(),
                value: value.trim().trim_matches('"').to_owned(),
            });
        }
    }
    lines
}

/// A configuration that passed Apache's test.
#[derive(Debug, Clone)]
pub struct ParsedConfig {
    /// The lines in the order in which Apache read them.
    pub lines: Vec<ConfigLine>,
    /// `prefork`, `worker` or `event`.
    pub mpm: String,
}

impl ParsedConfig {
    /// The line in effect for the main server: the last one.
    pub fn last(&self, names: &[&str]) -> Option<&ConfigLine> {
        self.lines.iter().rev().find(|line| line.outside && line.is(names))
    }

    /// This configuration without the lines of a file.
    pub fn without(&self, file: &str) -> ParsedConfig {
        let lines = self.lines.iter().filter(|line| line.file != file).cloned().collect();
        ParsedConfig { lines, mpm: self.mpm.clone() }
    }

    /// A remark about virtual hosts that set this directive themselves; empty when there are none.
    pub fn own_hosts(&self, name: &str) -> String {
        let hosts = self.lines.iter().filter(|line| line.in_host && line.is(&[name])).count();
        if hosts == 0 { String::new() } else { format!("; {hosts} lines in virtual hosts set {name} themselves") }
    }

    /// The limits of the number of workers.
    ///
    /// # Errors
    /// A limit whose value is no number.
    pub fn limits(&self) -> Result<Limits> {
        let number = |names: &[&str], default: i64| match self.last(names) {
            Some(line) => line.number(),
            None => Ok(default),
        };
        let prefork = self.mpm == "prefork";
        Ok(Limits {
            server_limit: number(&["ServerLimit"], if prefork { 256 } else { 16 })?,
            threads_per_child: if prefork {
                1
            } else {
                number(&["ThreadsPerChild"], 25)?.min(number(&["ThreadLimit"], 64)?).max(1)
            },
            mpm: self.mpm.clone(),
        })
    }
}

/// The limits of the number of workers. ServerLimit and ThreadLimit change with a full restart only.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// `prefork`, `worker` or `event`.
    pub mpm: String,
    server_limit: i64,
    threads_per_child: i64,
}

impl Limits {
    /// MaxRequestWorkers when nothing sets it: the compiled-in limits, as of Apache 2.4.
    pub fn default_workers(&self) -> i64 {
        if self.mpm == "prefork" { 256 } else { 400 }
    }

    /// The number of workers that Apache's MPMs run with for a MaxRequestWorkers, and why it differs.
    pub fn clamp(&self, wanted: i64) -> (i64, String) {
        let threads = self.threads_per_child;
        if wanted < threads {
            return (threads, format!("{wanted} is less than ThreadsPerChild {threads}, so Apache takes {threads}"));
        }
        let servers = wanted / threads;
        if servers > self.server_limit {
            let most = self.server_limit * threads;
            let limit = self.server_limit;
            let times = if threads > 1 { format!(" times ThreadsPerChild {threads}") } else { String::new() };
            return (most, format!("ServerLimit {limit}{times} allows {most}; raising it takes a full restart"));
        }
        let whole = servers * threads;
        if whole == wanted {
            return (wanted, String::new());
        }
        (whole, format!("{wanted} is no multiple of ThreadsPerChild {threads}, so Apache takes {whole}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "# In file: /etc/apache2/apache2.conf\n#   6:\nServerName x\n#  13:\nMaxRequestWorkers 150\n\
        <VirtualHost *:80>\n  #  21:\n  KeepAliveTimeout 3\n  <Location /a>\n    #  22:\n    KeepAlive Off\n  </Location>\n\
        </VirtualHost>\n# In file: /etc/apache2/zz.conf\n#   1:\nMaxRequestWorkers \"50\"\n#   2:\nThreadsPerChild 25\n";

    fn config(mpm: &str) -> ParsedConfig {
        ParsedConfig { lines: parse_dump(DUMP), mpm: mpm.to_owned() }
    }

    #[test]
    fn the_last_line_outside_of_sections_counts() {
        let config = config("event");
        let line = config.last(&["maxrequestworkers"]).expect("the value is set");
        assert_eq!((line.place().as_str(), line.value.as_str()), ("/etc/apache2/zz.conf:1", "50"));
        let theirs = config.without("/etc/apache2/zz.conf");
        assert_eq!(
            theirs.last(&["MaxRequestWorkers"]).expect("the value is set").place(),
            "/etc/apache2/apache2.conf:13"
        );
        assert_eq!(config.last(&["KeepAliveTimeout"]), None);
        assert_eq!(config.own_hosts("KeepAliveTimeout"), "; 1 lines in virtual hosts set KeepAliveTimeout themselves");
    }

    #[test]
    fn workers_are_clamped_as_the_mpms_do() {
        let event = config("event").limits().expect("numbers");
        assert_eq!(event.clamp(100), (100, String::new()));
        assert_eq!(event.clamp(110).0, 100);
        assert!(event.clamp(110).1.contains("no multiple of ThreadsPerChild 25, so Apache takes 100"));
        assert_eq!(event.clamp(7), (25, "7 is less than ThreadsPerChild 25, so Apache takes 25".to_owned()));
        assert_eq!(event.clamp(1000).0, 400);
        assert!(event.clamp(1000).1.starts_with("ServerLimit 16 times ThreadsPerChild 25 allows 400; raising"));
        let mut limited = config("event");
        limited.lines.extend(parse_dump("ThreadLimit 20\n"));
        assert_eq!(limited.limits().expect("numbers").clamp(100), (100, String::new()));
        assert_eq!(limited.limits().expect("numbers").clamp(10).0, 20, "no more threads than ThreadLimit");
        let prefork = config("prefork").limits().expect("numbers");
        assert_eq!(prefork.clamp(7), (7, String::new()));
        assert_eq!(prefork.clamp(300), (256, "ServerLimit 256 allows 256; raising it takes a full restart".to_owned()));
    }
}
