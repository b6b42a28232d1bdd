//! What one process writes and the other reads: where everything is in it, and all access to it.
//!
//! ```text
//!   0      head: how far this process has read the other's slots
//!   128    wake word: whether this process sleeps
//!   4096   slots, each: state word (8 bytes), packet
//! ```

use provost_registered::fetch_for_writing;
use provost_ring::{AtomicU32, AtomicU64, Bell, FrameConsumer, FrameMemory, FrameProducer, Sleeper};
use provost_shm::{
    Access, Mapping, Memfd, MemfdLimits, OwnedFd, SEALS_FIXED_SIZE, SEALS_READ_ONLY_FOR_OTHERS,
};
use rustix::mm::Advice;

use crate::SetupError;
use crate::past_caches::copy_past_caches;

/// Bytes of the largest packet: at least, and at most.
pub const PACKET_BYTES_MIN: usize = 128;
/// See [`PACKET_BYTES_MIN`].
pub const PACKET_BYTES_MAX: usize = 65_528;
/// Packets on their way in one direction: at least, and at most.
pub const RING_PACKETS_MIN: u32 = 8;
/// See [`RING_PACKETS_MIN`].
pub const RING_PACKETS_MAX: u32 = 1 << 20;
/// Bytes of one direction's memory.
pub const REGION_BYTES_MAX: u64 = 1 << 30;

const HEAD_OFFSET: usize = 0;
const WAKE_OFFSET: usize = 128;
const SLOTS_OFFSET: usize = 4096;
const STATE_BYTES: usize = size_of::<AtomicU64>();
/// Slots begin on cache lines.
const LINE_BYTES: usize = 64;

/// The slots of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) ring_packets: u32,
    pub(crate) packet_bytes: u32,
}

impl Shape {
    pub(crate) fn check(self) -> Result<Shape, SetupError> {
        let within = |option, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(SetupError::Option {
                option,
                value,
                least,
                most,
            })
        };
        within(
            "packet_bytes_max",
            self.packet_bytes.into(),
            PACKET_BYTES_MIN as u64,
            PACKET_BYTES_MAX as u64,
        )?;
        let packets = u64::from(self.ring_packets);
        within(
            "ring_packets",
            packets,
            RING_PACKETS_MIN.into(),
            RING_PACKETS_MAX.into(),
        )?;
        if !self.ring_packets.is_power_of_two() {
            let most = packets.next_power_of_two();
            let least = most / 2;
            return Err(SetupError::Option {
                option: "ring_packets (a power of two)",
                value: packets,
                least,
                most,
            });
        }
        within(
            "bytes of all slots",
            self.bytes(),
            SLOTS_OFFSET as u64,
            REGION_BYTES_MAX,
        )?;
        Ok(self)
    }

    fn stride_bytes(self) -> usize {
        (STATE_BYTES + self.packet_bytes as usize).next_multiple_of(LINE_BYTES)
    }

    fn bytes(self) -> u64 {
        (SLOTS_OFFSET + self.ring_packets as usize * self.stride_bytes()) as u64
    }
}

/// One process's memory, mapped.
#[derive(Debug)]
struct Region {
    mapping: Mapping,
    shape: Shape,
}

impl Region {
    fn head(&self) -> *const AtomicU32 {
        self.at(HEAD_OFFSET).cast()
    }

    fn wake(&self) -> *const AtomicU32 {
        self.at(WAKE_OFFSET).cast()
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.mapping.bytes());
        // SAFETY: every offset is below `Shape::bytes`, which is no more than the mapping has.
        unsafe { self.mapping.address().add(offset) }
    }

    /// Where the packet in a slot begins. The slot is below the ring's number of slots.
    fn packet(&self, slot: u32) -> *mut u8 {
        debug_assert!(slot < self.shape.ring_packets);
        self.at(SLOTS_OFFSET + slot as usize * self.shape.stride_bytes() + STATE_BYTES)
    }

    fn frames(&self, head: *const AtomicU32) -> FrameMemory {
        FrameMemory {
            states: self.at(SLOTS_OFFSET).cast(),
            stride_bytes: self.shape.stride_bytes(),
            capacity: self.shape.ring_packets,
            head,
        }
    }

    /// Takes all pages now, large ones if the system gives any, so that none has to be taken later.
    fn take_pages(&self, populate: Advice) {
        for advice in [Advice::LinuxHugepage, populate] {
            // SAFETY: the range is the mapping's, and neither advice changes what is in it. A system that follows
            // neither takes the pages when they are first used.
            let _ =
                unsafe { rustix::mm::madvise(self.mapping.address().cast(), self.mapping.bytes(), advice) };
        }
    }
}

/// How a payload gets into its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadWay {
    ThroughCaches,
    PastCaches,
}

/// What this process writes.
#[derive(Debug)]
pub(crate) struct Own {
    region: Region,
    memfd: Memfd,
}

/// Slots whose lines are fetched ahead, at most: packets that a turn of the datagram protocol sends.
const EXPECTED_MAX: u64 = 64;

/// What the peer writes.
#[derive(Debug)]
pub(crate) struct Peers(Region);

impl Own {
    pub(crate) fn create(shape: Shape) -> Result<Own, SetupError> {
        let shape = shape.check()?;
        let memfd = Memfd::create("provost-wire", shape.bytes())?;
        let mapping = Mapping::new(&memfd, Access::ReadWrite)?;
        // From here on nobody can map it for writing: the peer only reads it.
        memfd.seal(SEALS_READ_ONLY_FOR_OTHERS)?;
        let region = Region { mapping, shape };
        region.take_pages(Advice::LinuxPopulateWrite);
        Ok(Own { region, memfd })
    }

    pub(crate) fn memfd(&self) -> &Memfd {
        &self.memfd
    }

    pub(crate) fn shape(&self) -> Shape {
        self.region.shape
    }

    /// Has this core fetch the first lines of slots for writing: of as many as `burst` packets will fill that come after the `published`
    /// ones, but for the first of them, at which the peer looks.
    #[inline]
    pub(crate) fn expect(&self, published: u64, burst: u64) {
        for ahead in 1..burst.min(EXPECTED_MAX) {
            let slot = (published + ahead) as u32 & (self.region.shape.ring_packets - 1);
            fetch_for_writing(self.region.packet(slot));
        }
    }

    /// Puts a packet together in a slot that the producer says is free. It must fit the slot.
    #[inline]
    pub(crate) fn write(&mut self, slot: u32, head: &[u8], payload: &[u8], payload_way: PayloadWay) {
        assert!(head.len() + payload.len() <= self.region.shape.packet_bytes as usize);
        let packet = self.region.packet(slot);
        // SAFETY: both pieces fit the slot (asserted), which this process alone can write (the memfd is sealed) and
        // no end within this program reads before it is published. The pieces are references, which nothing in a slot
        // is referred to by while it is free, so they do not overlap it.
        unsafe {
            packet.copy_from_nonoverlapping(head.as_ptr(), head.len());
            let rest = packet.add(head.len());
            match payload_way {
                PayloadWay::ThroughCaches => rest.copy_from_nonoverlapping(payload.as_ptr(), payload.len()),
                PayloadWay::PastCaches => copy_past_caches(payload.as_ptr(), rest, payload.len()),
            }
        }
    }
}

impl Peers {
    /// Maps a peer's memory, after checking that it is what its owner says and stays so.
    pub(crate) fn map(descriptor: OwnedFd, shape: Shape) -> Result<Peers, SetupError> {
        let shape = shape.check()?;
        let limits = MemfdLimits {
            bytes_min: shape.bytes(),
            bytes_max: shape.bytes().next_multiple_of(MEMFD_BYTES_STEP),
            seals: SEALS_FIXED_SIZE,
        };
        let memfd = Memfd::verify_foreign(descriptor, limits)?;
        let mapping = Mapping::new(&memfd, Access::ReadOnly)?;
        let region = Region { mapping, shape };
        region.take_pages(Advice::LinuxPopulateRead);
        Ok(Peers(region))
    }

    pub(crate) fn shape(&self) -> Shape {
        self.0.shape
    }

    /// Copies the packet in a slot that the consumer says is full, and returns the copy.
    #[inline]
    pub(crate) fn copy<'c>(&self, slot: u32, bytes: u32, copy: &'c mut [u64]) -> &'c [u8] {
        let words = (bytes as usize).div_ceil(STATE_BYTES);
        assert!(words <= copy.len() && bytes <= self.0.shape.packet_bytes);
        let packet: *const AtomicU64 = self.0.packet(slot).cast_const().cast();
        for (at, word) in copy[..words].iter_mut().enumerate() {
            // SAFETY: the packet fits its slot (asserted), whose length, as its beginning, is a multiple of eight; the
            // peer may write there, so it is read by atomic loads.
            *word = unsafe { &*packet.add(at) }.load(std::sync::atomic::Ordering::Relaxed);
        }
        // SAFETY: `words` words were just written, which are at least so many bytes; bytes have no alignment.
        unsafe { std::slice::from_raw_parts(copy.as_ptr().cast(), bytes as usize) }
    }

    /// The first word of the packet in a slot that the consumer says is full.
    #[inline]
    pub(crate) fn first_word(&self, slot: u32) -> [u8; STATE_BYTES] {
        let packet: *const AtomicU64 = self.0.packet(slot).cast_const().cast();
        // SAFETY: a slot has room for more than a word (`PACKET_BYTES_MIN`), and begins at a multiple of eight; the peer may write
        // there, so it is read by an atomic load.
        unsafe { &*packet }
            .load(std::sync::atomic::Ordering::Relaxed)
            .to_ne_bytes()
    }

    /// The packet in a slot that the consumer says is full.
    ///
    /// # Safety
    /// The peer must not write to the slot until it is released, and it must not be released while the bytes are lent.
    #[inline]
    pub(crate) unsafe fn lend(&self, slot: u32, bytes: u32) -> &[u8] {
        assert!(bytes <= self.0.shape.packet_bytes);
        // SAFETY: the packet fits its slot (asserted), and nobody writes to it (the caller's promise).
        unsafe { std::slice::from_raw_parts(self.0.packet(slot), bytes as usize) }
    }
}

/// A memfd's length is rounded up to pages, which are no larger than this.
const MEMFD_BYTES_STEP: u64 = 64 << 10;

/// The ends of both rings and wake words. They are good for as long as both regions are mapped.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) producer: FrameProducer,
    pub(crate) consumer: FrameConsumer,
    pub(crate) sleeper: Sleeper,
    pub(crate) bell: Bell,
}

impl Ends {
    /// # Safety
    /// Once for each region of the program's own, and the regions must outlive the ends.
    pub(crate) unsafe fn of(own: &Own, peers: &Peers) -> Ends {
        // SAFETY: both regions are mapped for as long as the ends are used, the own one for writing, and hold what
        // their shapes say; the ends are the only ones over this program's region (both are the caller's promise). All
        // other access is to the slots' bytes, by their owner of the moment.
        unsafe {
            Ends {
                producer: FrameProducer::new(own.region.frames(peers.0.head())),
                consumer: FrameConsumer::new(peers.0.frames(own.region.head()), peers.0.shape.packet_bytes),
                sleeper: Sleeper::new(own.region.wake()),
                bell: Bell::new(peers.0.wake()),
            }
        }
    }
}

/// For a test that plays a peer who lies.
#[cfg(test)]
impl Own {
    pub(crate) fn write_state(&self, slot: u32, word: u64) {
        let state: *const AtomicU64 = self.region.packet(slot).wrapping_sub(STATE_BYTES).cast();
        // SAFETY: the slot's state word, in memory that this process has mapped for writing.
        unsafe { &*state }.store(word, std::sync::atomic::Ordering::Release);
    }

    pub(crate) fn write_head(&self, head: u32) {
        // SAFETY: the head word, in memory that this process has mapped for writing.
        unsafe { &*self.region.head() }.store(head, std::sync::atomic::Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_bounded() {
        let shape = |ring_packets, packet_bytes| {
            Shape {
                ring_packets,
                packet_bytes,
            }
            .check()
        };
        assert!(shape(8, 128).is_ok() && shape(1 << 14, 65_528).is_err());
        assert_eq!(
            shape(100, 1500).unwrap_err().to_string(),
            "ring_packets (a power of two) is 100; it must be from 64 to 128"
        );
        assert_eq!(
            shape(64, 100).unwrap_err().to_string(),
            "packet_bytes_max is 100; it must be from 128 to 65528"
        );
    }

    #[test]
    fn a_small_packet_shares_a_line_with_its_state() {
        let shape = Shape {
            ring_packets: 8,
            packet_bytes: 1472,
        };
        assert_eq!(shape.stride_bytes() % LINE_BYTES, 0);
        assert_eq!(SLOTS_OFFSET % LINE_BYTES, 0);
    }
}
