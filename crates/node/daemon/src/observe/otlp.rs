//! The metrics of a node, sent to a collector (OTLP over gRPC) at each interval.
//!
//! What is sent are totals since the service began, so that an export that fails costs nothing but the time until the
//! next one: none is repeated.

use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use provost_engine::MetricType;
use tonic::transport::{Channel, Endpoint};

use super::collected::{Collected, Family, Labels, Sample};
use super::node_metrics;
use crate::control_plane::ControlPlane;

/// How long a collector may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
const NANOS_PER_MILLI: u64 = 1_000_000;

/// Sends metrics, for ever.
pub(crate) async fn export(plane: ControlPlane, collector: Endpoint, interval: Duration) {
    let mut client = MetricsServiceClient::new(collector.connect_lazy());
    loop {
        tokio::time::sleep(interval).await;
        let outcome = send(&plane, &mut client).await;
        let counts = &plane.counts;
        match &outcome {
            Ok(()) => counts.exports.add_one(),
            Err(_) => counts.exports_failed.add_one(),
        }
        counts.export_failure.replace(outcome.err());
    }
}

async fn send(plane: &ControlPlane, client: &mut MetricsServiceClient<Channel>) -> Result<(), String> {
    let span = Span {
        start_unix_ns: plane.counts.began_unix_ms.get() * NANOS_PER_MILLI,
        now_unix_ns: unix_ns(),
    };
    let metrics = metrics(&node_metrics::collect(plane), span);
    let request = request(&plane.config.started.node.name, metrics);
    match tokio::time::timeout(TIMEOUT, client.export(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(status.to_string()),
        Err(_) => Err("it does not answer".to_owned()),
    }
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

fn request(node: &str, metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource {
                attributes: vec![
                    text("service.name", "provostd"),
                    text("service.instance.id", node),
                    text("service.version", env!("CARGO_PKG_VERSION")),
                ],
                ..Resource::default()
            }),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(InstrumentationScope {
                    name: "provost".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    ..InstrumentationScope::default()
                }),
                metrics,
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    }
}

/// The time that totals are over.
#[derive(Clone, Copy)]
struct Span {
    start_unix_ns: u64,
    now_unix_ns: u64,
}

fn metrics(collected: &Collected, span: Span) -> Vec<Metric> {
    let metric = |family: &Family| Metric {
        name: family.description.name.to_owned(),
        description: family.description.help.to_owned(),
        unit: family.description.unit.to_owned(),
        data: Some(data(family, span)),
        ..Metric::default()
    };
    collected.families().map(metric).collect()
}

fn data(family: &Family, span: Span) -> Data {
    let temporality = AggregationTemporality::Cumulative as i32;
    match family.description.kind {
        MetricType::Counter => Data::Sum(Sum {
            data_points: numbers(family, span),
            aggregation_temporality: temporality,
            is_monotonic: true,
        }),
        MetricType::Gauge => Data::Gauge(Gauge {
            data_points: numbers(family, span),
        }),
        MetricType::Histogram => Data::Histogram(Histogram {
            data_points: histograms(family, span),
            aggregation_temporality: temporality,
        }),
    }
}

fn numbers(family: &Family, span: Span) -> Vec<NumberDataPoint> {
    let point = |(labels, sample): (&Labels, &Sample)| match sample {
        Sample::Histogram { .. } => None,
        Sample::Number(value) => Some(NumberDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: span.start_unix_ns,
            time_unix_nano: span.now_unix_ns,
            value: Some(Number::AsDouble(*value)),
            ..NumberDataPoint::default()
        }),
    };
    family.samples.iter().filter_map(point).collect()
}

fn histograms(family: &Family, span: Span) -> Vec<HistogramDataPoint> {
    let point = |(labels, sample): (&Labels, &Sample)| match sample {
        Sample::Number(_) => None,
        Sample::Histogram {
            cumulative,
            sum,
            count,
        } => Some(HistogramDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: span.start_unix_ns,
            time_unix_nano: span.now_unix_ns,
            count: *count,
            sum: Some(*sum),
            bucket_counts: each(cumulative),
            explicit_bounds: cumulative
                .iter()
                .map(|(bound, _)| *bound)
                .filter(|bound| bound.is_finite())
                .collect(),
            ..HistogramDataPoint::default()
        }),
    };
    family.samples.iter().filter_map(point).collect()
}

/// How many are in each bucket, of how many are at most its bound.
fn each(cumulative: &[(f64, u64)]) -> Vec<u64> {
    let mut before = 0;
    let counts = cumulative.iter().map(|(_, count)| {
        let more = count.saturating_sub(before);
        before = *count;
        more
    });
    counts.collect()
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    labels.iter().map(|(key, value)| text(key, value)).collect()
}

fn text(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::collected::tests::collected;
    use super::*;

    const SPAN: Span = Span {
        start_unix_ns: 5,
        now_unix_ns: 9,
    };

    #[test]
    fn counters_become_sums_and_histograms_have_single_buckets() {
        let metrics = metrics(&collected(), SPAN);
        let [calls, time] = metrics.as_slice() else {
            panic!("{metrics:?}");
        };
        assert_eq!(
            (calls.name.as_str(), calls.unit.as_str()),
            ("test_calls_total", "{call}")
        );
        let Some(Data::Sum(sum)) = &calls.data else {
            panic!("{calls:?}");
        };
        assert!(sum.is_monotonic && sum.data_points.len() == 2);
        let point = &sum.data_points[0];
        assert_eq!(
            point.attributes,
            [text("app", "a"), text("policy", "p"), text("kind", "k")]
        );
        assert_eq!(point.value, Some(Number::AsDouble(1e15)));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (5, 9));
        let Some(Data::Histogram(histogram)) = &time.data else {
            panic!("{time:?}");
        };
        let point = &histogram.data_points[0];
        assert_eq!(
            (
                point.count,
                point.sum,
                point.bucket_counts.as_slice(),
                point.explicit_bounds.as_slice()
            ),
            (3, Some(1.25), &[1, 2][..], &[0.5][..])
        );
    }
}
