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
//! What the other side's word says is a claim. It is checked against those private indices, and one that no
//! honest peer could make is a [`PeerFault`]. Slots are read once, by relaxed atomic loads into a private copy, so
//! a peer that writes while it is read tears its own descriptor and does nothing else.
//!
//! [`FrameProducer`] and [`FrameConsumer`] are rings of another kind, for slots of any size.
//!
//! Waiting is an event count: see [`Sleeper`]; how long to poll before it, see [`AdaptiveSpin`]. Between threads of one
//! process it is a [`WakeLatch`]; which of several waiters looks at a ring, a [`WaiterRole`].

mod adaptive_spin;
mod atomic;
mod frames;
mod ring;
mod waiter_role;
mod wake;
mod wake_latch;

#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, loom))]
mod tests_loom;
#[cfg(all(test, loom))]
mod tests_loom_frames;
#[cfg(all(test, loom))]
mod tests_loom_latch;

pub use adaptive_spin::{AdaptiveSpin, ContentionBackoff, LONGER, TURN_NS, YieldPace};
pub use atomic::{AtomicU32, AtomicU64};
pub use frames::{Frame, FrameConsumer, FrameFault, FrameMemory, FrameProducer};
pub use ring::{Consumer, PeerFault, Producer, PushError, RingMemory, SLOT_WORDS, Slot, SlotMemory};
pub use waiter_role::{DoorbellWatcher, RingDelivery, RingDrain, RoleHolder, RoleTaken, WaiterRole};
pub use wake::{Bell, Sleeper};
pub use wake_latch::{WakeLatch, WakeOnce};
