//! Layers that join calls to a program's own telemetry: spans of [OpenTelemetry](https://docs.rs/opentelemetry) (feature
//! `opentelemetry`) and of [`tracing`](https://docs.rs/tracing) (feature `tracing`).
//!
//! [`OpenTelemetryLayer`] takes the trace that a call brings (W3C `traceparent` and `tracestate`), begins a span of the call, makes
//! that the current context of the handler, and gives it to the calls that the handler makes. So the services that a call
//! goes through make one trace, whether they use layers, the policy `tracing` of their nodes, or both.
//!
//! [`TracingLayer`] runs each call within a span of `tracing`, for logs and subscribers. With `tracing-opentelemetry` its spans, and all
//! those below, are part of the same trace when it stands inside of a server's [`OpenTelemetryLayer`], so is added before it:
//!
//! ```no_run
//! # #[cfg(all(feature = "opentelemetry", feature = "tracing"))]
//! # fn join(channel: provost::Channel) {
//! use provost::telemetry::{OpenTelemetryLayer, TracingLayer};
//!
//! let server = provost::Server::builder().layer(TracingLayer::server()).layer(OpenTelemetryLayer::server());
//! let channel = channel.layer(OpenTelemetryLayer::client());
//! # drop((server, channel));
//! # }
//! ```
//!
//! A span ends with the response. Of a stream of responses that is when the stream begins, not when it has been read.

#[cfg(feature = "opentelemetry")]
mod open_telemetry;
#[cfg(feature = "tracing")]
mod spans;

#[cfg(feature = "opentelemetry")]
pub use open_telemetry::{OpenTelemetryLayer, OpenTelemetryService};
#[cfg(feature = "tracing")]
pub use spans::{TracingLayer, TracingService};

use crate::layer::AnswerBody;
use crate::request::Response;
use crate::status::{Code, Status};

/// The end of a call that a layer stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallEnd {
    Client,
    Server,
}

/// The code by which a call ended.
fn code_of(answer: &Result<Response<AnswerBody>, Status>) -> Code {
    answer.as_ref().map_or_else(Status::code, |_| Code::Ok)
}
