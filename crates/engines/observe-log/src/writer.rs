//! From the data path to the file: a bounded queue, and a thread that empties it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use provost_datapath::{FieldReader, FieldWriter};
use provost_engine::{ConfigError, RestoreError, SharedState, WallClock};
use provost_shm::now_ns;

use crate::filter::Record;
use crate::line::write_line;
use crate::{KIND, LogFile};

/// Lines that are written at once, at most.
const BATCH_LINES: usize = 1024;
/// How long a policy that goes away waits for its lines to be written.
const FLUSH_MAX: Duration = Duration::from_millis(500);
/// Between two looks whether they are.
const FLUSH_POLL: Duration = Duration::from_millis(1);
/// Version of what is saved.
const STATE_VERSION: u32 = 1;

/// What engines and the writer share.
pub(crate) struct Queue {
    records: ArrayQueue<Record>,
    pub(crate) counts: Counts,
    /// Records that the writer has taken and dealt with.
    done: AtomicU64,
    pushed: AtomicU64,
}

/// What happened to lines, since before there was this process.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    lines: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl Counts {
    pub(crate) fn read(&self) -> [u64; 3] {
        [&self.lines, &self.dropped, &self.failed].map(|count| count.load(Relaxed))
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
                lines: fields.u64()?.into(),
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
            done: AtomicU64::new(0),
            pushed: AtomicU64::new(0),
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

/// Wakes the writer.
#[derive(Clone)]
pub(crate) struct Waker(Thread);

impl Waker {
    pub(crate) fn wake(&self) {
        self.0.unpark();
    }
}

/// The thread. It ends when nobody else has the queue any more.
pub(crate) struct Writer {
    thread: JoinHandle<()>,
    queue: Arc<Queue>,
}

impl Writer {
    pub(crate) fn start(queue: Arc<Queue>, file: LogFile, interval: Duration) -> io::Result<Writer> {
        let shared = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("access-log".to_owned())
            .stack_size(256 << 10)
            .spawn(move || run(&shared, file, interval))?;
        Ok(Writer { thread, queue })
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(self.thread.thread().clone())
    }
}

impl Drop for Writer {
    /// What was logged so far is written, unless the system takes too long.
    fn drop(&mut self) {
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

fn run(queue: &Arc<Queue>, mut file: LogFile, interval: Duration) {
    let mut lines = String::new();
    loop {
        // Looked at before the queue: what the last other holder pushed is in it.
        let is_alone = Arc::strong_count(queue) == 1;
        let taken = write_batch(queue, &mut file, &mut lines);
        if taken == 0 && is_alone {
            return;
        }
        if taken < BATCH_LINES {
            std::thread::park_timeout(interval);
        }
    }
}

/// Writes what waits, a batch at most, and says how many lines that were.
fn write_batch(queue: &Queue, file: &mut LogFile, lines: &mut String) -> usize {
    let wall = WallClock::now(now_ns());
    lines.clear();
    let mut taken = 0;
    while taken < BATCH_LINES
        && let Some(record) = queue.records.pop()
    {
        write_line(&record, &wall, lines);
        taken += 1;
    }
    if taken > 0 {
        let to = match file.append(lines.as_bytes()) {
            Ok(()) => &queue.counts.lines,
            Err(_) => &queue.counts.failed,
        };
        to.fetch_add(taken as u64, Relaxed);
        queue.done.fetch_add(taken as u64, Relaxed);
    }
    taken
}
