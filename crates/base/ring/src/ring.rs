//! The two ends of a ring.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Words of a slot. Loom explores each of them, so it gets two: enough for one to be seen without the other.
pub const SLOT_WORDS: usize = if cfg!(loom) { 2 } else { 8 };
/// A slot's content in private memory.
pub type Slot = [u64; SLOT_WORDS];
/// A slot in shared memory, laid out as [`Slot`].
pub type SlotMemory = [AtomicU64; SLOT_WORDS];

/// Where a ring lies. Both ends describe it in the same way, each in its own mapping.
#[derive(Clone, Copy, Debug)]
pub struct RingMemory {
    /// The first slot; aligned to 8 bytes. The consumer's end may be mapped read-only.
    pub slots: *const SlotMemory,
    /// Number of slots: a power of two, at most 2³¹.
    pub capacity: u32,
    /// The word that the producer writes. The consumer's end may be mapped read-only.
    pub tail: *const AtomicU32,
    /// The word that the consumer writes. The producer's end may be mapped read-only.
    pub head: *const AtomicU32,
}

/// The other side's index has a value that no honest peer writes. Nothing that it shares is worth reading any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerFault {
    /// What the other side's word says.
    pub untrusted: u32,
    /// The least that it may say (indices are free-running: compare modulo 2³²).
    pub from: u32,
    /// The most that it may say.
    pub to: u32,
}

impl std::fmt::Display for PeerFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PeerFault { untrusted, from, to } = self;
        write!(
            f,
            "the peer's ring index is {untrusted}, outside of {from} to {to}: disconnect it"
        )
    }
}

impl std::error::Error for PeerFault {}

/// Why a slot was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The consumer has not released a slot yet.
    Full,
    /// The consumer's head lies.
    Fault(PeerFault),
}

impl std::fmt::Display for PushError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PushError::Full => f.write_str("the ring is full: try again when its reader has released slots"),
            PushError::Fault(fault) => fault.fmt(f),
        }
    }
}

impl std::error::Error for PushError {}

impl From<PeerFault> for PushError {
    fn from(fault: PeerFault) -> PushError {
        PushError::Fault(fault)
    }
}

#[derive(Debug)]
pub struct Producer {
    memory: RingMemory,
    /// Where the next slot goes.
    next: u32,
    /// What the tail word says.
    published: u32,
    /// The last valid head that the consumer claimed. `next - head <= capacity`.
    head: u32,
}

// SAFETY: the pointers are to shared memory that is valid from any thread, by the contract of `resume`; all access
// to it is atomic.
unsafe impl Send for Producer {}

impl Producer {
    /// The writing end of a ring that nobody has used.
    ///
    /// # Safety
    /// As for [`Producer::resume`].
    #[must_use]
    pub unsafe fn new(memory: RingMemory) -> Producer {
        check_capacity(memory.capacity);
        Producer {
            memory,
            next: 0,
            published: 0,
            head: 0,
        }
    }

    /// The writing end of a ring whose earlier writer had published up to `tail`.
    ///
    /// # Safety
    /// Until the producer is dropped, the slots and the tail must be mapped for writing, the head for reading, and
    /// all access to them by this program must be atomic, from any thread. No other producer of this program may
    /// exist for this memory. What other programs do with it does not matter.
    ///
    /// # Panics
    /// If the capacity is not a power of two or above 2³¹.
    #[must_use]
    pub unsafe fn resume(memory: RingMemory, tail: u32) -> Producer {
        check_capacity(memory.capacity);
        // The least head that an honest consumer could have.
        let head = tail.wrapping_sub(memory.capacity);
        Producer {
            memory,
            next: tail,
            published: tail,
            head,
        }
    }

    /// Writes a slot behind those that were pushed before. The consumer sees it after [`Producer::publish`].
    pub fn push(&mut self, slot: &Slot) -> Result<(), PushError> {
        if self.next.wrapping_sub(self.head) == self.memory.capacity {
            self.read_head()?;
            if self.next.wrapping_sub(self.head) == self.memory.capacity {
                return Err(PushError::Full);
            }
        }
        let at = (self.next & (self.memory.capacity - 1)) as usize;
        // SAFETY: `at` is below the capacity, and the slots are mapped for writing (contract of `resume`).
        let shared = unsafe { &*self.memory.slots.add(at) };
        for (word, value) in shared.iter().zip(slot) {
            // Ordered before the reader's loads by the Release store in `publish`.
            word.store(*value, Ordering::Relaxed);
        }
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Shows all pushed slots to the consumer, and says whether there were any. Ask the consumer's [`Bell`] after it.
    pub fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        self.published = self.next;
        // SAFETY: the tail is mapped for writing (contract of `resume`).
        let tail = unsafe { &*self.memory.tail };
        // Pairs with the Acquire load in `Consumer::read_tail`: who sees this tail sees the slots below it.
        tail.store(self.next, Ordering::Release);
        true
    }

    /// How many slots can be pushed now.
    pub fn room(&mut self) -> Result<u32, PeerFault> {
        self.read_head()?;
        Ok(self.memory.capacity - self.next.wrapping_sub(self.head))
    }

    /// Whether the consumer has released every slot that was pushed.
    pub fn is_drained(&mut self) -> Result<bool, PeerFault> {
        Ok(self.room()? == self.memory.capacity)
    }

    /// The index up to which slots are published: what [`Producer::resume`] needs.
    #[must_use]
    pub fn tail(&self) -> u32 {
        self.published
    }

    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.memory.capacity
    }

    fn read_head(&mut self) -> Result<(), PeerFault> {
        // SAFETY: the head is mapped for reading (contract of `resume`).
        let head = unsafe { &*self.memory.head };
        // Pairs with the Release store in `Consumer::release`: the consumer has read the slots below this head, so
        // they can be written over.
        let untrusted = head.load(Ordering::Acquire);
        // Heads never go back, nor past what was published.
        if untrusted.wrapping_sub(self.head) > self.published.wrapping_sub(self.head) {
            return Err(PeerFault {
                untrusted,
                from: self.head,
                to: self.published,
            });
        }
        self.head = untrusted;
        Ok(())
    }
}

#[derive(Debug)]
pub struct Consumer {
    memory: RingMemory,
    /// The next slot to read.
    next: u32,
    /// What the head word says.
    released: u32,
    /// The last valid tail that the producer claimed. `tail - released <= capacity`.
    tail: u32,
}

// SAFETY: as for `Producer`.
unsafe impl Send for Consumer {}

impl Consumer {
    /// The reading end of a ring that nobody has used.
    ///
    /// # Safety
    /// As for [`Consumer::resume`].
    #[must_use]
    pub unsafe fn new(memory: RingMemory) -> Consumer {
        // SAFETY: the caller's promise.
        unsafe { Self::resume(memory, 0) }
    }

    /// The reading end of a ring whose earlier reader had released up to `head`.
    ///
    /// # Safety
    /// Until the consumer is dropped, the slots and the tail must be mapped for reading, the head for writing, and
    /// all access to them by this program must be atomic, from any thread. No other consumer of this program may
    /// exist for this memory. What other programs do with it does not matter.
    ///
    /// # Panics
    /// If the capacity is not a power of two or above 2³¹.
    #[must_use]
    pub unsafe fn resume(memory: RingMemory, head: u32) -> Consumer {
        check_capacity(memory.capacity);
        Consumer {
            memory,
            next: head,
            released: head,
            tail: head,
        }
    }

    /// A private copy of the next published slot, if there is one. Its place stays taken until
    /// [`Consumer::release`].
    pub fn pop(&mut self) -> Result<Option<Slot>, PeerFault> {
        if self.next == self.tail {
            self.read_tail()?;
            if self.next == self.tail {
                return Ok(None);
            }
        }
        let slot = self.copy_of(self.next);
        self.next = self.next.wrapping_add(1);
        Ok(Some(slot))
    }

    /// Private copies of the published slots that were not popped, which stay where they are.
    pub fn waiting(&mut self) -> Result<impl Iterator<Item = Slot> + '_, PeerFault> {
        self.read_tail()?;
        let count = self.tail.wrapping_sub(self.next);
        Ok((0..count).map(|ahead| self.copy_of(self.next.wrapping_add(ahead))))
    }

    /// A copy of a slot below the tail.
    fn copy_of(&self, index: u32) -> Slot {
        let at = (index & (self.memory.capacity - 1)) as usize;
        // SAFETY: `at` is below the capacity, and the slots are mapped for reading (contract of `resume`).
        let shared = unsafe { &*self.memory.slots.add(at) };
        // Ordered behind the writer's stores by the Acquire load in `read_tail`.
        std::array::from_fn(|word| shared[word].load(Ordering::Relaxed))
    }

    /// Gives the places of all popped slots back to the producer, and says whether there were any.
    pub fn release(&mut self) -> bool {
        if self.released == self.next {
            return false;
        }
        self.released = self.next;
        // SAFETY: the head is mapped for writing (contract of `resume`).
        let head = unsafe { &*self.memory.head };
        // Pairs with the Acquire load in `Producer::read_head`: our loads of the slots come before its stores.
        head.store(self.next, Ordering::Release);
        true
    }

    /// Whether nothing is published that was not popped: the re-check after [`crate::Sleeper::arm`].
    pub fn is_empty(&mut self) -> Result<bool, PeerFault> {
        if self.next == self.tail {
            self.read_tail()?;
        }
        Ok(self.next == self.tail)
    }

    /// How many slots the producer cannot use, as far as this end knows already: those that are not released.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.tail.wrapping_sub(self.released)
    }

    /// The index up to which slots are released: what [`Consumer::resume`] needs.
    #[must_use]
    pub fn head(&self) -> u32 {
        self.released
    }

    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.memory.capacity
    }

    fn read_tail(&mut self) -> Result<(), PeerFault> {
        // SAFETY: the tail is mapped for reading (contract of `resume`).
        let tail = unsafe { &*self.memory.tail };
        // Pairs with the Release store in `Producer::publish`.
        let untrusted = tail.load(Ordering::Acquire);
        // Tails never go back, nor further than a ring's length past what was released.
        let seen = self.tail.wrapping_sub(self.released);
        let ahead = untrusted.wrapping_sub(self.released);
        if ahead < seen || ahead > self.memory.capacity {
            let to = self.released.wrapping_add(self.memory.capacity);
            return Err(PeerFault {
                untrusted,
                from: self.tail,
                to,
            });
        }
        self.tail = untrusted;
        Ok(())
    }
}

fn check_capacity(capacity: u32) {
    assert!(
        capacity.is_power_of_two(),
        "a ring of {capacity} slots: make it a power of two"
    );
}
