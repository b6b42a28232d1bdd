//! Calls are part of a program's own telemetry: through three services goes one trace, of OpenTelemetry and of `tracing`.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock};

use opentelemetry::trace::{SpanKind, Status as SpanStatus, TracerProvider as _};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use provost::blocking::block_on;
use provost::codegen::{Methods, Service, ServiceDescriptor};
use provost::telemetry::{OpenTelemetryLayer, TracingLayer};
use provost::{Channel, Code, Received, Request, Response, Server, Status};
use provost_kv::proto::kv_client::{KvClient, SERVICE};
use provost_kv::proto::{GetReply, GetRequest};
use tracing::Instrument as _;
use tracing_subscriber::layer::SubscriberExt as _;

/// Index of `Get` in the service.
const GET: u16 = 0;
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Answers `Get` with the answer of the next service, within a span of its own; the last one with an error.
struct ChainedService {
    next: Option<KvClient>,
}

impl Service for ChainedService {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &SERVICE
    }

    fn register(&self, methods: &mut Methods) {
        let next = self.next.clone();
        methods.unary(GET, move |request: Request<Received<GetRequest>>| {
            let next = next.clone();
            let get = async move {
                let Some(next) = next else {
                    return Err::<Response<GetReply>, _>(Status::not_found("the chain ends here"));
                };
                let request = request.get_ref().to_owned();
                Ok(Response::new(next.get(request).await?.into_inner().to_owned()))
            };
            get.instrument(tracing::info_span!("lookup"))
        });
    }
}

/// What layers the services and their clients have.
#[derive(Clone, Copy, PartialEq)]
enum SpanLayers {
    OpenTelemetry,
    /// Of OpenTelemetry, and in those of servers ones of `tracing`.
    Both,
    /// Of OpenTelemetry, and none at clients.
    ServersAlone,
}

/// A client of three services, of which each calls the next.
fn chain(spans: SpanLayers) -> KvClient {
    let mut next = None;
    for _ in 0..3 {
        let mut server = Server::builder().add_service(ChainedService { next: next.take() });
        if spans == SpanLayers::Both {
            server = server.layer(TracingLayer::server());
        }
        let server = server.layer(OpenTelemetryLayer::server()).in_process().unwrap();
        let mut channel: Channel = server.channel(&SERVICE).unwrap();
        if spans != SpanLayers::ServersAlone {
            channel = channel.layer(OpenTelemetryLayer::client());
        }
        next = Some(KvClient::new(channel));
    }
    next.unwrap()
}

/// Keeps the spans that have ended.
#[derive(Clone, Debug, Default)]
struct SpanList(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for SpanList {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        self.0.lock().unwrap().extend(batch);
        std::future::ready(Ok(()))
    }
}

/// The telemetry of this program, set up once.
fn telemetry() -> &'static SpanList {
    static SPANS: OnceLock<SpanList> = OnceLock::new();
    SPANS.get_or_init(|| {
        let list = SpanList::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(list.clone())
            .build();
        let bridge = tracing_opentelemetry::layer().with_tracer(provider.tracer("program"));
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(bridge)).unwrap();
        opentelemetry::global::set_tracer_provider(provider);
        list
    })
}

impl SpanList {
    /// Those spans of a trace that begins with the span of this number, each the only child of the one before.
    fn line(&self, trace: &str, first: &str, is_in_it: fn(&SpanData) -> bool) -> Vec<SpanData> {
        let all = self.0.lock().unwrap();
        let of_trace = all
            .iter()
            .filter(|span| span.span_context.trace_id().to_string() == trace && is_in_it(span));
        let children: HashMap<String, &SpanData> = of_trace
            .map(|span| (span.parent_span_id.to_string(), span))
            .collect();
        let mut line = Vec::new();
        let mut parent = first.to_owned();
        while let Some(span) = children.get(&parent) {
            parent = span.span_context.span_id().to_string();
            line.push((*span).clone());
        }
        line
    }
}

fn request(trace: &str, parent: &str) -> Request<GetRequest> {
    let mut request = Request::new(GetRequest { key: "a".into() });
    let traceparent = format!("00-{trace}-{parent}-01");
    request
        .metadata_mut()
        .insert("traceparent", &traceparent)
        .unwrap();
    request.metadata_mut().insert("tracestate", "vendor=1").unwrap();
    request
}

fn three_times(service: &[(&str, SpanKind)]) -> Vec<(String, SpanKind)> {
    let one = service
        .iter()
        .map(|(name, kind)| ((*name).to_owned(), kind.clone()));
    let one: Vec<_> = one.collect();
    [one.clone(), one.clone(), one].concat()
}

fn kinds(line: &[SpanData]) -> Vec<(String, SpanKind)> {
    let kind = |span: &SpanData| (span.name.to_string(), span.span_kind.clone());
    line.iter().map(kind).collect()
}

#[test]
fn three_services_make_one_trace_of_open_telemetry() {
    let spans = telemetry();
    let parent = "b7ad6b7169203331";
    let status = block_on(chain(SpanLayers::OpenTelemetry).get(request(TRACE, parent))).unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let line = spans.line(TRACE, parent, |_| true);
    // Each handler's own span of `tracing` is in the trace, too.
    let service = [
        ("kv.Kv/Get", SpanKind::Client),
        ("kv.Kv/Get", SpanKind::Server),
        ("lookup", SpanKind::Internal),
    ];
    assert_eq!(kinds(&line), three_times(&service));
    for span in line.iter().filter(|span| span.name != "lookup") {
        let code = span
            .attributes
            .iter()
            .find(|one| one.key.as_str() == "rpc.response.status_code");
        assert_eq!(code.unwrap().value.as_str(), "NOT_FOUND");
        assert_eq!(span.status, SpanStatus::error("the chain ends here"));
        assert_eq!(span.span_context.trace_state().header(), "vendor=1");
    }
}

#[test]
fn spans_of_tracing_are_part_of_the_trace() {
    let spans = telemetry();
    let (trace, parent) = ("1af7651916cd43dd8448eb211c80319c", "c7ad6b7169203331");
    block_on(chain(SpanLayers::Both).get(request(trace, parent))).unwrap_err();
    let line = spans.line(trace, parent, |_| true);
    let service = [
        ("kv.Kv/Get", SpanKind::Client),
        ("kv.Kv/Get", SpanKind::Server),
        ("kv.Kv/Get", SpanKind::Server),
        ("lookup", SpanKind::Internal),
    ];
    assert_eq!(kinds(&line), three_times(&service));
}

#[test]
fn calls_of_a_handler_inherit_the_span_without_a_layer_of_their_own() {
    let spans = telemetry();
    let (trace, parent) = ("2af7651916cd43dd8448eb211c80319c", "d7ad6b7169203331");
    block_on(chain(SpanLayers::ServersAlone).get(request(trace, parent))).unwrap_err();
    let line = spans.line(trace, parent, |span| span.span_kind == SpanKind::Server);
    assert_eq!(line.len(), 3, "{line:#?}");
    assert!(
        line.iter()
            .all(|span| span.span_context.trace_state().header() == "vendor=1")
    );
}

#[test]
fn a_call_within_a_span_of_the_program_is_its_child() {
    let spans = telemetry();
    let span = tracing::info_span!("the program's own");
    let client = chain(SpanLayers::OpenTelemetry);
    let call = client.get(Request::new(GetRequest { key: "a".into() }));
    block_on(call.instrument(span)).unwrap_err();
    let all = spans.0.lock().unwrap().clone();
    let own = all.iter().find(|span| span.name == "the program's own").unwrap();
    let line = spans.line(
        &own.span_context.trace_id().to_string(),
        &own.span_context.span_id().to_string(),
        |_| true,
    );
    assert_eq!(line.len(), 9, "{line:#?}");
    assert_eq!(line[0].span_kind, SpanKind::Client);
}
