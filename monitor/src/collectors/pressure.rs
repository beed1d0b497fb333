//! Pressure stall information: the share of the period in which some task waited for CPU, memory or disk.
//!
//! Form: the kernel's Documentation/accounting/psi.rst; `total` is in microseconds.

use slackwater_messages::{Pressure, Sample};

use super::{Collector, NO_TIME, absent, seconds_between};
use crate::cgroup;
use crate::config::Settings;
use crate::inputs::{Inputs, KeptFile, Reader};

const RESOURCES: [&str; 3] = ["cpu", "memory", "io"];

/// Opens the cgroup's pressure files if it has them, else the VM's.
pub fn open(settings: &Settings, inputs: &Inputs) -> Box<dyn Collector> {
    let of_cgroup = Some(&settings.cpu.cgroup).filter(|name| !name.is_empty());
    let files = match of_cgroup.and_then(|name| cgroup::find_pressure(&inputs.cgroup, name)) {
        Some(directory) => RESOURCES.map(|resource| KeptFile::new(directory.join(format!("{resource}.pressure")))),
        None => RESOURCES.map(|resource| KeptFile::new(inputs.proc.join("pressure").join(resource))),
    };
    let mut collector = Stalls { inputs: inputs.clone(), files, reader: Reader::default(), last: [None; 3] };
    collector.collect(&mut Sample::default());
    Box::new(collector)
}

/// Total microseconds in which some task waited.
pub fn parse_some_us(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("some "))?.rsplit_once("total=")?.1.trim().parse().ok()
}

struct Stalls {
    inputs: Inputs,
    files: [KeptFile; 3],
    reader: Reader,
    last: [Option<(u64, u64)>; 3],
}

impl Stalls {
    fn share(&mut self, resource: usize) -> Result<f64, String> {
        let now_ns = (self.inputs.monotonic_ns)();
        let total_us = self.files[resource].parse(&mut self.reader, parse_some_us).map_err(|reason| {
            self.last[resource] = None;
            format!("{reason}: no PSI here")
        })?;
        let (last_ns, last_us) =
            self.last[resource].replace((now_ns, total_us)).ok_or("there was no earlier reading")?;
        let stalled_us = total_us.checked_sub(last_us).ok_or("the total went back")?;
        if now_ns <= last_ns {
            return Err(NO_TIME.to_owned());
        }
        // The kernel's clock and ours are read a moment apart: a full stall can seem longer than the period.
        Ok((stalled_us as f64 / 1e6 / seconds_between(last_ns, now_ns)).min(1.0))
    }
}

impl Collector for Stalls {
    fn collect(&mut self, sample: &mut Sample) {
        let shares = [0, 1, 2].map(|resource| self.share(resource));
        if let [Err(reason), Err(_), Err(_)] = &shares {
            return absent(sample, "pressure", reason);
        }
        for (resource, share) in RESOURCES.iter().zip(&shares) {
            if let Err(reason) = share {
                absent(sample, &format!("pressure.{resource}_some"), reason);
            }
        }
        let [cpu_some, memory_some, io_some] = shares.map(Result::ok);
        sample.pressure = Some(Pressure { cpu_some, memory_some, io_some, ..Pressure::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::fixture::Fixture;

    fn psi(some_us: u64) -> String {
        format!(
            "some avg10=0.10 avg60=0.00 avg300=0.00 total={some_us}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
        )
    }

    fn collect(collector: &mut dyn Collector) -> Sample {
        let mut sample = Sample::default();
        collector.collect(&mut sample);
        sample
    }

    #[test]
    fn the_total_of_some_is_read() {
        assert_eq!(parse_some_us(&psi(123)), Some(123));
        for bad in ["", "full avg10=0.00 total=5\n", "some avg10=0.00\n", "some total=x\n"] {
            assert_eq!(parse_some_us(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn shares_are_of_the_period_and_never_above_one() {
        let fixture = Fixture::new(&[
            ("proc/pressure/cpu", &psi(1000)),
            ("proc/pressure/memory", &psi(0)),
            ("proc/pressure/io", &psi(500)),
        ]);
        let mut collector = open(&Settings::default(), &fixture.inputs());
        fixture.advance_s(0.2);
        fixture.write("proc/pressure/cpu", &psi(51_000));
        fixture.write("proc/pressure/io", &psi(200_600));
        let pressure = collect(collector.as_mut()).pressure.expect("there");
        assert!((pressure.cpu_some.expect("there") - 0.25).abs() < 1e-9);
        assert_eq!((pressure.memory_some, pressure.io_some), (Some(0.0), Some(1.0)));
    }

    #[test]
    fn what_is_not_there_or_went_back_has_a_reason() {
        let fixture = Fixture::new(&[("proc/pressure/cpu", &psi(1000)), ("proc/pressure/memory", &psi(1000))]);
        let mut collector = open(&Settings::default(), &fixture.inputs());
        fixture.advance_s(0.2);
        fixture.write("proc/pressure/memory", &psi(10));
        let sample = collect(collector.as_mut());
        assert_eq!(sample.pressure.expect("there").cpu_some, Some(0.0));
        assert_eq!(sample.absent["pressure.memory_some"], "the total went back");
        assert!(sample.absent["pressure.io_some"].ends_with("pressure/io: is not there: no PSI here"));

        let mut bare = open(&Settings::default(), &Fixture::new(&[]).inputs());
        let sample = collect(bare.as_mut());
        assert!(sample.pressure.is_none() && sample.absent["pressure"].ends_with("cpu: is not there: no PSI here"));
    }

    #[test]
    fn a_cgroup_with_pressure_files_is_asked_itself() {
        let fixture = Fixture::new(&[
            ("proc/pressure/cpu", &psi(0)),
            ("cgroup/web/cpu.pressure", &psi(0)),
            ("cgroup/web/memory.pressure", &psi(0)),
            ("cgroup/web/io.pressure", &psi(0)),
        ]);
        let mut settings = Settings::default();
        settings.cpu.cgroup = "/web".to_owned();
        let mut collector = open(&settings, &fixture.inputs());
        fixture.advance_s(1.0);
        fixture.write("cgroup/web/cpu.pressure", &psi(300_000));
        assert_eq!(collect(collector.as_mut()).pressure.expect("there").cpu_some, Some(0.3));
    }
}
