//! The rings against a model, between threads, and against peers that lie.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use crate::{
    AtomicU32, AtomicU64, Bell, Consumer, PeerFault, Producer, PushError, RingMemory, Sleeper, Slot,
    SlotMemory,
};

const CAPACITY: u32 = 8;

struct SharedSlots {
    slots: Vec<SlotMemory>,
    tail: AtomicU32,
    head: AtomicU32,
}

impl SharedSlots {
    /// A ring whose indices begin at `at`, so that tests see them wrap around.
    fn new(at: u32) -> SharedSlots {
        let slot = || std::array::from_fn(|_| AtomicU64::new(0));
        SharedSlots {
            slots: (0..CAPACITY).map(|_| slot()).collect(),
            tail: AtomicU32::new(at),
            head: AtomicU32::new(at),
        }
    }

    fn ends(&self) -> (Producer, Consumer) {
        let memory = RingMemory {
            slots: self.slots.as_ptr(),
            capacity: CAPACITY,
            tail: &self.tail,
            head: &self.head,
        };
        let at = self.tail.load(Ordering::Relaxed);
        // SAFETY: each test keeps `self` as long as the ends, and makes them once.
        unsafe { (Producer::resume(memory, at), Consumer::resume(memory, at)) }
    }
}

fn slot(number: u64) -> Slot {
    std::array::from_fn(|word| number << 8 | word as u64)
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Push,
    Publish,
    Pop,
    Release,
}

/// What a ring must do: all that is pushed, in order, in four stages.
#[derive(Default)]
struct Model {
    unpublished: VecDeque<u64>,
    published: VecDeque<u64>,
    unreleased: u32,
}

impl Model {
    fn room(&self) -> u32 {
        CAPACITY - (self.unpublished.len() + self.published.len()) as u32 - self.unreleased
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_model(
        at in prop_oneof![Just(0), Just(u32::MAX - 5), any::<u32>()],
        actions in prop::collection::vec(
            prop_oneof![4 => Just(Action::Push), 2 => Just(Action::Publish), 4 => Just(Action::Pop), 2 => Just(Action::Release)],
            1..300,
        ),
    ) {
        let shared = SharedSlots::new(at);
        let (mut producer, mut consumer) = shared.ends();
        let mut model = Model::default();
        for (number, action) in (0..).zip(actions) {
            match action {
                Action::Push => {
                    let expected = if model.room() == 0 { Err(PushError::Full) } else { Ok(()) };
                    prop_assert_eq!(producer.push(&slot(number)), expected);
                    if expected.is_ok() {
                        model.unpublished.push_back(number);
                    }
                }
                Action::Publish => {
                    prop_assert_eq!(producer.publish(), !model.unpublished.is_empty());
                    model.published.append(&mut model.unpublished);
                }
                Action::Pop => {
                    let expected = model.published.pop_front();
                    model.unreleased += u32::from(expected.is_some());
                    prop_assert_eq!(consumer.pop(), Ok(expected.map(slot)));
                }
                Action::Release => {
                    prop_assert_eq!(consumer.release(), model.unreleased > 0);
                    model.unreleased = 0;
                }
            }
            prop_assert_eq!(producer.room(), Ok(model.room()));
            prop_assert_eq!(consumer.is_empty(), Ok(model.published.is_empty()));
        }
    }

    #[test]
    fn a_tail_that_lies_is_a_fault_or_bounded_by_the_capacity(lies in prop::collection::vec(any_index(), 1..50)) {
        let shared = SharedSlots::new(0);
        let (_, mut consumer) = shared.ends();
        for lie in lies {
            shared.tail.store(lie, Ordering::Relaxed);
            let mut popped = 0;
            while let Ok(Some(_)) = consumer.pop() {
                popped += 1;
                prop_assert!(popped <= CAPACITY);
            }
            consumer.release();
        }
    }

    #[test]
    fn a_head_that_lies_never_makes_more_room_than_there_is(lies in prop::collection::vec(any_index(), 1..50)) {
        let shared = SharedSlots::new(0);
        let (mut producer, _) = shared.ends();
        for lie in lies {
            shared.head.store(lie, Ordering::Relaxed);
            let mut pushed = 0;
            while producer.push(&slot(0)).is_ok() {
                pushed += 1;
                prop_assert!(pushed <= CAPACITY);
            }
            if let Ok(room) = producer.room() {
                prop_assert!(room <= CAPACITY);
            }
            producer.publish();
        }
    }
}

/// Indices near those that an honest peer writes, and any.
fn any_index() -> impl Strategy<Value = u32> {
    prop_oneof![
        0..3 * CAPACITY,
        any::<u32>(),
        (0..3 * CAPACITY).prop_map(u32::wrapping_neg)
    ]
}

#[test]
fn indices_that_no_honest_peer_writes_are_faults() {
    let shared = SharedSlots::new(0);
    let (mut producer, mut consumer) = shared.ends();
    for number in 0..3 {
        producer.push(&slot(number)).expect("there is room");
    }
    shared.head.store(1, Ordering::Relaxed);
    assert_eq!(
        producer.room().map_err(|fault| fault.to),
        Err(0),
        "nothing is published yet"
    );
    producer.publish();
    assert_eq!(producer.room(), Ok(CAPACITY - 2));
    shared.head.store(4, Ordering::Relaxed);
    assert_eq!(
        producer.room(),
        Err(PeerFault {
            untrusted: 4,
            from: 1,
            to: 3
        })
    );
    shared.head.store(0, Ordering::Relaxed);
    assert_eq!(
        producer.room(),
        Err(PeerFault {
            untrusted: 0,
            from: 1,
            to: 3
        }),
        "the head went back"
    );

    shared.tail.store(CAPACITY + 1, Ordering::Relaxed);
    assert!(consumer.pop().is_err());
    shared.tail.store(2, Ordering::Relaxed);
    assert!(consumer.pop().is_ok_and(|slot| slot.is_some()));
    shared.tail.store(1, Ordering::Relaxed);
    assert!(
        consumer.pop().is_ok_and(|slot| slot.is_some()),
        "one more was published before the tail went back"
    );
    assert!(consumer.pop().is_err(), "the tail went back");
}

#[test]
fn a_wake_word_asks_for_one_ring_a_sleep() {
    let word = AtomicU32::new(7);
    // SAFETY: `word` outlives both.
    let (mut sleeper, mut bell) = unsafe { (Sleeper::new(&word), Bell::new(&word)) };
    assert!(
        !sleeper.is_armed() && !bell.needed(),
        "a word left odd is disarmed when it is taken over"
    );
    for _ in 0..3 {
        sleeper.arm();
        sleeper.arm();
        assert!(bell.needed());
        assert!(!bell.needed(), "this sleep has been rung for");
        sleeper.disarm();
        assert!(!bell.needed());
    }
}

#[test]
fn threads_that_sleep_exchange_every_slot() {
    const COUNT: u64 = 20_000;
    let shared = SharedSlots::new(u32::MAX - 100);
    let (producer_wake, consumer_wake) = (AtomicU32::new(0), AtomicU32::new(0));
    let (mut producer, mut consumer) = shared.ends();
    std::thread::scope(|scope| {
        // SAFETY: the words outlive the scope.
        let ends = unsafe { (Sleeper::new(&consumer_wake), Bell::new(&producer_wake)) };
        let writer = std::thread::current();
        let reader = scope.spawn(move || {
            let (mut sleeper, mut bell) = ends;
            let mut expected = 0;
            while expected < COUNT {
                while let Some(got) = consumer.pop().expect("the producer is honest") {
                    assert_eq!(got, slot(expected));
                    expected += 1;
                }
                if consumer.release() && bell.needed() {
                    writer.unpark();
                }
                sleeper.arm();
                if expected < COUNT && consumer.is_empty().expect("the producer is honest") {
                    std::thread::park();
                }
                sleeper.disarm();
            }
        });
        // SAFETY: the words outlive the scope.
        let (mut sleeper, mut bell) = unsafe { (Sleeper::new(&producer_wake), Bell::new(&consumer_wake)) };
        for number in 0..COUNT {
            while producer.push(&slot(number)).is_err() {
                sleeper.arm();
                if producer.room() == Ok(0) {
                    std::thread::park();
                }
                sleeper.disarm();
            }
            producer.publish();
            if bell.needed() {
                reader.thread().unpark();
            }
        }
    });
}
