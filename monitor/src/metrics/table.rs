//! The page's figures: one line in one table each. A value that the Sample lacks is not on the page.

use slackwater_messages::{Cpu, Sample};

/// What becomes of a value of the Sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Shown as it is.
    Gauge,
    /// Something per second of the period: summed up into a counter.
    Rate,
    /// Something that happened in the period: summed up into a counter.
    Count,
}

/// One figure. Rows of one name follow each other and differ by their label.
pub struct Row {
    /// Without the prefix, and of counters without `_total`.
    pub name: &'static str,
    /// What it is, for people.
    pub help: &'static str,
    /// What becomes of the value.
    pub kind: Kind,
    /// Name and value of the label.
    pub label: Option<(&'static str, &'static str)>,
    /// From the Sample, in base units.
    pub read: fn(&Sample) -> Option<f64>,
}

macro_rules! rows {
    ($( $kind:ident $name:literal $([$label:literal = $value:literal])? $help:literal => $read:expr; )*) => {
        &[$( Row {
            name: $name,
            help: $help,
            kind: Kind::$kind,
            label: rows!(@label $($label $value)?),
            read: $read,
        }, )*]
    };
    (@label) => { None };
    (@label $label:literal $value:literal) => { Some(($label, $value)) };
}

/// The kinds of CPU time are shares of the whole VM: seconds can be told of them where its cores are known.
fn vm_cpu(sample: &Sample, share: fn(&Cpu) -> Option<f64>) -> Option<f64> {
    let cpu = sample.cpu.as_ref().filter(|cpu| cpu.scope == "system")?;
    Some(share(cpu)? * cpu.cores?)
}

fn count(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

/// Cycles per instruction are of two kinds, which have nothing to do with each other.
fn cpi_of(sample: &Sample, source: &str) -> Option<f64> {
    sample.counters.as_ref().filter(|counters| counters.source == source)?.cpi
}

/// All of them.
#[rustfmt::skip]
pub const TABLE: &[Row] = rows! {
    Gauge "cpu_utilisation_ratio" "CPU time over what the scope may use, stolen time included." => |s| s.cpu.as_ref()?.utilisation;
    Gauge "cpu_steal_ratio" "Share of the CPU time that the hypervisor gave to others." => |s| s.cpu.as_ref()?.steal;
    Gauge "cpu_cores" "What a utilisation of 1 means." => |s| s.cpu.as_ref()?.cores;
    Rate "cpu_used_seconds" "CPU time used by the scope, stolen time included." => |s| { let cpu = s.cpu.as_ref()?; Some(cpu.utilisation? * cpu.cores?) };
    Rate "cpu_seconds" ["mode" = "user"] "CPU time of the whole VM by kind." => |s| vm_cpu(s, |cpu| cpu.user);
    Rate "cpu_seconds" ["mode" = "system"] "" => |s| vm_cpu(s, |cpu| cpu.system);
    Rate "cpu_seconds" ["mode" = "irq"] "" => |s| vm_cpu(s, |cpu| cpu.irq);
    Rate "cpu_seconds" ["mode" = "iowait"] "" => |s| vm_cpu(s, |cpu| cpu.iowait);
    Rate "cpu_seconds" ["mode" = "steal"] "" => |s| vm_cpu(s, |cpu| cpu.steal);
    Rate "cpu_throttled_seconds" "Time for which the cgroup was throttled, summed over its cores." => |s| s.cpu.as_ref()?.throttled_s_per_s;
    Gauge "web_processes" "Processes of the web server." => |s| count(s.sched.as_ref()?.processes);
    Gauge "web_threads" "Their threads." => |s| count(s.sched.as_ref()?.threads);
    Rate "web_cpu_seconds" "CPU time of the web server's processes." => |s| s.sched.as_ref()?.cpu_s_per_s;
    Rate "web_run_delay_seconds" "Time for which their threads were runnable and did not run." => |s| s.sched.as_ref()?.run_delay_s_per_s;
    Rate "web_context_switches" ["kind" = "voluntary"] "Times that their threads waited, or had to." => |s| s.sched.as_ref()?.voluntary_switches_per_s;
    Rate "web_context_switches" ["kind" = "involuntary"] "" => |s| s.sched.as_ref()?.involuntary_switches_per_s;
    Rate "pressure_cpu_waiting_seconds" "Time in which some task waited for a CPU." => |s| s.pressure.as_ref()?.cpu_some;
    Rate "pressure_memory_waiting_seconds" "Time in which some task waited for memory." => |s| s.pressure.as_ref()?.memory_some;
    Rate "pressure_memory_stalled_seconds" "Time in which all tasks waited for memory." => |s| s.pressure.as_ref()?.memory_full;
    Rate "pressure_io_waiting_seconds" "Time in which some task waited for a disk." => |s| s.pressure.as_ref()?.io_some;
    Rate "pressure_io_stalled_seconds" "Time in which all tasks waited for a disk." => |s| s.pressure.as_ref()?.io_full;
    Gauge "cycles_per_instruction" "From hardware counters." => |s| cpi_of(s, "pmu");
    Gauge "cache_miss_ratio" "From hardware counters: misses over references." => |s| s.counters.as_ref().filter(|c| c.source == "pmu")?.cache_miss_rate;
    Gauge "canary_cycles_per_load" ["cache" = "l2"] "The probe's chases of pointers, in cycles of the time stamp counter." => |s| s.canary.as_ref()?.l2_cycles_per_load;
    Gauge "canary_cycles_per_load" ["cache" = "llc"] "" => |s| s.canary.as_ref()?.llc_cycles_per_load;
    Gauge "canary_cycles_per_operation" "The probe's arithmetic." => |s| s.canary.as_ref()?.alu_cycles_per_op;
    Gauge "canary_slow_load_ratio" "Share of the probe's loads slower than a cache hit." => |s| s.canary.as_ref()?.slow_share;
    Gauge "canary_wall_cpu_ratio" "Wall time over CPU time of the probe; 1 means that nobody took its core away." => |s| s.canary.as_ref()?.wall_cpu_ratio;
    Gauge "canary_late_seconds" "How long after it was due the probe started." => |s| Some(s.canary.as_ref()?.late_ms? / 1e3);
    Rate "canary_cpu_seconds" "CPU time that the probe took." => |s| s.canary.as_ref()?.cpu_share;
    Gauge "memory_available_ratio" "Share of memory that is free or can be freed without swapping." => |s| s.memory.as_ref()?.available;
    Rate "memory_faults" ["kind" = "minor"] "Page faults." => |s| s.memory.as_ref()?.minor_faults_per_s;
    Rate "memory_faults" ["kind" = "major"] "" => |s| s.memory.as_ref()?.major_faults_per_s;
    Rate "memory_swapped_pages" "In and out." => |s| s.memory.as_ref()?.swapped_pages_per_s;
    Rate "memory_direct_reclaims" "Times that a task had to free memory itself." => |s| s.memory.as_ref()?.direct_reclaims_per_s;
    Count "memory_oom_kills" "Processes killed for their memory." => |s| count(s.memory.as_ref()?.oom_kills);
    Gauge "disk_busy_ratio" "Of the busiest disk: share of time with requests." => |s| s.disk.as_ref()?.busy;
    Gauge "disk_queue_requests" "Of the busiest disk: mean number of requests waiting or served." => |s| s.disk.as_ref()?.queue;
    Gauge "network_saturation_ratio" "The busier direction over the link's speed." => |s| s.network.as_ref()?.saturation;
    Rate "network_bytes" ["direction" = "received"] "Bytes on the interface." => |s| s.network.as_ref()?.received_bytes_per_s;
    Rate "network_bytes" ["direction" = "sent"] "" => |s| s.network.as_ref()?.sent_bytes_per_s;
    Rate "network_drops" "Packets dropped on reception, and errors." => |s| s.network.as_ref()?.drops_per_s;
    Rate "network_retransmits" "TCP segments sent again." => |s| s.network.as_ref()?.retransmits_per_s;
    Rate "network_listen_overflows" "Connections turned away because a listener's queue was full." => |s| s.network.as_ref()?.listen_overflows_per_s;
    Gauge "core_frequency_hertz" "Mean clock of the cores." => |s| Some(s.frequency.as_ref()?.mean_mhz? * 1e6);
    Rate "requests" "Requests whose response ended, as seen on the wire." => |s| s.traffic.as_ref()?.rps;
    Rate "request_errors" "Of these: status 500 and above." => |s| s.traffic.as_ref()?.errors_per_s;
    Gauge "requests_in_flight" "Requests whose response has not ended." => |s| count(s.traffic.as_ref()?.in_flight);
    Count "requests_unmatched" "Requests given up: never answered, evicted, or lost in a hole." => |s| count(s.traffic.as_ref()?.unmatched);
    Count "capture_drops" "Packets that the kernel dropped before the sniffer saw them." => |s| count(s.traffic.as_ref()?.drops);
    Count "capture_holes" "Places where bytes were not captured." => |s| count(s.traffic.as_ref()?.holes);
    Gauge "apache_workers" ["state" = "busy"] "Apache's workers." => |s| count(s.server.as_ref()?.apache_busy_workers);
    Gauge "apache_workers" ["state" = "idle"] "" => |s| count(s.server.as_ref()?.apache_idle_workers);
    Gauge "php_processes" ["state" = "active"] "Processes of php-fpm." => |s| count(s.server.as_ref()?.php_active_processes);
    Gauge "php_processes" ["state" = "idle"] "" => |s| count(s.server.as_ref()?.php_idle_processes);
    Gauge "php_listen_queue_requests" "Requests that wait for a php-fpm process." => |s| count(s.server.as_ref()?.php_listen_queue);
    Count "periods_missed" "Periods left out because the one before took too long." => |s| Some(s.periods_missed as f64);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_conventional_and_rows_of_one_name_follow_each_other() {
        let mut seen: Vec<&str> = Vec::new();
        for row in TABLE {
            let is_safe = row.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            assert!(is_safe && !row.name.ends_with("_total") && !row.name.contains("_ms"), "{}", row.name);
            if seen.last() == Some(&row.name) {
                assert!(row.label.is_some() && row.help.is_empty(), "{}", row.name);
            } else {
                assert!(!seen.contains(&row.name) && row.help.ends_with('.'), "{}", row.name);
                seen.push(row.name);
            }
        }
    }
}
