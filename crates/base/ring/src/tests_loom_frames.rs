//! As `tests_loom`, of a ring of frames: loom sees each access to a slot's bytes, and complains of two that race.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Notify};
use loom::thread;

use crate::{AtomicU32, AtomicU64, Bell, FrameConsumer, FrameMemory, FrameProducer, Sleeper};

const CAPACITY: usize = 2;
const FRAME_BYTES_MAX: u32 = 8;

struct SharedFrames {
    states: [AtomicU64; CAPACITY],
    bytes: [UnsafeCell<u64>; CAPACITY],
    head: AtomicU32,
    wake: AtomicU32,
    doorbell: Notify,
}

// SAFETY: the cells' bytes are touched by the side alone whose slot it is, which is what loom checks here.
unsafe impl Sync for SharedFrames {}

impl SharedFrames {
    fn memory(&self) -> FrameMemory {
        FrameMemory {
            states: self.states.as_ptr(),
            stride_bytes: size_of::<AtomicU64>(),
            capacity: CAPACITY as u32,
            head: &self.head,
        }
    }
}

fn produce(shared: &SharedFrames, count: u64) {
    // SAFETY: `shared` outlives both ends, and this is the only producer.
    let (mut producer, mut bell) = unsafe { (FrameProducer::new(shared.memory()), Bell::new(&shared.wake)) };
    for number in 1..=count {
        let slot = loop {
            match producer.free_slot() {
                Some(slot) => break slot as usize,
                None => {
                    producer.refresh().expect("the consumer is honest");
                    thread::yield_now();
                }
            }
        };
        // SAFETY: the slot is free, so the consumer does not touch it.
        shared.bytes[slot].with_mut(|bytes| unsafe { *bytes = number });
        producer.publish(8);
        if bell.needed() {
            shared.doorbell.notify();
        }
    }
}

fn consume(shared: &SharedFrames, count: u64) {
    // SAFETY: `shared` outlives both ends, and this is the only consumer.
    let (mut consumer, mut sleeper) = unsafe {
        (
            FrameConsumer::new(shared.memory(), FRAME_BYTES_MAX),
            Sleeper::new(&shared.wake),
        )
    };
    let mut expected = 1;
    while expected <= count {
        if let Some(frame) = consumer.peek().expect("the producer is honest") {
            // SAFETY: the slot is full and not released, so the producer does not touch it.
            let number = shared.bytes[frame.slot as usize].with(|bytes| unsafe { *bytes });
            assert_eq!(number, expected);
            expected += 1;
            consumer.pop();
            consumer.release();
            continue;
        }
        sleeper.arm();
        if consumer.peek().expect("the producer is honest").is_none() {
            shared.doorbell.wait();
        }
        sleeper.disarm();
    }
}

fn explore(count: u64, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let shared = Arc::new(SharedFrames {
            states: std::array::from_fn(|_| AtomicU64::new(0)),
            bytes: std::array::from_fn(|_| UnsafeCell::new(0)),
            head: AtomicU32::new(0),
            wake: AtomicU32::new(0),
            doorbell: Notify::new(),
        });
        let other = Arc::clone(&shared);
        let producer = thread::spawn(move || produce(&other, count));
        consume(&shared, count);
        producer.join().expect("the producer ends");
    });
}

#[test]
fn one_frame_wakes_the_consumer_in_every_interleaving() {
    explore(1, None);
}

#[test]
fn a_ring_of_frames_that_wraps_gives_no_slot_to_both_sides() {
    explore(CAPACITY as u64 + 1, Some(3));
}
