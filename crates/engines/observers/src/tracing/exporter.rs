//! The thread that makes spans of records and sends them to the collector.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use provost_engine::{Backlog, Drain, DrainOptions, WallClock};
use provost_shm::now_ns;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code as GrpcCode, Request, Status};

use crate::tracing::filter::SpanRecord;
use crate::tracing::sampling::Ids;
use crate::tracing::span::{spans, text};

/// Attempts to export a batch.
const ATTEMPTS_MAX: u32 = 5;
/// Before the second attempt; twice as long before each further one.
const BACK_OFF: Duration = Duration::from_millis(250);
/// Records that one engine queues before it wakes the exporter ahead of its time.
const RECORDS_PER_WAKE: u32 = 512;
const STACK_BYTES: usize = 512 << 10;
/// Characters that are told of what a collector says.
const TOLD_CHARACTERS_MAX: usize = 200;
/// By this type in its details a collector without resources says that it will have some again.
const RETRY_INFO: &[u8] = b"google.rpc.RetryInfo";
/// Where the meaning of the attributes is defined.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.39.0";

pub(crate) struct ExporterOptions {
    pub(crate) endpoint: Endpoint,
    pub(crate) timeout: Duration,
    pub(crate) delay: Duration,
    pub(crate) batch_max: usize,
    pub(crate) phases: bool,
    pub(crate) node: Arc<str>,
}

/// Where a collector takes OTLP over gRPC: `http://HOST:PORT`. The error says what is wrong with the address.
pub fn endpoint(address: &str) -> Result<Endpoint, String> {
    if !address.starts_with("http://") {
        return Err(format!(
            "\"{address}\" is no http://HOST:PORT; TLS is for an agent on this node to add"
        ));
    }
    Endpoint::from_shared(address.to_owned()).map_err(|error| format!("\"{address}\": {error}"))
}

/// Starts the thread that exports.
pub(crate) fn start(backlog: Backlog<SpanRecord>, options: ExporterOptions) -> io::Result<Drain<SpanRecord>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let channel = {
        // The caller may be within a runtime of its own, as the control plane is: then none can be waited for.
        let _entered = runtime.enter();
        options.endpoint.connect_lazy()
    };
    let mut client = TraceServiceClient::new(channel);
    let mut ids = Ids::new();
    let drain = DrainOptions {
        name: "otlp-traces",
        stack_bytes: STACK_BYTES,
        batch_max: options.batch_max,
        records_per_wake: RECORDS_PER_WAKE,
        interval: options.delay,
    };
    Drain::start(backlog, drain, move |records, backlog| {
        let request = request(records, &options, &mut ids);
        runtime.block_on(export(&mut client, request, backlog, &options))
    })
}

/// The spans of each app are those of a resource: `service.name` is the app.
fn request(records: &[SpanRecord], options: &ExporterOptions, ids: &mut Ids) -> ExportTraceServiceRequest {
    let wall = WallClock::now(now_ns());
    let mut by_app: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
    for record in records {
        let of_app = by_app.entry(&record.datapath_context.app).or_default();
        of_app.extend(spans(record, &wall, options.phases, ids));
    }
    let resource = |(app, spans): (&str, Vec<Span>)| ResourceSpans {
        resource: Some(Resource {
            attributes: vec![
                text("service.name", app),
                text("service.instance.id", &options.node),
            ],
            ..Resource::default()
        }),
        scope_spans: vec![ScopeSpans {
            scope: Some(InstrumentationScope {
                name: "provost".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            }),
            spans,
            schema_url: SCHEMA_URL.to_owned(),
        }],
        schema_url: SCHEMA_URL.to_owned(),
    };
    ExportTraceServiceRequest {
        resource_spans: by_app.into_iter().map(resource).collect(),
    }
}

async fn export(
    client: &mut TraceServiceClient<Channel>,
    request: ExportTraceServiceRequest,
    backlog: &Backlog<SpanRecord>,
    options: &ExporterOptions,
) -> Result<(), String> {
    let mut back_off = BACK_OFF;
    let mut attempt = 1;
    loop {
        let mut message = Request::new(request.clone());
        message.set_timeout(options.timeout);
        let sent = tokio::time::timeout(options.timeout, client.export(message)).await;
        let status = match sent {
            Ok(Ok(response)) => return taken(response.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded("the collector did not answer"),
        };
        if attempt == ATTEMPTS_MAX || backlog.is_closing() || !is_retryable(&status) {
            return Err(status.to_string());
        }
        tokio::time::sleep(back_off).await;
        attempt += 1;
        back_off *= 2;
    }
}

/// Whether a collector that took the request took its spans. (What it rejects it would reject again.)
fn taken(response: ExportTraceServiceResponse) -> Result<(), String> {
    match response.partial_success {
        Some(partial) if partial.rejected_spans > 0 => {
            let reason: String = partial.error_message.chars().take(TOLD_CHARACTERS_MAX).collect();
            Err(format!(
                "it rejected {} spans: {reason:?}",
                partial.rejected_spans
            ))
        }
        _ => Ok(()),
    }
}

/// As the OTLP specification has it.
fn is_retryable(status: &Status) -> bool {
    match status.code() {
        GrpcCode::ResourceExhausted => {
            let mut pieces = status.details().windows(RETRY_INFO.len());
            pieces.any(|piece| piece == RETRY_INFO)
        }
        code => matches!(
            code,
            GrpcCode::Cancelled
                | GrpcCode::DeadlineExceeded
                | GrpcCode::Aborted
                | GrpcCode::OutOfRange
                | GrpcCode::Unavailable
                | GrpcCode::DataLoss
        ),
    }
}
