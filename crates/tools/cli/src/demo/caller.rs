//! The key-value client of the demonstration.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use provost::blocking::block_on;
use provost::codegen::Stream;
use provost::{Code, Status};
use provost_kv::data::{self, FileEntry};
use provost_kv::proto::kv_client::KvClient;
use provost_kv::proto::{Entry, GetRequest, PutRequest, ScanRequest};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::governing::SECRET_KEY;
use super::tally::Tally;
use super::wire::{Activity, Called, Command, Event, Measure, Moved};
use super::worker::{self, WorkerError};

/// Calls in flight while every entry is compared.
const CHECK_IN_FLIGHT: usize = 64;
/// Calls in flight in the second act, and how often one of them is for the secret entry.
const CALL_ON_IN_FLIGHT: usize = 16;
const SECRET_EVERY: usize = 100;
/// Entries between two notes of progress.
const PROGRESS_ENTRIES: u64 = 2_000;
/// Entries of its own that the client makes when `--value-bytes` is given, and most bytes in all of them.
const OWN_ENTRIES_MAX: usize = 1024;
const OWN_BYTES_MAX: usize = 64 << 20;
/// What precedes the keys of its own entries.
const OWN_PREFIX: &str = "provost-demo/";

/// What the client is told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The data file; without it, the project's own.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Size of the values that are measured with.
    #[arg(long)]
    value_bytes: Option<usize>,
}

/// Does as it is commanded until the input ends.
pub(crate) fn run(options: &Options) -> Result<(), WorkerError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(WorkerError::Socket)?;
    let pairs = match &options.data {
        Some(path) => data::read_file(path)?,
        None => data::sample()?,
    };
    let client = runtime
        .block_on(KvClient::connect("kv.Kv"))
        .map_err(call_failed)?;
    let mut caller = Caller {
        runtime,
        client,
        measured: Arc::new(match options.value_bytes {
            Some(bytes) => own_pairs(bytes),
            None => pairs.clone(),
        }),
        pairs: Arc::new(pairs),
        tallies: HashMap::new(),
    };
    if options.value_bytes.is_some() {
        caller.put_measured()?;
    }
    worker::send_event(&Event::Ready { address: None })?;
    worker::each_command(|command| caller.carry_out(command))
}

struct Caller {
    runtime: Runtime,
    client: KvClient,
    /// The file's entries.
    pairs: Arc<Vec<FileEntry>>,
    /// The entries that are measured with.
    measured: Arc<Vec<FileEntry>>,
    tallies: HashMap<(Activity, usize), Tally>,
}

impl Caller {
    fn carry_out(&mut self, command: Command) -> Result<Event, WorkerError> {
        match command {
            Command::Load => self.load(),
            Command::Check => self.check(),
            Command::Scan => self.scan(),
            Command::Measure(measure) => self.measure(measure),
            Command::CallOn { seconds } => self.call_on(seconds),
        }
    }

    fn put_measured(&mut self) -> Result<(), WorkerError> {
        self.runtime.block_on(async {
            for pair in self.measured.iter() {
                self.client.put(put_request(pair)).await.map_err(call_failed)?;
            }
            Ok(())
        })
    }

    fn load(&mut self) -> Result<Event, WorkerError> {
        let begin = Instant::now();
        let entries = EntryStream {
            pairs: self.pairs.clone(),
            next: 0,
        };
        let summary = self
            .runtime
            .block_on(self.client.load(entries))
            .map_err(call_failed)?;
        let summary = summary.get_ref();
        if summary.entries != self.pairs.len() as u64 {
            return Err(WorkerError::Wrong(format!(
                "{} entries were sent, {} stored",
                self.pairs.len(),
                summary.entries
            )));
        }
        Ok(Event::Moved(Moved {
            entries: summary.entries,
            bytes: summary.key_bytes + summary.value_bytes,
            seconds: begin.elapsed().as_secs_f64(),
        }))
    }

    fn check(&mut self) -> Result<Event, WorkerError> {
        let begin = Instant::now();
        let next = Arc::new(AtomicUsize::new(0));
        let checkers =
            (0..CHECK_IN_FLIGHT).map(|_| check_some(self.client.clone(), self.pairs.clone(), next.clone()));
        self.runtime.block_on(all(checkers))?;
        Ok(Event::Moved(self.whole_file(begin)))
    }

    fn whole_file(&self, begin: Instant) -> Moved {
        let bytes = self.pairs.iter().map(|pair| pair.key.len() + pair.value.len());
        Moved {
            entries: self.pairs.len() as u64,
            bytes: bytes.sum::<usize>() as u64,
            seconds: begin.elapsed().as_secs_f64(),
        }
    }

    fn scan(&mut self) -> Result<Event, WorkerError> {
        let begin = Instant::now();
        let expected: HashMap<&str, &[u8]> = self
            .pairs
            .iter()
            .map(|pair| (pair.key.as_str(), pair.value.as_slice()))
            .collect();
        let total = expected.len() as u64;
        let seen = self.runtime.block_on(async {
            let response = self
                .client
                .scan(ScanRequest::default())
                .await
                .map_err(call_failed)?;
            let mut entries = response.into_inner();
            let mut seen = 0;
            while let Some(entry) = entries.message().await.map_err(call_failed)? {
                if entry.key.starts_with(OWN_PREFIX) {
                    continue;
                }
                compare(expected.get(entry.key.as_str()).copied(), &entry)?;
                seen += 1;
                note_progress(seen, total)?;
            }
            Ok::<_, WorkerError>(seen)
        })?;
        if seen != total {
            return Err(WorkerError::Wrong(format!(
                "the scan had {seen} of {total} entries"
            )));
        }
        Ok(Event::Moved(self.whole_file(begin)))
    }

    fn measure(&mut self, measure: Measure) -> Result<Event, WorkerError> {
        let slice = Arc::new(Slice {
            pairs: self.measured.clone(),
            next: AtomicUsize::new(0),
            activity: measure.activity,
            end: Instant::now() + Duration::from_secs_f64(measure.seconds),
        });
        let begin = Instant::now();
        let caller = || call_for_a_while(self.client.clone(), slice.clone());
        let latencies = match measure.in_flight {
            // One call after the other needs no executor; the thread itself waits at the service's doorbell.
            1 => vec![block_on(caller())?],
            in_flight => self.runtime.block_on(all((0..in_flight).map(|_| caller())))?,
        };
        let tally = self
            .tallies
            .entry((measure.activity, measure.in_flight))
            .or_default();
        latencies
            .into_iter()
            .flatten()
            .for_each(|latency| tally.record(latency));
        tally.slice_took(begin.elapsed());
        Ok(Event::Measured(tally.figures()))
    }
}

// The second act.
impl Caller {
    /// Gets entries, and the secret one now and then, and counts what comes.
    fn call_on(&mut self, seconds: f64) -> Result<Event, WorkerError> {
        let begin = Instant::now();
        let count = Arc::new(Count {
            pairs: self.pairs.clone(),
            client: self.client.clone(),
            next: AtomicUsize::new(0),
            end: begin + Duration::from_secs_f64(seconds),
            called: Mutex::new((Called::default(), begin)),
        });
        let callers = (0..CALL_ON_IN_FLIGHT).map(|_| count_calls(count.clone()));
        self.runtime.block_on(all(callers))?;
        let (mut called, _) = *count.called.lock().unwrap_or_else(PoisonError::into_inner);
        called.seconds = begin.elapsed().as_secs_f64();
        Ok(Event::Called(called))
    }
}

struct Count {
    pairs: Arc<Vec<FileEntry>>,
    client: KvClient,
    next: AtomicUsize,
    end: Instant,
    /// What was counted, and when the last call ended.
    called: Mutex<(Called, Instant)>,
}

async fn count_calls(count: Arc<Count>) -> Result<(), WorkerError> {
    while Instant::now() < count.end {
        let turn = count.next.fetch_add(1, Ordering::Relaxed);
        let outcome = match turn % SECRET_EVERY {
            0 => get_secret(&count.client).await,
            _ => get_some(&count.client, &count.pairs[turn % count.pairs.len()]).await,
        };
        count.note(outcome);
    }
    Ok(())
}

/// How a call of the second act ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Answered,
    Denied,
    Failed,
}

impl Count {
    fn note(&self, outcome: Outcome) {
        let mut counted = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        let (called, last) = &mut *counted;
        let now = Instant::now();
        called.calls += 1;
        match outcome {
            Outcome::Answered => {}
            Outcome::Denied => called.denied += 1,
            Outcome::Failed => called.failed += 1,
        }
        let gap_ms = now.duration_since(*last).as_secs_f64() * 1e3;
        called.longest_gap_ms = called.longest_gap_ms.max(gap_ms);
        *last = now;
    }
}

/// The secret is not there, which is told to those who may ask for it.
async fn get_secret(client: &KvClient) -> Outcome {
    let key = SECRET_KEY.into();
    match client
        .get(GetRequest { key })
        .await
        .map_err(|status| status.code())
    {
        Err(Code::NotFound) => Outcome::Answered,
        Err(Code::PermissionDenied) => Outcome::Denied,
        _ => Outcome::Failed,
    }
}

async fn get_some(client: &KvClient, pair: &FileEntry) -> Outcome {
    match client.get(get_request(pair)).await {
        Ok(reply) if compare_reply(pair, reply.get_ref().entry.as_deref()).is_ok() => Outcome::Answered,
        Ok(_) => Outcome::Failed,
        Err(status) => {
            eprintln!("a call failed: {status}");
            Outcome::Failed
        }
    }
}

/// One slice of a measurement, shared by its callers.
struct Slice {
    pairs: Arc<Vec<FileEntry>>,
    next: AtomicUsize,
    activity: Activity,
    end: Instant,
}

async fn call_for_a_while(client: KvClient, slice: Arc<Slice>) -> Result<Vec<Duration>, WorkerError> {
    let mut latencies = Vec::new();
    let mut sent = Instant::now();
    while sent < slice.end {
        let turn = slice.next.fetch_add(1, Ordering::Relaxed);
        let pair = &slice.pairs[turn % slice.pairs.len()];
        match slice.activity {
            Activity::Get => {
                let reply = client.get(get_request(pair)).await.map_err(call_failed)?;
                compare_reply(pair, reply.get_ref().entry.as_deref())?;
            }
            Activity::Put => {
                client.put(put_request(pair)).await.map_err(call_failed)?;
            }
            Activity::Ping => return Err(WorkerError::Wrong("the kv client does not ping".to_owned())),
        }
        let received = Instant::now();
        latencies.push(received - sent);
        sent = received;
    }
    Ok(latencies)
}

async fn check_some(
    client: KvClient,
    pairs: Arc<Vec<FileEntry>>,
    next: Arc<AtomicUsize>,
) -> Result<(), WorkerError> {
    while let at = next.fetch_add(1, Ordering::Relaxed)
        && let Some(pair) = pairs.get(at)
    {
        let reply = client.get(get_request(pair)).await.map_err(call_failed)?;
        compare_reply(pair, reply.get_ref().entry.as_deref())?;
        note_progress(at as u64, pairs.len() as u64)?;
    }
    Ok(())
}

/// Runs all of the futures at once and collects what they return, or the first error.
async fn all<T: Send + 'static>(
    futures: impl Iterator<Item = impl Future<Output = Result<T, WorkerError>> + Send + 'static>,
) -> Result<Vec<T>, WorkerError> {
    let mut tasks: JoinSet<_> = futures.collect();
    let mut results = Vec::new();
    while let Some(result) = tasks.join_next().await {
        results.push(result.map_err(|panicked| WorkerError::Wrong(panicked.to_string()))??);
    }
    Ok(results)
}

fn note_progress(done: u64, total: u64) -> Result<(), WorkerError> {
    if done.is_multiple_of(PROGRESS_ENTRIES) {
        worker::send_event(&Event::Progress { done, total })?;
    }
    Ok(())
}

fn compare_reply(pair: &FileEntry, entry: Option<&Entry>) -> Result<(), WorkerError> {
    match entry {
        Some(entry) if entry.key == pair.key => compare(Some(&pair.value), entry),
        other => Err(WorkerError::Wrong(format!(
            "asked for {}, got {other:?}",
            pair.key
        ))),
    }
}

fn compare(expected: Option<&[u8]>, entry: &Entry) -> Result<(), WorkerError> {
    if expected == Some(&*entry.value) {
        Ok(())
    } else {
        Err(WorkerError::Wrong(format!(
            "the value of {} is not what was stored",
            entry.key
        )))
    }
}

fn own_pairs(value_bytes: usize) -> Vec<FileEntry> {
    let count = (OWN_BYTES_MAX / value_bytes.max(1)).clamp(1, OWN_ENTRIES_MAX);
    let pair = |number: usize| FileEntry {
        key: format!("{OWN_PREFIX}{number:04}"),
        value: (0..value_bytes).map(|at| (at + number) as u8).collect(),
    };
    (0..count).map(pair).collect()
}

fn get_request(pair: &FileEntry) -> GetRequest {
    GetRequest {
        key: pair.key.as_str().into(),
    }
}

fn put_request(pair: &FileEntry) -> PutRequest {
    PutRequest {
        entry: entry(pair).into(),
        ..PutRequest::default()
    }
}

fn entry(pair: &FileEntry) -> Entry {
    Entry {
        key: pair.key.as_str().into(),
        value: pair.value.as_slice().into(),
        ..Entry::default()
    }
}

fn call_failed(status: Status) -> WorkerError {
    WorkerError::Call(status.to_string())
}

/// The file's entries as a stream of requests.
struct EntryStream {
    pairs: Arc<Vec<FileEntry>>,
    next: usize,
}

impl Stream for EntryStream {
    type Item = Entry;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Entry>> {
        let next = self.pairs.get(self.next).map(entry);
        // A note of progress that nobody reads is no reason to stop; the end of the input is.
        let _ = note_progress(self.next as u64, self.pairs.len() as u64);
        self.next += 1;
        Poll::Ready(next)
    }
}
