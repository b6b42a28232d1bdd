//! Message buffers. A buffer has one owner: a call takes it, and the event that ends the call gives it back.

use std::ops::{Deref, DerefMut};

use provost_packets::copy_short;
use provost_registered::MessageBlock;

use crate::flight::Flight;

/// Memory for one message: as many bytes as it can hold, and how many it does. It is in huge pages when the system has
/// some (`provost-registered`).
///
/// Whoever has a `MsgBuf` owns it. While a call has it, nothing outside the endpoint can touch it, and when its
/// completion returns it, nothing inside can: the endpoint's queues name packets, never memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MsgBuf(MessageBlock);

impl MsgBuf {
    /// An empty buffer for up to so many bytes; no more than 2 GiB.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self(MessageBlock::new(bytes))
    }

    /// A buffer of these bytes.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buffer = Self::with_capacity(bytes.len());
        let filled = buffer.fill(bytes);
        debug_assert!(filled, "it was made for them");
        buffer
    }

    /// How many bytes it can hold.
    #[must_use]
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Makes it so many bytes long; bytes that it grows by are what was there before. No more than the capacity.
    #[inline(always)]
    pub fn set_length(&mut self, bytes: usize) {
        self.0.set_length(bytes);
    }

    /// It, with an empty one in its place.
    #[must_use]
    #[inline(always)]
    pub(crate) fn take(&mut self) -> MsgBuf {
        MsgBuf(self.0.take())
    }

    /// Replaces what it holds, as far as there is room; says whether all of it fitted.
    #[must_use]
    #[inline(always)]
    pub fn fill(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.capacity() {
            return self.fill_in_part(bytes);
        }
        self.0.set_length(bytes.len());
        copy_short(&mut self.0, bytes);
        true
    }

    #[cold]
    fn fill_in_part(&mut self, bytes: &[u8]) -> bool {
        let fits = self.capacity();
        self.0.set_length(fits);
        self.0.copy_from_slice(&bytes[..fits]);
        false
    }
}

impl Deref for MsgBuf {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for MsgBuf {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Memory that an endpoint has used and may use again: buffers, lists of packets on their way, and where packets are sealed.
///
/// An endpoint has its own. Where a thread has many endpoints with few sessions each, [`Endpoint::exchange_spares`](crate::Endpoint::exchange_spares)
/// lets them take turns with the spares of the thread, so that one that rests keeps none.
#[derive(Debug, Default)]
pub struct SpareMemory {
    pub(crate) lists: Box<SpareLists>,
}

#[derive(Debug, Default)]
pub(crate) struct SpareLists {
    /// Free buffers, by the power of two that is their capacity.
    buffers: [Vec<MsgBuf>; CLASSES],
    /// Bytes of the buffers.
    buffer_bytes: usize,
    /// They stay in their boxes, for the slots hold those.
    #[expect(clippy::vec_box, reason = "moving a box is cheaper than moving two kilobytes")]
    flights: Vec<Box<Flight>>,
    /// A packet that is being sealed.
    pub(crate) sealing: Vec<u8>,
    /// A packet that is being unsealed.
    pub(crate) unsealing: Vec<u8>,
}

impl SpareMemory {
    /// Frees what is more than this: bytes of buffers, and lists of packets on their way, of 2 KB each.
    pub fn keep(&mut self, buffer_bytes: usize, flights: usize) {
        self.lists.flights.truncate(flights);
        while self.lists.buffer_bytes > buffer_bytes && self.free_one() {}
    }

    pub(crate) fn flight(&mut self) -> Box<Flight> {
        self.lists
            .flights
            .pop()
            .unwrap_or_else(|| Box::new(Flight::new()))
    }

    pub(crate) fn land(&mut self, flight: Option<Box<Flight>>) {
        self.lists.flights.extend(flight);
    }

    fn buffer(&mut self, class: usize) -> Option<MsgBuf> {
        let buffer = self.lists.buffers[class].pop()?;
        self.lists.buffer_bytes -= buffer.capacity();
        Some(buffer)
    }

    fn keep_buffer(&mut self, buffer: MsgBuf) {
        self.lists.buffer_bytes += buffer.capacity();
        self.lists.buffers[class_of(buffer.capacity())].push(buffer);
    }

    /// Frees one buffer; says whether there was any.
    fn free_one(&mut self) -> bool {
        let spare = self.lists.buffers.iter_mut().find_map(Vec::pop);
        self.lists.buffer_bytes -= spare.as_ref().map_or(0, MsgBuf::capacity);
        spare.is_some()
    }
}

/// Buffers for messages of several packets, kept by size for the next one.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) spares: SpareMemory,
    /// Bytes of the buffers that were taken and not given back.
    bytes_out: usize,
    bytes_max: usize,
}

/// Sizes from one byte to 2 GiB, each twice the one before.
const CLASSES: usize = 32;

impl Pool {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            spares: SpareMemory::default(),
            bytes_out: 0,
            bytes_max,
        }
    }

    /// A buffer for a message of so many bytes, unless all together would then be too large.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<MsgBuf> {
        let class = class_of(bytes);
        if self.spares.lists.buffers.get(class)?.is_empty() && !self.make_room(1 << class) {
            return None;
        }
        Some(self.take_in_any_case(bytes))
    }

    /// A buffer for a message of so many bytes, also when the pool is full: for requests of one packet, of which there are
    /// no more than slots of sessions. What is taken beyond the bound counts, so that larger requests wait for it.
    pub(crate) fn take_in_any_case(&mut self, bytes: usize) -> MsgBuf {
        let class = class_of(bytes);
        let spare = self.spares.buffer(class);
        let mut buffer = spare.unwrap_or_else(|| MsgBuf::with_capacity(1 << class));
        self.bytes_out += buffer.capacity();
        buffer.set_length(bytes);
        buffer
    }

    /// Whether so many bytes more may be taken; what is free in other sizes makes room.
    fn make_room(&mut self, bytes: usize) -> bool {
        while self.bytes_out + self.spares.lists.buffer_bytes + bytes > self.bytes_max {
            if !self.spares.free_one() {
                return false;
            }
        }
        true
    }

    /// Takes back what [`Pool::take`] gave. A buffer that cannot be the pool's is dropped.
    pub(crate) fn give_back(&mut self, buffer: MsgBuf) {
        let capacity = buffer.capacity();
        if !capacity.is_power_of_two() || self.bytes_out < capacity {
            return;
        }
        self.bytes_out -= capacity;
        if self.bytes_out + self.spares.lists.buffer_bytes + capacity <= self.bytes_max {
            self.spares.keep_buffer(buffer);
        }
    }
}

fn class_of(bytes: usize) -> usize {
    bytes.max(1).next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gives_what_it_got_back_and_no_more_than_its_bytes() {
        let mut pool = Pool::new(4096);
        let first = pool.take(1500).unwrap();
        assert_eq!((first.len(), first.capacity()), (1500, 2048));
        let second = pool.take(2048).unwrap();
        assert!(pool.take(1).is_none(), "4096 bytes are out");
        pool.give_back(first);
        pool.give_back(second);
        assert!(pool.take(4096).is_some(), "free buffers of other sizes make room");
    }

    #[test]
    fn requests_of_one_packet_find_a_buffer_in_a_full_pool_and_are_accounted_for() {
        let mut pool = Pool::new(4096);
        let large = pool.take(4096).unwrap();
        let small: Vec<MsgBuf> = (0..3).map(|_| pool.take_in_any_case(1024)).collect();
        small.into_iter().for_each(|buffer| pool.give_back(buffer));
        assert!(pool.take(1).is_none(), "the large buffer is out");
        pool.give_back(large);
        for _ in 0..3 {
            let all = pool.take(4096).expect("everything was given back");
            assert!(pool.take(1).is_none());
            pool.give_back(all);
        }
        // Buffers that are not the pool's are no room of its own.
        (0..8).for_each(|_| pool.give_back(MsgBuf::with_capacity(4096)));
        let _all = pool.take(4096).expect("nothing is out");
        assert!(pool.take(1).is_none());
    }

    #[test]
    fn spares_are_kept_up_to_a_bound() {
        let mut pool = Pool::new(1 << 20);
        let buffers = [4096, 4096, 1024].map(|bytes| pool.take(bytes).unwrap());
        buffers.into_iter().for_each(|buffer| pool.give_back(buffer));
        (0..3).for_each(|_| pool.spares.land(Some(Box::new(Flight::new()))));
        let mut spares = std::mem::take(&mut pool.spares);
        spares.keep(8192, 2);
        assert_eq!((spares.lists.buffer_bytes, spares.lists.flights.len()), (8192, 2));
        spares.keep(0, 0);
        assert_eq!((spares.lists.buffer_bytes, spares.lists.flights.len()), (0, 0));
        spares.keep(0, 0);
    }

    #[test]
    fn a_buffer_holds_no_more_than_its_capacity() {
        let mut buffer = MsgBuf::with_capacity(3);
        assert!(!buffer.fill(b"four"));
        assert!(buffer.fill(b"ab"));
        assert_eq!(&*buffer, b"ab");
    }
}
