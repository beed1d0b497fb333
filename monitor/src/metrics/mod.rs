//! The page for Prometheus: the Samples' values as gauges, and their sums since the start as counters.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use rustix::thread::ClockId;
use slackwater_messages::Sample;
use slackwater_node::sync::lock;
use slackwater_sniffer::{BUCKET_BOUNDS_S, Buckets};

use crate::bus::SampleCounts;
use crate::collectors::metric::{Metric, MetricKind, metrics};
use crate::collectors::{ActiveCollector, COLLECTORS, CollectorRun};
use crate::timer::clock_ns;

pub mod http;
pub mod orca;

use orca::LoadTracker;

/// The metrics that the page shows of a Sample: the collectors' own, then those of no collector.
fn all_metrics() -> impl Iterator<Item = &'static Metric> {
    const OTHERS: &[Metric] = metrics! {
        Count "periods_missed" "Periods left out because the one before took too long." => |s| Some(s.periods_missed as f64);
    };
    COLLECTORS.iter().flat_map(|kind| kind.metrics).chain(OTHERS)
}

/// The figures of the page, as of the last Sample. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    figures: Arc<Mutex<PageFigures>>,
    registry: Arc<Registry>,
}

/// One value for each metric, and the figures that no Sample carries.
#[derive(Debug)]
struct PageFigures {
    node: String,
    pool: String,
    values: Vec<Option<f64>>,
    runs: Vec<(&'static str, CollectorRun)>,
    samples: u64,
    sent: SampleCounts,
    asks: u64,
    times: Option<Buckets>,
    report: LoadTracker,
}

impl Metrics {
    /// A page on which nothing is known yet.
    pub fn new(node: &str, pool: &str) -> Metrics {
        let figures = Arc::new(Mutex::new(PageFigures {
            node: node.to_owned(),
            pool: pool.to_owned(),
            values: vec![None; all_metrics().count()],
            runs: Vec::new(),
            samples: 0,
            sent: SampleCounts::default(),
            asks: 0,
            times: None,
            report: LoadTracker::default(),
        }));
        let mut registry = Registry::with_prefix("slackwater");
        registry.register_collector(Box::new(PageCollector(Arc::clone(&figures))));
        Metrics { figures, registry: Arc::new(registry) }
    }

    /// Takes in a Sample, how its collectors' runs went, and the response times since the start.
    pub fn take(&self, sample: &Sample, collectors: &[ActiveCollector], times: Option<Buckets>) {
        let mut figures = self.lock();
        for (metric, value) in all_metrics().zip(&mut figures.values) {
            *value = next(metric, *value, sample);
        }
        figures.runs.clear();
        figures.runs.extend(collectors.iter().map(|active| (active.name, active.last)));
        figures.samples += 1;
        figures.times = times.or(figures.times);
        figures.report.take(sample);
    }

    /// Takes in how many Samples were published and dropped.
    pub fn sent(&self, sent: SampleCounts) {
        self.lock().sent = sent;
    }

    /// Takes in how often the controller asked for more Samples.
    pub fn asks(&self, taken: u64) {
        self.lock().asks = taken;
    }

    fn lock(&self) -> MutexGuard<'_, PageFigures> {
        lock(&self.figures)
    }

    /// The page in the format of OpenMetrics, which Prometheus reads.
    ///
    /// # Errors
    /// None in practice: text is written to memory.
    pub fn page(&self) -> Result<String, fmt::Error> {
        let mut page = String::with_capacity(16 * 1024);
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }

    /// The load report as JSON.
    pub fn orca(&self) -> String {
        let figures = self.lock();
        serde_json::to_string(&figures.report.load()).unwrap_or_default()
    }
}

/// A metric's next value. A counter keeps its sum when the Sample has no value; a gauge without a value is left out.
fn next(metric: &Metric, value: Option<f64>, sample: &Sample) -> Option<f64> {
    let new = (metric.read)(sample).filter(|new| new.is_finite());
    match metric.kind {
        MetricKind::Gauge => new,
        MetricKind::Rate => sum(value, new.map(|rate| rate * sample.period_s)),
        MetricKind::Count => sum(value, new),
    }
}

fn sum(value: Option<f64>, more: Option<f64>) -> Option<f64> {
    match (value, more) {
        (value, None) => value,
        (value, Some(more)) => Some(value.unwrap_or_default() + more.max(0.0)),
    }
}

#[derive(Debug)]
struct PageCollector(Arc<Mutex<PageFigures>>);

impl Collector for PageCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let figures = lock(&self.0);
        let labels = [("node", figures.node.as_str()), ("pool", &figures.pool), ("version", env!("CARGO_PKG_VERSION"))];
        let mut info = encoder.encode_descriptor("monitor", "The monitor and its version.", None, MetricType::Info)?;
        info.encode_info(&labels)?;
        let values: Vec<(&Metric, f64)> =
            all_metrics().zip(&figures.values).filter_map(|(metric, value)| Some((metric, (*value)?))).collect();
        for family in values.chunk_by(|(metric, _), (next, _)| metric.name == next.name) {
            encode_family(&mut encoder, family)?;
        }
        encode_runs(&mut encoder, &figures.runs)?;
        for (name, help, value) in [
            ("samples_taken", "Samples taken.", figures.samples),
            ("samples_published", "Samples handed to a connection with the bus.", figures.sent.published),
            ("samples_dropped", "Samples dropped because the bus was away.", figures.sent.dropped),
            ("asks", "Asks of the controller for more Samples.", figures.asks),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, u64, f64>(&value, None)?;
        }
        let help = "CPU time of the monitor itself.";
        let mut own = encoder.encode_descriptor("monitor_cpu_seconds", help, None, MetricType::Counter)?;
        own.encode_counter::<NoLabelSet, f64, f64>(&own_cpu_s(), None)?;
        figures.times.as_ref().map_or(Ok(()), |times| encode_times(&mut encoder, times))
    }
}

fn encode_family(encoder: &mut DescriptorEncoder<'_>, family: &[(&Metric, f64)]) -> fmt::Result {
    let Some((first, _)) = family.first() else { return Ok(()) };
    // The help stands with the first metric of a name, which may have no value now.
    let help = all_metrics().find(|metric| metric.name == first.name).map_or("", |metric| metric.help);
    let kind = if first.kind == MetricKind::Gauge { MetricType::Gauge } else { MetricType::Counter };
    let mut metric = encoder.encode_descriptor(first.name, help, None, kind)?;
    let encode = |metric: &mut MetricEncoder<'_>, value: f64| match kind {
        MetricType::Gauge => metric.encode_gauge(&value),
        _ => metric.encode_counter::<NoLabelSet, f64, f64>(&value, None),
    };
    for (member, value) in family {
        match member.label {
            Some(label) => encode(&mut metric.encode_family(&[label])?, *value)?,
            None => encode(&mut metric, *value)?,
        }
    }
    Ok(())
}

fn encode_runs(encoder: &mut DescriptorEncoder<'_>, runs: &[(&str, CollectorRun)]) -> fmt::Result {
    let help = "Wall time of the collector's last run.";
    let mut durations =
        encoder.encode_descriptor("monitor_collector_duration_seconds", help, None, MetricType::Gauge)?;
    for (collector, run) in runs {
        durations.encode_family(&[("collector", *collector)])?.encode_gauge(&run.duration.as_secs_f64())?;
    }
    let help = "Whether the collector's last run gave a section.";
    let mut successes = encoder.encode_descriptor("monitor_collector_success", help, None, MetricType::Gauge)?;
    for (collector, run) in runs {
        successes.encode_family(&[("collector", *collector)])?.encode_gauge(&u64::from(run.success))?;
    }
    Ok(())
}

fn encode_times(encoder: &mut DescriptorEncoder<'_>, times: &Buckets) -> fmt::Result {
    let bounds = BUCKET_BOUNDS_S.iter().copied().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(times.classes()).collect();
    let help = "Last request byte to last response byte, as seen on the wire.";
    encoder
        .encode_descriptor("response_time_seconds", help, None, MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(times.sum_ns as f64 / 1e9, times.count(), &buckets, None)
}

fn own_cpu_s() -> f64 {
    clock_ns(ClockId::ProcessCPUTime) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use slackwater_messages::{Cpu, Traffic};
    use slackwater_node::fixture::Fixture;
    use slackwater_sniffer::BUCKETS_OF_CLASS;

    fn sample(rps: Option<f64>) -> Sample {
        Sample {
            period_s: 0.5,
            cpu: Some(Cpu {
                scope: "system".to_owned(),
                utilisation: Some(0.5),
                cores: Some(2.0),
                user: Some(0.4),
                ..Cpu::default()
            }),
            traffic: rps.map(|rps| Traffic {
                rps: Some(rps),
                drops: Some(3),
                in_flight: Some(2),
                ..Traffic::default()
            }),
            ..Sample::default()
        }
    }

    #[test]
    fn rates_are_summed_up_and_gauges_show_the_last_sample() {
        let metrics = Metrics::new("n1", "web");
        for rps in [Some(10.0), Some(20.0), None] {
            metrics.take(&sample(rps), &[], None);
        }
        metrics.sent(SampleCounts { published: 2, dropped: 1 });
        metrics.asks(3);
        let page = metrics.page().expect("text");
        for line in [
            "# TYPE slackwater_requests counter",
            "slackwater_requests_total 15.0",
            "slackwater_capture_drops_total 6.0",
            "slackwater_cpu_utilisation_ratio 0.5",
            "slackwater_cpu_used_seconds_total 1.5",
            "slackwater_cpu_seconds_total{mode=\"user\"} 1.2",
            "slackwater_samples_taken_total 3",
            "slackwater_samples_dropped_total 1",
            "slackwater_asks_total 3",
            "# EOF",
        ] {
            let is_near = |shown: &str| shown == line || shown.starts_with(&format!("{line}0000"));
            assert!(page.lines().any(is_near), "{line} is missing:\n{page}");
        }
        for absent in ["requests_in_flight", "response_time_seconds", "steal", "canary"] {
            assert!(!page.contains(absent), "{absent}:\n{page}");
        }
    }

    #[test]
    fn each_collector_shows_how_long_it_took_and_whether_it_succeeded() {
        let fixture = Fixture::new(&[("proc/stat", "cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 1\n")]);
        let mut collectors = ["cpu", "memory"].map(|name| {
            let kind = COLLECTORS.iter().find(|kind| kind.name == name).expect("a collector");
            kind.open(&Settings::default(), &fixture.system())
        });
        collectors.iter_mut().for_each(|active| drop(active.sample()));
        let metrics = Metrics::new("n1", "web");
        metrics.take(&sample(None), &collectors, None);
        let page = metrics.page().expect("text");
        for line in [
            "slackwater_monitor_collector_success{collector=\"cpu\"} 1",
            "slackwater_monitor_collector_success{collector=\"memory\"} 0",
            "slackwater_monitor_collector_duration_seconds{collector=\"cpu\"} ",
        ] {
            assert!(page.lines().any(|shown| shown.starts_with(line)), "{line} is missing:\n{page}");
        }
    }

    #[test]
    fn names_are_conventional_and_metrics_of_one_name_follow_each_other() {
        let mut names: Vec<&str> = Vec::new();
        for metric in all_metrics() {
            let is_safe = metric.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            assert!(is_safe && !metric.name.ends_with("_total") && !metric.name.contains("_ms"), "{}", metric.name);
            if names.last() == Some(&metric.name) {
                assert!(metric.label.is_some() && metric.help.is_empty(), "{}", metric.name);
            } else {
                assert!(!names.contains(&metric.name) && metric.help.ends_with('.'), "{}", metric.name);
                names.push(metric.name);
            }
        }
    }

    #[test]
    fn response_times_are_a_histogram_of_cumulative_buckets() {
        let metrics = Metrics::new("n1", "web");
        let mut times = Buckets { sum_ns: 1_500_000_000, ..Buckets::default() };
        (times.counts[0], times.counts[2 * BUCKETS_OF_CLASS], times.counts[15 * BUCKETS_OF_CLASS]) = (4, 2, 1);
        metrics.take(&sample(None), &[], Some(times));
        let page = metrics.page().expect("text");
        for line in [
            "slackwater_response_time_seconds_bucket{le=\"0.00025\"} 4",
            "slackwater_response_time_seconds_bucket{le=\"0.001\"} 6",
            "slackwater_response_time_seconds_bucket{le=\"10.0\"} 6",
            "slackwater_response_time_seconds_bucket{le=\"+Inf\"} 7",
            "slackwater_response_time_seconds_sum 1.5",
            "slackwater_response_time_seconds_count 7",
        ] {
            assert!(page.lines().any(|shown| shown == line), "{line} is missing:\n{page}");
        }
    }
}
