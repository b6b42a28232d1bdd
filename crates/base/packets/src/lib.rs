//! Wires: whatever carries packets from one address to another, perhaps losing some.
//!
//! A [`Wire`] belongs to one thread and never blocks. [`conformance`] is what each has to pass; [`InProcess`] joins two
//! ends of one process.
#![forbid(unsafe_code)]

pub mod conformance;
mod in_process;

pub use in_process::InProcess;

use std::fmt::Debug;
use std::hash::Hash;
use std::io;
use std::task::Waker;
use std::time::Duration;

/// Who notices that a packet was damaged on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integrity {
    /// The wire: what arrives is what was sent.
    Checked,
    /// Nobody: whoever uses the wire must.
    Unchecked,
}

/// A packet that has arrived. Its bytes are where the wire put them, until the next call of the wire.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'w, A> {
    /// Where it came from, as far as the wire can tell.
    pub from: A,
    pub bytes: &'w [u8],
    /// Whether the network marked it as having met congestion (ECN's CE).
    pub congested: bool,
}

/// Bytes of a packet that [`Wire::look_ahead`] shows.
pub const LOOK_BYTES: usize = 8;

pub trait Wire {
    type Address: Copy + Eq + Hash + Debug;

    /// This end's address, by which others reach it.
    fn address(&self) -> Self::Address;

    /// Bytes of the largest packet.
    fn packet_bytes_max(&self) -> usize;

    /// Packets that can wait to be received before further ones are lost.
    fn receive_ring_packets(&self) -> usize;

    fn integrity(&self) -> Integrity;

    /// Takes up to `packets_max` packets that have arrived, in one batch, and says how many there were. Zero means that
    /// none is there now.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    fn receive(
        &mut self,
        packets_max: usize,
        take: impl FnMut(Arrival<'_, Self::Address>),
    ) -> io::Result<usize>;

    /// Shows how the packets begin that have arrived and that [`Wire::receive`] will take next, up to `packets_max`, so that what they are
    /// about can be fetched ahead; says how many it has shown. It is a hint: whoever sent them may still change them. A wire may show
    /// none; one that does shows all, up to the first of fewer bytes.
    #[inline(always)]
    fn look_ahead(&mut self, packets_max: usize, look: impl FnMut([u8; LOOK_BYTES])) -> usize {
        let _ = (packets_max, look);
        0
    }

    /// Packets that [`Wire::transmit`] would take now.
    fn transmit_room(&self) -> usize;

    /// Takes a packet, put together from two pieces, for the next [`Wire::flush`]. The bytes are the caller's again when
    /// it returns. Without room, or with too many bytes, the packet is lost, as it may be anywhere on its way.
    fn transmit(&mut self, to: Self::Address, head: &[u8], payload: &[u8]);

    /// As [`Wire::transmit`], for one of several packets that follow each other: how soon all of them are there matters more than how
    /// soon the first is.
    #[inline(always)]
    fn transmit_part(&mut self, to: Self::Address, head: &[u8], payload: &[u8]) {
        self.transmit(to, head, payload);
    }

    /// Sends what was taken, in one batch. What the wire has no room for stays until the next time.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    fn flush(&mut self) -> io::Result<()>;

    /// Sleeps until a packet may have arrived, or so long.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()>;

    /// Ends a [`Wire::wait`] from another thread: the one that goes on, or else the next. A wire may have none; then
    /// whoever expects something from other threads waits for short times only.
    fn waker(&self) -> Option<Waker> {
        None
    }
}

/// Copies bytes to where there is room for as many. Most payloads of packets are a few words long: those are not worth a call.
#[inline(always)]
pub fn copy_short(to: &mut [u8], from: &[u8]) {
    const PIECE: usize = 16;
    let bytes = from.len();
    if (PIECE..=2 * PIECE).contains(&bytes) && to.len() == bytes {
        // The two pieces overlap, unless there are two whole ones. Both are read before either is written: else the compiler makes a
        // call of the second.
        let (mut first, mut last) = ([0; PIECE], [0; PIECE]);
        first.copy_from_slice(&from[..PIECE]);
        last.copy_from_slice(&from[bytes - PIECE..]);
        to[..PIECE].copy_from_slice(&first);
        to[bytes - PIECE..].copy_from_slice(&last);
        return;
    }
    to.copy_from_slice(from);
}
