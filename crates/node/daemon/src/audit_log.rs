//! The audit log: what policies decided and what operators changed, one JSON object on a line.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_queue::SegQueue;
use provost_engine::{AuditEvent, EventSink, Nanos, WallClock, rfc3339};
use provost_observers::access_log::LogFile;
use provost_shm::now_ns;
use serde::Serialize;

/// Records that wait for the writer, at most.
const QUEUE_MAX: usize = 8192;
/// Bytes of them, at most, about: a record of a change may have a megabyte.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Texts of records are cut after so many bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 1024;
/// Records that are written at once, at most.
const BATCH_MAX: usize = 512;
/// How long the writer lets records come together once it has written some. A record that finds it so wakes nobody: to
/// wake a thread costs many times what a record does.
const GATHERING: Duration = Duration::from_millis(20);
/// Records that wait when the writer is woken ahead of that.
const QUEUE_LONG: usize = QUEUE_MAX / 4;
/// How long the writer sleeps when nobody wakes it. (No wake-up is lost; this is for the count of what was dropped.)
const IDLE: Duration = Duration::from_secs(10);

/// Why there is no audit log.
#[derive(Debug, thiserror::Error)]
pub enum AuditLogError {
    /// The file cannot be written.
    #[error("observe.audit_file {path}: {source}")]
    File {
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// No thread was to be had.
    #[error("the audit log's thread: {0}")]
    Thread(std::io::Error),
}

/// The audit log of a node. Those who write to it never wait: what finds the queue full is dropped and counted, and the
/// log says how much that was.
pub struct AuditLog {
    inner: Arc<Inner>,
    has_file: bool,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    node: Arc<str>,
    queue: Queue,
    written: AtomicU64,
    dropped: AtomicU64,
    closing: AtomicBool,
    /// The writer sleeps, or is about to, until it is woken.
    is_idle: AtomicBool,
    /// Why the file did not take the last records, if it did not.
    failure: Mutex<Option<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    /// Some records were just written.
    WhileRecordsGather,
    UntilWoken,
}

/// Records that wait. Room for [`QUEUE_MAX`] would be a megabyte that hardly a node ever fills, so it grows by some
/// dozens of records when they come, and shrinks when they are written.
#[derive(Default)]
struct Queue {
    entries: SegQueue<Entry>,
    count: AtomicUsize,
    bytes: AtomicUsize,
}

/// What found no room.
struct Full;

impl Queue {
    fn push(&self, entry: Entry) -> Result<(), Full> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= QUEUE_MAX {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(Full);
        }
        let bytes = entry.bytes();
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > QUEUE_BYTES_MAX {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(Full);
        }
        self.entries.push(entry);
        Ok(())
    }

    fn pop(&self) -> Option<Entry> {
        let entry = self.entries.pop()?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(entry.bytes(), Ordering::Relaxed);
        Some(entry)
    }

    /// Records that wait, about: some may be just coming or going.
    fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

enum Entry {
    Policy { at: Nanos, event: AuditEvent },
    Line(String),
}

impl Entry {
    /// Bytes of its texts.
    fn bytes(&self) -> usize {
        match self {
            Entry::Line(line) => line.len(),
            Entry::Policy { event, .. } => [
                event.policy.len(),
                event.app.len(),
                event.method.len(),
                event.peer.len(),
                event.reason.len(),
            ]
            .iter()
            .sum(),
        }
    }
}

enum Target {
    File(LogFile),
    Log,
}

/// What a policy decided, as it is written.
#[derive(Serialize)]
struct PolicyLine<'a> {
    time: &'a str,
    event: &'static str,
    node: &'a str,
    policy: &'a str,
    action: &'static str,
    app: &'a str,
    method: &'a str,
    peer: &'a str,
    call: u64,
    status: &'static str,
    reason: &'a str,
}

impl AuditLog {
    /// Starts the writer. An empty path stands for the node's own log.
    pub fn start(node: &str, path: &str) -> Result<AuditLog, AuditLogError> {
        let target = if path.is_empty() {
            Target::Log
        } else {
            Target::File(
                LogFile::open(path.as_ref()).map_err(|source| AuditLogError::File {
                    path: path.to_owned(),
                    source,
                })?,
            )
        };
        let inner = Arc::new(Inner {
            node: node.into(),
            queue: Queue::default(),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            failure: Mutex::new(None),
        });
        let shared = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .stack_size(256 << 10)
            .spawn(move || shared.run(target))
            .map_err(AuditLogError::Thread)?;
        Ok(AuditLog {
            inner,
            has_file: !path.is_empty(),
            thread: Some(thread),
        })
    }

    /// Whether a file could be appended to or made. Makes none.
    pub(crate) fn check(path: &Path) -> std::io::Result<()> {
        LogFile::open_late(path).map(drop)
    }

    /// Writes a record that somebody else has put together: a JSON object without a line break.
    pub fn line(&self, record: String) {
        self.push(Entry::Line(record));
    }

    /// Records that were written, and records that were dropped.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.inner.written), read(&self.inner.dropped))
    }

    /// Whether records go to a file of their own, and not to the log, whose lines are not to be as long.
    pub(crate) fn has_file(&self) -> bool {
        self.has_file
    }

    /// Why the file did not take the last records; none if it did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.inner.failure().clone()
    }

    fn push(&self, entry: Entry) {
        if self.inner.queue.push(entry).is_err() {
            self.inner.dropped.fetch_add(1, Ordering::Relaxed);
        }
        // Pairs with the fence of `Inner::sleep`: either the writer sees the record, or it is seen to be idle here.
        fence(Ordering::SeqCst);
        let is_wanted = self.inner.is_idle.load(Ordering::Relaxed) || self.inner.queue.len() >= QUEUE_LONG;
        if is_wanted && let Some(thread) = &self.thread {
            self.inner.is_idle.store(false, Ordering::Relaxed);
            thread.thread().unpark();
        }
    }
}

impl EventSink for AuditLog {
    fn audit(&self, event: AuditEvent) {
        self.push(Entry::Policy { at: now_ns(), event });
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.inner.closing.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread was reported by its own hook.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn run(&self, mut target: Target) {
        let mut told_dropped = 0;
        loop {
            let is_closing = self.closing.load(Ordering::Acquire);
            let mut lines = self.batch();
            let dropped = self.dropped.load(Ordering::Relaxed);
            if dropped > told_dropped {
                lines.push(self.gap(dropped - told_dropped));
                told_dropped = dropped;
            }
            if !lines.is_empty() {
                self.write(&mut target, &lines);
            } else if is_closing {
                return;
            }
            if lines.len() < BATCH_MAX && !is_closing {
                self.sleep(if lines.is_empty() {
                    Sleep::UntilWoken
                } else {
                    Sleep::WhileRecordsGather
                });
            }
        }
    }

    fn sleep(&self, how: Sleep) {
        if how == Sleep::WhileRecordsGather {
            std::thread::park_timeout(GATHERING);
            return;
        }
        self.is_idle.store(true, Ordering::Relaxed);
        // Pairs with the fence of `AuditLog::push`.
        fence(Ordering::SeqCst);
        if self.queue.is_empty() && !self.closing.load(Ordering::Acquire) {
            std::thread::park_timeout(IDLE);
        }
        self.is_idle.store(false, Ordering::Relaxed);
    }

    fn batch(&self) -> Vec<String> {
        let wall = WallClock::now(now_ns());
        let entries = std::iter::from_fn(|| self.queue.pop()).take(BATCH_MAX);
        let line = |entry| match entry {
            Entry::Line(line) => line,
            Entry::Policy { at, event } => self.policy_line(&wall, at, &event),
        };
        entries.map(line).collect()
    }

    fn policy_line(&self, wall: &WallClock, at: Nanos, event: &AuditEvent) -> String {
        let line = PolicyLine {
            time: &rfc3339(wall.unix_ns(at)),
            event: "policy",
            node: &self.node,
            policy: &event.policy,
            action: event.action,
            app: &event.app,
            method: &event.method,
            peer: &event.peer,
            call: event.call,
            status: event.code.name(),
            reason: &event.reason,
        };
        // Texts and a number can always be written.
        serde_json::to_string(&line).unwrap_or_default()
    }

    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gap(&self, dropped: u64) -> String {
        let time = rfc3339(WallClock::now(0).unix_ns(0));
        let record = serde_json::json!({
            "time": time, "event": "dropped", "node": *self.node, "records": dropped,
        });
        record.to_string()
    }

    fn write(&self, target: &mut Target, lines: &[String]) {
        match target {
            Target::Log => lines
                .iter()
                .for_each(|line| tracing::info!(target: "audit", "{line}")),
            Target::File(file) => {
                let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
                let failure = file.append(text.as_bytes()).err();
                let is_taken = failure.is_none();
                *self.failure() = failure.map(|error| error.to_string());
                if !is_taken {
                    return self.write(&mut Target::Log, lines);
                }
            }
        }
        self.written.fetch_add(lines.len() as u64, Ordering::Relaxed);
    }
}

/// A text of bounded length.
pub(crate) fn cut(text: String) -> String {
    cut_to(TEXT_BYTES_MAX, text)
}

/// A text of so many bytes at most, and what says how many are left out.
pub(crate) fn cut_to(bytes_max: usize, mut text: String) -> String {
    if text.len() > bytes_max {
        let end = (0..=bytes_max)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(0);
        let left_out = text.len() - end;
        text.truncate(end);
        text.push_str(&format!("… ({left_out} bytes more)"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use provost_engine::Code;
    use serde_json::Value;

    use super::*;

    fn event(call: u64) -> AuditEvent {
        AuditEvent {
            policy: "limit".into(),
            action: "deny",
            app: "shop".into(),
            method: "/kv.Kv/Get".into(),
            peer: "10.0.0.1:5".into(),
            call,
            code: Code::PermissionDenied,
            reason: "no \"write\" in the token".into(),
        }
    }

    fn lines(path: &std::path::Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn records_of_policies_and_operators_are_lines_of_one_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = AuditLog::start("n1", path.to_str().unwrap()).unwrap();
        log.audit(event(7));
        log.line("{\"event\":\"admin\"}".into());
        drop(log);
        let lines = lines(&path);
        assert_eq!(
            (&lines[0]["event"], &lines[0]["node"]),
            (&"policy".into(), &"n1".into())
        );
        assert_eq!(lines[0]["reason"], "no \"write\" in the token");
        assert_eq!(
            (&lines[0]["status"], &lines[0]["call"]),
            (&"PERMISSION_DENIED".into(), &7.into())
        );
        assert_eq!(lines[1]["event"], "admin");
    }

    #[test]
    fn what_finds_no_room_is_counted_and_the_log_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = AuditLog::start("n1", path.to_str().unwrap()).unwrap();
        let offered = 20 * QUEUE_MAX as u64;
        for call in 0..offered {
            log.audit(event(call));
        }
        let inner = Arc::clone(&log.inner);
        drop(log);
        let lines = lines(&path);
        let told: u64 = lines.iter().filter_map(|line| line["records"].as_u64()).sum();
        assert_eq!(told, inner.dropped.load(Ordering::Relaxed));
        let written = lines.iter().filter(|line| line["event"] == "policy").count() as u64;
        assert_eq!(written + told, offered);
    }

    #[test]
    fn records_that_wait_are_bounded_by_their_bytes_too() {
        let queue = Queue::default();
        let long = || Entry::Line("x".repeat(QUEUE_BYTES_MAX / 4));
        for _ in 0..4 {
            assert!(queue.push(long()).is_ok());
        }
        let short = || Entry::Policy {
            at: 0,
            event: event(1),
        };
        assert!(queue.push(short()).is_err() && queue.len() == 4);
        queue.pop();
        assert!(queue.push(short()).is_ok() && queue.push(long()).is_err());
    }

    #[test]
    fn no_record_waits_for_a_writer_that_nobody_wakes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = AuditLog::start("n1", path.to_str().unwrap()).unwrap();
        let began = Instant::now();
        for call in 1..=20 {
            // Some find the writer gathering, some idle.
            std::thread::sleep(GATHERING * (call % 4) as u32 / 2);
            log.audit(event(call));
            while log.counts().0 < call {
                assert!(began.elapsed() < 2 * IDLE, "record {call} waits");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_made_is_refused() {
        let error = AuditLog::start("n1", "/none/at/all").map(|_| ()).unwrap_err();
        assert!(
            error.to_string().starts_with("observe.audit_file /none/at/all: "),
            "{error}"
        );
    }
}
