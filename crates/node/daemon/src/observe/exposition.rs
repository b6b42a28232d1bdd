//! Prometheus's text format (version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write;

use provost_engine::{MetricDescription, MetricSink, MetricType};

/// Collects metrics and prints them, each family once and in order.
#[derive(Default)]
pub(crate) struct Exposition {
    families: BTreeMap<&'static str, Family>,
    /// Labels of whoever reports now, printed.
    of_reporter: String,
}

struct Family {
    description: MetricDescription,
    /// By labels, printed.
    samples: BTreeMap<String, Sample>,
}

enum Sample {
    Number(f64),
    Histogram {
        cumulative: Vec<(f64, u64)>,
        sum: f64,
        count: u64,
    },
}

impl Sample {
    fn size(&self) -> f64 {
        match self {
            Sample::Number(value) => *value,
            Sample::Histogram { count, .. } => *count as f64,
        }
    }
}

impl Exposition {
    /// What comes now is a policy's.
    pub(crate) fn begin_policy(&mut self, name: &str, kind: &str) {
        self.of_reporter = printed(&[("policy", name), ("kind", kind)]);
    }

    fn add(&mut self, metric: &'static MetricDescription, labels: &[(&str, &str)], sample: Sample) {
        let mut labels = printed(labels);
        if !labels.is_empty() && !self.of_reporter.is_empty() {
            labels.push(',');
        }
        labels.push_str(&self.of_reporter);
        let family = self.families.entry(metric.name).or_insert_with(|| Family {
            description: *metric,
            samples: BTreeMap::new(),
        });
        // While a policy has two versions on a node, both may report the same series: the one that has seen more counts,
        // so that no counter goes backwards.
        match family.samples.get(&labels) {
            Some(other) if other.size() >= sample.size() => {}
            _ => {
                family.samples.insert(labels, sample);
            }
        }
    }

    /// The text.
    pub(crate) fn print(&self) -> String {
        let mut out = String::new();
        for (name, family) in &self.families {
            let help = family.description.help.replace('\\', "\\\\").replace('\n', "\\n");
            let kind = match family.description.kind {
                MetricType::Counter => "counter",
                MetricType::Gauge => "gauge",
                MetricType::Histogram => "histogram",
            };
            // Writing to a `String` does not fail.
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, sample) in &family.samples {
                print_sample(&mut out, name, labels, sample);
            }
        }
        out
    }
}

impl MetricSink for Exposition {
    fn number(&mut self, metric: &'static MetricDescription, labels: &[(&str, &str)], value: f64) {
        self.add(metric, labels, Sample::Number(value));
    }

    fn histogram(
        &mut self,
        metric: &'static MetricDescription,
        labels: &[(&str, &str)],
        cumulative: &[(f64, u64)],
        sum: f64,
        count: u64,
    ) {
        let cumulative = cumulative.to_vec();
        self.add(
            metric,
            labels,
            Sample::Histogram {
                cumulative,
                sum,
                count,
            },
        );
    }
}

fn print_sample(out: &mut String, name: &str, labels: &str, sample: &Sample) {
    let braces = |labels: &str| match labels.is_empty() {
        true => String::new(),
        false => format!("{{{labels}}}"),
    };
    match sample {
        Sample::Number(value) => {
            let _ = writeln!(out, "{name}{} {}", braces(labels), number(*value));
        }
        Sample::Histogram {
            cumulative,
            sum,
            count,
        } => {
            let comma = if labels.is_empty() { "" } else { "," };
            for (bound, count) in cumulative {
                let bound = number(*bound);
                let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}");
            }
            let _ = writeln!(out, "{name}_sum{} {}", braces(labels), number(*sum));
            let _ = writeln!(out, "{name}_count{} {count}", braces(labels));
        }
    }
}

fn number(value: f64) -> String {
    match value {
        value if value == f64::INFINITY => "+Inf".into(),
        value if value == f64::NEG_INFINITY => "-Inf".into(),
        value => value.to_string(),
    }
}

fn printed(labels: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (at, (key, value)) in labels.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(out, "{comma}{key}=\"{}\"", escaped(value));
    }
    out
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    static CALLS: MetricDescription = MetricDescription {
        name: "test_calls_total",
        help: "Calls.",
        kind: MetricType::Counter,
        unit: "{call}",
    };
    static TIME: MetricDescription = MetricDescription {
        name: "test_time_seconds",
        help: "Time\nspent.",
        kind: MetricType::Histogram,
        unit: "s",
    };

    #[test]
    fn families_are_printed_once_with_all_their_series() {
        let mut out = Exposition::default();
        out.number(&CALLS, &[("app", "b\"\\\n")], 2.0);
        out.begin_policy("p", "k");
        out.number(&CALLS, &[("app", "a")], 1e15);
        out.histogram(&TIME, &[], &[(0.5, 1), (f64::INFINITY, 3)], 1.25, 3);
        let expected = "# HELP test_calls_total Calls.\n\
            # TYPE test_calls_total counter\n\
            test_calls_total{app=\"a\",policy=\"p\",kind=\"k\"} 1000000000000000\n\
            test_calls_total{app=\"b\\\"\\\\\\n\"} 2\n\
            # HELP test_time_seconds Time\\nspent.\n\
            # TYPE test_time_seconds histogram\n\
            test_time_seconds_bucket{policy=\"p\",kind=\"k\",le=\"0.5\"} 1\n\
            test_time_seconds_bucket{policy=\"p\",kind=\"k\",le=\"+Inf\"} 3\n\
            test_time_seconds_sum{policy=\"p\",kind=\"k\"} 1.25\n\
            test_time_seconds_count{policy=\"p\",kind=\"k\"} 3\n";
        assert_eq!(out.print(), expected);
    }

    #[test]
    fn of_two_reports_of_a_series_the_larger_counts() {
        let mut out = Exposition::default();
        for value in [5.0, 3.0] {
            out.number(&CALLS, &[], value);
        }
        assert!(out.print().ends_with("test_calls_total 5\n"));
    }
}
