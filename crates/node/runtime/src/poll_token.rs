//! Tokens of the poller and of timers.

/// What an event of the poller, or a timer, is about: the kind in the high bits, a number in the low ones.
pub(crate) const KIND_SHIFT: u32 = 32;
pub(crate) const KIND_INBOX: u64 = 0;
pub(crate) const KIND_APP: u64 = 1;
pub(crate) const KIND_PATH: u64 = 2;

pub(crate) fn token(kind: u64, number: u32) -> u64 {
    kind << KIND_SHIFT | u64::from(number)
}
