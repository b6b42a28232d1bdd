//! Prometheus's text format (version 0.0.4).

use std::fmt::Write;

use provost_engine::MetricType;

use super::collected::{Collected, Labels, Sample};

pub(crate) fn print(metrics: &Collected) -> String {
    let mut out = String::new();
    for family in metrics.families() {
        let name = family.description.name;
        let help = family.description.help.replace('\\', "\\\\").replace('\n', "\\n");
        let kind = match family.description.kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, sample) in &family.samples {
            print_sample(&mut out, name, &printed(labels), sample);
        }
    }
    out
}

fn print_sample(out: &mut String, name: &str, labels: &str, sample: &Sample) {
    let braces = |labels: &str| {
        if labels.is_empty() {
            String::new()
        } else {
            format!("{{{labels}}}")
        }
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

fn printed(labels: &Labels) -> String {
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
    use super::super::collected::tests::collected;
    use super::*;

    #[test]
    fn families_are_printed_once_with_all_their_series() {
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
        assert_eq!(print(&collected()), expected);
    }
}
