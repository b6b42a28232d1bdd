//! Single-producer single-consumer rings of 64-byte slots, and wake words, over memory that two processes share and
//! of which neither trusts the other.
//!
//! Who may touch which word of one ring:
//!
//! | word | written by | read by |
//! |---|---|---|
//! | slots between head and head + capacity | [`Producer`] | [`Consumer`], once it has seen a tail past them |
//! | tail | [`Producer::publish`] | [`Consumer`] |
//! | head | [`Consumer::release`] | [`Producer`] |
//! | wake word | its owner's [`Sleeper`] | the other side's [`Bell`] |
//!
//! A side never reads its own words back: it keeps its index, and what it last saw of the other's, in private memory.
//! What the other side's word says is an allegation. It is checked against those private indices, and one that no
//! honest peer could make is a [`PeerFault`]. Slots are read once, by relaxed atomic loads into a private copy, so
//! a peer that writes while it is read tears its own descriptor and does nothing else.
//!
//! [`FrameProducer`] and [`FrameConsumer`] are rings of another kind, for slots of any size.
//!
//! Waiting is an event count: see [`Sleeper`]; how long to poll before it, see [`Patience`].

mod atomic;
mod frames;
mod patience;
mod ring;
mod wake;

#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, loom))]
mod tests_loom;
#[cfg(all(test, loom))]
mod tests_loom_frames;

pub use atomic::{AtomicU32, AtomicU64};
pub use frames::{Frame, FrameConsumer, FrameFault, FrameMemory, FrameProducer};
pub use patience::{Crowding, LONGER, Patience};
pub use ring::{Consumer, PeerFault, Producer, PushError, RingMemory, SLOT_WORDS, Slot, SlotMemory};
pub use wake::{Bell, Sleeper};
