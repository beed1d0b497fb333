//! The metrics of the page for Prometheus, as the collectors declare them. A value that the Sample lacks is not on the
//! page.

use slackwater_messages::Sample;

/// How a value of the Sample becomes a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// The value itself.
    Gauge,
    /// A rate per second, which is summed up into a counter.
    Rate,
    /// A number of events in the period, which is summed up into a counter.
    Count,
}

/// One metric. Metrics of one name follow each other and differ by their label; the first has the help.
pub struct Metric {
    /// Without the prefix, and of counters without `_total`.
    pub name: &'static str,
    /// The description on the page.
    pub help: &'static str,
    /// How the value becomes a metric.
    pub kind: MetricKind,
    /// Name and value of the label.
    pub label: Option<(&'static str, &'static str)>,
    /// Reads the value from the Sample, in base units.
    pub read: fn(&Sample) -> Option<f64>,
}

/// `KIND NAME [LABEL = VALUE] HELP => READ;` for each metric.
macro_rules! metrics {
    ($( $kind:ident $name:literal $([$label:literal = $value:literal])? $help:literal => $read:expr; )*) => {
        &[$( $crate::collectors::metric::Metric {
            name: $name,
            help: $help,
            kind: $crate::collectors::metric::MetricKind::$kind,
            label: metrics!(@label $($label $value)?),
            read: $read,
        }, )*]
    };
    (@label) => { None };
    (@label $label:literal $value:literal) => { Some(($label, $value)) };
}
pub(crate) use metrics;

/// A whole number as the value of a metric.
pub(crate) fn count(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}
