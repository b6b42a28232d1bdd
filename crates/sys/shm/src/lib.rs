//! What an app and its service share, and how they hand it to each other: sealed memfds, mappings, rings in control
//! regions, doorbells, packet sockets that carry descriptors, and a poller.
//!
//! Written for a service that trusts no app: a memfd from an app is checked for its seals before it is mapped (so
//! that it cannot shrink under a reader), no file description that an app can change is relied upon, and a packet
//! that was cut short is an error. Needs Linux 5.11 or later.

mod clock;
mod doorbell;
mod error;
mod fork;
mod freed_memory;
mod mapping;
mod memfd;
mod packet;
mod poller;
mod program_pages;
mod rings;
mod time_slice;
mod window;

pub use clock::{now_ns, yield_now};
pub use doorbell::{Doorbell, Ringer};
pub use error::ShmError;
pub use fork::is_forked_child;
pub use freed_memory::{keep_freed_memory, release_freed_memory, release_freed_memory_of_thread};
pub use mapping::{Access, Mapping};
pub use memfd::{Memfd, MemfdLimits, SEALS_FIXED_SIZE, SEALS_READ_ONLY_FOR_OTHERS, Seals, punch_hole};
pub use packet::{
    DESCRIPTORS_BATCH_MAX, DESCRIPTORS_MAX, Packet, PacketListener, PacketSocket, PeerCredentials,
};
pub use poller::{Event, Interest, POLL_EVENTS_MAX, Poller, Wait, wait_for};
pub use program_pages::release_program_pages;
pub use rings::{AppRings, RingIndices, ServiceRings};
pub use time_slice::{TimeSlice, TimeSliceChoice};
pub use window::{WINDOW_BYTES_MIN, Window, WindowKeeping};

/// The seals and descriptors of the system's interface that this crate speaks of.
pub use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
