//! The open calls of one connection, found by number and ordered by deadline.

use provost_datapath::{CallMap, Nanos};
use provost_wire::limits::STREAM_WINDOW_BYTES;

/// [`FrontendCall::timer`] of a call without a deadline.
const NO_TIMER: u32 = u32::MAX;

/// What the frontend keeps of one open call.
#[derive(Debug)]
pub(crate) struct FrontendCall {
    pub(crate) call: u64,
    pub(crate) method: u16,
    /// When it must end; 0 for never.
    pub(crate) deadline: Nanos,
    /// Place in the order of deadlines, or [`NO_TIMER`].
    timer: u32,
    /// What the app may still send on its stream.
    pub(crate) send_window: i64,
    /// What was delivered to the app of the peer's stream and not given back.
    pub(crate) unread_bytes: u64,
    /// Messages that the app has sent, up to 1.
    pub(crate) app_messages: u8,
    /// Messages that the peer has sent, up to 1.
    pub(crate) peer_messages: u8,
    /// Whether the app has said that it is done sending.
    pub(crate) app_ended: bool,
    /// Whether the peer has said that it is done sending.
    pub(crate) peer_ended: bool,
    /// Whether the other side has heard of the call.
    pub(crate) on_wire: bool,
}

impl FrontendCall {
    pub(crate) fn new(call: u64, method: u16, deadline: Nanos) -> FrontendCall {
        FrontendCall {
            call,
            method,
            deadline,
            timer: NO_TIMER,
            send_window: i64::from(STREAM_WINDOW_BYTES),
            unread_bytes: 0,
            app_messages: 0,
            peer_messages: 0,
            app_ended: false,
            peer_ended: false,
            on_wire: false,
        }
    }
}

/// Open calls. Memory grows with the most calls that were ever open at once and is kept: none before the first one, as most
/// connections of a node are idle.
#[derive(Debug)]
pub(crate) struct FrontendCalls {
    slots: Vec<FrontendCall>,
    by_number: CallMap<u32>,
    /// A binary min-heap of places in `slots`, by deadline; each call knows its place in it.
    timers: Vec<u32>,
}

impl FrontendCalls {
    pub(crate) fn new() -> FrontendCalls {
        FrontendCalls {
            slots: Vec::new(),
            by_number: CallMap::default(),
            timers: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn contains(&self, call: u64) -> bool {
        self.by_number.contains_key(&call)
    }

    pub(crate) fn get_mut(&mut self, call: u64) -> Option<&mut FrontendCall> {
        let slot = *self.by_number.get(&call)?;
        self.slots.get_mut(slot as usize)
    }

    /// Adds a call whose number is not in the table.
    pub(crate) fn insert(&mut self, call: FrontendCall) {
        debug_assert!(!self.contains(call.call));
        let slot = self.slots.len() as u32;
        self.by_number.insert(call.call, slot);
        let deadline = call.deadline;
        if self.slots.capacity() == 0 {
            // Most connections never have more than one call at a time, and by itself this would begin with room for four.
            self.slots.reserve_exact(1);
        }
        self.slots.push(call);
        if deadline != 0 {
            self.timers.push(slot);
            self.sift_up(self.timers.len() - 1);
        }
    }

    /// Takes a call out.
    pub(crate) fn remove(&mut self, call: u64) -> Option<FrontendCall> {
        let slot = self.by_number.remove(&call)? as usize;
        self.remove_timer(slot);
        let removed = self.slots.swap_remove(slot);
        if let Some(moved) = self.slots.get(slot) {
            if let Some(place) = self.by_number.get_mut(&moved.call) {
                *place = slot as u32;
            }
            if moved.timer != NO_TIMER {
                self.timers[moved.timer as usize] = slot as u32;
            }
        }
        Some(removed)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FrontendCall> {
        self.slots.iter()
    }

    /// Any call that is open.
    pub(crate) fn any(&self) -> Option<u64> {
        self.slots.last().map(|call| call.call)
    }

    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.timers
            .first()
            .map(|slot| self.slots[*slot as usize].deadline)
    }

    /// A call whose deadline has come.
    pub(crate) fn expired(&self, now: Nanos) -> Option<u64> {
        let first = &self.slots[*self.timers.first()? as usize];
        (first.deadline <= now).then_some(first.call)
    }

    fn remove_timer(&mut self, slot: usize) {
        let at = self.slots[slot].timer;
        if at == NO_TIMER {
            return;
        }
        let at = at as usize;
        self.timers.swap_remove(at);
        self.slots[slot].timer = NO_TIMER;
        if at < self.timers.len() {
            self.place(at);
            self.sift_up(at);
            self.sift_down(at);
        }
    }

    fn deadline_at(&self, at: usize) -> Nanos {
        self.slots[self.timers[at] as usize].deadline
    }

    /// Tells the call at this place of the order where it is.
    fn place(&mut self, at: usize) {
        self.slots[self.timers[at] as usize].timer = at as u32;
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.deadline_at(parent) <= self.deadline_at(at) {
                break;
            }
            self.timers.swap(at, parent);
            self.place(at);
            at = parent;
        }
        self.place(at);
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let children = [2 * at + 1, 2 * at + 2];
            let least = children
                .into_iter()
                .filter(|child| *child < self.timers.len())
                .min_by_key(|child| self.deadline_at(*child));
            match least {
                Some(child) if self.deadline_at(child) < self.deadline_at(at) => {
                    self.timers.swap(at, child);
                    self.place(at);
                    at = child;
                }
                _ => break,
            }
        }
        self.place(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator of pseudo-random numbers (xorshift64), so that a failure can be repeated.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }

    #[test]
    fn calls_and_deadlines_agree_with_a_plain_model() {
        let mut random = Random(0x1234_5678_9abc_def1);
        let mut calls = FrontendCalls::new();
        let mut model: Vec<(u64, Nanos)> = Vec::new();
        for number in 1..20_000 {
            if model.len() < 100 && random.below(2) == 0 {
                let deadline = random.below(4) * random.below(1000);
                calls.insert(FrontendCall::new(number, 0, deadline));
                model.push((number, deadline));
            } else if !model.is_empty() {
                let (call, _) = model.swap_remove(random.below(model.len() as u64) as usize);
                assert_eq!(calls.remove(call).map(|call| call.call), Some(call));
                assert!(!calls.contains(call));
            }
            let earliest = model
                .iter()
                .map(|(_, deadline)| *deadline)
                .filter(|deadline| *deadline != 0)
                .min();
            assert_eq!(calls.next_deadline(), earliest);
            assert_eq!(calls.len(), model.len());
            for (call, deadline) in &model {
                assert_eq!(calls.get_mut(*call).map(|call| call.deadline), Some(*deadline));
            }
        }
    }

    #[test]
    fn a_call_without_a_deadline_never_expires() {
        let mut calls = FrontendCalls::new();
        calls.insert(FrontendCall::new(1, 0, 0));
        calls.insert(FrontendCall::new(2, 0, 50));
        assert_eq!(calls.expired(49), None);
        assert_eq!(calls.expired(50), Some(2));
        calls.remove(2);
        assert_eq!(calls.expired(Nanos::MAX), None);
        assert_eq!(calls.any(), Some(1));
    }
}
