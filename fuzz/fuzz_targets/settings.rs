//! The configuration files of the monitor and of wsengine.
#![no_main]

use slackwater_node::settings::{ConfigError, parse};

libfuzzer_sys::fuzz_target!(|data: &str| {
    check(parse::<slackwater_monitor::config::Settings>(data, "node.toml", "web1").err());
    check(parse::<slackwater_wsengine::config::Settings>(data, "node.toml", "web1").err());
});

/// Checks that the faults name the file.
fn check(error: Option<ConfigError>) {
    if let Some(error) = error {
        assert!(error.to_string().lines().next().is_some_and(|line| line.starts_with("node.toml")), "{error}");
    }
}
