//! Status pages of Apache and php-fpm, their addresses, and what Apache prints of its configuration.
#![no_main]

use slackwater_node::status::{Page, apache, php_fpm};
use slackwater_wsengine::apache_config::parse_dump;

libfuzzer_sys::fuzz_target!(|data: &str| {
    if let Some(status) = apache::ApacheStatus::parse(data) {
        let _ = (status.has_room(), status.fits(150));
    }
    if let Some(status) = php_fpm::PhpFpmStatus::parse(data) {
        let _ = status.queue();
    }
    if let Ok(Page::Http(url)) = Page::parse(data) {
        assert!(url.starts_with("http://"));
    }
    for line in parse_dump(data) {
        let _ = line.number();
    }
});
