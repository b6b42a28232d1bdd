//! Every interleaving and ordering that loom knows, of a tiny ring and its wake words. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p provost-ring --release`.
//!
//! Loom does not let a load see a store that is yet to come, so it cannot miss the Acquire of `Producer::read_head`
//! (which keeps the consumer's loads ahead of the producer's next stores). All other orderings fail here when weakened.

use loom::sync::{Arc, Notify};
use loom::thread;

use crate::{
    AtomicU32, AtomicU64, Bell, Consumer, Producer, PushError, RingMemory, SLOT_WORDS, Sleeper, SlotMemory,
};

const CAPACITY: usize = 2;

/// What the two sides share, with a sticky notification for each doorbell.
struct SharedWords {
    slots: [SlotMemory; CAPACITY],
    tail: AtomicU32,
    head: AtomicU32,
    consumer_wake: AtomicU32,
    producer_wake: AtomicU32,
    consumer_doorbell: Notify,
    producer_doorbell: Notify,
}

impl SharedWords {
    fn new() -> Arc<SharedWords> {
        let word = || AtomicU32::new(0);
        Arc::new(SharedWords {
            slots: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            tail: word(),
            head: word(),
            consumer_wake: word(),
            producer_wake: word(),
            consumer_doorbell: Notify::new(),
            producer_doorbell: Notify::new(),
        })
    }

    fn memory(&self) -> RingMemory {
        RingMemory {
            slots: self.slots.as_ptr(),
            capacity: CAPACITY as u32,
            tail: &self.tail,
            head: &self.head,
        }
    }
}

/// A producer that pushes the numbers 1 to `count`, sleeping while the ring is full.
fn produce(shared: &SharedWords, count: u64) {
    // SAFETY: `shared` outlives both ends, and this is the only producer.
    let (mut producer, mut sleeper, mut bell) = unsafe {
        let sleeper = Sleeper::new(&shared.producer_wake);
        (
            Producer::new(shared.memory()),
            sleeper,
            Bell::new(&shared.consumer_wake),
        )
    };
    for number in 1..=count {
        while producer.push(&[number; SLOT_WORDS]) == Err(PushError::Full) {
            sleeper.arm();
            if producer.room() == Ok(0) {
                shared.producer_doorbell.wait();
            }
            sleeper.disarm();
        }
        producer.publish();
        if bell.needed() {
            shared.consumer_doorbell.notify();
        }
    }
}

/// A consumer that expects the numbers 1 to `count`, sleeping while the ring is empty.
fn consume(shared: &SharedWords, count: u64) {
    // SAFETY: `shared` outlives both ends, and this is the only consumer.
    let (mut consumer, mut sleeper, mut bell) = unsafe {
        let sleeper = Sleeper::new(&shared.consumer_wake);
        (
            Consumer::new(shared.memory()),
            sleeper,
            Bell::new(&shared.producer_wake),
        )
    };
    let mut expected = 1;
    while expected <= count {
        while let Some(slot) = consumer.pop().expect("the producer is honest") {
            assert_eq!(
                slot, [expected; SLOT_WORDS],
                "a slot was torn, lost or seen too early"
            );
            expected += 1;
        }
        if consumer.release() && bell.needed() {
            shared.producer_doorbell.notify();
        }
        if expected > count {
            return;
        }
        sleeper.arm();
        if consumer.is_empty().expect("the producer is honest") {
            shared.consumer_doorbell.wait();
        }
        sleeper.disarm();
    }
}

/// Loom reports a deadlock if a side sleeps and nobody will ring.
fn explore(count: u64, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let shared = SharedWords::new();
        let other = Arc::clone(&shared);
        let producer = thread::spawn(move || produce(&other, count));
        consume(&shared, count);
        producer.join().expect("the producer ends");
    });
}

#[test]
fn one_slot_wakes_the_consumer_in_every_interleaving() {
    explore(1, None);
}

#[test]
fn two_slots_arrive_in_order_and_wake_the_consumer() {
    explore(2, Some(4));
}

#[test]
fn a_ring_that_wraps_wakes_both_sides() {
    explore(CAPACITY as u64 + 1, Some(3));
}
