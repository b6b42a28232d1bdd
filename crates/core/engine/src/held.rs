//! Steps that a sieve holds: by call, and by the time at which each call is judged again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use provost_datapath::{CallHash, CallMap, Nanos, Step};

use crate::sieve::{HELD_STEPS_MAX, Lane};

/// Queues of steps that are kept for the next calls that wait.
const SPARE_QUEUES_MAX: usize = 64;
/// Entries of the order that may be out of date beside those that are not.
const STALE_MAX: usize = 64;

/// Calls that wait.
pub(crate) struct Held {
    calls: [CallMap<HeldCall>; 2],
    /// By time, then by arrival. An entry whose call is gone, or waits anew, is stale: its number tells.
    order: BinaryHeap<Reverse<Turn>>,
    steps: usize,
    next_number: u64,
    spare: Vec<VecDeque<Step>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    until: Nanos,
    number: u64,
    lane: Lane,
    call: u64,
}

/// The steps of one call that wait in one lane.
pub(crate) struct HeldCall {
    pub(crate) call: u64,
    pub(crate) lane: Lane,
    pub(crate) since: Nanos,
    pub(crate) steps: VecDeque<Step>,
    number: u64,
}

impl Default for Held {
    fn default() -> Held {
        let calls = || CallMap::with_hasher(CallHash::default());
        Held {
            calls: [calls(), calls()],
            order: BinaryHeap::new(),
            steps: 0,
            next_number: 0,
            spare: Vec::new(),
        }
    }
}

impl Held {
    pub(crate) fn is_empty(&self) -> bool {
        self.steps == 0
    }

    pub(crate) fn holds(&self, lane: Lane, call: u64) -> bool {
        self.calls[lane as usize].contains_key(&call)
    }

    /// The earliest time at which a call is judged again. (Of a call that is gone, now and then: then nothing is due.)
    pub(crate) fn due(&self) -> Option<Nanos> {
        match self.is_empty() {
            true => None,
            false => self.order.peek().map(|Reverse(turn)| turn.until),
        }
    }

    /// Holds a step: behind those of its call, or as the first. It comes back if there are too many.
    pub(crate) fn add(&mut self, lane: Lane, step: Step, since: Nanos, until: Nanos) -> Result<(), Step> {
        if self.steps >= HELD_STEPS_MAX {
            return Err(step);
        }
        self.steps += 1;
        if let Some(held) = self.calls[lane as usize].get_mut(&step.call) {
            held.steps.push_back(step);
            return Ok(());
        }
        let call = step.call;
        let mut steps = self.spare.pop().unwrap_or_default();
        steps.push_back(step);
        self.insert(
            HeldCall {
                call,
                lane,
                since,
                steps,
                number: 0,
            },
            until,
        );
        Ok(())
    }

    /// Takes the call whose time came first, of those whose time has come.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<HeldCall> {
        while let Some(Reverse(turn)) = self.order.peek().copied()
            && turn.until <= now
        {
            self.order.pop();
            if self.is_valid(&turn)
                && let Some(held) = self.calls[turn.lane as usize].remove(&turn.call)
            {
                self.steps -= held.steps.len();
                return Some(held);
            }
        }
        None
    }

    /// Puts what is left of a call behind the step of it that was held anew, or back if it only found no room.
    pub(crate) fn put_behind(&mut self, mut rest: HeldCall, until: Nanos) {
        if rest.steps.is_empty() {
            self.keep(rest.steps);
            return;
        }
        self.steps += rest.steps.len();
        match self.calls[rest.lane as usize].get_mut(&rest.call) {
            Some(held) => held.steps.append(&mut rest.steps),
            None => self.insert(rest, until),
        }
    }

    /// Takes the steps of one call.
    pub(crate) fn remove(&mut self, lane: Lane, call: u64) -> VecDeque<Step> {
        let Some(held) = self.calls[lane as usize].remove(&call) else {
            return VecDeque::new();
        };
        self.steps -= held.steps.len();
        self.drop_stale();
        held.steps
    }

    /// Takes all steps of a lane; the call that has waited longest comes first.
    pub(crate) fn take_all(&mut self, lane: Lane) -> Vec<Step> {
        let mut calls: Vec<HeldCall> = self.calls[lane as usize].drain().map(|(_, held)| held).collect();
        calls.sort_by_key(|held| (held.since, held.number));
        let steps: Vec<Step> = calls.into_iter().flat_map(|held| held.steps).collect();
        self.steps -= steps.len();
        self.drop_stale();
        steps
    }

    fn insert(&mut self, mut held: HeldCall, until: Nanos) {
        held.number = self.next_number;
        self.next_number += 1;
        self.order.push(Reverse(Turn {
            until,
            number: held.number,
            lane: held.lane,
            call: held.call,
        }));
        self.calls[held.lane as usize].insert(held.call, held);
    }

    fn is_valid(&self, turn: &Turn) -> bool {
        let held = self.calls[turn.lane as usize].get(&turn.call);
        held.is_some_and(|held| held.number == turn.number)
    }

    /// Keeps the order from growing by calls that left before their time.
    fn drop_stale(&mut self) {
        while let Some(Reverse(turn)) = self.order.peek()
            && !self.is_valid(turn)
        {
            self.order.pop();
        }
        let valid = self.calls[0].len() + self.calls[1].len();
        if self.order.len() > 2 * valid + STALE_MAX {
            let mut order = std::mem::take(&mut self.order);
            order.retain(|Reverse(turn)| self.is_valid(turn));
            self.order = order;
        }
    }

    fn keep(&mut self, queue: VecDeque<Step>) {
        if self.spare.len() < SPARE_QUEUES_MAX {
            self.spare.push(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, Parts};

    fn step(call: u64) -> Step {
        Step::cancel(call, Code::Cancelled)
    }

    fn popped(held: &mut Held, now: Nanos) -> Vec<u64> {
        std::iter::from_fn(|| held.pop_due(now))
            .map(|held| held.call)
            .collect()
    }

    #[test]
    fn calls_come_by_their_time_and_then_by_their_arrival() {
        let mut held = Held::default();
        for (call, until) in [(1, 30), (2, 10), (3, 20), (4, 10), (5, 40)] {
            held.add(Lane::Tx, step(call), 0, until).unwrap();
        }
        assert_eq!(held.due(), Some(10));
        assert_eq!(popped(&mut held, 9), []);
        assert_eq!(popped(&mut held, 30), [2, 4, 3, 1]);
        assert_eq!(held.due(), Some(40));
        assert_eq!(held.take_all(Lane::Tx).len(), 1);
        assert!(held.is_empty() && held.due().is_none());
    }

    #[test]
    fn a_call_that_leaves_early_leaves_nothing_behind() {
        let mut held = Held::default();
        held.add(Lane::Tx, step(0), 0, Nanos::MAX).unwrap();
        for call in 1..10_000 {
            held.add(Lane::Rx, step(call), 0, 1 + call).unwrap();
            held.add(Lane::Rx, Step::new(call, Parts::END), 0, 0).unwrap();
            assert_eq!(held.remove(Lane::Rx, call).len(), 2);
            assert!(!held.holds(Lane::Rx, call));
        }
        assert_eq!(held.due(), Some(Nanos::MAX));
        assert!(held.order.len() <= 2 + STALE_MAX);
    }

    #[test]
    fn what_is_held_is_bounded_and_comes_out_longest_waiting_first() {
        let mut held = Held::default();
        for call in 0..HELD_STEPS_MAX as u64 {
            held.add(Lane::Tx, step(call), 100 - call % 50, 500).unwrap();
        }
        assert!(held.add(Lane::Tx, step(0), 0, 0).is_err());
        let calls: Vec<u64> = held.take_all(Lane::Tx).iter().map(|step| step.call).collect();
        let mut sorted = calls.clone();
        sorted.sort_by_key(|call| (100 - call % 50, *call));
        assert_eq!(calls, sorted);
    }
}
