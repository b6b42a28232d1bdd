//! Messages that are larger than what their stream may send ahead: which of them may come whole, within the memory of the
//! connection. The others wait with what their windows let in, in the order of their calls.

use std::collections::BTreeMap;

/// The large messages of one connection that have come in part.
#[derive(Clone, Debug)]
pub(crate) struct LargeMessages {
    /// What a message has to be longer than to be large.
    pub(crate) small_bytes_max: usize,
    /// Bytes of all that may come whole; a single one may be longer.
    pub(crate) bytes_max: usize,
    admitted_bytes: usize,
    /// Those that may come whole: lengths by call.
    pub(crate) admitted: BTreeMap<u32, usize>,
    pub(crate) waiting: BTreeMap<u32, WaitingMessage>,
    /// How many of those wait for room alone.
    ready: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingMessage {
    pub(crate) bytes: usize,
    pub(crate) readiness: ReaderReadiness,
}

/// Whether the application waits for what a call sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderReadiness {
    /// It has consumed all messages of the call.
    Waits,
    /// It has some of them, and may never consume them: another has no use before.
    Holds,
}

impl LargeMessages {
    pub(crate) fn new(small_bytes_max: usize, bytes_max: usize) -> LargeMessages {
        LargeMessages {
            small_bytes_max,
            bytes_max,
            admitted_bytes: 0,
            admitted: BTreeMap::new(),
            waiting: BTreeMap::new(),
            ready: 0,
        }
    }

    /// A call has a message in part, which may have more than its window, or waits for that.
    pub(crate) fn announce(&mut self, call: u32, bytes: usize, readiness: ReaderReadiness) {
        let is_small = bytes <= self.small_bytes_max;
        if is_small || self.admitted.contains_key(&call) || self.waiting.contains_key(&call) {
            return;
        }
        let is_ready = readiness == ReaderReadiness::Waits;
        if is_ready && self.ready == 0 && self.has_room_for(bytes) {
            return self.admit(call, bytes);
        }
        self.ready += usize::from(is_ready);
        self.waiting.insert(call, WaitingMessage { bytes, readiness });
    }

    /// Whether a call's message waits.
    pub(crate) fn is_waiting(&self, call: u32) -> bool {
        self.waiting.contains_key(&call)
    }

    /// The application has consumed all messages of a call.
    pub(crate) fn note_consumed(&mut self, call: u32) {
        if let Some(message) = self.waiting.get_mut(&call)
            && message.readiness == ReaderReadiness::Holds
        {
            message.readiness = ReaderReadiness::Waits;
            self.ready += 1;
        }
    }

    /// The call's message is whole, or will not be.
    pub(crate) fn leave(&mut self, call: u32) {
        if let Some(bytes) = self.admitted.remove(&call) {
            self.admitted_bytes -= bytes;
        }
        self.stop_waiting(call);
    }

    fn stop_waiting(&mut self, call: u32) {
        let was_ready = |message: WaitingMessage| message.readiness == ReaderReadiness::Waits;
        self.ready -= usize::from(self.waiting.remove(&call).is_some_and(was_ready));
    }

    /// The next call that has waited and need not any more.
    pub(crate) fn admit_next(&mut self) -> Option<u32> {
        if self.ready == 0 {
            return None;
        }
        let mut waiting = self.waiting.iter();
        let is_ready = |(_, message): &(&u32, &WaitingMessage)| message.readiness == ReaderReadiness::Waits;
        let (call, bytes) = waiting
            .find(is_ready)
            .map(|(call, message)| (*call, message.bytes))?;
        if !self.has_room_for(bytes) {
            return None;
        }
        self.stop_waiting(call);
        self.admit(call, bytes);
        Some(call)
    }

    /// Goes on with messages of another process's connection.
    pub(crate) fn resume(&mut self, admitted: BTreeMap<u32, usize>, waiting: BTreeMap<u32, WaitingMessage>) {
        let is_ready = |message: &&WaitingMessage| message.readiness == ReaderReadiness::Waits;
        self.admitted_bytes = admitted.values().sum();
        self.ready = waiting.values().filter(is_ready).count();
        (self.admitted, self.waiting) = (admitted, waiting);
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

    fn may_come(large: &mut LargeMessages, call: u32, bytes: usize) -> bool {
        large.announce(call, bytes, ReaderReadiness::Waits);
        !large.is_waiting(call)
    }

    #[test]
    fn nobody_overtakes_one_that_waits_for_room() {
        let mut large = LargeMessages::new(10, 100);
        assert!(may_come(&mut large, 1, 60) && !may_come(&mut large, 3, 60));
        assert!(!may_come(&mut large, 5, 30), "30 would fit beside 60");
        large.leave(1);
        assert_eq!((large.admit_next(), large.admit_next()), (Some(3), Some(5)));
    }

    #[test]
    fn calls_that_nobody_reads_take_no_room() {
        let mut large = LargeMessages::new(10, 100);
        large.announce(1, 80, ReaderReadiness::Holds);
        assert!(large.is_waiting(1));
        assert!(may_come(&mut large, 3, 80));
        large.note_consumed(1);
        assert_eq!(large.admit_next(), None);
        large.leave(3);
        assert_eq!((large.admit_next(), large.admit_next()), (Some(1), None));
        // One that leaves while it waits leaves nothing.
        assert!(!may_come(&mut large, 5, 80));
        large.leave(5);
        large.leave(1);
        assert!(may_come(&mut large, 7, 80));
    }

    #[test]
    fn as_many_come_as_there_is_room_for_and_the_others_in_order() {
        let mut large = LargeMessages::new(10, 100);
        assert!(may_come(&mut large, 1, 10) && may_come(&mut large, 3, 60) && may_come(&mut large, 5, 40));
        assert!(!may_come(&mut large, 9, 60) && !may_come(&mut large, 7, 30));
        assert!(may_come(&mut large, 3, 60), "once let come, it comes");
        large.leave(5);
        assert_eq!(large.admit_next(), Some(7));
        assert_eq!(large.admit_next(), None, "60 and 30, and 60 more are too many");
        large.leave(3);
        assert_eq!((large.admit_next(), large.admit_next()), (Some(9), None));
        assert!(may_come(&mut large, 7, 30) && may_come(&mut large, 9, 60));
    }

    #[test]
    fn one_that_is_longer_than_all_may_be_comes_alone() {
        let mut large = LargeMessages::new(10, 100);
        assert!(may_come(&mut large, 1, 1_000));
        assert!(!may_come(&mut large, 3, 11));
        large.leave(3);
        assert_eq!(large.admit_next(), None);
        assert!(!may_come(&mut large, 5, 11));
        large.leave(1);
        assert_eq!(large.admit_next(), Some(5));
    }
}
