//! From traces to call graphs: Jaeger and OTLP JSON (Provost's own traces among them), the CSV files of Alibaba's cluster
//! traces, and the CSV layout of Nezha.
//!
//! ```text
//! text ─► spans (one reader for each format) ─► assemble: trees of calls ─► merge: an annotated call graph
//! ```
//!
//! Whatever a step cannot use is counted in an [`ImportReport`], by reason; nothing is dropped silently.

mod alibaba;
mod assemble;
mod jaeger;
mod merge;
mod nezha;
mod otlp;
mod provost_metrics;

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::profile::Protocol;

pub use assemble::{CallTree, TraceForest, TreeCall, assemble};
pub use merge::{MergeError, MergeOptions, merge};
pub use provost_metrics::{METRICS_BYTES_MAX, MetricsError, apply_metrics};

/// A text of traces has at most so many bytes.
pub const TRACES_BYTES_MAX: usize = 1 << 30;
/// At most so many spans are read.
pub const SPANS_MAX: usize = 4_000_000;
/// At most so many different names of services and operations, and so many bytes of all of them.
pub const NAMES_MAX: usize = 1_000_000;
/// A span takes at most so many bytes while a graph is made of it, beside the text that it is read from.
pub const SPAN_MEMORY_BYTES_MAX: u64 = 800;
/// A name is cut after so many bytes.
pub const NAME_BYTES_MAX: usize = 200;

/// A span takes at most so long, about 28 hours; one that takes longer has a wrong time.
pub const SPAN_US_MAX: f64 = 1e11;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// What Jaeger's query API and user interface export.
    Jaeger,
    /// OpenTelemetry's JSON, one document or one on each line.
    Otlp,
    /// `MSCallGraph` of Alibaba's microservice traces of 2021 and 2022.
    Alibaba,
    /// `TraceID,SpanID,ParentID,PodName,OperationName,StartTimeUnixNano,EndTimeUnixNano,Duration`.
    Nezha,
}

impl TraceFormat {
    /// What a text looks like, by how it begins.
    #[must_use]
    pub fn guess(text: &str) -> Option<TraceFormat> {
        const LOOKED_AT: usize = 4096;
        let end = (0..=text.len().min(LOOKED_AT))
            .rev()
            .find(|end| text.is_char_boundary(*end))?;
        let start = text[..end].trim_start();
        let first_line = start.lines().next().unwrap_or_default().to_lowercase();
        match start.as_bytes().first()? {
            b'{' if start.contains("\"resourceSpans\"") || start.contains("\"resource_spans\"") => {
                Some(TraceFormat::Otlp)
            }
            b'{' if start.contains("\"data\"") || start.contains("\"traceID\"") => Some(TraceFormat::Jaeger),
            b'[' if start.contains("\"traceID\"") => Some(TraceFormat::Jaeger),
            _ if first_line.contains("podname") => Some(TraceFormat::Nezha),
            _ if first_line.contains("rpcid") || first_line.contains("rpc_id") => Some(TraceFormat::Alibaba),
            _ => None,
        }
    }
}

/// What a span says of its place in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Client,
    Server,
    /// Something within a service.
    Internal,
    /// A message that nobody waits for: a producer's or a consumer's side.
    Message,
    Unknown,
}

/// A name that occurs in traces.
pub type NameIndex = u32;

#[derive(Clone, Debug, PartialEq)]
pub struct TraceSpan {
    /// A number for its trace.
    pub trace: u32,
    /// Its own identity within the trace.
    pub id: u64,
    /// Its parent's, if it has one.
    pub parent: Option<u64>,
    /// The service that recorded it.
    pub service: NameIndex,
    pub operation: NameIndex,
    pub kind: SpanKind,
    /// When it began, on the clock of the service that recorded it.
    pub start_us: f64,
    /// How long it took.
    pub duration_us: f64,
    /// The size of the request, where the span says so.
    pub request_bytes: Option<f64>,
    /// The size of the response, where the span says so.
    pub response_bytes: Option<f64>,
    /// What the call speaks, where the span says so.
    pub protocol: Option<Protocol>,
    /// For a caller's span: the callee, where the span names it.
    pub peer: Option<NameIndex>,
}

/// Names, each kept once.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    names: Vec<String>,
    indices: HashMap<String, NameIndex>,
}

impl NameTable {
    /// The index of a name; `None` when there are too many.
    pub fn index(&mut self, name: &str) -> Option<NameIndex> {
        let name = cut(name);
        if let Some(index) = self.indices.get(name) {
            return Some(*index);
        }
        if self.names.len() >= NAMES_MAX {
            return None;
        }
        let index = NameIndex::try_from(self.names.len()).ok()?;
        self.names.push(name.to_owned());
        self.indices.insert(name.to_owned(), index);
        Some(index)
    }

    /// The name of an index.
    #[must_use]
    pub fn name(&self, index: NameIndex) -> &str {
        self.names.get(index as usize).map_or("", String::as_str)
    }
}

fn cut(name: &str) -> &str {
    let end = (0..=name.len().min(NAME_BYTES_MAX))
        .rev()
        .find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

/// Spans as they were read.
#[derive(Clone, Debug, Default)]
pub struct SpanSet {
    pub spans: Vec<TraceSpan>,
    pub traces: u32,
    /// Names of services and operations.
    pub names: NameTable,
    /// What was read and what was not.
    pub report: ImportReport,
    ids: HashMap<String, u32>,
}

impl SpanSet {
    /// The number of a trace.
    fn trace(&mut self, id: &str) -> u32 {
        if let Some(number) = self.ids.get(id) {
            return *number;
        }
        let number = self.traces;
        self.traces += 1;
        self.ids.insert(id.to_owned(), number);
        number
    }

    fn push(&mut self, span: TraceSpan) -> Result<(), TraceError> {
        if span.duration_us > SPAN_US_MAX {
            self.report.unused("spans that take longer than a day");
            return Ok(());
        }
        if self.spans.len() >= SPANS_MAX {
            return Err(TraceError::TooManySpans);
        }
        self.report.spans += 1;
        self.spans.push(span);
        Ok(())
    }

    fn name(&mut self, name: &str) -> Result<NameIndex, TraceError> {
        self.names.index(name).ok_or(TraceError::TooManyNames)
    }
}

/// What was read, and what was not used, by reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ImportReport {
    /// Spans (or rows) that were read.
    pub spans: u64,
    /// Traces that became trees.
    pub traces: u64,
    /// Calls in them.
    pub calls: u64,
    /// Spans, rows or traces that were not used, by reason.
    pub unused: BTreeMap<String, u64>,
    /// Spans that were used after something was put right, by what.
    pub adjusted: BTreeMap<String, u64>,
    /// By how much a clock had to be moved at most.
    pub clock_skew_us_max: f64,
}

impl ImportReport {
    fn unused(&mut self, reason: &str) {
        self.unused_many(reason, 1);
    }

    fn unused_many(&mut self, reason: &str, count: u64) {
        if count > 0 {
            *self.unused.entry(reason.to_owned()).or_default() += count;
        }
    }

    fn adjusted(&mut self, what: &str) {
        *self.adjusted.entry(what.to_owned()).or_default() += 1;
    }

    /// Whether something was left out.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        !self.unused.is_empty()
    }
}

/// Why traces cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The text is too long.
    #[error("the traces have {0} bytes, at most {TRACES_BYTES_MAX} are read: split the file, or sample it")]
    TooLong(usize),
    /// There are too many spans.
    #[error("more than {SPANS_MAX} spans: split the file, or sample it")]
    TooManySpans,
    /// There are too many names.
    #[error(
        "more than {NAMES_MAX} names of services and operations: do operations have numbers in their names?"
    )]
    TooManyNames,
    /// It is not of this format.
    #[error("line {line}: {problem}")]
    Malformed {
        /// From 1.
        line: u64,
        /// What is wrong there.
        problem: String,
    },
    /// A column is missing.
    #[error("line 1: no column \"{column}\" (there are {found})")]
    NoColumn {
        /// What was looked for.
        column: &'static str,
        found: String,
    },
    /// Nothing that can be used is in it.
    #[error("no call in it ({0})")]
    Empty(String),
}

/// Reads traces.
///
/// # Errors
/// If the text is not of the format, or beyond a bound.
pub fn read(text: &str, format: TraceFormat) -> Result<SpanSet, TraceError> {
    if text.len() > TRACES_BYTES_MAX {
        return Err(TraceError::TooLong(text.len()));
    }
    let mut spans = SpanSet::default();
    match format {
        TraceFormat::Jaeger => jaeger::read(text, &mut spans)?,
        TraceFormat::Otlp => otlp::read(text, &mut spans)?,
        TraceFormat::Alibaba => alibaba::read(text, &mut spans)?,
        TraceFormat::Nezha => nezha::read(text, &mut spans)?,
    }
    // It is not asked for again, and is as large as all names.
    spans.ids = HashMap::new();
    Ok(spans)
}

/// A hash of a span's identity within its trace (FNV-1a, 64 bits).
fn identity(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A time in a trace that can be reckoned with.
fn is_sane_us(time_us: f64) -> bool {
    const SANE_US_MAX: f64 = 1e17;
    time_us.is_finite() && time_us.abs() < SANE_US_MAX
}

/// What an attribute of a span says that a graph needs.
#[derive(Clone, Debug, Default, PartialEq)]
struct SpanFacts {
    kind: Option<SpanKind>,
    request_bytes: Option<f64>,
    response_bytes: Option<f64>,
    protocol: Option<Protocol>,
    peer: Option<String>,
}

/// Keys of attributes, by OpenTelemetry's conventions of now and before, OpenTracing's, and Provost's own.
impl SpanFacts {
    /// Whether an attribute is one that a graph needs.
    fn wants(key: &str) -> bool {
        matches!(
            key,
            "span.kind"
                | "peer.service"
                | "net.peer.name"
                | "server.address"
                | "db.system"
                | "db.system.name"
                | "messaging.system"
                | "rpc.system"
                | "rpc.system.name"
                | "component"
                | "http.method"
                | "http.request.method"
                | "network.protocol.version"
                | "http.flavor"
                | "http.request.body.size"
                | "http.request.size"
                | "http.request_content_length"
                | "request_size"
                | "http.response.body.size"
                | "http.response.size"
                | "http.response_content_length"
                | "response_size"
                | "provost.request.bytes"
                | "provost.response.bytes"
        )
    }

    fn take(&mut self, key: &str, value: &str) {
        let bytes = || {
            value
                .parse()
                .ok()
                .filter(|bytes: &f64| (0.0..1e12).contains(bytes))
        };
        match key {
            "span.kind" => self.kind = Some(kind_of(value)),
            "http.request.body.size"
            | "http.request.size"
            | "http.request_content_length"
            | "request_size"
            | "provost.request.bytes" => self.request_bytes = bytes().or(self.request_bytes),
            "http.response.body.size"
            | "http.response.size"
            | "http.response_content_length"
            | "response_size"
            | "provost.response.bytes" => self.response_bytes = bytes().or(self.response_bytes),
            "rpc.system" | "rpc.system.name" | "component" => {
                self.protocol = match value.to_lowercase().as_str() {
                    "grpc" => Some(Protocol::Grpc),
                    "provost" => Some(Protocol::Provost),
                    _ => self.protocol,
                };
            }
            "http.method" | "http.request.method" => self.protocol = self.protocol.or(Some(Protocol::Http1)),
            "network.protocol.version" | "http.flavor" if value.starts_with('2') => {
                self.protocol = self
                    .protocol
                    .filter(|one| *one != Protocol::Http1)
                    .or(Some(Protocol::Http2));
            }
            // The name of a service says more than an address or a kind of database.
            "peer.service" => self.peer = Some(value.to_owned()),
            "db.system" | "db.system.name" | "messaging.system" => {
                self.protocol = self.protocol.or(Some(Protocol::Tcp));
                self.peer.get_or_insert_with(|| value.to_owned());
            }
            "net.peer.name" | "server.address" => {
                self.peer.get_or_insert_with(|| value.to_owned());
            }
            _ => {}
        }
    }
}

fn kind_of(text: &str) -> SpanKind {
    match text.to_lowercase().trim_start_matches("span_kind_") {
        "client" | "3" => SpanKind::Client,
        "server" | "2" => SpanKind::Server,
        "producer" | "consumer" | "4" | "5" => SpanKind::Message,
        "internal" | "1" => SpanKind::Internal,
        _ => SpanKind::Unknown,
    }
}

/// The columns of a CSV file, found by name.
struct Columns {
    names: Vec<String>,
}

impl Columns {
    fn read(reader: &mut csv::Reader<&[u8]>) -> Result<Columns, TraceError> {
        let headers = reader.headers().map_err(csv_error)?;
        let names = headers.iter().map(|name| name.trim().to_lowercase()).collect();
        Ok(Columns { names })
    }

    fn find(&self, column: &'static str) -> Result<usize, TraceError> {
        self.optional(column).ok_or_else(|| {
            let found: String = self.names.join(", ").chars().take(300).collect();
            TraceError::NoColumn { column, found }
        })
    }

    fn optional(&self, column: &str) -> Option<usize> {
        let plain = column.replace('_', "");
        self.names.iter().position(|name| name.replace('_', "") == plain)
    }
}

fn csv_error(error: csv::Error) -> TraceError {
    TraceError::Malformed {
        line: error.position().map_or(1, csv::Position::line),
        problem: error.to_string(),
    }
}

fn csv_reader(text: &str) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new()
        .flexible(true)
        .from_reader(text.as_bytes())
}

#[cfg(test)]
mod tests;
