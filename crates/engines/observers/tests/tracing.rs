//! The tracing policy around calls, with a collector: contexts are carried on, spans have the right parents, state
//! goes on over changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use provost_datapath::Body;
use provost_engine::rig::{Rig, Service, metadata_of, metric, policy, with_metadata};
use provost_engine::{Code, Parts, Policy, Side, Step};
use provost_observers::kind;
use provost_wire::metadata;
use tonic::{Request, Response, Status};

const ECHO: &str = r#"
syntax = "proto3";
package test;
message Text { string text = 1; }
service Echo { rpc Say(Text) returns (Text); }
"#;
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A collector that keeps what it gets, refuses with what it is told to first, and rejects so many spans of what it takes.
#[derive(Clone, Default)]
struct Collector {
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    refusals: Arc<Mutex<Vec<Status>>>,
    rejected_spans: Arc<Mutex<i64>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if let Some(refusal) = self.refusals.lock().unwrap().pop() {
            return Err(refusal);
        }
        self.requests.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans: *self.rejected_spans.lock().unwrap(),
                error_message: "too old".to_owned(),
            }),
        }))
    }
}

struct Bench {
    collector: Collector,
    address: String,
    service: Service,
    _runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn new() -> Bench {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let collector = Collector::default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = TraceServiceServer::new(collector.clone());
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let incoming = tonic::transport::server::TcpIncoming::from(listener);
            tonic::transport::Server::builder()
                .add_service(serving)
                .serve_with_incoming(incoming)
                .await
        });
        Bench {
            collector,
            address,
            service: Service::from_source(ECHO),
            _runtime: runtime,
        }
    }

    fn policy(&self, more: &str) -> Arc<dyn Policy> {
        let text = format!(
            "endpoint = \"http://{}\"\nschedule_delay_ms = 10\n{more}",
            self.address
        );
        policy(&*kind("tracing").unwrap(), &text, None).unwrap()
    }

    /// Waits for so many spans, by name.
    fn spans(&self, count: usize) -> HashMap<String, Span> {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let requests = self.collector.requests.lock().unwrap();
            let scopes = requests.iter().flat_map(|request| &request.resource_spans);
            let spans = scopes
                .flat_map(|resource| &resource.scope_spans)
                .flat_map(|scope| &scope.spans);
            let spans: Vec<Span> = spans.cloned().collect();
            drop(requests);
            if spans.len() >= count {
                assert_eq!(spans.len(), count, "{spans:?}");
                return spans.into_iter().map(|span| (span.name.clone(), span)).collect();
            }
            assert!(Instant::now() < until, "{} of {count} spans came", spans.len());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One call on the client's side; what the wire gets as its context.
fn call(rig: &mut Rig, service: &Service, header: Option<&str>) -> Option<String> {
    metadata_of(&sent_of_call(rig, service, header), "traceparent")
}

/// One call on the client's side; its first step as the wire gets it.
fn sent_of_call(rig: &mut Rig, service: &Service, header: Option<&str>) -> Step {
    let request = service.request(1, 0, &[]);
    rig.send(match header {
        Some(header) => with_metadata(request, &[("traceparent", header), ("tracestate", "a=b")]),
        None => request,
    });
    rig.poll();
    let sent = rig.to_wire().remove(0);
    rig.now += 2_000_000;
    rig.receive(service.response(1, 0, &[]));
    rig.now += 1_000_000;
    rig.poll();
    assert_eq!(rig.to_app().len(), 1);
    sent
}

#[test]
fn an_app_without_a_context_gets_one_and_the_call_its_spans() {
    let bench = Bench::new();
    let policy = bench.policy("");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*policy);
    let header = call(&mut rig, &bench.service, None).unwrap();
    let spans = bench.spans(2);
    let (own, wire) = (&spans["test.Echo/Say"], &spans["wire"]);
    assert_eq!(
        header,
        format!("00-{}-{}-01", hex(&own.trace_id), hex(&own.span_id))
    );
    assert_eq!((own.kind, own.parent_span_id.len()), (SpanKind::Client as i32, 0));
    assert_eq!(own.end_time_unix_nano - own.start_time_unix_nano, 3_000_000);
    assert_eq!(
        (&wire.trace_id, &wire.parent_span_id),
        (&own.trace_id, &own.span_id)
    );
    let expected = [
        ("rpc.system.name", "provost"),
        ("rpc.method", "test.Echo/Say"),
        ("rpc.response.status_code", "OK"),
        ("server.address", "192.0.2.7"),
        ("server.port", "4000"),
        ("provost.request.messages", "1"),
    ];
    for (key, value) in expected {
        assert_eq!(attribute(own, key).as_deref(), Some(value), "{key}");
    }
    let requests = bench.collector.requests.lock().unwrap();
    let resource = requests[0].resource_spans[0].resource.as_ref().unwrap();
    assert_eq!(resource.attributes[0].key, "service.name");
}

#[test]
fn a_request_that_waited_in_the_service_has_a_span_of_that_too() {
    for (config, is_hop) in [("", false), ("span = \"hop\"", true)] {
        let bench = Bench::new();
        let policy = bench.policy(config);
        let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*policy);
        rig.now = 9_000_000;
        let mut request = with_metadata(bench.service.request(1, 0, &[]), &[("traceparent", PARENT)]);
        request.taken_at = 2_000_000;
        rig.send(request);
        rig.poll();
        rig.now += 1000;
        rig.receive(bench.service.response(1, 0, &[]));
        rig.poll();
        let spans = bench.spans(3);
        let own = if is_hop {
            "hop test.Echo/Say"
        } else {
            "test.Echo/Say"
        };
        let (own, queueing) = (&spans[own], &spans["queueing"]);
        assert_eq!(
            queueing.end_time_unix_nano - queueing.start_time_unix_nano,
            7_000_000
        );
        assert_eq!(queueing.end_time_unix_nano, spans["wire"].start_time_unix_nano);
        assert_eq!(queueing.trace_id, own.trace_id);
        let parent = if is_hop { &own.parent_span_id } else { &own.span_id };
        assert_eq!(&queueing.parent_span_id, parent);
    }
}

#[test]
fn a_context_of_the_app_is_the_parent_and_is_carried_on_with_its_own_span() {
    let bench = Bench::new();
    let policy = bench.policy("phases = false");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*policy);
    let header = call(&mut rig, &bench.service, Some(PARENT)).unwrap();
    let spans = bench.spans(1);
    let own = &spans["test.Echo/Say"];
    assert_eq!(hex(&own.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(hex(&own.parent_span_id), "00f067aa0ba902b7");
    assert_eq!(
        header,
        format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", hex(&own.span_id))
    );
}

/// The values that a step carries under a key.
fn values_of(step: &Step, key: &str) -> Vec<String> {
    let Body::Gathered(body) = &step.body else {
        panic!("no app's step: {step:?}");
    };
    let entries = metadata::entries(&body.buffer.bytes[..body.metadata_bytes as usize]);
    let values = entries.filter(|(found, _)| *found == key);
    values
        .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        .collect()
}

#[test]
fn a_malformed_context_is_replaced_and_the_trace_begins_anew() {
    let bench = Bench::new();
    let policy = bench.policy("phases = false");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*policy);
    let of_right_length = PARENT.replace("-01", "-zz");
    let too_long = format!("{PARENT}-more");
    let malformed = ["", "nonsense", &PARENT[..54], &too_long, &of_right_length];
    for header in malformed {
        let sent = sent_of_call(&mut rig, &bench.service, Some(header));
        let carried = values_of(&sent, "traceparent");
        assert_eq!(carried.len(), 1, "{header:?}: {carried:?}");
        assert_eq!(
            (carried[0].len(), carried[0].get(..3)),
            (PARENT.len(), Some("00-"))
        );
        assert!(
            !carried[0].contains("4bf92f3577b34da6a3ce929d0e0e4736"),
            "{carried:?}"
        );
        assert_eq!(values_of(&sent, "tracestate"), [""; 0]);
    }
    // Of a later version, what this one knows of it goes on.
    let later = format!("01{}-more", &PARENT[2..]);
    let sent = sent_of_call(&mut rig, &bench.service, Some(&later));
    let carried = values_of(&sent, "traceparent");
    assert_eq!(carried.len(), 1, "{carried:?}");
    assert!(
        carried[0].starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"),
        "{carried:?}"
    );
    assert_ne!(carried[0], PARENT);
    assert_eq!(values_of(&sent, "tracestate"), ["a=b"]);
}

#[test]
fn what_nobody_samples_has_no_span_and_the_peer_is_told() {
    let bench = Bench::new();
    let policy = bench.policy("phases = false\nsampling_ratio = 0.0");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*policy);
    assert_eq!(
        call(&mut rig, &bench.service, Some(UNSAMPLED)).as_deref(),
        Some(UNSAMPLED)
    );
    let header = call(&mut rig, &bench.service, None).unwrap();
    assert!(header.ends_with("-00"), "{header}");
    // A sampled parent decides: its is the only span.
    call(&mut rig, &bench.service, Some(PARENT));
    bench.spans(1);
}

#[test]
fn a_server_has_a_span_of_its_own_and_its_handler_gets_that_as_context() {
    let bench = Bench::new();
    let policy = bench.policy("");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Server), &*policy);
    let request = bench.service.request(1, 0, &[]);
    rig.receive(with_metadata(request, &[("traceparent", PARENT)]));
    rig.poll();
    let header = metadata_of(&rig.to_app()[0], "traceparent").unwrap();
    rig.now += 1000;
    rig.send(Step {
        status: Code::Unavailable,
        ..Step::new(1, Parts::STATUS)
    });
    rig.poll();
    let spans = bench.spans(2);
    let own = &spans["test.Echo/Say"];
    assert_eq!(
        (own.kind, hex(&own.parent_span_id)),
        (SpanKind::Server as i32, "00f067aa0ba902b7".into())
    );
    assert_eq!(
        header,
        format!("00-{}-{}-01", hex(&own.trace_id), hex(&own.span_id))
    );
    assert_eq!(spans["handler"].parent_span_id, own.span_id);
    assert_eq!(attribute(own, "error.type").as_deref(), Some("UNAVAILABLE"));
    assert_eq!(attribute(own, "client.address").as_deref(), Some("192.0.2.7"));
}

/// Waits until a counter of a policy has a value.
fn wait_for(policy: &dyn Policy, name: &str, value: f64) {
    let until = Instant::now() + WAIT_MAX;
    while metric(policy, name) < value {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
}

const EXPORTED: &str = "provost_tracing_exported_total";
const FAILED: &str = "provost_tracing_export_failures_total";

#[test]
fn a_collector_that_is_busy_gets_the_spans_again() {
    let bench = Bench::new();
    let later = Status::with_details(
        tonic::Code::ResourceExhausted,
        "later",
        tonic::codegen::Bytes::from_static(b"\x08\x08\x1a\x28type.googleapis.com/google.rpc.RetryInfo"),
    );
    *bench.collector.refusals.lock().unwrap() = vec![Status::unavailable("busy"), later];
    let policy = bench.policy("phases = false");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*policy);
    call(&mut rig, &bench.service, None);
    bench.spans(1);
    wait_for(&*policy, EXPORTED, 1.0);
    assert_eq!(metric(&*policy, FAILED), 0.0);
}

#[test]
fn what_a_collector_will_never_take_is_not_sent_again() {
    let bench = Bench::new();
    let refusals = [
        Status::invalid_argument("odd spans"),
        Status::resource_exhausted("too large"),
    ];
    *bench.collector.refusals.lock().unwrap() = refusals.to_vec();
    let policy = bench.policy("phases = false");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*policy);
    for left in [1u32, 0] {
        call(&mut rig, &bench.service, None);
        wait_for(&*policy, FAILED, 2.0 - f64::from(left));
        assert_eq!(bench.collector.refusals.lock().unwrap().len(), left as usize);
    }
    assert!(policy.failure().unwrap().contains("odd spans"));
    assert_eq!(bench.collector.requests.lock().unwrap().len(), 0);
}

#[test]
fn spans_that_a_collector_rejects_are_not_exported() {
    let bench = Bench::new();
    *bench.collector.rejected_spans.lock().unwrap() = 1;
    let policy = bench.policy("phases = false");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*policy);
    call(&mut rig, &bench.service, None);
    wait_for(&*policy, FAILED, 1.0);
    assert_eq!(metric(&*policy, EXPORTED), 0.0);
    let failure = policy.failure().unwrap();
    assert!(failure.ends_with("it rejected 1 spans: \"too old\""), "{failure}");
    assert_eq!(bench.collector.requests.lock().unwrap().len(), 1);
}

/// A step of a stream that the service took when it comes.
fn streamed(rig: &Rig, parts: Parts) -> Step {
    Step {
        taken_at: rig.now,
        ..Step::new(1, parts)
    }
}

#[test]
fn a_stream_whose_server_speaks_first_has_no_span_of_a_wait() {
    let bench = Bench::new();
    let policy = bench.policy("");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*policy);
    rig.now = 1_000_000;
    rig.send(streamed(&rig, Parts::BEGIN));
    rig.poll();
    rig.now += 5_000_000;
    rig.receive(streamed(&rig, Parts::MESSAGE));
    rig.poll();
    rig.now += 5_000_000;
    rig.send(streamed(&rig, Parts::MESSAGE | Parts::END));
    rig.poll();
    rig.receive(streamed(&rig, Parts::STATUS));
    rig.poll();
    assert_eq!(bench.spans(1).keys().collect::<Vec<_>>(), ["test.Echo/Say"]);
}

#[test]
fn what_a_client_waits_before_its_first_message_is_no_queueing() {
    let bench = Bench::new();
    let policy = bench.policy("");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*policy);
    rig.now = 1_000_000;
    rig.send(streamed(&rig, Parts::BEGIN));
    rig.poll();
    rig.now += 5_000_000;
    rig.send(streamed(&rig, Parts::MESSAGE | Parts::END));
    rig.now += 2_000_000;
    rig.poll();
    rig.now += 1_000_000;
    rig.receive(streamed(&rig, Parts::STATUS));
    rig.poll();
    let spans = bench.spans(3);
    let nanos = |name: &str| spans[name].end_time_unix_nano - spans[name].start_time_unix_nano;
    assert_eq!((nanos("queueing"), nanos("wire")), (2_000_000, 1_000_000));
}

#[test]
fn a_call_that_spans_a_change_of_the_policy_has_one_span_from_its_beginning() {
    let bench = Bench::new();
    let first = bench.policy("phases = false");
    let mut rig = Rig::new(bench.service.datapath_context(Side::Client), &*first);
    rig.send(bench.service.request(1, 0, &[]));
    rig.poll();
    let second = bench.policy("phases = false\nsampling_ratio = 0.0");
    rig.replace(&*second).unwrap();
    drop(first);
    rig.now += 5_000_000;
    rig.receive(bench.service.response(1, 0, &[]));
    rig.poll();
    let spans = bench.spans(1);
    let own = &spans["test.Echo/Say"];
    assert_eq!(own.end_time_unix_nano - own.start_time_unix_nano, 5_000_000);
}

#[test]
fn what_finds_no_room_is_counted() {
    let service = Service::from_source(ECHO);
    let text = "endpoint = \"http://127.0.0.1:1\"\nqueue_max = 64\nschedule_delay_ms = 60000";
    let policy = policy(&*kind("tracing").unwrap(), text, None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    for _ in 0..1000 {
        call(&mut rig, &service, None);
    }
    assert!(metric(&*policy, "provost_tracing_dropped_total") >= 1000.0 - 64.0 - 512.0);
    let saved = policy.save();
    let successor = kind("tracing").unwrap();
    let environment = provost_engine::rig::environment();
    let config = provost_engine::rig::config(text);
    let second = successor.configure(&config, &environment, Some(&saved)).unwrap();
    assert!(metric(&*second, "provost_tracing_dropped_total") > 0.0);
}

#[test]
fn it_is_configured_within_a_runtime_as_the_control_plane_does() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let policy = runtime.block_on(async {
        policy(
            &*kind("tracing").unwrap(),
            kind("tracing").unwrap().example(),
            None,
        )
    });
    drop(policy.unwrap());
}

#[test]
fn what_cannot_work_is_refused_with_its_key() {
    let problem = |text: &str| {
        let error = policy(&*kind("tracing").unwrap(), text, None)
            .map(|_| ())
            .unwrap_err();
        error.to_string()
    };
    assert!(problem("endpoint = \"https://a\"").starts_with("endpoint: \"https://a\" is no http://"));
    assert!(problem("sampling_ratio = 2.0").starts_with("sampling_ratio: 2 is not between"));
    assert!(problem("span = \"all\"").contains("hop"));
    policy(
        &*kind("tracing").unwrap(),
        kind("tracing").unwrap().example(),
        None,
    )
    .unwrap();
}
