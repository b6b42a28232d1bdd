//! How policies report numbers.

/// A metric, declared once as a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDescription {
    /// Its name, as Prometheus has it, such as `provost_rate_limit_denied_total`.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Its type.
    pub kind: MetricType,
    /// Its unit as OpenTelemetry (UCUM) has it, such as `s`, `By`, `{call}`.
    pub unit: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of observations by upper bound.
    Histogram,
}

/// Where numbers are reported to.
pub trait MetricSink {
    /// A counter's or gauge's value. Labels come beside those that the node adds itself (`policy`, `kind`).
    fn number(&mut self, metric: &'static MetricDescription, labels: &[(&str, &str)], value: f64);

    /// A histogram: for each upper bound (ascending, the last infinite) how many observations were at most that, their
    /// sum, and their count.
    fn histogram(
        &mut self,
        metric: &'static MetricDescription,
        labels: &[(&str, &str)],
        cumulative: &[(f64, u64)],
        sum: f64,
        count: u64,
    );
}
