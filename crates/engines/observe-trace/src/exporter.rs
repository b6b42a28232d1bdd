//! From the data path to the collector: a bounded queue, and a thread that empties it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, Ordering::Relaxed};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use provost_datapath::{FieldReader, FieldWriter};
use provost_engine::{ConfigError, RestoreError, SharedState, WallClock};
use provost_shm::now_ns;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code as GrpcCode, Request, Status};

use crate::KIND;
use crate::filter::Record;
use crate::sampling::Ids;
use crate::span::{spans, text};

/// Attempts to export a batch.
const ATTEMPTS_MAX: u32 = 5;
/// Before the second attempt; twice as long before each further one.
const BACK_OFF: Duration = Duration::from_millis(250);
/// How long a policy that goes away waits for its spans to be exported.
const FLUSH_MAX: Duration = Duration::from_millis(500);
/// Between two looks whether they are.
const FLUSH_POLL: Duration = Duration::from_millis(1);
/// Version of what is saved.
const STATE_VERSION: u32 = 1;
/// Where the meaning of the attributes is defined.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.39.0";

/// What engines and the exporter share.
pub(crate) struct Queue {
    records: ArrayQueue<Record>,
    pub(crate) counts: Counts,
    pushed: AtomicU64,
    /// Records that the exporter has taken and dealt with.
    done: AtomicU64,
    /// The policy is gone: what fails is not tried again.
    closing: AtomicBool,
}

/// What happened to sampled calls, since before there was this process.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl Counts {
    pub(crate) fn read(&self) -> [u64; 3] {
        [&self.exported, &self.dropped, &self.failed].map(|count| count.load(Relaxed))
    }

    pub(crate) fn save(&self) -> SharedState {
        let mut out = FieldWriter::new();
        self.read().into_iter().for_each(|count| out.u64(count));
        SharedState {
            version: STATE_VERSION,
            bytes: out.bytes,
        }
    }

    pub(crate) fn restore(saved: Option<&SharedState>) -> Result<Counts, ConfigError> {
        let Some(saved) = saved.filter(|saved| !saved.bytes.is_empty()) else {
            return Ok(Counts::default());
        };
        let load = || -> Result<Counts, RestoreError> {
            let mut fields = FieldReader::new(KIND, &saved.bytes);
            let counts = Counts {
                exported: fields.u64()?.into(),
                dropped: fields.u64()?.into(),
                failed: fields.u64()?.into(),
            };
            fields.end()?;
            Ok(counts)
        };
        match (saved.version, load()) {
            (STATE_VERSION, Ok(counts)) => Ok(counts),
            _ => Err(ConfigError::new("", "the predecessor's counters cannot be read")),
        }
    }
}

impl Queue {
    pub(crate) fn new(records_max: usize, counts: Counts) -> Queue {
        Queue {
            records: ArrayQueue::new(records_max),
            counts,
            pushed: AtomicU64::new(0),
            done: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        }
    }

    /// Offers a record; without room it is counted.
    pub(crate) fn push(&self, record: Record) {
        match self.records.push(record) {
            Ok(()) => self.pushed.fetch_add(1, Relaxed),
            Err(_) => self.counts.dropped.fetch_add(1, Relaxed),
        };
    }
}

/// Wakes the exporter.
#[derive(Clone)]
pub(crate) struct Waker(Thread);

impl Waker {
    pub(crate) fn wake(&self) {
        self.0.unpark();
    }
}

/// How it exports.
pub(crate) struct Options {
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

/// The thread. It ends when nobody else has the queue any more.
pub(crate) struct Exporter {
    thread: JoinHandle<()>,
    queue: Arc<Queue>,
}

impl Exporter {
    pub(crate) fn start(queue: Arc<Queue>, options: Options) -> io::Result<Exporter> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let shared = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("otlp-traces".to_owned())
            .stack_size(512 << 10)
            .spawn(move || run(&shared, &options, &runtime))?;
        Ok(Exporter { thread, queue })
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(self.thread.thread().clone())
    }
}

impl Drop for Exporter {
    /// What was traced so far is exported, unless the collector takes too long.
    fn drop(&mut self) {
        self.queue.closing.store(true, Ordering::Release);
        let wanted = self.queue.pushed.load(Relaxed);
        let until = Instant::now() + FLUSH_MAX;
        while self.queue.done.load(Relaxed) < wanted && Instant::now() < until && !self.thread.is_finished() {
            self.thread.thread().unpark();
            std::thread::sleep(FLUSH_POLL);
        }
        // From now on the thread finds that it is alone as soon as the last engine is gone.
        self.thread.thread().unpark();
    }
}

fn run(queue: &Arc<Queue>, options: &Options, runtime: &tokio::runtime::Runtime) {
    let channel = runtime.block_on(async { options.endpoint.connect_lazy() });
    let mut client = TraceServiceClient::new(channel);
    let mut ids = Ids::new();
    loop {
        // Looked at before the queue: what the last other holder pushed is in it.
        let is_alone = Arc::strong_count(queue) == 1;
        let records: Vec<Record> = std::iter::from_fn(|| queue.records.pop())
            .take(options.batch_max)
            .collect();
        if records.is_empty() && is_alone {
            return;
        }
        let count = records.len();
        if count > 0 {
            let request = request(&records, options, &mut ids);
            let to = match runtime.block_on(export(&mut client, request, queue, options)) {
                Ok(()) => &queue.counts.exported,
                Err(_) => &queue.counts.failed,
            };
            to.fetch_add(count as u64, Relaxed);
            queue.done.fetch_add(count as u64, Relaxed);
        }
        if count < options.batch_max {
            std::thread::park_timeout(options.delay);
        }
    }
}

/// The spans of each app are those of a resource: `service.name` is the app.
fn request(records: &[Record], options: &Options, ids: &mut Ids) -> ExportTraceServiceRequest {
    let wall = WallClock::now(now_ns());
    let mut by_app: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
    for record in records {
        let of_app = by_app.entry(&record.site.app).or_default();
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
    queue: &Queue,
    options: &Options,
) -> Result<(), Status> {
    let mut back_off = BACK_OFF;
    let mut attempt = 1;
    loop {
        let mut message = Request::new(request.clone());
        message.set_timeout(options.timeout);
        let sent = tokio::time::timeout(options.timeout, client.export(message)).await;
        let status = match sent {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded("the collector did not answer"),
        };
        let is_closing = queue.closing.load(Ordering::Acquire);
        if attempt == ATTEMPTS_MAX || is_closing || !is_retryable(&status) {
            return Err(status);
        }
        tokio::time::sleep(back_off).await;
        attempt += 1;
        back_off *= 2;
    }
}

/// As the OTLP specification has it.
fn is_retryable(status: &Status) -> bool {
    matches!(
        status.code(),
        GrpcCode::Cancelled
            | GrpcCode::DeadlineExceeded
            | GrpcCode::ResourceExhausted
            | GrpcCode::Aborted
            | GrpcCode::OutOfRange
            | GrpcCode::Unavailable
            | GrpcCode::DataLoss
    )
}
