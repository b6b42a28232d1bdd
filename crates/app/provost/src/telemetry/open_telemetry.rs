//! Spans of OpenTelemetry around calls.

use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use opentelemetry::context::FutureExt as _;
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::trace::{
    SpanContext, SpanKind, Status as SpanStatus, TraceContextExt, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue, SpanId, TraceFlags, TraceId};
use tower_layer::Layer;
use tower_service::Service;

use super::{CallEnd, code_of};
use crate::context::{self, CallContext, TRACEPARENT, TRACESTATE, is_traceparent};
use crate::layer::{AnswerBody, AnswerFuture, BoxError, CallBody, status_of};
use crate::metadata::MetadataMap;
use crate::request::{Request, Response};
use crate::status::Status;

/// Begins a span of OpenTelemetry for each call, by the program's global tracer provider: set that first
/// (`opentelemetry::global::set_tracer_provider`). See [`telemetry`](crate::telemetry).
///
/// The parent of a server's span is the one that the call brings. That of a client's is the current one of this program; where
/// there is none, the one that the call inherits.
#[derive(Clone, Debug)]
pub struct OpenTelemetryLayer {
    end: CallEnd,
    tracer: Arc<BoxedTracer>,
}

/// What [`OpenTelemetryLayer`] makes of a service.
#[derive(Clone, Debug)]
pub struct OpenTelemetryService<S> {
    inner: S,
    layer: OpenTelemetryLayer,
}

impl OpenTelemetryLayer {
    /// The layer of a client, to be given to [`Channel::layer`](crate::Channel::layer).
    #[must_use]
    pub fn client() -> OpenTelemetryLayer {
        OpenTelemetryLayer::at(CallEnd::Client)
    }

    /// The layer of a server, to be given to [`ServerBuilder::layer`](crate::ServerBuilder::layer).
    #[must_use]
    pub fn server() -> OpenTelemetryLayer {
        OpenTelemetryLayer::at(CallEnd::Server)
    }

    fn at(end: CallEnd) -> OpenTelemetryLayer {
        let tracer = Arc::new(global::tracer(env!("CARGO_PKG_NAME")));
        OpenTelemetryLayer { end, tracer }
    }

    /// Begins the span of a call, and has the call take it along.
    fn begin(&self, request: &mut Request<CallBody>) -> Context {
        let parent = self.parent(request.metadata());
        let path = request.get_ref().path();
        let kind = match self.end {
            CallEnd::Client => SpanKind::Client,
            CallEnd::Server => SpanKind::Server,
        };
        let span = self
            .tracer
            .span_builder(format!("{}/{}", path.service(), path.method()))
            .with_kind(kind)
            .with_attributes([
                KeyValue::new("rpc.system.name", "provost"),
                KeyValue::new("rpc.method", format!("{}/{}", path.service(), path.method())),
            ])
            .start_with_context(&*self.tracer, &parent);
        let context = parent.with_span(span);
        pass_on(context.span().span_context(), request.metadata_mut());
        context
    }

    fn parent(&self, metadata: &MetadataMap) -> Context {
        let current = match self.end {
            CallEnd::Client => Context::current(),
            // What runs the handlers may be in the context of another call.
            CallEnd::Server => Context::new(),
        };
        match brought(metadata) {
            Some(remote) if !current.span().span_context().is_valid() => {
                current.with_remote_span_context(remote)
            }
            _ => current,
        }
    }
}

/// The span that a call has come from.
fn brought(metadata: &MetadataMap) -> Option<SpanContext> {
    let header = metadata
        .get(TRACEPARENT)
        .filter(|header| is_traceparent(header))?;
    let mut fields = header.split('-').skip(1);
    let trace = TraceId::from_hex(fields.next()?).ok()?;
    let span = SpanId::from_hex(fields.next()?).ok()?;
    let flags = u8::from_str_radix(fields.next()?, 16).ok()?;
    // A state that cannot be read is left out, not the trace (W3C trace context, 3.3.1).
    let state = metadata
        .get(TRACESTATE)
        .and_then(|state| TraceState::from_str(state).ok());
    Some(SpanContext::new(
        trace,
        span,
        TraceFlags::new(flags),
        true,
        state.unwrap_or_default(),
    ))
}

/// Puts a span in the place of the one that the metadata had. What finds no room is left out.
fn pass_on(span: &SpanContext, metadata: &mut MetadataMap) {
    if !span.is_valid() {
        return;
    }
    let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    let _ = metadata.insert(TRACEPARENT, &format!("00-{trace}-{id}-{flags:02x}"));
    metadata.remove(TRACESTATE);
    let state = span.trace_state().header();
    if !state.is_empty() {
        let _ = metadata.insert(TRACESTATE, &state);
    }
}

/// The current context of calls with the trace of this metadata, which calls of a handler inherit.
fn inherited(metadata: &MetadataMap) -> CallContext {
    let mut context = CallContext::current();
    for key in [TRACEPARENT, TRACESTATE] {
        if let Some(value) = metadata.get(key) {
            context = context.clone().with_metadata(key, value).unwrap_or(context);
        }
    }
    context
}

/// Ends the span of a call.
fn end(context: &Context, answer: &Result<Response<AnswerBody>, Status>) {
    let span = context.span();
    span.set_attribute(KeyValue::new("rpc.response.status_code", code_of(answer).name()));
    if let Err(status) = answer {
        span.set_status(SpanStatus::error(status.message().to_owned()));
    }
    span.end();
}

impl<S> Layer<S> for OpenTelemetryLayer {
    type Service = OpenTelemetryService<S>;

    fn layer(&self, inner: S) -> OpenTelemetryService<S> {
        OpenTelemetryService {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S> Service<Request<CallBody>> for OpenTelemetryService<S>
where
    S: Service<Request<CallBody>, Response = Response<AnswerBody>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<AnswerBody>;
    type Error = Status;
    type Future = AnswerFuture;

    fn poll_ready(&mut self, task: &mut TaskContext<'_>) -> Poll<Result<(), Status>> {
        self.inner
            .poll_ready(task)
            .map_err(|error| status_of(error.into()))
    }

    fn call(&mut self, mut request: Request<CallBody>) -> AnswerFuture {
        let span = self.layer.begin(&mut request);
        let calls = match self.layer.end {
            CallEnd::Client => CallContext::current(),
            CallEnd::Server => inherited(request.metadata()),
        };
        let answer = {
            let _current = span.clone().attach();
            context::enter(calls.clone(), || self.inner.call(request))
        };
        let answer = context::scope(calls, answer).with_context(span.clone());
        Box::pin(async move {
            let answer = answer.await.map_err(|error| status_of(error.into()));
            end(&span, &answer);
            answer
        })
    }
}
