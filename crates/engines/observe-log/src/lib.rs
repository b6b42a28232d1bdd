//! The access log policy: one line of JSON for each call.
//!
//! ```text
//! engine (runtime's thread) ─► bounded queue of fixed records ─► writer (own thread): JSON, batches ─► file
//!                              full: the record is dropped and counted
//! ```
#![forbid(unsafe_code)]

mod file;
mod filter;
mod line;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use provost_engine::{
    AttachError, Backlog, Code, ConfigError, Drain, Environment, MetricDescription, MetricSink, MetricType,
    Policy, PolicyKind, SharedState, Sieve, SieveParts, Site, Start, parse_config,
};
use serde::Deserialize;

pub use file::LogFile;
pub use filter::{LogFilter, LoggedCall};

use filter::{Record, Selection};
use line::SitePart;

/// [`PolicyKind::name`] of this kind.
pub const KIND: &str = "access-log";
/// Version of this code.
const VERSION: u32 = 1;
/// Records that wait for the writer, at most.
const QUEUE_MAX: usize = 1 << 20;
/// Longest time that a line may wait, in milliseconds.
const FLUSH_INTERVAL_MS_MAX: u64 = 60_000;

/// All metrics of this policy.
pub const METRICS: [MetricDescription; 3] = [
    MetricDescription {
        name: "provost_access_log_lines_total",
        help: "Lines that were written.",
        kind: MetricType::Counter,
        unit: "{line}",
    },
    MetricDescription {
        name: "provost_access_log_dropped_total",
        help: "Calls without a line, because the writer did not keep up.",
        kind: MetricType::Counter,
        unit: "{line}",
    },
    MetricDescription {
        name: "provost_access_log_write_failures_total",
        help: "Lines that the system did not take.",
        kind: MetricType::Counter,
        unit: "{line}",
    },
];

static LINES: MetricDescription = METRICS[0];
static DROPPED: MetricDescription = METRICS[1];
static FAILED: MetricDescription = METRICS[2];

/// The kind.
#[derive(Debug, Default)]
pub struct AccessLogKind {}

/// What an operator can set.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    path: String,
    status: Vec<String>,
    duration_min_ms: u64,
    trace_context: bool,
    flush_interval_ms: u64,
    queue_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            path: "/dev/stdout".into(),
            status: Vec::new(),
            duration_min_ms: 0,
            trace_context: true,
            flush_interval_ms: 250,
            queue_max: 16384,
        }
    }
}

impl PolicyKind for AccessLogKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn summary(&self) -> &'static str {
        "writes a line of JSON for each call"
    }

    fn example(&self) -> &'static str {
        "# The file, which is appended to; when it is renamed or removed, a new one is made. Or /dev/stdout.\n\
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
         queue_max = 16384\n"
    }

    fn configure(
        &self,
        config: &toml::Table,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        let config: Config = parse_config(config)?;
        range("queue_max", config.queue_max as u64, 64, QUEUE_MAX as u64)?;
        range(
            "flush_interval_ms",
            config.flush_interval_ms,
            1,
            FLUSH_INTERVAL_MS_MAX,
        )?;
        let selection = Selection {
            statuses: statuses(&config.status)?,
            duration_min_ns: config.duration_min_ms.saturating_mul(1_000_000),
            trace_context: config.trace_context,
        };
        let file = LogFile::open(config.path.as_ref())
            .map_err(|error| ConfigError::new("path", format!("{}: {error}", config.path)))?;
        let backlog = Backlog::start(KIND, config.queue_max, shared)?;
        let interval = Duration::from_millis(config.flush_interval_ms);
        let writer = writer::start(backlog, file, interval)
            .map_err(|error| ConfigError::new("", format!("no thread for the writer: {error}")))?;
        Ok(Arc::new(AccessLogPolicy {
            node: Arc::clone(&environment.node),
            selection,
            writer,
        }))
    }
}

fn range(key: &str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => {
            let problem = format!("{value} is out of range: {least} to {most}");
            Err(ConfigError::new(key, problem))
        }
    }
}

/// For each status whether its calls are logged.
fn statuses(names: &[String]) -> Result<[bool; Code::ALL.len()], ConfigError> {
    let mut logged = [names.is_empty(); Code::ALL.len()];
    for name in names {
        let Some(at) = Code::ALL.iter().position(|code| code.name() == name) else {
            let problem = format!("\"{name}\" is no status; they are written like \"UNAVAILABLE\"");
            return Err(ConfigError::new("status", problem));
        };
        logged[at] = true;
    }
    Ok(logged)
}

/// A policy that logs.
pub struct AccessLogPolicy {
    node: Arc<str>,
    selection: Selection,
    writer: Drain<Record>,
}

impl Policy for AccessLogPolicy {
    fn prepare(&self, site: &Site) -> Result<Start, AttachError> {
        let part = Arc::new(SitePart::new(&self.node, site));
        let filter = LogFilter::new(self.writer.inlet(), part, self.selection);
        let parts = SieveParts {
            kind: KIND,
            version: VERSION,
            site: site.clone(),
            filter,
        };
        Ok(Box::new(move |saved| Ok(Box::new(Sieve::start(parts, saved)?))))
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
}
