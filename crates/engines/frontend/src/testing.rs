//! Stand-ins for what surrounds a port, for this crate's tests.

use std::sync::{Arc, Mutex};

use provost_shm::{Access, AppRings, Doorbell, Mapping, Memfd, SEALS_READ_ONLY_FOR_OTHERS, ServiceRings};

use crate::{AppPort, AppReceiveHeap, NewSegment, ReceiveLimits, SegmentMemory, SegmentSource};

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

pub(crate) const RING_SLOTS: u32 = 16;
pub(crate) const RECEIVE_BYTES_MAX: u64 = 64 << 20;

/// A port, its app's ends of the rings, and what the app is woken by.
pub(crate) fn port_and_app() -> (AppPort, AppRings, Doorbell) {
    let (rings, [submission, completion]) = ServiceRings::create(RING_SLOTS, RING_SLOTS).unwrap();
    let app = AppRings::map(submission, RING_SLOTS, completion, RING_SLOTS).unwrap();
    let (ringer, doorbell) = Doorbell::create().unwrap();
    let limits = ReceiveLimits {
        window_at: 1 << 20,
        window_bytes: 1 << 30,
        bytes_max: RECEIVE_BYTES_MAX,
    };
    let heap = AppReceiveHeap::new(Box::new(MemfdSource::default()), limits);
    (AppPort::new(rings, ringer, heap), app, doorbell)
}
