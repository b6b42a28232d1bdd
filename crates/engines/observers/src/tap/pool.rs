//! Memory for samples: a fixed number of records, which go from the data path to readers and back.
//!
//! ```text
//!          take                push                    take_full
//! free ───────────► call ────────────────► full (ring) ──────────► reader ─┐
//!  ▲  ▲ none free: the oldest of `full`      │                             │ give
//!  │  └──────────────────────────────────────┘                             │
//!  └───────────────────────────────────────────────────────────────────────┘
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crossbeam_queue::ArrayQueue;
use provost_datapath::BodyForm;
use provost_engine::{Code, Contents, Direction, Nanos, Parts};

use crate::tap::config::TapBounds;
use crate::tap::filter::TapContext;

/// The steps of one call, as they were.
#[derive(Debug, Default)]
pub(crate) struct SampleRecord {
    /// `None` only before it is used. (While it is free, it is the datapath context where it was used last.)
    pub(crate) datapath_context: Option<Arc<TapContext>>,
    pub(crate) call: u64,
    pub(crate) method: u16,
    pub(crate) began_at: Nanos,
    pub(crate) ended_at: Nanos,
    pub(crate) status: Code,
    pub(crate) steps: Vec<RecordedStep>,
    pub(crate) messages_left_out: u64,
    /// Metadata and messages of the steps.
    pub(crate) bytes: Vec<u8>,
}

/// One step; its bytes are in those of the record.
#[derive(Clone, Debug)]
pub(crate) struct RecordedStep {
    pub(crate) direction: Direction,
    pub(crate) parts: Parts,
    pub(crate) status: Code,
    pub(crate) at: Nanos,
    pub(crate) deadline: Nanos,
    pub(crate) metadata: Range<usize>,
    /// Empty when there was no room for all of it.
    pub(crate) message: Range<usize>,
    pub(crate) message_bytes: u32,
    pub(crate) form: BodyForm,
    pub(crate) window_at: u32,
}

/// What happened to samples, since before there was this process.
#[derive(Debug, Default)]
pub(crate) struct SampleCounts {
    samples: AtomicU64,
    overwritten: AtomicU64,
    dropped: AtomicU64,
}

impl SampleCounts {
    pub(crate) fn of([samples, overwritten, dropped]: [u64; 3]) -> SampleCounts {
        SampleCounts {
            samples: samples.into(),
            overwritten: overwritten.into(),
            dropped: dropped.into(),
        }
    }

    pub(crate) fn read(&self) -> [u64; 3] {
        [&self.samples, &self.overwritten, &self.dropped].map(|count| count.load(Relaxed))
    }
}

pub(crate) struct RecordPool {
    free: ArrayQueue<Box<SampleRecord>>,
    full: ArrayQueue<Box<SampleRecord>>,
    bounds: TapBounds,
    /// Capacity of all records' bytes.
    bytes: AtomicUsize,
    pub(crate) counts: SampleCounts,
}

impl RecordPool {
    pub(crate) fn new(bounds: TapBounds, counts: SampleCounts) -> RecordPool {
        let free = ArrayQueue::new(bounds.samples);
        for _ in 0..bounds.samples {
            let record = SampleRecord {
                steps: Vec::with_capacity(bounds.steps),
                ..SampleRecord::default()
            };
            // There is room for as many.
            let _ = free.push(Box::new(record));
        }
        RecordPool {
            free,
            full: ArrayQueue::new(bounds.samples),
            bounds,
            bytes: AtomicUsize::new(0),
            counts,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// A record for a call: one that is free, else the oldest that nobody has read.
    pub(crate) fn take(self: &Arc<Self>) -> Option<OpenSample> {
        let record = self.free.pop().or_else(|| {
            let mut oldest = self.full.pop()?;
            self.counts.overwritten.fetch_add(1, Relaxed);
            self.relieve(&mut oldest);
            Some(oldest)
        });
        match record {
            Some(record) => Some(OpenSample {
                record: Some(record),
                pool: Arc::clone(self),
            }),
            None => {
                self.counts.dropped.fetch_add(1, Relaxed);
                None
            }
        }
    }

    /// The oldest record that nobody has read. It is given back with [`RecordPool::give`].
    pub(crate) fn take_full(&self) -> Option<Box<SampleRecord>> {
        self.full.pop()
    }

    pub(crate) fn give(&self, mut record: Box<SampleRecord>) {
        self.relieve(&mut record);
        // There is room for as many as there are.
        let _ = self.free.push(record);
    }

    /// Takes the memory of a record whose bytes nobody needs any more, while much of it is taken: other records find some then.
    fn relieve(&self, record: &mut SampleRecord) {
        if self.bytes() > self.bounds.bytes / 2 {
            self.bytes.fetch_sub(record.bytes.capacity(), Relaxed);
            record.bytes = Vec::new();
        }
    }

    /// How many were overwritten so far.
    pub(crate) fn overwritten(&self) -> u64 {
        self.counts.overwritten.load(Relaxed)
    }

    /// Makes room in a record for so many more bytes, and says whether there is.
    fn reserve(&self, bytes: &mut Vec<u8>, more: usize) -> bool {
        let needed = bytes.len() + more;
        if needed <= bytes.capacity() {
            return true;
        }
        if needed > self.bounds.sample_bytes {
            return false;
        }
        let capacity = needed.next_power_of_two().min(self.bounds.sample_bytes);
        let growth = capacity - bytes.capacity();
        let total = self.bytes.fetch_add(growth, Relaxed) + growth;
        if total > self.bounds.bytes {
            self.bytes.fetch_sub(growth, Relaxed);
            return false;
        }
        bytes.reserve_exact(capacity - bytes.len());
        true
    }
}

/// A call that is being sampled. When it is dropped before its end, its record is free again.
pub(crate) struct OpenSample {
    record: Option<Box<SampleRecord>>,
    pool: Arc<RecordPool>,
}

impl OpenSample {
    pub(crate) fn begin(&mut self, datapath_context: &Arc<TapContext>, call: u64, method: u16, now: Nanos) {
        let Some(record) = &mut self.record else { return };
        // A record is mostly used again where it was used before.
        if !record
            .datapath_context
            .as_ref()
            .is_some_and(|before| Arc::ptr_eq(before, datapath_context))
        {
            record.datapath_context = Some(Arc::clone(datapath_context));
        }
        (record.call, record.method, record.began_at) = (call, method, now);
        (record.ended_at, record.status, record.messages_left_out) = (now, Code::Ok, 0);
        record.steps.clear();
        record.bytes.clear();
    }

    /// Whether a step with a message of so many bytes, and that much metadata, can be kept whole.
    pub(crate) fn has_room(&mut self, bytes: usize) -> bool {
        let steps = self.pool.bounds.steps;
        let Some(record) = &mut self.record else {
            return false;
        };
        record.steps.len() < steps && self.pool.reserve(&mut record.bytes, bytes)
    }

    /// How many bytes of further steps can be kept, at most.
    pub(crate) fn bytes_left(&self) -> u32 {
        let bounds = &self.pool.bounds;
        let open = self
            .record
            .as_ref()
            .filter(|record| record.steps.len() < bounds.steps);
        let left = open.map_or(0, |record| bounds.sample_bytes.saturating_sub(record.bytes.len()));
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    /// Keeps a step with its metadata and message: both, if there is room for both, else as much as there is room for.
    pub(crate) fn add(&mut self, mut step: RecordedStep, contents: Contents<'_>) {
        let pool = &*self.pool;
        let Some(record) = &mut self.record else { return };
        if record.steps.len() >= pool.bounds.steps {
            record.messages_left_out += u64::from(step.parts.contains(Parts::MESSAGE));
            return;
        }
        let Contents {
            metadata,
            message,
            protobuf,
            is_compressed: _,
        } = contents;
        step.form = if protobuf.is_some() {
            BodyForm::Protobuf
        } else {
            BodyForm::Native
        };
        let native = message.map(|message| message.bytes());
        let bytes = native.or(protobuf).unwrap_or_default();
        let at = record.bytes.len();
        if pool.reserve(&mut record.bytes, metadata.len() + bytes.len()) {
            record.bytes.extend_from_slice(metadata);
            let message_at = record.bytes.len();
            record.bytes.extend_from_slice(bytes);
            step.metadata = at..message_at;
            step.message = message_at..record.bytes.len();
            step.window_at = message.map_or(0, |message| message.window_at());
        } else if pool.reserve(&mut record.bytes, metadata.len()) {
            record.bytes.extend_from_slice(metadata);
            step.metadata = at..record.bytes.len();
        }
        record.steps.push(step);
    }

    /// The call is over: readers may have it.
    pub(crate) fn finish(mut self, status: Code, at: Nanos) {
        let Some(mut record) = self.record.take() else {
            return;
        };
        (record.status, record.ended_at) = (status, at);
        self.pool.counts.samples.fetch_add(1, Relaxed);
        if let Some(oldest) = self.pool.full.force_push(record) {
            self.pool.counts.overwritten.fetch_add(1, Relaxed);
            self.pool.give(oldest);
        }
    }
}

impl Drop for OpenSample {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            self.pool.give(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use provost_engine::View;

    use super::*;

    fn pool(samples: usize, bytes: usize) -> Arc<RecordPool> {
        let bounds = TapBounds {
            samples,
            steps: 2,
            sample_bytes: 64,
            bytes,
        };
        Arc::new(RecordPool::new(bounds, SampleCounts::default()))
    }

    fn step() -> RecordedStep {
        RecordedStep {
            direction: Direction::Request,
            parts: Parts::MESSAGE,
            status: Code::Ok,
            at: 0,
            deadline: 0,
            metadata: 0..0,
            message: 0..0,
            message_bytes: 10,
            form: BodyForm::Native,
            window_at: 0,
        }
    }

    fn native<'a>(metadata: &'a [u8], message: &'a [u8]) -> Contents<'a> {
        Contents {
            metadata,
            message: Some(View::linear(message)),
            protobuf: None,
            is_compressed: false,
        }
    }

    #[test]
    fn the_newest_are_kept_and_records_are_never_lost() {
        let pool = pool(2, 1 << 20);
        for call in 0..5 {
            let mut sampling = pool.take().unwrap();
            sampling.record.as_mut().unwrap().call = call;
            sampling.finish(Code::Ok, 0);
        }
        assert_eq!(pool.counts.read(), [5, 3, 0]);
        let kept: Vec<_> = std::iter::from_fn(|| pool.take_full()).collect();
        assert_eq!(kept.iter().map(|record| record.call).collect::<Vec<_>>(), [3, 4]);
        assert!(pool.take().is_none(), "both are with the reader");
        kept.into_iter().for_each(|record| pool.give(record));
        let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none(), "both are under way");
        drop((one, two));
        assert!(pool.take().is_some());
    }

    /// Samples a call with a message of so many bytes; how many of them were kept.
    fn sampled(pool: &Arc<RecordPool>, bytes: usize) -> usize {
        let mut sampling = pool.take().unwrap();
        let record = sampling.record.as_mut().unwrap();
        record.steps.clear();
        record.bytes.clear();
        sampling.add(step(), native(b"", &vec![7; bytes]));
        let kept = sampling.record.as_ref().unwrap().steps[0].message.len();
        sampling.finish(Code::Ok, 0);
        kept
    }

    #[test]
    fn memory_that_one_record_had_is_there_for_another() {
        let read = pool(2, 100);
        for _ in 0..4 {
            assert_eq!(sampled(&read, 48), 48);
            read.give(read.take_full().unwrap());
        }
        // Nobody reads: what is overwritten makes room.
        let unread = pool(2, 70);
        let kept = [48, 10, 10, 10].map(|bytes| sampled(&unread, bytes));
        assert_eq!(kept, [48, 0, 10, 10]);
        assert!(read.bytes() <= 100 && unread.bytes() <= 70);
    }

    #[test]
    fn what_is_beyond_a_bound_is_left_out_whole() {
        let pool = pool(2, 100);
        let mut first = pool.take().unwrap();
        first.add(step(), native(b"meta", &[7; 48]));
        first.add(step(), native(b"", &[8; 48]));
        first.add(step(), native(b"", &[9; 8]));
        let record = first.record.as_ref().unwrap();
        let kept: Vec<_> = record
            .steps
            .iter()
            .map(|step| (step.metadata.len(), step.message.len()))
            .collect();
        assert_eq!((kept, record.messages_left_out), (vec![(4, 48), (0, 0)], 1));
        let mut second = pool.take().unwrap();
        assert!(!second.has_room(50), "64 of the 100 bytes are taken");
        assert!(second.has_room(20));
        assert!(pool.bytes() <= 100);
    }
}
