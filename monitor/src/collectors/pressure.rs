//! Pressure stall information: the share of the period in which some task (`some`) or every task that had work (`full`)
//! waited for CPU, memory or disk; of the VM (/proc/pressure), and of a cgroup where version 2 keeps it.
//!
//! Form: the kernel's Documentation/accounting/psi.rst; `total` is in microseconds. `full` of the CPU is there since 5.13, and
//! means nothing for a whole VM.

use slackwater_messages::{AbsenceCause, Pressure, Sample};

use slackwater_node::cgroup;
use slackwater_node::system::System;

use super::metric::metrics;
use super::{Collector, CollectorKind, first_read, put};
use crate::config::Settings;
use crate::counter_delta::{Count, CounterDelta, Delta, GrowthLimit, if_counted};
use crate::kernel_file::{KeptFile, Reader, UNEXPECTED};
use crate::reason::Reason;

const RESOURCES: [&str; 3] = ["cpu", "memory", "io"];

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "pressure",
    open,
    metrics: metrics! {
        Rate "pressure_cpu_waiting_seconds" "Time in which some task waited for a CPU." => |s| s.pressure.as_ref()?.cpu_some;
        Rate "pressure_memory_waiting_seconds" "Time in which some task waited for memory." => |s| s.pressure.as_ref()?.memory_some;
        Rate "pressure_memory_stalled_seconds" "Time in which all tasks waited for memory." => |s| s.pressure.as_ref()?.memory_full;
        Rate "pressure_io_waiting_seconds" "Time in which some task waited for a disk." => |s| s.pressure.as_ref()?.io_some;
        Rate "pressure_io_stalled_seconds" "Time in which all tasks waited for a disk." => |s| s.pressure.as_ref()?.io_full;
    },
};

/// Opens the VM's pressure files. The cgroup's files are searched for until they are there.
fn open(settings: &Settings, system: &System) -> Box<dyn Collector> {
    let vm = RESOURCES.map(|resource| Stall::new(KeptFile::new(system.proc.join("pressure").join(resource))));
    first_read(Stalls {
        system: system.clone(),
        cgroup: settings.cpu.cgroup.clone(),
        vm,
        of_cgroup: None,
        reader: Reader::default(),
    })
}

/// Total microseconds in which some task waited, and in which all did. A line that is not understood hides its own
/// total.
///
/// # Errors
/// When there is no line of either.
pub fn parse_totals_us(text: &str) -> Result<[Count; 2], String> {
    let total = |word: &str| -> Option<Count> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        let line = lines.next()?;
        let number = line.rsplit_once("total=").map_or("", |(_, number)| number.trim());
        Some(match number.parse() {
            _ if lines.next().is_some() => Err(format!("two `{word}` lines").into()),
            Ok(total) => Ok(total),
            Err(_) => Err(format!("the `{word}` line has no total").into()),
        })
    };
    let some = total("some").ok_or_else(|| UNEXPECTED.to_owned())?;
    Ok([some, total("full").unwrap_or_else(|| if_counted(None))])
}

/// One resource's file.
struct Stall {
    file: KeptFile,
    deltas: CounterDelta<2>,
}

/// Shares of the period with `some` and with `full`.
type Shares = [Result<f64, Reason>; 2];

impl Stall {
    fn new(file: KeptFile) -> Stall {
        Stall { file, deltas: CounterDelta::new([GrowthLimit::time(1e6); 2]) }
    }

    fn shares(&mut self, reader: &mut Reader, now_ns: u64) -> Shares {
        let totals = match self.file.read(reader, parse_totals_us) {
            Ok(totals) => totals,
            Err(reason) => {
                self.deltas.forget();
                let reason = Reason::new(AbsenceCause::NoPsi, format!("{reason}: no PSI here"));
                return [Err(reason.clone()), Err(reason)];
            }
        };
        let delta: Delta<2> = self.deltas.advance(now_ns, totals);
        // The kernel's clock and ours are read a moment apart, so a share can come out above 1.
        [0, 1].map(|place| Ok((delta.per_s(place)? / 1e6).min(1.0)))
    }
}

struct Stalls {
    system: System,
    cgroup: String,
    vm: [Stall; 3],
    of_cgroup: Option<[Stall; 3]>,
    reader: Reader,
}

impl Stalls {
    /// The cgroup's CPU, memory and disk.
    fn of_cgroup(&mut self, now_ns: u64) -> Result<[Shares; 3], Reason> {
        if self.cgroup.is_empty() {
            return Err("`cpu.cgroup` names no cgroup".into());
        }
        let mut stalls = match self.of_cgroup.take() {
            Some(stalls) => stalls,
            None => {
                let none = || format!("cgroup {} has no pressure files (version 2 with PSI has)", self.cgroup);
                let directory = cgroup::find_pressure(&self.system.cgroup, &self.cgroup)
                    .ok_or_else(|| Reason::new(AbsenceCause::NoPsi, none()))?;
                RESOURCES.map(|name| Stall::new(KeptFile::new(directory.join(format!("{name}.pressure")))))
            }
        };
        let shares = stalls.each_mut().map(|stall| stall.shares(&mut self.reader, now_ns));
        // When no file can be read the cgroup is gone, and may come back somewhere else.
        if shares.iter().any(|[some, _]| some.is_ok()) || stalls.iter().any(|stall| stall.deltas.has_reading()) {
            self.of_cgroup = Some(stalls);
        }
        Ok(shares)
    }
}

impl Collector for Stalls {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        let now_ns = (self.system.monotonic_ns)();
        let vm = self.vm.each_mut().map(|stall| stall.shares(&mut self.reader, now_ns));
        let group = self.of_cgroup(now_ns);
        let is_there = |shares: &[Shares; 3]| shares.iter().any(|[some, _]| some.is_ok());
        if !is_there(&vm) && !group.as_ref().is_ok_and(is_there) {
            let [[cpu_some, _], ..] = vm;
            return cpu_some.map(drop);
        }
        let mut pressure = Pressure::default();
        let [[cpu_some, _], [memory_some, memory_full], [io_some, io_full]] = vm;
        put!(sample, pressure.cpu_some, cpu_some);
        put!(sample, pressure.memory_some, memory_some);
        put!(sample, pressure.memory_full, memory_full);
        put!(sample, pressure.io_some, io_some);
        put!(sample, pressure.io_full, io_full);
        let [cpu_some, cpu_full, memory_some, io_some] = match group {
            Ok([[cpu_some, cpu_full], [memory_some, _], [io_some, _]]) => [cpu_some, cpu_full, memory_some, io_some],
            Err(reason) => [(); 4].map(|()| Err(reason.clone())),
        };
        put!(sample, pressure.cgroup_cpu_some, cpu_some);
        put!(sample, pressure.cgroup_cpu_full, cpu_full);
        put!(sample, pressure.cgroup_memory_some, memory_some);
        put!(sample, pressure.cgroup_io_some, io_some);
        sample.pressure = Some(pressure);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_node::fixture::Fixture;

    fn psi(some_us: u64, full_us: u64) -> String {
        format!(
            "some avg10=0.10 avg60=0.00 avg300=0.00 total={some_us}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={full_us}\n"
        )
    }

    #[test]
    fn the_totals_are_read_and_full_may_be_missing() {
        assert_eq!(parse_totals_us(&psi(123, 7)), Ok([Ok(123), Ok(7)]));
        let old = parse_totals_us("some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n");
        assert_eq!(old, Ok([Ok(5), if_counted(None)]));
        for bad in ["", "full avg10=0.00 total=5\n"] {
            assert!(parse_totals_us(bad).is_err(), "{bad:?}");
        }
        for (bad, fault) in [
            ("some avg10=0.00\nfull total=7\n", "the `some` line has no total"),
            ("some total=-1\nfull total=7\n", "the `some` line has no total"),
            ("some total=1\nsome total=2\nfull total=7\n", "two `some` lines"),
        ] {
            assert_eq!(parse_totals_us(bad), Ok([Err(fault.into()), Ok(7)]), "{bad:?}");
        }
    }

    #[test]
    fn shares_are_of_the_period_and_never_above_one() {
        let fixture = Fixture::new(&[
            ("proc/pressure/cpu", &psi(1000, 0)),
            ("proc/pressure/memory", &psi(0, 0)),
            ("proc/pressure/io", &psi(500, 100)),
        ]);
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(0.2);
        fixture.write("proc/pressure/cpu", &psi(51_000, 0));
        fixture.write("proc/pressure/io", &psi(200_600, 20_100));
        let sample = collector.sample();
        let pressure = sample.pressure.expect("a value");
        assert!((pressure.cpu_some.expect("a value") - 0.25).abs() < 1e-9);
        assert_eq!((pressure.memory_some, pressure.memory_full, pressure.io_some), (Some(0.0), Some(0.0), Some(1.0)));
        assert!((pressure.io_full.expect("a value") - 0.1).abs() < 1e-9);
        assert_eq!(pressure.cgroup_cpu_some, None);
        assert_eq!(sample.absent["pressure.cgroup_cpu_some"], "`cpu.cgroup` names no cgroup");
    }

    #[test]
    fn what_is_not_there_or_went_back_has_a_reason() {
        let fixture = Fixture::new(&[("proc/pressure/cpu", &psi(1000, 0)), ("proc/pressure/memory", &psi(1000, 0))]);
        let mut collector = COLLECTOR.open(&Settings::default(), &fixture.system());
        fixture.advance_s(0.2);
        fixture.write("proc/pressure/memory", &psi(10, 0));
        let sample = collector.sample();
        assert_eq!(sample.pressure.expect("a value").cpu_some, Some(0.0));
        assert!(sample.absent["pressure.memory_some"].starts_with("the counter went back"));
        assert!(sample.absent["pressure.io_some"].ends_with("pressure/io: is not there: no PSI here"));

        let mut bare = COLLECTOR.open(&Settings::default(), &Fixture::new(&[]).system());
        let sample = bare.sample();
        assert!(sample.pressure.is_none() && sample.absent["pressure"].ends_with("cpu: is not there: no PSI here"));
        assert_eq!(sample.absence_causes["pressure"], AbsenceCause::NoPsi);
    }

    #[test]
    fn a_cgroup_with_pressure_files_is_asked_too_also_when_it_is_made_again() {
        let fixture = Fixture::new(&[
            ("proc/pressure/cpu", &psi(0, 0)),
            ("cgroup/unified/web/cpu.pressure", &psi(0, 0)),
            ("cgroup/unified/web/memory.pressure", &psi(0, 0)),
            ("cgroup/unified/web/io.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"),
        ]);
        let mut settings = Settings::default();
        settings.cpu.cgroup = "/web".to_owned();
        let mut collector = COLLECTOR.open(&settings, &fixture.system());
        fixture.advance_s(1.0);
        fixture.write("cgroup/unified/web/cpu.pressure", &psi(300_000, 100_000));
        let pressure = collector.sample().pressure.expect("a value");
        assert_eq!(
            (pressure.cpu_some, pressure.cgroup_cpu_some, pressure.cgroup_cpu_full),
            (Some(0.0), Some(0.3), Some(0.1))
        );
        assert_eq!((pressure.cgroup_memory_some, pressure.cgroup_io_some), (Some(0.0), Some(0.0)));

        fixture.remove("cgroup/unified/web");
        // An open file of a fixture lives on, unlike one of a removed cgroup.
        let mut collector = COLLECTOR.open(&settings, &fixture.system());
        fixture.advance_s(1.0);
        let sample = collector.sample();
        assert_eq!(sample.pressure.expect("a value").cgroup_cpu_some, None);
        assert!(sample.absent["pressure.cgroup_cpu_some"].starts_with("cgroup /web has no pressure files"));
        for resource in RESOURCES {
            fixture.write(&format!("cgroup/web/{resource}.pressure"), &psi(0, 0));
        }
        fixture.advance_s(1.0);
        assert!(collector.sample().absent.contains_key("pressure.cgroup_cpu_some"));
        fixture.advance_s(1.0);
        assert_eq!(collector.sample().pressure.expect("a value").cgroup_cpu_some, Some(0.0));
    }
}
