//! The interface that requests come in by, and TCP of the VM: /proc/net/dev, softnet_stat, snmp and netstat, once
//! a second.
//!
//! Forms: the kernel's Documentation/networking/snmp_counter.rst and statistics.rst; softnet_stat counts in hexadecimal, one
//! line a CPU, drops in the second field. The link's speed in Mbit/s is /sys/class/net/NAME/speed, where a driver knows it.

use slackwater_messages::{Network, Sample};
use slackwater_node::system::System;

use super::metric::metrics;
use super::slow::Slow;
use super::{Collector, CollectorKind, put};
use crate::config::Settings;
use crate::counter_delta::{CounterDelta, GrowthLimit};
use crate::kernel_file::{KeptFile, Reader, UNEXPECTED};
use crate::reason::Reason;

/// Time for which the link's speed is kept: it changes seldom, and a driver may take a while to answer.
const SPEED_FRESH_NS: u64 = 10_000_000_000;

/// Bytes received and sent, packets, drops of the interface and of the CPUs, segments sent again, connections turned away.
const MOST: [GrowthLimit; 7] = {
    let events = GrowthLimit::EVENTS;
    [GrowthLimit::BYTES, GrowthLimit::BYTES, events, events, events, events, events]
};

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "network",
    open,
    metrics: metrics! {
        Gauge "network_saturation_ratio" "The busier direction over the link's speed." => |s| s.network.as_ref()?.saturation;
        Rate "network_bytes" ["direction" = "received"] "Bytes on the interface." => |s| s.network.as_ref()?.received_bytes_per_s;
        Rate "network_bytes" ["direction" = "sent"] "" => |s| s.network.as_ref()?.sent_bytes_per_s;
        Rate "network_drops" "Packets dropped on reception, and errors." => |s| s.network.as_ref()?.drops_per_s;
        Rate "network_retransmits" "TCP segments sent again." => |s| s.network.as_ref()?.retransmits_per_s;
        Rate "network_listen_overflows" "Connections turned away because a listener's queue was full." => |s| s.network.as_ref()?.listen_overflows_per_s;
    },
};

/// Opens the collector for the sniffer's interface.
fn open(settings: &Settings, system: &System) -> Box<dyn Collector> {
    let net = system.proc.join("net");
    let interface = settings.sniffer.interface.clone();
    let collector = Link {
        dev: KeptFile::list(net.join("dev")),
        softnet: KeptFile::list(net.join("softnet_stat")),
        snmp: KeptFile::new(net.join("snmp")),
        netstat: KeptFile::new(net.join("netstat")),
        speed: KeptFile::new(system.sys.join("class/net").join(&interface).join("speed")),
        speed_read: None,
        interface,
        system: system.clone(),
        reader: Reader::default(),
        deltas: CounterDelta::new(MOST),
    };
    Slow::open(collector, system, |from, to, _| to.network.clone_from(&from.network))
}

/// Bytes in, bytes out, packets in and out, drops and errors of an interface, from /proc/net/dev; `None`: it is not listed.
///
/// # Errors
/// The fault of the interface's line, or that this is no such file.
pub fn parse_dev(text: &str, interface: &str) -> Result<Option<[u64; 4]>, String> {
    if !text.starts_with("Inter-|") {
        return Err(UNEXPECTED.to_owned());
    }
    let of_interface = |line: &'_ str| line.trim_start().strip_prefix(interface)?.strip_prefix(':').map(str::to_owned);
    let mut lines = text.lines().skip(2).filter_map(of_interface);
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(format!("two lines of {interface}"));
    }
    let mut values = [0_u64; 16];
    let mut fields = line.split_ascii_whitespace();
    for value in &mut values {
        let field = fields.next().ok_or_else(|| format!("the line of {interface} has too few numbers"))?;
        *value = field.parse().map_err(|_| format!("{field:?} in the line of {interface} is no number"))?;
    }
    let [bytes_in, packets_in, errors_in, drops_in, ..] = values;
    let [bytes_out, packets_out, errors_out, drops_out] = [values[8], values[9], values[10], values[11]];
    let lost = [errors_in, drops_in, errors_out, drops_out].into_iter().try_fold(0_u64, u64::checked_add);
    let sums = lost.zip(packets_in.checked_add(packets_out));
    let (lost, packets) = sums.ok_or_else(|| format!("the numbers in the line of {interface} are too large"))?;
    Ok(Some([bytes_in, bytes_out, packets, lost]))
}

/// Packets that the CPUs' receive queues dropped, from /proc/net/softnet_stat.
///
/// # Errors
/// The text's fault.
pub fn parse_softnet_drops(text: &str) -> Result<u64, String> {
    let mut sum = 0;
    for (cpu, line) in text.lines().enumerate() {
        let field = line.split_ascii_whitespace().nth(1).unwrap_or_default();
        // The kernel's counters have 32 bits each.
        let drops = u32::from_str_radix(field, 16).map_err(|_| format!("{field:?} in line {} is no count", cpu + 1))?;
        sum += u64::from(drops);
    }
    if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(sum) }
}

/// A counter from a table of names and values with the same word in front, as in /proc/net/snmp and netstat.
///
/// # Errors
/// The text's fault; a kernel that does not count it has no such name.
pub fn parse_table(text: &str, word: &str, name: &str) -> Result<u64, String> {
    let mut rows = text.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(": "));
    let names = rows.next().ok_or_else(|| format!("no line of {word}"))?;
    let values = rows.next().ok_or_else(|| format!("no second line of {word}"))?;
    if rows.next().is_some() {
        return Err(format!("more than two lines of {word}"));
    }
    if names.split_ascii_whitespace().count() != values.split_ascii_whitespace().count() {
        return Err(format!("the lines of {word} have different lengths"));
    }
    let mut columns = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
    let (_, value) = columns.find(|(column, _)| *column == name).ok_or_else(|| format!("no {name}"))?;
    value.parse().map_err(|_| format!("{name} is {value:?}, no number"))
}

struct Link {
    interface: String,
    system: System,
    reader: Reader,
    dev: KeptFile,
    softnet: KeptFile,
    snmp: KeptFile,
    netstat: KeptFile,
    speed: KeptFile,
    speed_read: Option<(u64, Result<f64, Reason>)>,
    deltas: CounterDelta<7>,
}

impl Link {
    /// The link's speed in bytes per second.
    fn speed(&mut self, now_ns: u64) -> Result<f64, Reason> {
        if let Some((read_ns, speed)) = &self.speed_read
            && now_ns.saturating_sub(*read_ns) < SPEED_FRESH_NS
        {
            return speed.clone();
        }
        let megabits = self.speed.parse(&mut self.reader, |text| text.trim().parse::<i64>().ok());
        // -1 means "unknown"; drivers without a speed refuse the read.
        let speed = match megabits {
            Ok(megabits) if megabits > 0 => Ok(megabits as f64 * 1e6 / 8.0),
            _ => Err(format!("the driver of {} names no speed", self.interface).into()),
        };
        self.speed_read = Some((now_ns, speed.clone()));
        speed
    }
}

impl Collector for Link {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        if matches!(self.interface.as_str(), "" | "any") {
            return Err("`sniffer.interface` names no single interface".into());
        }
        let now_ns = (self.system.monotonic_ns)();
        let (reader, interface) = (&mut self.reader, &self.interface);
        let dev = match self.dev.read(reader, |text| Ok(parse_dev(text, interface))) {
            Ok(Ok(Some(counters))) => Ok(counters),
            Ok(Ok(None)) => {
                self.deltas.forget();
                return Err(format!("no interface is named {interface}").into());
            }
            Ok(Err(fault)) => Err(Reason::from(format!("{}: {fault}", self.dev.path().display()))),
            Err(reason) => Err(reason),
        };
        let dev_counter = |place: usize| dev.as_ref().map(|counters| counters[place]).map_err(Reason::clone);
        let counters = [
            dev_counter(0),
            dev_counter(1),
            dev_counter(2),
            dev_counter(3),
            self.softnet.read(reader, parse_softnet_drops),
            self.snmp.read(reader, |text| parse_table(text, "Tcp", "RetransSegs")),
            self.netstat.read(reader, |text| parse_table(text, "TcpExt", "ListenOverflows")),
        ];
        if counters.iter().all(Result::is_err) {
            self.deltas.forget();
            return dev.map(drop);
        }
        let delta = self.deltas.advance(now_ns, counters);
        let mut network = Network { interface: self.interface.clone(), ..Network::default() };
        let busier = delta.per_s(0).and_then(|received| Ok(received.max(delta.per_s(1)?)));
        let saturation = match self.speed(now_ns) {
            Ok(speed) => busier.map(|bytes_per_s| bytes_per_s / speed),
            Err(reason) => Err(reason),
        };
        put!(sample, network.saturation, saturation);
        let drops = delta.per_s(3).and_then(|link| Ok(link + delta.per_s(4)?));
        put!(sample, network.drops_per_s, drops);
        put!(sample, network.received_bytes_per_s, delta.per_s(0));
        put!(sample, network.sent_bytes_per_s, delta.per_s(1));
        put!(sample, network.packets_per_s, delta.per_s(2));
        put!(sample, network.retransmits_per_s, delta.per_s(5));
        put!(sample, network.listen_overflows_per_s, delta.per_s(6));
        sample.network = Some(network);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn dev(received: u64, sent: u64, drops: u64) -> String {
        format!(
            "Inter-|   Receive                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|\
             bytes    packets errs drop fifo colls carrier compressed\n    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  \
             eth01: 7 7 0 0 0 0 0 0 7 7 0 0 0 0 0 0\n  eth0:{received} {} 1 {drops} 0 0 0 0 {sent} 5 0 0 0 0 0 0\n",
            received / 100
        )
    }

    fn fixture() -> Fixture {
        Fixture::new(&[
            ("proc/net/dev", &dev(1000, 1000, 0)),
            ("proc/net/softnet_stat", "00000db3 00000000 00000000\n00005e93 0000000a 00000000\n"),
            ("proc/net/snmp", "Ip: A\nIp: 1\nTcp: MaxConn InSegs RetransSegs\nTcp: -1 5 7\n"),
            ("proc/net/netstat", "TcpExt: A ListenOverflows ListenDrops\nTcpExt: 1 2 3\n"),
            ("sys/class/net/eth0/speed", "100\n"),
        ])
    }

    #[test]
    fn drops_of_more_than_a_counter_holds_are_none_of_the_kernels() {
        assert_eq!(parse_softnet_drops("0 ffffffff\n0 ffffffff\n"), Ok(2 * u64::from(u32::MAX)));
        let fault = "\"ffffffffffffffff\" in line 2 is no count";
        assert_eq!(parse_softnet_drops("0 1\n0 ffffffffffffffff\n"), Err(fault.to_owned()));
    }

    #[test]
    fn rates_and_saturation_are_of_the_configured_interface() {
        let fixture = fixture();
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(0.5);
        fixture.write("proc/net/dev", &dev(1000 + 2_500_000, 2000, 2));
        fixture.write("proc/net/softnet_stat", "00000db3 00000001 00000000\n00005e93 0000000a 00000000\n");
        fixture.write("proc/net/snmp", "Ip: A\nIp: 1\nTcp: MaxConn InSegs RetransSegs\nTcp: -1 5 9\n");
        fixture.write("proc/net/netstat", "TcpExt: A ListenOverflows ListenDrops\nTcpExt: 1 7 8\n");
        let sample = collector.sample();
        let expected = Network {
            interface: "eth0".to_owned(),
            received_bytes_per_s: Some(5_000_000.0),
            sent_bytes_per_s: Some(2000.0),
            packets_per_s: Some(50_000.0),
            saturation: Some(0.4),
            drops_per_s: Some(6.0),
            retransmits_per_s: Some(4.0),
            listen_overflows_per_s: Some(10.0),
        };
        assert_eq!((sample.network, sample.absent.len()), (Some(expected), 0));
    }

    #[test]
    fn what_is_not_there_or_went_back_has_a_reason() {
        let fixture = fixture();
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(11.0);
        fixture.write("proc/net/dev", &dev(10, 3000, 0));
        fixture.write("sys/class/net/eth0/speed", "-1\n");
        fixture.write("proc/net/softnet_stat", "");
        let sample = collector.sample();
        let network = sample.network.clone().expect("a value");
        assert_eq!((network.received_bytes_per_s, network.retransmits_per_s), (None, Some(0.0)));
        assert!(sample.absent["network.received_bytes_per_s"].starts_with("the counter went back"));
        assert_eq!(sample.absent["network.saturation"], "the driver of eth0 names no speed");
        assert!(sample.absent["network.drops_per_s"].ends_with("softnet_stat: it is empty"), "{sample:?}");
    }

    #[test]
    fn a_line_that_is_not_understood_hides_only_what_it_counts() {
        let fixture = fixture();
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        let good = dev(2000, 2000, 0);
        for (odd, fault) in [
            (good.replace("eth0:2000", "eth0:x"), "dev: \"x\" in the line of eth0 is no number"),
            (format!("{good}  eth0: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n"), "dev: two lines of eth0"),
            (good.replace(" 5 0 0 0 0 0 0\n", "\n"), "dev: the line of eth0 has too few numbers"),
        ] {
            fixture.advance_s(1.0);
            fixture.write("proc/net/dev", &odd);
            let sample = collector.sample();
            assert_eq!(sample.network.as_ref().and_then(|network| network.retransmits_per_s), Some(0.0));
            assert!(sample.absent["network.received_bytes_per_s"].ends_with(fault), "{sample:?}");
        }
        fixture.advance_s(1.0);
        fixture.write("proc/net/dev", &good.replace("    lo: 9", "    lo: x"));
        collector.sample();
        fixture.write("proc/net/snmp", "Tcp: MaxConn InSegs RetransSegs\nTcp: -1 5\n");
        fixture.advance_s(1.0);
        let sample = collector.sample();
        assert_eq!(sample.network.expect("a value").received_bytes_per_s, Some(0.0), "another interface's line");
        assert!(sample.absent["network.retransmits_per_s"].ends_with("snmp: the lines of Tcp have different lengths"));
    }

    #[test]
    fn an_interface_that_is_not_there_or_not_one_is_said() {
        let fixture = fixture();
        let mut settings = Settings::default();
        for (interface, reason) in [
            ("eth", "no interface is named eth"),
            ("any", "`sniffer.interface` names no single interface"),
            ("", "`sniffer.interface` names no single interface"),
        ] {
            settings.sniffer.interface = interface.to_owned();
            let sample = COLLECTOR.open(&settings, &fixture.system()).sample();
            assert_eq!((sample.network, sample.absent["network"].as_str()), (None, reason));
        }
        fixture.write("proc/net/dev", "nonsense\n");
        let sample = COLLECTOR.open(&Settings::default(), &fixture.system()).sample();
        let why = &sample.absent["network.received_bytes_per_s"];
        assert!(why.ends_with("dev: not in the expected form"), "{why}");
    }
}
