//! A wire between two processes of one machine, over shared memory.
//!
//! ```
//! use std::time::Duration;
//! use provost_packets::Wire;
//! use provost_shared_wire::{Listener, Options, SharedWire};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("wire");
//! let listener = Listener::bind(&path, 0o600)?;
//! // In another process:
//! let connecting = std::thread::spawn(move || SharedWire::connect(&path, Options::default()));
//! let mut here = listener.accept(Options::default(), Duration::from_secs(5))?;
//! let mut there = connecting.join().expect("it does not panic")?;
//!
//! there.transmit(here.address(), b"head ", b"payload");
//! there.flush()?;
//! here.wait(None)?;
//! here.receive(1, |arrival| assert_eq!(arrival.bytes, b"head payload"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Who may touch what
//!
//! Each process makes one memfd and seals it so that the other can only read it. In there is all that this process
//! writes: the slots of the packets that it sends, how far it has read the other's slots, and whether it sleeps. So
//! nobody but this program ever writes to what it relies upon when it sends, and a peer that dies leaves no lock.
//!
//! What the peer has written is another matter. Its indices and lengths are read once and checked against private ones
//! (`provost_ring`'s frames). Its packets' bytes it could change while they are read: so [`SharedWire`] copies each
//! packet, word by word with atomic loads, into memory of its own and lends that. Where both processes belong to one
//! owner and are trusted alike, [`SharedWire::trust_peer`] leaves this copy out: a packet is then lent where the peer put
//! it, and its slot goes back to the peer after the batch.
//!
//! # Waiting
//!
//! Busy sides look at the slots and never at the kernel. One that waits polls for a while, giving its core up between
//! looks, then says in its memory that it sleeps, has the kernel put a memory barrier into the other process
//! (`membarrier`), looks once more and sleeps on its doorbell. So the other needs no barrier of its own when it sends;
//! where the kernel has no `membarrier`, it has one.

mod greeting;
mod past_caches;
mod region;
mod waiting;
mod wire;

pub use region::{PACKET_BYTES_MAX, PACKET_BYTES_MIN, REGION_BYTES_MAX, RING_PACKETS_MAX, RING_PACKETS_MIN};
pub use wire::{Listener, Options, SharedWire, Side, Statistics};

/// Why there is no wire between two processes.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// An option is out of its range.
    #[error("{option} is {value}; it must be from {least} to {most}")]
    Option {
        option: &'static str,
        /// What it was set to.
        value: u64,
        /// The least it can be.
        least: u64,
        /// The most it can be.
        most: u64,
    },
    /// The peer did not say what it must.
    #[error("the peer at the socket {what}; is it a shared-memory wire of this version?")]
    Peer {
        /// What it did, or did not.
        what: &'static str,
    },
    /// Memory could not be shared.
    #[error("shared memory: {0}")]
    Memory(#[from] provost_shm::ShmError),
    /// The system refused something.
    #[error("{doing}: {source}")]
    System {
        doing: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

impl SetupError {
    /// For `map_err`: says what was tried.
    pub(crate) fn system<E: Into<std::io::Error>>(doing: &'static str) -> impl Fn(E) -> SetupError {
        move |error| SetupError::System {
            doing,
            source: error.into(),
        }
    }
}
