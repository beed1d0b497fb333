//! Files of /proc and of cgroups, which differ between kernels.
#![no_main]

use slackwater_monitor::collectors::{disk, memory, network, pressure};
use slackwater_monitor::{switches, ticks};
use slackwater_node::cgroup::{Quota, parse_throttling, parse_usage_v1, parse_usage_v2};
use slackwater_node::list::parse_list;
use slackwater_node::processes::{Schedstat, stat_fields};

libfuzzer_sys::fuzz_target!(|data: &str| {
    let _ = (parse_usage_v1(data), parse_usage_v2(data), parse_throttling(data));
    let (first, second) = data.split_once('\n').unwrap_or((data, ""));
    for quota in [Quota::parse_v2(data), Quota::parse_v1(first, second)].into_iter().flatten() {
        assert!(quota.cores().is_none_or(|cores| cores > 0.0 && cores.is_finite()), "{quota:?}");
    }
    if let Some(numbers) = parse_list(data) {
        assert!(numbers.len() <= 1 << 16, "a list of CPUs");
    }
    let _ = (ticks::parse_stat(data), Schedstat::parse(data), switches::parse_status(data));
    let _ = stat_fields(data).map(Iterator::count);
    let _ = (disk::parse_line(first), network::parse_dev(data, "eth0"), network::parse_softnet_drops(data));
    let _ = (network::parse_table(data, "Tcp:", "RetransSegs"), pressure::parse_totals_us(data));
    let _ = (memory::parse_available(data), memory::parse_vmstat(data));
});
