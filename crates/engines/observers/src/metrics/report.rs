//! The names under which what was counted is reported: those of gRPC (A66), in the form that Prometheus gives them.

use std::collections::BTreeMap;

use provost_engine::{Code, MethodCalls, MetricDescription, MetricSink, MetricType, Side};

use crate::metrics::buckets::{Histogram, LATENCIES, LATENCY_SECONDS, SIZE_BYTES};
use crate::metrics::shard::OTHER;
use crate::metrics::totals::{MethodKey, MethodTotals, SeriesTotals, StatusPlace, Totals};

const fn metric(
    name: &'static str,
    kind: MetricType,
    unit: &'static str,
    help: &'static str,
) -> MetricDescription {
    MetricDescription {
        name,
        help,
        kind,
        unit,
    }
}

/// Of one side of calls.
struct SideNames {
    started: &'static MetricDescription,
    duration: &'static MetricDescription,
    sent: &'static MetricDescription,
    received: &'static MetricDescription,
}

static DESCRIBED: [MetricDescription; 11] = [
    metric(
        "grpc_client_attempt_started_total",
        MetricType::Counter,
        "{attempt}",
        "Calls that apps on this node began.",
    ),
    metric(
        "grpc_client_call_duration_seconds",
        MetricType::Histogram,
        "s",
        "Time from when this policy met a call that an app made until it met its end.",
    ),
    metric(
        "grpc_client_attempt_sent_total_compressed_message_size_bytes",
        MetricType::Histogram,
        "By",
        "Bytes of all request messages of a call, in the native layout.",
    ),
    metric(
        "grpc_client_attempt_rcvd_total_compressed_message_size_bytes",
        MetricType::Histogram,
        "By",
        "Bytes of all response messages of a call, in the native layout.",
    ),
    metric(
        "grpc_server_call_started_total",
        MetricType::Counter,
        "{call}",
        "Calls that came in for apps on this node.",
    ),
    metric(
        "grpc_server_call_duration_seconds",
        MetricType::Histogram,
        "s",
        "Time from when this policy met a call for an app until it met its end.",
    ),
    metric(
        "grpc_server_call_sent_total_compressed_message_size_bytes",
        MetricType::Histogram,
        "By",
        "Bytes of all response messages of a call, in the native layout.",
    ),
    metric(
        "grpc_server_call_rcvd_total_compressed_message_size_bytes",
        MetricType::Histogram,
        "By",
        "Bytes of all request messages of a call, in the native layout.",
    ),
    metric(
        "provost_calls_in_flight",
        MetricType::Gauge,
        "{call}",
        "Calls that have begun and not ended.",
    ),
    metric(
        "provost_request_time_in_queue_seconds",
        MetricType::Histogram,
        "s",
        "Time from when this node took a step of a request from an app or the network until it had handed it on.",
    ),
    metric(
        "provost_response_time_in_queue_seconds",
        MetricType::Histogram,
        "s",
        "Time from when this node took a step of a response from an app or the network until it had handed it on.",
    ),
];

/// All metrics of this policy.
pub(super) const METRICS: &[&MetricDescription] = &[
    &DESCRIBED[0],
    &DESCRIBED[1],
    &DESCRIBED[2],
    &DESCRIBED[3],
    &DESCRIBED[4],
    &DESCRIBED[5],
    &DESCRIBED[6],
    &DESCRIBED[7],
    &DESCRIBED[8],
    &DESCRIBED[9],
    &DESCRIBED[10],
];

static CLIENT: SideNames = SideNames {
    started: &DESCRIBED[0],
    duration: &DESCRIBED[1],
    sent: &DESCRIBED[2],
    received: &DESCRIBED[3],
};

static SERVER: SideNames = SideNames {
    started: &DESCRIBED[4],
    duration: &DESCRIBED[5],
    sent: &DESCRIBED[6],
    received: &DESCRIBED[7],
};

static IN_FLIGHT: &MetricDescription = &DESCRIBED[8];
static TIME_IN_QUEUE: [&MetricDescription; 2] = [&DESCRIBED[9], &DESCRIBED[10]];

fn names(side: Side) -> &'static SideNames {
    match side {
        Side::Client => &CLIENT,
        Side::Server => &SERVER,
    }
}

pub(crate) fn status_name(status: StatusPlace) -> &'static str {
    Code::ALL
        .get(usize::from(status))
        .map_or(OTHER, |code| code.name())
}

/// `kv.Kv/Get`, as gRPC's label has it.
fn method_label(key: &MethodKey) -> String {
    if key.owner.is_other() {
        OTHER.to_owned()
    } else {
        format!("{}/{}", key.owner.service, key.method)
    }
}

pub(crate) fn report(totals: &Totals, in_flight: &BTreeMap<MethodKey, u64>, sink: &mut dyn MetricSink) {
    for (key, of_method) in &totals.methods {
        let (app, method) = (&*key.owner.app, method_label(key));
        let of = names(key.owner.side);
        let labels = [("app", app), ("grpc_method", &*method)];
        sink.number(of.started, &labels, of_method.started as f64);
        for (status, series) in &of_method.ended {
            report_series(of, app, &method, status_name(*status), series, sink);
        }
        let labels = [
            ("app", app),
            ("grpc_method", &method),
            ("side", key.owner.side.name()),
        ];
        for (metric, times) in TIME_IN_QUEUE.into_iter().zip(&of_method.queued) {
            report_times(metric, &labels, times, sink);
        }
    }
    for (key, count) in in_flight {
        let method = method_label(key);
        let side = key.owner.side.name();
        let labels = [("app", &*key.owner.app), ("grpc_method", &method), ("side", side)];
        sink.number(IN_FLIGHT, &labels, *count as f64);
    }
}

fn report_series(
    of: &SideNames,
    app: &str,
    method: &str,
    status: &str,
    series: &SeriesTotals,
    sink: &mut dyn MetricSink,
) {
    let labels = [("app", app), ("grpc_method", method), ("grpc_status", status)];
    report_times(of.duration, &labels, &series.latency, sink);
    for (metric, sizes) in [(of.sent, &series.sent), (of.received, &series.received)] {
        let cumulative = sizes.cumulative(&SIZE_BYTES);
        sink.histogram(metric, &labels, &cumulative, sizes.sum as f64, sizes.count());
    }
}

fn report_times(
    metric: &'static MetricDescription,
    labels: &[(&str, &str)],
    times: &Histogram<LATENCIES>,
    sink: &mut dyn MetricSink,
) {
    let cumulative = times.cumulative(&LATENCY_SECONDS);
    sink.histogram(metric, labels, &cumulative, times.sum as f64 / 1e9, times.count());
}

pub(crate) fn method_calls(totals: &Totals, in_flight: &BTreeMap<MethodKey, u64>) -> Vec<MethodCalls> {
    let of = |(key, of_method): (&MethodKey, &MethodTotals)| {
        let under_way = in_flight.get(key).copied().unwrap_or_default();
        one_method(key, of_method, under_way)
    };
    totals.methods.iter().map(of).collect()
}

fn one_method(key: &MethodKey, of_method: &MethodTotals, in_flight: u64) -> MethodCalls {
    let mut ended = [0; Code::ALL.len()];
    let mut latency = Histogram::default();
    let (mut sent_bytes, mut received_bytes) = (0, 0);
    for (status, series) in &of_method.ended {
        let unknown = Code::Unknown as usize;
        let place = usize::from(*status);
        ended[if place < ended.len() { place } else { unknown }] += series.latency.count();
        latency.merge(&series.latency);
        sent_bytes += series.sent.sum;
        received_bytes += series.received.sum;
    }
    let [mut queued, responses] = of_method.queued.clone();
    queued.merge(&responses);
    MethodCalls {
        app: key.owner.app.clone(),
        service: key.owner.service.clone(),
        method: key.method.clone(),
        side: Some(key.owner.side),
        started: of_method.started,
        in_flight,
        ended,
        sent_bytes,
        received_bytes,
        latency_sum: latency.sum as f64 / 1e9,
        latency: by_bound(latency),
        time_in_queue_sum: queued.sum as f64 / 1e9,
        time_in_queue: by_bound(queued),
    }
}

fn by_bound(times: Histogram<LATENCIES>) -> Vec<(f64, u64)> {
    let bounds = LATENCY_SECONDS.into_iter().chain([f64::INFINITY]);
    bounds.zip(times.buckets).collect()
}
