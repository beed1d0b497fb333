//! The load report: the fields of ORCA (Open Request Cost Aggregation), which load balancers read.
//!
//! <https://github.com/cncf/xds/blob/main/xds/data/orca/v3/orca_load_report.proto>

use std::collections::BTreeMap;

use serde::Serialize;
use slackwater_messages::Sample;

/// Cycles per instruction are averaged over this time before they count as the lowest.
const MEAN_OVER_S: f64 = 60.0;

/// A load report. A value that is not known is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LoadReport {
    /// CPU time over what the scope may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_utilization: Option<f64>,
    /// Memory in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_utilization: Option<f64>,
    /// Requests per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rps_fractional: Option<f64>,
    /// Errors per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,
    /// `slackwater.*`.
    pub named_metrics: BTreeMap<&'static str, f64>,
}

/// The last load, and the ratio of the cycles per instruction to those of the calmest minute since the start.
#[derive(Debug, Clone, Default)]
pub struct LoadTracker {
    load: LoadReport,
    sum: f64,
    for_s: f64,
    lowest: Option<f64>,
}

impl LoadTracker {
    /// Takes a Sample in.
    pub fn take(&mut self, sample: &Sample) {
        let mut named_metrics = BTreeMap::new();
        if let Some(ratio) =
            sample.counters.as_ref().and_then(|counters| counters.cpi).and_then(|cpi| self.ratio(sample.period_s, cpi))
        {
            named_metrics.insert("slackwater.cpi_ratio", ratio);
        }
        if let Some(ratio) = sample.canary.as_ref().and_then(|canary| canary.wall_cpu_ratio) {
            named_metrics.insert("slackwater.wall_cpu_ratio", ratio);
        }
        if let Some(delay) = sample.sched.as_ref().and_then(|sched| sched.run_delay_per_cpu_s) {
            named_metrics.insert("slackwater.run_delay_per_cpu_s", delay);
        }
        self.load = LoadReport {
            cpu_utilization: sample.cpu.as_ref().and_then(|cpu| cpu.utilisation),
            mem_utilization: sample.memory.as_ref().and_then(|memory| memory.available).map(|share| 1.0 - share),
            rps_fractional: sample.traffic.as_ref().and_then(|traffic| traffic.rps),
            eps: sample.traffic.as_ref().and_then(|traffic| traffic.errors_per_s),
            named_metrics,
        };
    }

    /// The load of the last Sample.
    pub fn load(&self) -> &LoadReport {
        &self.load
    }

    fn ratio(&mut self, period_s: f64, cpi: f64) -> Option<f64> {
        self.sum += cpi * period_s;
        self.for_s += period_s;
        if self.for_s >= MEAN_OVER_S {
            let mean = self.sum / self.for_s;
            self.lowest = Some(self.lowest.map_or(mean, |lowest| lowest.min(mean)));
            (self.sum, self.for_s) = (0.0, 0.0);
        }
        self.lowest.filter(|lowest| *lowest > 0.0).map(|lowest| cpi / lowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_messages::{Canary, Counters, Cpu, Traffic};

    fn sample(cpi: f64) -> Sample {
        Sample {
            period_s: 30.0,
            cpu: Some(Cpu { utilisation: Some(0.25), ..Cpu::default() }),
            counters: Some(Counters { cpi: Some(cpi), ..Counters::default() }),
            canary: Some(Canary { wall_cpu_ratio: Some(1.0), ..Canary::default() }),
            traffic: Some(Traffic { rps: Some(12.5), errors_per_s: Some(0.5), ..Traffic::default() }),
            ..Sample::default()
        }
    }

    #[test]
    fn the_load_report_has_the_names_of_orca_and_leaves_out_what_is_not_known() {
        let mut report = LoadTracker::default();
        report.take(&sample(1.0));
        assert_eq!(
            serde_json::to_string(report.load()).expect("JSON"),
            "{\"cpu_utilization\":0.25,\"rps_fractional\":12.5,\"eps\":0.5,\
             \"named_metrics\":{\"slackwater.wall_cpu_ratio\":1.0}}"
        );
    }

    #[test]
    fn the_cpi_ratio_is_to_the_calmest_minute() {
        let mut report = LoadTracker::default();
        for cpi in [1.0, 3.0, 1.5, 1.5, 3.0] {
            report.take(&sample(cpi));
        }
        assert_eq!(report.load().named_metrics.get("slackwater.cpi_ratio"), Some(&2.0));
    }
}
