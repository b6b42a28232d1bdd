//! Stand-ins for what surrounds a port, for this crate's tests.

use std::sync::{Arc, Mutex};

use provost_shm::{Access, Mapping, Memfd, SEALS_READ_ONLY_FOR_OTHERS};

use crate::{NewSegment, SegmentMemory, SegmentSource};

/// Makes segments that no app hears of, and notes them.
#[derive(Default)]
pub(crate) struct MemfdSource {
    pub(crate) made: Arc<Mutex<Vec<NewSegment>>>,
}

impl SegmentSource for MemfdSource {
    fn make(&mut self, segment: NewSegment) -> Option<SegmentMemory> {
        let memfd = Memfd::create("test-segment", segment.bytes).ok()?;
        let mapping = Mapping::new(&memfd, Access::ReadWrite).ok()?;
        memfd.seal(SEALS_READ_ONLY_FOR_OTHERS).ok()?;
        self.made.lock().ok()?.push(segment);
        Some(SegmentMemory { memfd, mapping })
    }
}
