//! What leaves the data path for a thread of the policy's own, which may take its time: lines for a file, spans for a
//! collector.
//!
//! ```text
//! engines (runtimes' threads) ─ Inlet ─► Backlog, bounded ─► Drain (own thread): batches, delivered or failed
//!                                        full: the record is dropped and counted
//! ```

use std::fmt::Display;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;

use crate::policy::{ConfigError, SharedState};

/// How long a policy that goes away waits for what it has recorded.
const FLUSH_MAX: Duration = Duration::from_millis(500);
/// Between two looks whether that is done.
const FLUSH_POLL: Duration = Duration::from_millis(1);
/// Version of what is saved.
const STATE_VERSION: u32 = 1;

/// Records on their way, and what became of all before them.
pub struct Backlog<R> {
    records: ArrayQueue<R>,
    delivered: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    pushed: AtomicU64,
    /// Records that the thread has taken and dealt with.
    done: AtomicU64,
    is_closing: AtomicBool,
    /// Why the last batch was refused, if it was.
    failure: Mutex<Option<String>>,
}

/// What became of records, since before there was this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BacklogCounts {
    /// Those that are where they were to go.
    pub delivered: u64,
    /// Those for which there was no room.
    pub dropped: u64,
    /// Those that were refused where they were to go.
    pub failed: u64,
}

impl<R> Backlog<R> {
    /// An empty one that counts on from what [`Backlog::save`] saved, if anything.
    ///
    /// # Errors
    /// If it is something else that was saved.
    pub fn start(records_max: usize, saved: Option<&SharedState>) -> Result<Backlog<R>, ConfigError> {
        let counts = match saved.filter(|saved| !saved.bytes.is_empty()) {
            None => Some([0; 3]),
            Some(saved) => saved.numbers(STATE_VERSION),
        };
        let [delivered, dropped, failed] =
            counts.ok_or_else(|| ConfigError::new("", "the predecessor's counters cannot be read"))?;
        Ok(Backlog {
            records: ArrayQueue::new(records_max),
            delivered: delivered.into(),
            dropped: dropped.into(),
            failed: failed.into(),
            pushed: AtomicU64::new(0),
            done: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
            failure: Mutex::new(None),
        })
    }

    /// What became of records so far.
    pub fn counts(&self) -> BacklogCounts {
        BacklogCounts {
            delivered: self.delivered.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            failed: self.failed.load(Relaxed),
        }
    }

    /// Why what was delivered last was refused; none if it was taken.
    pub fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The counts, for a successor.
    pub fn save(&self) -> SharedState {
        let counts = self.counts();
        SharedState::of_numbers(STATE_VERSION, [counts.delivered, counts.dropped, counts.failed])
    }

    /// Whether the policy is gone, and waits only a little for what is left: what fails now need not be tried again.
    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Acquire)
    }

    fn push(&self, record: R) {
        match self.records.push(record) {
            Ok(()) => self.pushed.fetch_add(1, Relaxed),
            Err(_) => self.dropped.fetch_add(1, Relaxed),
        };
    }

    fn settle<E: Display>(&self, count: usize, outcome: Result<(), E>) {
        let to = match outcome {
            Ok(()) => &self.delivered,
            Err(_) => &self.failed,
        };
        let failure = outcome.err().map(|error| error.to_string());
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        to.fetch_add(count as u64, Relaxed);
        self.done.fetch_add(count as u64, Relaxed);
    }
}

/// Where one engine puts its records.
pub struct Inlet<R> {
    backlog: Arc<Backlog<R>>,
    thread: Thread,
    records_per_wake: u32,
    since_wake: u32,
}

impl<R> Inlet<R> {
    /// Offers a record; without room it is counted.
    pub fn push(&mut self, record: R) {
        self.backlog.push(record);
        self.since_wake += 1;
        if self.since_wake == self.records_per_wake {
            self.since_wake = 0;
            self.thread.unpark();
        }
    }
}

/// How a [`Drain`] works.
#[derive(Clone, Copy, Debug)]
pub struct DrainOptions {
    /// Of the thread.
    pub name: &'static str,
    /// Of the thread.
    pub stack_bytes: usize,
    /// Records that are delivered at once, at most.
    pub batch_max: usize,
    /// Records that one engine queues before it wakes the thread ahead of its time.
    pub records_per_wake: u32,
    /// How long a record may wait for others.
    pub interval: Duration,
}

/// The thread that delivers. It ends when nobody else has the backlog any more.
pub struct Drain<R> {
    thread: JoinHandle<()>,
    backlog: Arc<Backlog<R>>,
    records_per_wake: u32,
}

impl<R: Send + 'static> Drain<R> {
    /// Starts it. `deliver` gets the records of a batch in order; if it fails, they count as failed.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn start<E: Display>(
        backlog: Backlog<R>,
        options: DrainOptions,
        mut deliver: impl FnMut(&[R], &Backlog<R>) -> Result<(), E> + Send + 'static,
    ) -> io::Result<Drain<R>> {
        let backlog = Arc::new(backlog);
        let of_thread = Arc::clone(&backlog);
        let thread = std::thread::Builder::new()
            .name(options.name.to_owned())
            .stack_size(options.stack_bytes)
            .spawn(move || run(&of_thread, options, &mut deliver))?;
        Ok(Drain {
            thread,
            backlog,
            records_per_wake: options.records_per_wake,
        })
    }

    /// What waits, and the counts.
    pub fn backlog(&self) -> &Backlog<R> {
        &self.backlog
    }

    /// For one more engine.
    pub fn inlet(&self) -> Inlet<R> {
        Inlet {
            backlog: Arc::clone(&self.backlog),
            thread: self.thread.thread().clone(),
            records_per_wake: self.records_per_wake,
            since_wake: 0,
        }
    }
}

impl<R> Drop for Drain<R> {
    /// What was recorded so far is delivered, unless that takes too long.
    fn drop(&mut self) {
        self.backlog.is_closing.store(true, Release);
        let wanted = self.backlog.pushed.load(Relaxed);
        let until = Instant::now() + FLUSH_MAX;
        let is_done = || self.backlog.done.load(Relaxed) >= wanted || self.thread.is_finished();
        while !is_done() && Instant::now() < until {
            self.thread.thread().unpark();
            std::thread::sleep(FLUSH_POLL);
        }
        // From now on the thread finds that it is alone as soon as the last engine is gone.
        self.thread.thread().unpark();
    }
}

fn run<R, E: Display>(
    backlog: &Arc<Backlog<R>>,
    options: DrainOptions,
    deliver: &mut impl FnMut(&[R], &Backlog<R>) -> Result<(), E>,
) {
    let mut batch = Vec::new();
    loop {
        // Looked at before the queue: what the last other holder pushed is in it.
        let is_alone = Arc::strong_count(backlog) == 1;
        batch.extend(std::iter::from_fn(|| backlog.records.pop()).take(options.batch_max));
        let taken = batch.len();
        if taken > 0 {
            backlog.settle(taken, deliver(&batch, backlog));
            batch.clear();
        } else if is_alone {
            return;
        }
        if taken < options.batch_max {
            std::thread::park_timeout(options.interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: DrainOptions = DrainOptions {
        name: "test",
        stack_bytes: 256 << 10,
        batch_max: 4,
        records_per_wake: 8,
        interval: Duration::from_secs(3600),
    };

    fn backlog(records_max: usize) -> Backlog<u32> {
        Backlog::start(records_max, None).unwrap()
    }

    #[test]
    fn records_are_delivered_in_order_and_all_of_them_before_the_policy_is_gone() {
        let delivered = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&delivered);
        let drain = Drain::start(backlog(1024), OPTIONS, move |batch, _| {
            assert!((1..=4).contains(&batch.len()));
            to.lock().unwrap().extend_from_slice(batch);
            Ok::<(), &str>(())
        })
        .unwrap();
        let mut inlet = drain.inlet();
        (0..1000).for_each(|record| inlet.push(record));
        drop(drain);
        assert_eq!(*delivered.lock().unwrap(), (0..1000).collect::<Vec<u32>>());
    }

    #[test]
    fn what_finds_no_room_or_is_refused_is_counted_and_counts_go_on() {
        let backlog = backlog(2);
        (0..5).for_each(|record| backlog.push(record));
        let drain = Drain::start(backlog, OPTIONS, |_, _| Err("refused")).unwrap();
        let counts = || drain.backlog().counts();
        while counts().failed + counts().delivered < 2 {
            std::thread::yield_now();
        }
        let expected = BacklogCounts {
            delivered: 0,
            dropped: 3,
            failed: 2,
        };
        assert_eq!(counts(), expected);
        assert_eq!(drain.backlog().failure().as_deref(), Some("refused"));
        let saved = drain.backlog().save();
        let next: Backlog<u32> = Backlog::start(2, Some(&saved)).unwrap();
        assert_eq!(next.counts(), expected);
        let torn = SharedState {
            bytes: saved.bytes[1..].to_vec(),
            ..saved
        };
        assert!(Backlog::<u32>::start(2, Some(&torn)).is_err());
    }

    #[test]
    fn the_thread_knows_that_its_policy_is_gone_and_ends_after_the_last_engine() {
        let closing = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&closing);
        let drain = Drain::start(backlog(8), OPTIONS, move |_, backlog: &Backlog<u32>| {
            while !backlog.is_closing() {
                std::thread::yield_now();
            }
            seen.store(true, Release);
            Ok::<(), &str>(())
        })
        .unwrap();
        let mut inlet = drain.inlet();
        inlet.push(1);
        let backlog = Arc::downgrade(&drain.backlog);
        drop(drain);
        assert!(closing.load(Acquire));
        let thread = inlet.thread.clone();
        drop(inlet);
        while backlog.strong_count() > 0 {
            thread.unpark();
            std::thread::yield_now();
        }
    }
}
