//! The access log policy: one line of JSON for each call.
//!
//! ```text
//! engine (runtime's thread) ─► bounded queue of fixed records ─► writer (own thread): JSON, batches ─► file
//!                              full: the record is dropped and counted
//! ```

mod file;
mod filter;
mod line;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use provost_engine::{
    AttachError, Backlog, ConfigError, DatapathContext, Drain, Environment, FilterPolicy, MetricDescription,
    MetricSink, MetricType, SharedState, check_range,
};
use serde::Deserialize;

pub use file::LogFile;
pub use filter::{LogFilter, LoggedCall};

use filter::{CallSelection, LogRecord};
use line::ContextPart;

const KIND: &str = "access-log";
/// Records that wait for the writer, at most.
const QUEUE_MAX: usize = 1 << 20;
/// Longest time that a line may wait, in milliseconds.
const FLUSH_INTERVAL_MS_MAX: u64 = 60_000;

static LINES: MetricDescription = MetricDescription {
    name: "provost_access_log_lines_total",
    help: "Lines that were written.",
    kind: MetricType::Counter,
    unit: "{line}",
};
static DROPPED: MetricDescription = MetricDescription {
    name: "provost_access_log_dropped_total",
    help: "Calls without a line, because the writer did not keep up.",
    kind: MetricType::Counter,
    unit: "{line}",
};
static FAILED: MetricDescription = MetricDescription {
    name: "provost_access_log_write_failures_total",
    help: "Lines that the system did not take.",
    kind: MetricType::Counter,
    unit: "{line}",
};

/// Every key with its default.
const EXAMPLE: &str = "# The file, which is appended to; when it is renamed or removed, a new one is made. Or /dev/stdout.\n\
     path = \"/dev/stdout\"\n\
     # Only calls that ended with one of these statuses, such as [\"UNAVAILABLE\", \"INTERNAL\"]; empty: all.\n\
     status = []\n\
     # Only calls that took at least so long, in milliseconds.\n\
     duration_min_ms = 0\n\
     # Whether lines name the trace and span of the call's W3C trace context.\n\
     trace_context = true\n\
     # How long a line may wait to be written with others, in milliseconds (1 to 60000).\n\
     flush_interval_ms = 250\n\
     # Calls that may wait for the writer; those beyond are counted and have no line (64 to 1048576).\n\
     queue_max = 16384\n";

/// What an operator can set.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AccessLogConfig {
    path: String,
    status: Vec<String>,
    duration_min_ms: u64,
    trace_context: bool,
    flush_interval_ms: u64,
    queue_max: usize,
}

impl Default for AccessLogConfig {
    fn default() -> AccessLogConfig {
        AccessLogConfig {
            path: "/dev/stdout".into(),
            status: Vec::new(),
            duration_min_ms: 0,
            trace_context: true,
            flush_interval_ms: 250,
            queue_max: 16384,
        }
    }
}

/// A policy that logs.
pub(crate) struct AccessLogPolicy {
    node: Arc<str>,
    selection: CallSelection,
    path: String,
    writer: Drain<LogRecord>,
}

impl FilterPolicy for AccessLogPolicy {
    const KIND: &'static str = KIND;
    const SUMMARY: &'static str = "writes a line of JSON for each call";
    const EXAMPLE: &'static str = EXAMPLE;
    const METRICS: &'static [&'static MetricDescription] = &[&LINES, &DROPPED, &FAILED];
    type Config = AccessLogConfig;
    type Filter = LogFilter;

    fn configure(
        config: AccessLogConfig,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<AccessLogPolicy, ConfigError> {
        check_range("queue_max", config.queue_max, 64..=QUEUE_MAX)?;
        check_range(
            "flush_interval_ms",
            config.flush_interval_ms,
            1..=FLUSH_INTERVAL_MS_MAX,
        )?;
        let selection = CallSelection {
            statuses: crate::statuses(&config.status)?,
            duration_min_ns: config.duration_min_ms.saturating_mul(1_000_000),
            trace_context: config.trace_context,
        };
        let file = LogFile::open_late(config.path.as_ref())
            .map_err(|error| ConfigError::new("path", format!("{}: {error}", config.path)))?;
        let backlog = Backlog::start(config.queue_max, shared)?;
        let interval = Duration::from_millis(config.flush_interval_ms);
        let writer = writer::start(backlog, file, interval)
            .map_err(|error| ConfigError::new("", format!("no thread for the writer: {error}")))?;
        Ok(AccessLogPolicy {
            node: Arc::clone(&environment.node),
            selection,
            path: config.path,
            writer,
        })
    }

    fn filter(&self, datapath_context: &DatapathContext) -> Result<LogFilter, AttachError> {
        let part = Arc::new(ContextPart::new(&self.node, datapath_context));
        Ok(LogFilter::new(self.writer.inlet(), part, self.selection))
    }

    fn save(&self) -> SharedState {
        self.writer.backlog().save()
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        let counts = self.writer.backlog().counts();
        sink.number(&LINES, &[], counts.delivered as f64);
        sink.number(&DROPPED, &[], counts.dropped as f64);
        sink.number(&FAILED, &[], counts.failed as f64);
    }

    fn failure(&self) -> Option<String> {
        let failure = self.writer.backlog().failure();
        failure.map(|failure| format!("{} takes no lines: {failure}", self.path))
    }
}
