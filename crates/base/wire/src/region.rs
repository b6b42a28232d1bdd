//! The two control regions that an app and its service share, each a page of words and then ring slots.
//!
//! | region | writer | reader | words | slots |
//! |---|---|---|---|---|
//! | submission | app | service | tail of submissions, head of completions, wake word of the app | [`crate::descriptor::Submission`] |
//! | completion | service | app (mapped read-only, sealed) | tail of completions, head of submissions, wake word of the service | [`crate::descriptor::Completion`] |
//!
//! Every word is a `u32`, free-running (an index into the slots is the word modulo the number of slots, a power of
//! two), on a cache line of its own. A *wake word* is an epoch: odd while its owner sleeps or is about to.

/// Offset of the tail of the ring whose slots follow, in bytes.
pub const TAIL_OFFSET: usize = 0;
/// Offset of the head of the *other* ring, which the writer of this region consumes.
pub const HEAD_OFFSET: usize = 64;
/// Offset of the wake word of the writer of this region.
pub const WAKE_OFFSET: usize = 128;
/// Offset of the first slot.
pub const SLOTS_OFFSET: usize = 4096;
/// Size of a slot, in bytes.
pub const SLOT_BYTES: usize = 64;

/// Size of a region with this many slots, in bytes.
#[must_use]
pub const fn region_bytes(slots: u32) -> usize {
    SLOTS_OFFSET + slots as usize * SLOT_BYTES
}
