//! Targets of `provost insight`: files that other programs and people wrote.

use provost_insight::access_log::{ENVOY_LOG_FORMAT, LoggedCall};
use provost_insight::acg::{AnnotatedGraph, CallGraph, draw_text};
use provost_insight::fit::fit;
use provost_insight::model::{MachineMatch, ProfileModel};
use provost_insight::profile::Profile;
use provost_insight::synthetic::{SyntheticProxy, synthetic_alibaba_rows, synthetic_profile};
use provost_insight::traces::{MergeOptions, TraceFormat, apply_metrics, assemble, merge, read};
use provost_insight::validation::ValidationResult;
use provost_insight::workload::WorkloadFile;
use provost_insight_probes::stacks::example::{FUNCTIONS, example_program};
use provost_insight_probes::stacks::{NamedFunctions, ProgramCode, frames_walked};

/// Any text is a profile that can be fitted, or an error.
pub(crate) fn profile(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let _ = ValidationResult::parse(text);
    let Ok(mut profile) = Profile::parse(text) else {
        return;
    };
    let _ = ProfileModel::new(&profile, MachineMatch::Same, 2, 1);
    if let Ok(fitted) = fit(&profile) {
        profile.fit = Some(fitted);
        assert!(profile.check().is_ok(), "a fit does not pass its own check");
    }
}

pub(crate) fn profile_seeds() -> Vec<Vec<u8>> {
    let mut proxy = SyntheticProxy::example();
    proxy.components.truncate(2);
    proxy.protocols.truncate(1);
    let mut profile = synthetic_profile(&proxy, 2, 1);
    profile.observations.retain(|one| one.load.rate_per_s == 1000.0);
    profile.totals.truncate(1);
    let plain = profile.to_json();
    profile.fit = fit(&profile).ok();
    profile.observations.clear();
    vec![plain.into_bytes(), profile.to_json().into_bytes()]
}

/// Any text is a graph that can be drawn and written again, or an error.
pub(crate) fn call_graph(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(graph) = AnnotatedGraph::parse(text).and_then(CallGraph::new) else {
        return;
    };
    assert!(!draw_text(&graph).is_empty());
    let written = graph.source.to_yaml().unwrap_or_default();
    let again = AnnotatedGraph::parse(&written).and_then(CallGraph::new);
    assert!(again.is_ok(), "a graph that was written is not read: {again:?}");
}

pub(crate) fn call_graph_seeds() -> Vec<Vec<u8>> {
    let text = "\
format: provost-insight-acg
version: 1
services: [{name: a, filters: [lua]}, {name: b, node: n, meshed: false}]
requests:
  - name: page
    rate_per_s: 100
    traces: 20
    calls:
      - {id: x, to: a, protocol: http1, request_bytes: 200, app_us: {p10: 1, p50: 2, p90: 5, p99: 9}}
      - {id: y, from: x, to: b, probability: 0.5, repeats: 2, repeat_mode: concurrent}
      - {id: z, from: x, to: b, after: [y], detached: true, filters: [lua]}
";
    vec![text.as_bytes().to_vec()]
}

pub(crate) fn jaeger_traces(input: &[u8]) {
    traces(input, TraceFormat::Jaeger);
}

pub(crate) fn otlp_traces(input: &[u8]) {
    traces(input, TraceFormat::Otlp);
}

pub(crate) fn alibaba_traces(input: &[u8]) {
    traces(input, TraceFormat::Alibaba);
}

pub(crate) fn nezha_traces(input: &[u8]) {
    traces(input, TraceFormat::Nezha);
}

/// Any text is spans or an error; whatever was read becomes a graph that is valid.
fn traces(input: &[u8], format: TraceFormat) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let _ = TraceFormat::guess(text);
    let Ok(spans) = read(text, format) else {
        return;
    };
    let mut forest = assemble(spans);
    if let Ok(graph) = merge(&mut forest, &MergeOptions::default()) {
        let checked = CallGraph::new(graph);
        assert!(
            checked.is_ok(),
            "a derived graph is not valid: {:?}",
            checked.err()
        );
    }
}

pub(crate) fn jaeger_seeds() -> Vec<Vec<u8>> {
    let span = |id: &str, parent: &str, process: &str, kind: &str| {
        format!(
            r#"{{"traceID":"t","spanID":"{id}","operationName":"op","references":[{parent}],"startTime":1000,"duration":90,"processID":"{process}","tags":[{{"key":"span.kind","value":"{kind}"}},{{"key":"request_size","value":9}}]}}"#
        )
    };
    let below = |parent: &str| format!(r#"{{"refType":"CHILD_OF","traceID":"t","spanID":"{parent}"}}"#);
    let spans = [
        span("1", "", "p", "server"),
        span("2", &below("1"), "p", "client"),
        span("3", &below("2"), "q", "server"),
    ];
    let text = format!(
        r#"{{"data":[{{"traceID":"t","spans":[{}],"processes":{{"p":{{"serviceName":"a"}},"q":{{"serviceName":"b"}}}}}}]}}"#,
        spans.join(",")
    );
    vec![text.into_bytes()]
}

pub(crate) fn otlp_seeds() -> Vec<Vec<u8>> {
    let text = r#"{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"a"}}]},"scopeSpans":[{"spans":[{"traceId":"aa","spanId":"01","name":"op","kind":2,"startTimeUnixNano":"1700000000000000000","endTimeUnixNano":"1700000000000900000"},{"traceId":"aa","spanId":"02","parentSpanId":"01","name":"op","kind":3,"startTimeUnixNano":"1700000000000100000","endTimeUnixNano":"1700000000000200000","attributes":[{"key":"peer.service","value":{"stringValue":"b"}},{"key":"provost.request.bytes","value":{"intValue":"9"}}]}]}]}]}"#;
    vec![text.as_bytes().to_vec()]
}

pub(crate) fn alibaba_seeds() -> Vec<Vec<u8>> {
    vec![synthetic_alibaba_rows(4, 5.0, 1).into_bytes()]
}

pub(crate) fn nezha_seeds() -> Vec<Vec<u8>> {
    let text = "\
TraceID,SpanID,ParentID,PodName,OperationName,StartTimeUnixNano,EndTimeUnixNano,Duration
t,1,root,gateway-6f6cfc45b-d9pnv,/*,1675078742856000000,1675078742887000000,31000
t,2,1,gateway-6f6cfc45b-d9pnv,HTTP GET,1675078742858000000,1675078742886000000,28000
t,3,2,orders-774f544d9-tmwcv,/api,1675078742860000000,1675078742885000000,25000
";
    vec![text.as_bytes().to_vec()]
}

/// Any text is metrics or an error.
pub(crate) fn node_metrics(input: &[u8]) {
    let (Ok(text), Some(seed)) = (std::str::from_utf8(input), call_graph_seeds().pop()) else {
        return;
    };
    let Some(mut graph) = String::from_utf8(seed)
        .ok()
        .and_then(|seed| AnnotatedGraph::parse(&seed).ok())
    else {
        return;
    };
    for call in graph.requests.iter_mut().flat_map(|request| &mut request.calls) {
        call.operation = "kv.Kv/Get".to_owned();
    }
    let _ = apply_metrics(&mut graph, text, None);
}

pub(crate) fn node_metrics_seeds() -> Vec<Vec<u8>> {
    let text = "\
# TYPE grpc_server_call_started_total counter
grpc_server_call_started_total{app=\"kv\",grpc_method=\"kv.Kv/Get\"} 300
grpc_server_call_rcvd_total_compressed_message_size_bytes_sum{grpc_method=\"kv.Kv/Get\"} 6000
grpc_server_call_rcvd_total_compressed_message_size_bytes_count{grpc_method=\"kv.Kv/Get\"} 300
";
    vec![text.as_bytes().to_vec()]
}

/// Any file is a program with functions whose stacks can be walked, or an error. Its last bytes are the stack as well.
pub(crate) fn program(input: &[u8]) {
    const STACK_BYTES: usize = 512;
    let Ok(code) = ProgramCode::read(input, NamedFunctions::All) else {
        return;
    };
    assert!(
        code.named_functions() <= input.len(),
        "more names than the file has bytes"
    );
    let stack = &input[input.len().saturating_sub(STACK_BYTES)..];
    let frames = frames_walked(code, FUNCTIONS[0] + 4, stack);
    assert!(frames < STACK_BYTES, "{frames} frames on so small a stack");
}

pub(crate) fn program_seeds() -> Vec<Vec<u8>> {
    vec![example_program()]
}

/// Each line of any bytes is a call, or an error.
pub(crate) fn access_log(input: &[u8]) {
    for line in input.split(|byte| *byte == b'\n') {
        if let Ok(call) = LoggedCall::parse(line) {
            assert!(
                call.proxy_ns() >= call.request_ns,
                "a part is longer than the whole"
            );
        }
    }
}

pub(crate) fn access_log_seeds() -> Vec<Vec<u8>> {
    let line = |value: &str| {
        let keys = ENVOY_LOG_FORMAT.map(|(key, _)| format!("\"{key}\":{value}"));
        format!("{{{}}}\n", keys.join(","))
    };
    let lines = ["41000", "null", "\"-\"", "\"90500\"", "-1"].map(line);
    vec![lines.concat().into_bytes(), lines[0].clone().into_bytes()]
}

/// Any text is a load within bounds, or an error.
pub(crate) fn workload(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(workload) = WorkloadFile::parse(text) {
        assert!(!workload.protocols().is_empty(), "a load speaks nothing");
    }
}

pub(crate) fn workload_seeds() -> Vec<Vec<u8>> {
    let text = "\
format: provost-insight-workload
version: 1
loads: [{protocol: http1, size_bytes: 700}, {protocol: grpc, size_bytes: 9, in_flight: 8, rate_per_s: 2.5}]
";
    vec![text.as_bytes().to_vec()]
}
