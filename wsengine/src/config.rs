//! The settings: declared once here, with default and help. `slackwater-wsengine config --list` prints them.
//!
//! A knob's setting has the knob's own name and lists the values that Orders may set. While it is empty, Orders may not
//! set the knob.

use std::path::Path;

use slackwater_node::bus::BusSettings;
use slackwater_node::settings::{Faults, Program};

use crate::allowed::AllowedValues;

/// The program's name in messages.
pub const PROGRAM: &str = "slackwater-wsengine";

slackwater_node::settings! {
    /// All settings of a node's wsengine.
    struct Settings {
        /// The node's name, as the controller knows it; empty: the host name.
        node: String = String::new();
        /// The pool that the node serves in.
        pool: String = "web".to_owned();
        /// The kind of node: the controller tries values that were good for one node on others of its kind.
        kind: String = "any".to_owned();
        /// Folder for baselines, leases and Changes that wait for the bus; for root alone.
        state_dir: String = "/var/lib/slackwater-wsengine".to_owned();
        /// Seconds between two checks whether somebody else changed a setting.
        check_every_s: f64 = 10.0;
    }
    use [bus] BusSettings;
    /// The Orders that are accepted.
    [orders] struct OrderSettings {
        /// The controller's Ed25519 public key, in PEM; Orders that it did not sign are refused.
        public_key: String = "/etc/slackwater/orders.pub".to_owned();
        /// Longest lease that an Order may ask for, in seconds.
        max_lease_s: f64 = 600.0;
        /// How far ahead the controller's clock may be, in seconds.
        clock_skew_s: f64 = 5.0;
    }
    /// The Apache of this node.
    [apache] struct ApacheSettings {
        /// Bounds of MaxRequestWorkers: [lowest, highest].
        max_request_workers: AllowedValues = AllowedValues::default();
        /// Bounds of KeepAliveTimeout in seconds: [lowest, highest].
        keepalive_timeout: AllowedValues = AllowedValues::default();
        /// Allowed values of KeepAlive: ["on", "off"].
        keepalive: AllowedValues = AllowedValues::default();
        /// Apache's control program with the arguments that it always needs.
        command: Vec<String> = vec!["/usr/sbin/apache2ctl".to_owned()];
        /// The file that only we write; Apache's configuration must include it after its own files.
        drop_in: String = "/etc/apache2/conf-enabled/zz-slackwater.conf".to_owned();
        /// mod_info, loaded for configuration tests alone: it prints the configuration as Apache understands it.
        info_module: String = "/usr/lib/apache2/modules/mod_info.so".to_owned();
        /// Address of server-status with `?auto`; empty: there is none.
        status_url: String = "http://127.0.0.1/server-status?auto".to_owned();
        /// Shortest time between two graceful restarts, in seconds.
        reload_min_interval_s: f64 = 10.0;
    }
    /// The php-fpm of this node.
    [php_fpm] struct PhpFpmSettings {
        /// Bounds of pm.max_children: [lowest, highest].
        max_children: AllowedValues = AllowedValues::default();
        /// php-fpm with the arguments that it always needs, `-y` left out.
        command: Vec<String> = vec!["/usr/sbin/php-fpm8.2".to_owned()];
        /// php-fpm's main configuration file.
        config: String = "/etc/php/8.2/fpm/php-fpm.conf".to_owned();
        /// The pool (its section's name) that is changed.
        pool: String = "www".to_owned();
        /// The file that only we write; the main file must include it after the pool's own.
        drop_in: String = "/etc/php/8.2/fpm/pool.d/zz-slackwater.conf".to_owned();
        /// Shortest time between two reloads, in seconds.
        reload_min_interval_s: f64 = 10.0;
    }
    /// Cores and CPU time.
    [cpu] struct CpuSettings {
        /// Governors and bounds in kHz: ["performance", "powersave", 1000000, 3000000].
        frequency: AllowedValues = AllowedValues::default();
        /// Bounds in kHz of the frequency of each core, where each has its own: [1000000, 3000000]. Not together with cpu.frequency.
        core_frequency: AllowedValues = AllowedValues::default();
        /// Bounds of the least share of the highest clock that the web server's threads ask for, in percent: [0, 100].
        uclamp_min: AllowedValues = AllowedValues::default();
        /// Policies that may run on the node itself: ["hurry-up", "pareto"]. They set cpu.core_frequency or cpu.quota, and cpu.cores, within these knobs' bounds.
        policy: AllowedValues = AllowedValues::default();
        /// Unix socket on which applications report their hot function while `hurry-up` runs; its folder must exist, and the folder's group may write to it.
        events_socket: String = "/run/slackwater-events/socket".to_owned();
        /// Bounds of the number of cores that the web server may run on: [lowest, highest].
        cores: AllowedValues = AllowedValues::default();
        /// Bounds of the web server's share of CPU time, in percent of its baseline: [lowest, highest].
        share: AllowedValues = AllowedValues::default();
        /// Bounds of the web server's CPU time per second, in percent of one core: [lowest, highest]. It takes the place of a clock; not together with cpu.share.
        quota: AllowedValues = AllowedValues::default();
        /// Cores whose frequency is set; empty: all.
        cpus: Vec<u32> = vec![];
        /// The web server's cgroup, as a path below its controller's root; empty: cores by affinity, no share.
        cgroup: String = String::new();
        /// Without a cgroup: command names of the processes whose affinity is set.
        processes: Vec<String> = vec!["apache2".to_owned(), "php-fpm8.2".to_owned()];
    }
    /// Batch jobs beside the web server.
    [batch] struct BatchSettings {
        /// Their cgroup, as a path below its controller's root, such as batch.slice; not the web server's, nor one above or below it. Empty: none.
        cgroup: String = String::new();
        /// Bounds of the number of cores that they may run on, the last ones: [lowest, highest].
        cores: AllowedValues = AllowedValues::default();
        /// Whether they run: ["on", "off"]. `off` stops all processes of the cgroup until the lease ends.
        running: AllowedValues = AllowedValues::default();
    }
    /// Any server with a number of worker threads in a file: a media server, nginx.
    [streaming] struct StreamingSettings {
        /// Bounds of the number: [lowest, highest].
        num_threads: AllowedValues = AllowedValues::default();
        /// The file with the number.
        file: String = String::new();
        /// The file's content, with {value} where the number stands (once).
        template: String = String::new();
        /// Command, as a list of arguments, that tests the configuration; status 0 is fine.
        test: Vec<String> = vec![];
        /// Command, as a list of arguments, that makes the server read the file; status 0 is fine.
        reload: Vec<String> = vec![];
        /// Command, as a list of arguments, that prints the number in effect; empty: the number in the file counts.
        read: Vec<String> = vec![];
        /// Shortest time between two reloads, in seconds.
        reload_min_interval_s: f64 = 10.0;
    }
}

/// Whether two cgroups are the same, or one is within the other.
fn overlap(first: &str, second: &str) -> bool {
    let (first, second) = (Path::new(first.trim_matches('/')), Path::new(second.trim_matches('/')));
    let are_set = !first.as_os_str().is_empty() && !second.as_os_str().is_empty();
    are_set && (first.starts_with(second) || second.starts_with(first))
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
        faults.expect_cgroup("batch.cgroup", &self.batch.cgroup);
        faults.expect("batch.cgroup", !overlap(&self.batch.cgroup, &self.cpu.cgroup), || {
            format!(
                "must not be `cpu.cgroup`, nor above or below it: the web server would be stopped with the batch jobs; got {:?}",
                self.batch.cgroup
            )
        });
        let needs_cgroup = !self.batch.cores.is_empty() || !self.batch.running.is_empty();
        faults.expect("batch.cgroup", !needs_cgroup || !self.batch.cgroup.is_empty(), || {
            "must be there with `batch.cores` and `batch.running`: they are settings of that cgroup".to_owned()
        });
        let words = self.batch.running.words();
        faults.expect(
            "batch.running",
            words.iter().all(|word| matches!(*word, "on" | "off")) && self.batch.running.bounds().is_none(),
            || format!("must be a list of `on` and `off`, got {}", self.batch.running),
        );
        for (name, seconds, lowest, highest) in [
            ("check_every_s", self.check_every_s, 0.1, 600.0),
            ("orders.max_lease_s", self.orders.max_lease_s, 1.0, 86_400.0),
            ("orders.clock_skew_s", self.orders.clock_skew_s, 0.0, 60.0),
            ("apache.reload_min_interval_s", self.apache.reload_min_interval_s, 0.0, 3600.0),
            ("php_fpm.reload_min_interval_s", self.php_fpm.reload_min_interval_s, 0.0, 3600.0),
            ("streaming.reload_min_interval_s", self.streaming.reload_min_interval_s, 0.0, 3600.0),
        ] {
            faults.expect(name, (lowest..=highest).contains(&seconds), || {
                format!("must be {lowest} to {highest} seconds, got {seconds}")
            });
        }
        for (name, path) in [
            ("state_dir", &self.state_dir),
            ("orders.public_key", &self.orders.public_key),
            ("apache.drop_in", &self.apache.drop_in),
            ("apache.info_module", &self.apache.info_module),
            ("php_fpm.config", &self.php_fpm.config),
            ("php_fpm.drop_in", &self.php_fpm.drop_in),
            ("cpu.events_socket", &self.cpu.events_socket),
        ] {
            // The paths appear within quotes in the configuration files of other programs.
            let safe = path.starts_with('/') && !path.contains(|c: char| c == '"' || c == '\\' || c.is_control());
            faults.expect(name, safe, || format!("must be a path from the root, without quotes, got {path:?}"));
        }
        faults.expect("php_fpm.pool", !self.php_fpm.pool.contains(['[', ']', '\n', ';']), || {
            format!("must be a section's name, got {:?}", self.php_fpm.pool)
        });
        faults.expect("cpu.quota", self.cpu.quota.is_empty() || self.cpu.share.is_empty(), || {
            "must not be there together with `cpu.share`: both write the quota of cpu.cgroup".to_owned()
        });
        faults.expect(
            "cpu.core_frequency",
            self.cpu.core_frequency.is_empty() || self.cpu.frequency.is_empty(),
            || "must not be there together with `cpu.frequency`: both write the clocks of the cores".to_owned(),
        );
        let url = &self.apache.status_url;
        faults.expect("apache.status_url", url.is_empty() || url.starts_with("http://"), || {
            format!("must be http://HOST/PATH?auto or empty, got {url:?}")
        });
        let streaming = &self.streaming;
        if !streaming.num_threads.is_empty() {
            let once = streaming.template.matches("{value}").count() == 1;
            faults.expect("streaming.template", once, || "must contain {value} once".to_owned());
            faults.expect("streaming.file", streaming.file.starts_with('/'), || {
                "must be a path from the root".to_owned()
            });
            for (name, command) in [("streaming.test", &streaming.test), ("streaming.reload", &streaming.reload)] {
                faults.expect(name, !command.is_empty(), || "must be a command, as a list of arguments".to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use slackwater_node::settings::{Declared, parse};

    use super::*;

    fn fault(text: &str) -> String {
        parse::<Settings>(text, "w.toml", "host").expect_err("a refusal").to_string()
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
        let settings: Settings = parse(&text, "w.toml", "host").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(settings, Settings { node: "n".to_owned(), ..Settings::default() });
        assert!(Settings::list().iter().all(|setting| setting.help.ends_with('.')), "each has a sentence of help");
    }

    #[test]
    fn values_that_cannot_be_used_are_named_with_their_line() {
        for (text, message) in [
            ("[apache]\nmax_request_worker = [1, 2]", "did you mean `apache.max_request_workers`?"),
            ("[apache]\nmax_request_workers = [2, 1]", "`apache.max_request_workers`: must be a list of words and"),
            ("[apache]\nmax_request_workers = [1]", "`apache.max_request_workers`: must be a list of words and"),
            ("[apache]\nkeepalive = [\"on;off\"]", "`apache.keepalive`: must be a list of words and"),
            ("[apache]\ndrop_in = \"conf\"", "`apache.drop_in` must be a path from the root"),
            ("[orders]\nmax_lease_s = 0.0", "`orders.max_lease_s` must be 1 to 86400 seconds, got 0"),
            ("[cpu]\nshare = [1, 2]\nquota = [1, 2]", "`cpu.quota` must not be there together with `cpu.share`"),
            (
                "[cpu]\nfrequency = [1, 2]\ncore_frequency = [1, 2]",
                "`cpu.core_frequency` must not be there together with `cpu.frequency`",
            ),
            ("[batch]\ncores = [1, 2]", "`batch.cgroup` must be there with `batch.cores`"),
            (
                "[batch]\ncgroup = \"b\"\nrunning = [\"yes\"]",
                "`batch.running` must be a list of `on` and `off`, got `yes`",
            ),
            (
                "[cpu]\ncgroup = \"web.slice\"\n[batch]\ncgroup = \"web.slice/batch\"",
                "`batch.cgroup` must not be `cpu.cgroup`, nor above or below it",
            ),
            ("[streaming]\nnum_threads = [1, 8]\n", "`streaming.template` must contain {value} once"),
        ] {
            assert!(fault(text).contains(message), "{text}: {}", fault(text));
            assert!(fault(text).starts_with("w.toml:") || text.contains("streaming"));
        }
    }
}
