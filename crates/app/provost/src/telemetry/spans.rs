//! Spans of `tracing` around calls.

use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::{CallEnd, code_of};
use crate::context::TRACEPARENT;
use crate::layer::{AnswerBody, AnswerFuture, BoxError, CallBody, status_of};
use crate::request::{Request, Response};
use crate::status::Status;

/// Runs each call within a span of `tracing` at level `INFO`, named `client call` or `server call`, with the target `provost::call`. Its
/// fields are `rpc.method`, `traceparent` (what the call brought or inherits), `rpc.response.status_code`, and for
/// `tracing-opentelemetry` `otel.name`, `otel.kind` and `otel.status_code`. See [`telemetry`](crate::telemetry).
#[derive(Clone, Copy, Debug)]
pub struct TracingLayer {
    end: CallEnd,
}

/// What [`TracingLayer`] makes of a service.
#[derive(Clone, Debug)]
pub struct TracingService<S> {
    inner: S,
    layer: TracingLayer,
}

impl TracingLayer {
    /// The layer of a client, to be given to [`Channel::layer`](crate::Channel::layer).
    #[must_use]
    pub fn client() -> TracingLayer {
        TracingLayer { end: CallEnd::Client }
    }

    /// The layer of a server, to be given to [`ServerBuilder::layer`](crate::ServerBuilder::layer).
    #[must_use]
    pub fn server() -> TracingLayer {
        TracingLayer { end: CallEnd::Server }
    }

    fn span(self, request: &Request<CallBody>) -> Span {
        let path = request.get_ref().path();
        let method = format!("{}/{}", path.service(), path.method());
        let traceparent = request.metadata().get(TRACEPARENT);
        match self.end {
            CallEnd::Client => tracing::info_span!(
                target: "provost::call",
                "client call",
                rpc.method = method,
                traceparent,
                otel.name = method,
                otel.kind = "client",
                otel.status_code = Empty,
                rpc.response.status_code = Empty,
            ),
            CallEnd::Server => tracing::info_span!(
                target: "provost::call",
                "server call",
                rpc.method = method,
                traceparent,
                otel.name = method,
                otel.kind = "server",
                otel.status_code = Empty,
                rpc.response.status_code = Empty,
            ),
        }
    }
}

/// Notes in the span how its call ended.
fn end(span: &Span, answer: &Result<Response<AnswerBody>, Status>) {
    span.record("rpc.response.status_code", code_of(answer).name());
    if answer.is_err() {
        span.record("otel.status_code", "ERROR");
    }
}

impl<S> Layer<S> for TracingLayer {
    type Service = TracingService<S>;

    fn layer(&self, inner: S) -> TracingService<S> {
        TracingService { inner, layer: *self }
    }
}

impl<S> Service<Request<CallBody>> for TracingService<S>
where
    S: Service<Request<CallBody>, Response = Response<AnswerBody>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<AnswerBody>;
    type Error = Status;
    type Future = AnswerFuture;

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.inner
            .poll_ready(task)
            .map_err(|error| status_of(error.into()))
    }

    fn call(&mut self, request: Request<CallBody>) -> AnswerFuture {
        let span = self.layer.span(&request);
        let answer = span
            .in_scope(|| self.inner.call(request))
            .instrument(span.clone());
        Box::pin(async move {
            let answer = answer.await.map_err(|error| status_of(error.into()));
            end(&span, &answer);
            answer
        })
    }
}
