//! Metrics as they are reported, each family once, until they are told in some form.

use std::collections::BTreeMap;

use provost_engine::{MetricDescription, MetricSink};

pub(crate) type Labels = Vec<(String, String)>;

/// Collects what is reported.
#[derive(Default)]
pub(crate) struct Collected {
    families: BTreeMap<&'static str, Family>,
    /// Labels of whoever reports now.
    of_reporter: Labels,
}

/// All series of one metric.
pub(crate) struct Family {
    pub(crate) description: MetricDescription,
    pub(crate) samples: BTreeMap<Labels, Sample>,
}

/// The state of one series.
pub(crate) enum Sample {
    Number(f64),
    Histogram {
        /// For each upper bound, the last infinite, how many were at most that.
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

impl Collected {
    /// What comes now is a policy's.
    pub(crate) fn begin_policy(&mut self, name: &str, kind: &str) {
        self.of_reporter = owned(&[("policy", name), ("kind", kind)]);
    }

    /// The families, in the order of their names.
    pub(crate) fn families(&self) -> impl Iterator<Item = &Family> {
        self.families.values()
    }

    fn add(&mut self, metric: &'static MetricDescription, labels: &[(&str, &str)], sample: Sample) {
        let mut labels = owned(labels);
        labels.extend_from_slice(&self.of_reporter);
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
}

impl MetricSink for Collected {
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

fn owned(labels: &[(&str, &str)]) -> Labels {
    let owned = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    owned.collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use provost_engine::MetricType;

    use super::*;

    pub(crate) static CALLS: MetricDescription = MetricDescription {
        name: "test_calls_total",
        help: "Calls.",
        kind: MetricType::Counter,
        unit: "{call}",
    };
    pub(crate) static TIME: MetricDescription = MetricDescription {
        name: "test_time_seconds",
        help: "Time\nspent.",
        kind: MetricType::Histogram,
        unit: "s",
    };

    /// Two series of a counter, one of them a policy's, and a policy's histogram.
    pub(crate) fn collected() -> Collected {
        let mut out = Collected::default();
        out.number(&CALLS, &[("app", "b\"\\\n")], 2.0);
        out.begin_policy("p", "k");
        out.number(&CALLS, &[("app", "a")], 1e15);
        out.histogram(&TIME, &[], &[(0.5, 1), (f64::INFINITY, 3)], 1.25, 3);
        out
    }

    #[test]
    fn of_two_reports_of_a_series_the_larger_counts() {
        let mut out = Collected::default();
        for value in [5.0, 3.0] {
            out.number(&CALLS, &[], value);
        }
        let samples = out.families().flat_map(|family| family.samples.values());
        let sizes: Vec<f64> = samples.map(Sample::size).collect();
        assert_eq!(sizes, [5.0]);
    }
}
