//! Messages in part must go on coming: what a client has sent of them takes memory that others want.

/// Messages in part of a connection may rest if they hold no more than this together.
pub const RESTING_PARTIAL_BYTES_MAX: usize = 256 << 10;
/// A connection that holds more must bring [`PROGRESS_BYTES_MIN`] in such a time, in nanoseconds.
pub const PROGRESS_NS: u64 = 30_000_000_000;
/// How much that is at least.
pub const PROGRESS_BYTES_MIN: usize = 480 << 10;
/// A judgement that comes so much too late is none, in nanoseconds: this process stood still, and what came meanwhile was not read.
const LATE_NS: u64 = 1_000_000_000;

/// What has come of messages since a time, by which it is judged whether they go on coming.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartialProgress {
    /// None: they hold so little that nothing is judged.
    since_ns: Option<u64>,
    bytes: usize,
}

impl PartialProgress {
    /// What comes counts from now on, if it did not yet, or if this end has not read.
    pub(crate) fn watch(&mut self, partial_bytes: usize, is_reading: bool, now_ns: u64) {
        if partial_bytes <= RESTING_PARTIAL_BYTES_MAX {
            *self = PartialProgress::default();
        } else if self.since_ns.is_none() || !is_reading {
            *self = PartialProgress::since(now_ns);
        }
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// When it is to be judged.
    pub(crate) fn judged_at(&self) -> Option<u64> {
        self.since_ns.map(|since_ns| since_ns.saturating_add(PROGRESS_NS))
    }

    /// Judges what has come, once it is time: since when too little came, if it did.
    pub(crate) fn judge(&mut self, now_ns: u64) -> Option<u64> {
        let (since_ns, judged_at) = (self.since_ns?, self.judged_at()?);
        let late_ns = now_ns.checked_sub(judged_at)?;
        let is_stalled = self.bytes < PROGRESS_BYTES_MIN && late_ns < LATE_NS;
        *self = PartialProgress::since(now_ns);
        is_stalled.then_some(since_ns)
    }

    fn since(now_ns: u64) -> PartialProgress {
        PartialProgress {
            since_ns: Some(now_ns),
            bytes: 0,
        }
    }
}
