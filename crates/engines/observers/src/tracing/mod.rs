//! The tracing policy: spans of calls over OTLP, and W3C trace context.
//!
//! ```text
//! engine (runtime's thread): reads traceparent, puts its own span there ─► bounded queue of fixed records
//!                                                                               │ full: dropped and counted
//! exporter (own thread): spans by app, batches, retries ◄───────────────────────┘ ─► OTLP over gRPC
//! ```

mod exporter;
mod filter;
mod sampling;
mod span;

use std::sync::Arc;
use std::time::Duration;

use provost_engine::{
    AttachError, Backlog, ConfigError, DatapathContext, Drain, Environment, FilterPolicy, MetricDescription,
    MetricSink, MetricType, SharedState, check_range,
};
use serde::Deserialize;

pub use exporter::endpoint;
pub use filter::{TraceFilter, TracedCall};

use exporter::ExporterOptions;
use filter::SpanRecord;
use sampling::TraceSampler;
use span::SpanContextPart;

const KIND: &str = "tracing";
/// Spans that wait for the exporter, at most.
const QUEUE_MAX: u64 = 1 << 20;
/// Spans of one request, at most.
const BATCH_MAX: u64 = 8192;

static EXPORTED: MetricDescription = MetricDescription {
    name: "provost_tracing_exported_total",
    help: "Sampled calls whose spans the collector took.",
    kind: MetricType::Counter,
    unit: "{call}",
};
static DROPPED: MetricDescription = MetricDescription {
    name: "provost_tracing_dropped_total",
    help: "Sampled calls without spans, because the exporter did not keep up.",
    kind: MetricType::Counter,
    unit: "{call}",
};
static FAILED: MetricDescription = MetricDescription {
    name: "provost_tracing_export_failures_total",
    help: "Sampled calls whose spans the collector did not take, also when they were sent again.",
    kind: MetricType::Counter,
    unit: "{call}",
};

/// Every key with its default.
const EXAMPLE: &str = "# Where the collector takes OTLP over gRPC, without TLS: an agent on this node.\n\
     endpoint = \"http://127.0.0.1:4317\"\n\
     # How long one attempt to export may take, in milliseconds (1 to 60000).\n\
     timeout_ms = 10000\n\
     # Which share of the calls without a decision of their own is sampled (0 to 1).\n\
     sampling_ratio = 1.0\n\
     # Whether a call that brings a trace context is sampled as that says.\n\
     parent_based = true\n\
     # \"call\": the call's own span (CLIENT or SERVER). \"hop\": what happens beyond this place (INTERNAL).\n\
     span = \"call\"\n\
     # Whether there are spans within it: \"wire\" (client) or \"handler\" (server), until the response begins.\n\
     phases = true\n\
     # How long a span may wait to be exported with others, in milliseconds (1 to 60000).\n\
     schedule_delay_ms = 1000\n\
     # Calls that may wait for the exporter; those beyond are counted and have no span (64 to 1048576).\n\
     queue_max = 8192\n\
     # Calls whose spans are exported at once (1 to 8192).\n\
     batch_max = 512\n";

/// What an operator can set.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TracingConfig {
    endpoint: String,
    timeout_ms: u64,
    sampling_ratio: f64,
    parent_based: bool,
    span: SpanRole,
    phases: bool,
    schedule_delay_ms: u64,
    queue_max: u64,
    batch_max: u64,
}

/// Which span of a call an engine makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SpanRole {
    /// The call itself: CLIENT or SERVER.
    #[default]
    Call,
    /// What happens beyond this place in the chain of policies: INTERNAL.
    Hop,
}

impl Default for TracingConfig {
    fn default() -> TracingConfig {
        TracingConfig {
            endpoint: "http://127.0.0.1:4317".into(),
            timeout_ms: 10_000,
            sampling_ratio: 1.0,
            parent_based: true,
            span: SpanRole::Call,
            phases: true,
            schedule_delay_ms: 1000,
            queue_max: 8192,
            batch_max: 512,
        }
    }
}

/// A policy that traces.
pub(crate) struct TracingPolicy {
    sampler: TraceSampler,
    role: SpanRole,
    endpoint: String,
    exporter: Drain<SpanRecord>,
}

impl FilterPolicy for TracingPolicy {
    const KIND: &'static str = KIND;
    const SUMMARY: &'static str = "exports spans of calls over OTLP and carries W3C trace context";
    const EXAMPLE: &'static str = EXAMPLE;
    const METRICS: &'static [&'static MetricDescription] = &[&EXPORTED, &DROPPED, &FAILED];
    type Config = TracingConfig;
    type Filter = TraceFilter;

    fn configure(
        config: TracingConfig,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<TracingPolicy, ConfigError> {
        check_range("timeout_ms", config.timeout_ms, 1..=60_000)?;
        check_range("schedule_delay_ms", config.schedule_delay_ms, 1..=60_000)?;
        check_range("queue_max", config.queue_max, 64..=QUEUE_MAX)?;
        check_range("batch_max", config.batch_max, 1..=BATCH_MAX)?;
        check_range("sampling_ratio", config.sampling_ratio, 0.0..=1.0)?;
        let options = ExporterOptions {
            endpoint: exporter::endpoint(&config.endpoint)
                .map_err(|problem| ConfigError::new("endpoint", problem))?
                .connect_timeout(Duration::from_millis(config.timeout_ms)),
            timeout: Duration::from_millis(config.timeout_ms),
            delay: Duration::from_millis(config.schedule_delay_ms),
            batch_max: config.batch_max as usize,
            phases: config.phases,
            node: Arc::clone(&environment.node),
        };
        let backlog = Backlog::start(config.queue_max as usize, shared)?;
        let exporter = exporter::start(backlog, options)
            .map_err(|error| ConfigError::new("", format!("no thread for the exporter: {error}")))?;
        Ok(TracingPolicy {
            sampler: TraceSampler::new(config.sampling_ratio, config.parent_based),
            role: config.span,
            endpoint: config.endpoint,
            exporter,
        })
    }

    fn filter(&self, datapath_context: &DatapathContext) -> Result<TraceFilter, AttachError> {
        let part = Arc::new(SpanContextPart::new(datapath_context, self.role));
        Ok(TraceFilter::new(self.exporter.inlet(), part, self.sampler))
    }

    fn save(&self) -> SharedState {
        self.exporter.backlog().save()
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        let counts = self.exporter.backlog().counts();
        sink.number(&EXPORTED, &[], counts.delivered as f64);
        sink.number(&DROPPED, &[], counts.dropped as f64);
        sink.number(&FAILED, &[], counts.failed as f64);
    }

    fn failure(&self) -> Option<String> {
        let failure = self.exporter.backlog().failure();
        failure.map(|failure| format!("the collector at {} takes no spans: {failure}", self.endpoint))
    }
}
