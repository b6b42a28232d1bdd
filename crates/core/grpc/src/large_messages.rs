//! Messages that are larger than what their stream may send ahead: which of them may come whole, within the memory of the
//! connection. The others wait with what their windows let in, in the order of their calls.

use std::collections::BTreeMap;

/// The large messages of one connection that have come in part.
#[derive(Clone, Debug)]
pub(crate) struct LargeMessages {
    /// What a message has to be longer than to be large.
    small_bytes_max: usize,
    /// Bytes of all that may come whole; a single one may be longer.
    bytes_max: usize,
    admitted_bytes: usize,
    /// Those that may come whole: lengths by call.
    admitted: BTreeMap<u32, usize>,
    waiting: BTreeMap<u32, usize>,
}

impl LargeMessages {
    pub(crate) fn new(small_bytes_max: usize, bytes_max: usize) -> LargeMessages {
        LargeMessages {
            small_bytes_max,
            bytes_max,
            admitted_bytes: 0,
            admitted: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Whether the message that a call has in part may have more than its window. One that may not waits.
    pub(crate) fn may_come(&mut self, call: u32, bytes: usize) -> bool {
        if bytes <= self.small_bytes_max || self.admitted.contains_key(&call) {
            return true;
        }
        if self.has_room_for(bytes) && !self.waiting.contains_key(&call) {
            self.admit(call, bytes);
            return true;
        }
        self.waiting.insert(call, bytes);
        false
    }

    /// The call's message is whole, or will not be.
    pub(crate) fn leave(&mut self, call: u32) {
        if let Some(bytes) = self.admitted.remove(&call) {
            self.admitted_bytes -= bytes;
        }
        self.waiting.remove(&call);
    }

    /// The next call that has waited and need not any more.
    pub(crate) fn admit_next(&mut self) -> Option<u32> {
        let (call, bytes) = self.waiting.first_key_value()?;
        let (call, bytes) = (*call, *bytes);
        if !self.has_room_for(bytes) {
            return None;
        }
        self.waiting.remove(&call);
        self.admit(call, bytes);
        Some(call)
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.admitted.is_empty() || self.admitted_bytes + bytes <= self.bytes_max
    }

    fn admit(&mut self, call: u32, bytes: usize) {
        self.admitted.insert(call, bytes);
        self.admitted_bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_come_as_there_is_room_for_and_the_others_in_order() {
        let mut large = LargeMessages::new(10, 100);
        assert!(large.may_come(1, 10) && large.may_come(3, 60) && large.may_come(5, 40));
        assert!(!large.may_come(9, 60) && !large.may_come(7, 30));
        assert!(large.may_come(3, 60), "once let come, it comes");
        large.leave(5);
        assert_eq!(large.admit_next(), Some(7));
        assert_eq!(large.admit_next(), None, "60 and 30, and 60 more are too many");
        large.leave(3);
        assert_eq!((large.admit_next(), large.admit_next()), (Some(9), None));
        assert!(large.may_come(7, 30) && large.may_come(9, 60));
    }

    #[test]
    fn one_that_is_longer_than_all_may_be_comes_alone() {
        let mut large = LargeMessages::new(10, 100);
        assert!(large.may_come(1, 1_000));
        assert!(!large.may_come(3, 11));
        large.leave(3);
        assert_eq!(large.admit_next(), None);
        assert!(!large.may_come(5, 11));
        large.leave(1);
        assert_eq!(large.admit_next(), Some(5));
    }
}
