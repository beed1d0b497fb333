//! One figure of the page for Prometheus, as a collector declares it. A value that the Sample lacks is not on the page.

use slackwater_messages::Sample;

/// What becomes of a value of the Sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Shown as it is.
    Gauge,
    /// Something per second of the period: summed up into a counter.
    Rate,
    /// Something that happened in the period: summed up into a counter.
    Count,
}

/// One figure. Metrics of one name follow each other and differ by their label; the first one has the help.
pub struct Metric {
    /// Without the prefix, and of counters without `_total`.
    pub name: &'static str,
    /// What it is, for people.
    pub help: &'static str,
    /// What becomes of the value.
    pub kind: MetricKind,
    /// Name and value of the label.
    pub label: Option<(&'static str, &'static str)>,
    /// From the Sample, in base units.
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

/// A whole number as a figure.
pub(crate) fn count(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}
