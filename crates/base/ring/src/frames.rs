//! Rings of frames: slots of many bytes, each with a state word of its own, which says whether it is full.
//!
//! A reader that polls looks at the very line in which a small frame will be, so a frame crosses from core to core by one
//! cache line; a ring with a tail of its own (see [`Producer`](crate::Producer)) moves two.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | state word and bytes of a slot that is free | [`FrameProducer`] | |
//! | state word and bytes of a slot that is full | | [`FrameConsumer`] |
//! | head | [`FrameConsumer::release`] | [`FrameProducer`] |
//!
//! A state word says in which lap around the ring its slot was filled last, and how long the frame is. The bytes
//! themselves are not the ring's business: it says whose a slot is, and its owners read and write it.

use std::fmt;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::ring::PeerFault;

/// Where a ring of frames lies. Both ends describe it in the same way, each in its own mapping.
#[derive(Clone, Copy, Debug)]
pub struct FrameMemory {
    /// The state word of the first slot; aligned to 8 bytes. The consumer's end may be mapped read-only.
    pub states: *const AtomicU64,
    /// Bytes from one state word to the next: a multiple of 8.
    pub stride_bytes: usize,
    /// Number of slots: a power of two, at most 2³¹.
    pub capacity: u32,
    /// The word that the consumer writes. The producer's end may be mapped read-only.
    pub head: *const AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub slot: u32,
    /// Bytes of the frame that is in it.
    pub bytes: u32,
}

/// The other side wrote what no honest peer writes. Nothing that it shares is worth reading any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// A slot is said to have been filled in another lap than this or the last.
    Lap {
        /// What its state word says.
        untrusted: u32,
        lap: u32,
    },
    /// A frame is said to be longer than a slot.
    Bytes {
        /// What its state word says.
        untrusted: u32,
        /// The most that it may say.
        most: u32,
    },
    /// The head is out of its range.
    Head(PeerFault),
}

impl fmt::Display for FrameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameFault::Lap { untrusted, lap } => {
                write!(
                    f,
                    "the peer says that it filled a slot in lap {untrusted}, in lap {lap}: disconnect it"
                )
            }
            FrameFault::Bytes { untrusted, most } => {
                write!(
                    f,
                    "the peer says that a slot of {most} bytes has {untrusted}: disconnect it"
                )
            }
            FrameFault::Head(fault) => fault.fmt(f),
        }
    }
}

impl std::error::Error for FrameFault {}

impl FrameMemory {
    fn check(&self) {
        assert!(
            self.capacity.is_power_of_two() && self.capacity <= 1 << 31,
            "a ring of {} slots: make it a power of two, at most 2^31",
            self.capacity
        );
        assert!(
            self.stride_bytes >= size_of::<AtomicU64>()
                && self.stride_bytes.is_multiple_of(align_of::<AtomicU64>()),
            "slots {} bytes apart: make it a multiple of 8",
            self.stride_bytes
        );
    }

    /// # Safety
    /// The memory must be mapped, and `slot` below the capacity.
    #[inline]
    unsafe fn state(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: the caller's promise; the stride keeps the alignment (`check`).
        unsafe { &*self.states.byte_add(slot as usize * self.stride_bytes) }
    }

    #[inline]
    fn slot(&self, index: u64) -> u32 {
        index as u32 & (self.capacity - 1)
    }

    /// The lap of an index, from 1, so that memory that is all zero is a ring that nobody has filled.
    #[inline]
    fn lap(&self, index: u64) -> u32 {
        ((index >> self.capacity.trailing_zeros()) as u32).wrapping_add(1)
    }
}

#[derive(Debug)]
pub struct FrameProducer {
    memory: FrameMemory,
    /// Frames published, since the beginning.
    next: u64,
    /// The last valid head that the consumer claimed. `next - head <= capacity`.
    head: u32,
}

// SAFETY: the pointers are to shared memory that is valid from any thread, by the contract of `new`; all access to it
// is atomic.
unsafe impl Send for FrameProducer {}

impl FrameProducer {
    /// The writing end of a ring that nobody has used, of memory that is all zero.
    ///
    /// # Safety
    /// Until the producer is dropped, the slots must be mapped for writing, the head for reading, and all access to
    /// state words and head by this program must be atomic, from any thread. No other producer of this program may
    /// exist for this memory. What other programs do with it does not matter.
    ///
    /// # Panics
    /// If the capacity is not a power of two or above 2³¹, or the stride no multiple of 8.
    #[must_use]
    pub unsafe fn new(memory: FrameMemory) -> FrameProducer {
        memory.check();
        FrameProducer {
            memory,
            next: 0,
            head: 0,
        }
    }

    /// Frames published, since the beginning.
    #[inline]
    #[must_use]
    pub fn published(&self) -> u64 {
        self.next
    }

    /// How many slots are free, as far as this end knows already.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u32 {
        self.memory.capacity - (self.next as u32).wrapping_sub(self.head)
    }

    /// Looks at the consumer's head, and says how many slots are free.
    ///
    /// # Errors
    /// If the head lies.
    pub fn refresh(&mut self) -> Result<u32, FrameFault> {
        // SAFETY: the head is mapped for reading (contract of `new`).
        let head = unsafe { &*self.memory.head };
        // Pairs with the Release store in `FrameConsumer::release`: the consumer is done with the slots below this
        // head, so they can be written over.
        let untrusted = head.load(Ordering::Acquire);
        let published = self.next as u32;
        // Heads never go back, nor past what was published.
        if untrusted.wrapping_sub(self.head) > published.wrapping_sub(self.head) {
            return Err(FrameFault::Head(PeerFault {
                untrusted,
                from: self.head,
                to: published,
            }));
        }
        self.head = untrusted;
        Ok(self.room())
    }

    /// The slot that is to be filled next; `None` if none is free as far as this end knows.
    #[inline]
    #[must_use]
    pub fn free_slot(&self) -> Option<u32> {
        (self.room() > 0).then(|| self.memory.slot(self.next))
    }

    /// Shows the slot of [`FrameProducer::free_slot`], with a frame of so many bytes in it, to the consumer. Ask the
    /// consumer's [`Bell`](crate::Bell) after it, once for as many frames as come together.
    ///
    /// # Panics
    /// If no slot is free.
    #[inline]
    pub fn publish(&mut self, bytes: u32) {
        assert!(self.room() > 0, "a slot that is not free was filled");
        let word = u64::from(self.memory.lap(self.next)) << 32 | u64::from(bytes);
        // SAFETY: `slot` is below the capacity, and the slots are mapped for writing (contract of `new`).
        let state = unsafe { self.memory.state(self.memory.slot(self.next)) };
        // Pairs with the Acquire load in `FrameConsumer::peek`: who sees this lap sees the frame.
        state.store(word, Ordering::Release);
        self.next += 1;
    }
}

#[derive(Debug)]
pub struct FrameConsumer {
    memory: FrameMemory,
    frame_bytes_max: u32,
    /// Frames popped, since the beginning.
    next: u64,
    /// Those of them whose slots the producer can use again.
    released: u64,
}

// SAFETY: as for `FrameProducer`.
unsafe impl Send for FrameConsumer {}

impl FrameConsumer {
    /// The reading end of a ring that nobody has used, whose slots have room for frames of so many bytes.
    ///
    /// # Safety
    /// Until the consumer is dropped, the slots must be mapped for reading, the head for writing, and all access to
    /// state words and head by this program must be atomic, from any thread. No other consumer of this program may
    /// exist for this memory. What other programs do with it does not matter.
    ///
    /// # Panics
    /// As [`FrameProducer::new`].
    #[must_use]
    pub unsafe fn new(memory: FrameMemory, frame_bytes_max: u32) -> FrameConsumer {
        memory.check();
        FrameConsumer {
            memory,
            frame_bytes_max,
            next: 0,
            released: 0,
        }
    }

    /// The next full slot, if there is one. It is this end's until [`FrameConsumer::release`].
    ///
    /// # Errors
    /// If its state word lies.
    #[inline]
    pub fn peek(&self) -> Result<Option<Frame>, FrameFault> {
        self.look_at(self.next)
    }

    /// The full slot so many after the next one, if there is one. It is a look at what will come: slots between may not be full, and
    /// lies are told of when it is their turn.
    #[inline]
    #[must_use]
    pub fn peek_ahead(&self, slots: u32) -> Option<Frame> {
        self.look_at(self.next + u64::from(slots)).ok().flatten()
    }

    #[inline(always)]
    fn look_at(&self, index: u64) -> Result<Option<Frame>, FrameFault> {
        let slot = self.memory.slot(index);
        // SAFETY: `slot` is below the capacity, and the slots are mapped for reading (contract of `new`).
        let state = unsafe { self.memory.state(slot) };
        // Pairs with the Release store in `FrameProducer::publish`.
        let word = state.load(Ordering::Acquire);
        let (untrusted, bytes) = ((word >> 32) as u32, word as u32);
        let lap = self.memory.lap(index);
        if untrusted == lap && bytes <= self.frame_bytes_max {
            return Ok(Some(Frame { slot, bytes }));
        }
        if untrusted == lap.wrapping_sub(1) {
            return Ok(None);
        }
        Err(self.fault(untrusted, bytes, lap))
    }

    #[cold]
    fn fault(&self, untrusted: u32, bytes: u32, lap: u32) -> FrameFault {
        if untrusted == lap {
            FrameFault::Bytes {
                untrusted: bytes,
                most: self.frame_bytes_max,
            }
        } else {
            FrameFault::Lap { untrusted, lap }
        }
    }

    /// Goes past the slot of [`FrameConsumer::peek`], which must have found one.
    #[inline]
    pub fn pop(&mut self) {
        self.next += 1;
    }

    /// How many slots were popped and are not given back yet.
    #[inline]
    #[must_use]
    pub fn unreleased(&self) -> u32 {
        (self.next - self.released) as u32
    }

    /// Gives all popped slots back to the producer.
    #[inline]
    pub fn release(&mut self) {
        self.released = self.next;
        // SAFETY: the head is mapped for writing (contract of `new`).
        let head = unsafe { &*self.memory.head };
        // Pairs with the Acquire load in `FrameProducer::refresh`: our loads of the slots come before its stores.
        head.store(self.next as u32, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const CAPACITY: u32 = 4;
    const FRAME_BYTES_MAX: u32 = 100;

    /// Slots of two words: the state, and bytes that the ring does not look at.
    struct FrameSlots {
        slots: [[AtomicU64; 2]; CAPACITY as usize],
        head: AtomicU32,
    }

    impl FrameSlots {
        fn new() -> FrameSlots {
            FrameSlots {
                slots: std::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]),
                head: AtomicU32::new(0),
            }
        }

        fn ends(&self) -> (FrameProducer, FrameConsumer) {
            let memory = FrameMemory {
                states: &raw const self.slots[0][0],
                stride_bytes: size_of::<[AtomicU64; 2]>(),
                capacity: CAPACITY,
                head: &self.head,
            };
            // SAFETY: `self` outlives the ends in every test, and these are the only ones.
            unsafe {
                (
                    FrameProducer::new(memory),
                    FrameConsumer::new(memory, FRAME_BYTES_MAX),
                )
            }
        }
    }

    #[derive(Clone, Debug)]
    enum FrameStep {
        Publish(u32),
        Pop,
        Release,
        Refresh,
    }

    fn step() -> impl Strategy<Value = FrameStep> {
        prop_oneof![
            (0..=FRAME_BYTES_MAX).prop_map(FrameStep::Publish),
            Just(FrameStep::Pop),
            Just(FrameStep::Release),
            Just(FrameStep::Refresh)
        ]
    }

    proptest! {
        #[test]
        fn frames_come_in_order_and_no_slot_is_filled_twice(steps in proptest::collection::vec(step(), 0..200)) {
            let memory = FrameSlots::new();
            let (mut producer, mut consumer) = memory.ends();
            let (mut full, mut popped, mut published) = (VecDeque::new(), 0, 0u32);
            for step in steps {
                match step {
                    FrameStep::Publish(bytes) => match producer.free_slot() {
                        Some(slot) => {
                            prop_assert_eq!(slot, published % CAPACITY);
                            producer.publish(bytes);
                            published += 1;
                            full.push_back(Frame { slot, bytes });
                        }
                        None => prop_assert_eq!(producer.room(), 0),
                    },
                    FrameStep::Pop => {
                        for ahead in 0..=CAPACITY {
                            prop_assert_eq!(consumer.peek_ahead(ahead), full.get(ahead as usize).copied());
                        }
                        let frame = consumer.peek().unwrap();
                        prop_assert_eq!(frame, full.pop_front());
                        if frame.is_some() {
                            consumer.pop();
                            popped += 1;
                        }
                        prop_assert_eq!(consumer.unreleased(), popped);
                    }
                    FrameStep::Release => {
                        consumer.release();
                        popped = 0;
                    }
                    FrameStep::Refresh => {
                        prop_assert_eq!(producer.published(), u64::from(published));
                        let taken = full.len() as u32 + popped;
                        prop_assert_eq!(producer.refresh(), Ok(CAPACITY - taken));
                    }
                }
            }
        }

        #[test]
        fn a_peer_that_writes_anything_is_a_fault_or_nothing(words in proptest::collection::vec(any::<u64>(), 1..50)) {
            let memory = FrameSlots::new();
            let (mut producer, mut consumer) = memory.ends();
            for word in words {
                memory.slots[0][0].store(word, Ordering::Relaxed);
                memory.head.store(word as u32, Ordering::Relaxed);
                let _ = producer.refresh();
                prop_assert!(producer.room() <= CAPACITY);
                let ahead = consumer.peek_ahead(word as u32);
                prop_assert!(ahead.is_none_or(|frame| frame.slot < CAPACITY && frame.bytes <= FRAME_BYTES_MAX));
                if let Ok(Some(frame)) = consumer.peek() {
                    prop_assert!(frame.slot < CAPACITY && frame.bytes <= FRAME_BYTES_MAX);
                    consumer.pop();
                }
            }
        }
    }

    #[test]
    fn lies_are_named() {
        let memory = FrameSlots::new();
        let (mut producer, consumer) = memory.ends();
        assert_eq!(consumer.peek(), Ok(None));
        memory.slots[0][0].store(7 << 32, Ordering::Relaxed);
        assert_eq!(consumer.peek(), Err(FrameFault::Lap { untrusted: 7, lap: 1 }));
        memory.slots[0][0].store(1 << 32 | 101, Ordering::Relaxed);
        let too_long = FrameFault::Bytes {
            untrusted: 101,
            most: FRAME_BYTES_MAX,
        };
        assert_eq!(consumer.peek(), Err(too_long));
        memory.head.store(1, Ordering::Relaxed);
        let text = producer.refresh().unwrap_err().to_string();
        assert_eq!(
            text,
            "the peer's ring index is 1, outside of 0 to 0: disconnect it"
        );
    }
}
