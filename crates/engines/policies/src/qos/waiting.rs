//! Large messages that wait: the earliest deadline first, and of the same the one that came first. What follows a step
//! of its call waits behind it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use provost_datapath::{CallHash, CallMap};
use provost_engine::{Nanos, Step};

/// Queues of steps that are kept for the next calls that wait.
const SPARE_QUEUES_MAX: usize = 64;
/// Turns of calls that are gone may stay in the orders: so many for each call that waits, and so many besides.
const STALE_TURNS_FACTOR: usize = 2;
const STALE_TURNS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct WaitingSteps {
    calls: CallMap<WaitingCall>,
    /// By deadline, then by number. A turn whose call is gone, or waits anew, is stale: its number tells.
    order: BinaryHeap<Reverse<StepTurn>>,
    /// By number, which is the order of arrival.
    arrivals: VecDeque<StepTurn>,
    steps: usize,
    next_number: u64,
    spare: Vec<VecDeque<Step>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StepTurn {
    deadline: Nanos,
    number: u64,
    call: u64,
}

#[derive(Debug)]
struct WaitingCall {
    number: u64,
    since: Nanos,
    steps: VecDeque<Step>,
}

/// The step whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadStep {
    pub(crate) call: u64,
    pub(crate) deadline: Nanos,
    pub(crate) since: Nanos,
}

impl WaitingSteps {
    pub(crate) fn new() -> WaitingSteps {
        WaitingSteps {
            calls: CallMap::with_hasher(CallHash::default()),
            ..WaitingSteps::default()
        }
    }

    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps == 0
    }

    pub(crate) fn holds(&self, call: u64) -> bool {
        self.steps != 0 && self.calls.contains_key(&call)
    }

    /// Lets a step wait: behind those of its call, or as the first of it, with the call's deadline.
    pub(crate) fn add(&mut self, step: Step, deadline: Nanos, now: Nanos) {
        self.steps += 1;
        if let Some(waiting) = self.calls.get_mut(&step.call) {
            waiting.steps.push_back(step);
            return;
        }
        let turn = StepTurn {
            deadline,
            number: self.next_number,
            call: step.call,
        };
        self.next_number += 1;
        self.order.push(Reverse(turn));
        self.arrivals.push_back(turn);
        let mut steps = self.spare.pop().unwrap_or_default();
        steps.push_back(step);
        let waiting = WaitingCall {
            number: turn.number,
            since: now,
            steps,
        };
        self.calls.insert(turn.call, waiting);
    }

    /// Whose turn it is: of the call that has waited longest, if that has been too long, else of the one whose deadline
    /// is the earliest.
    pub(crate) fn head(&mut self, now: Nanos, starvation_bound: Nanos) -> Option<HeadStep> {
        let oldest = self.oldest()?;
        if now.saturating_sub(oldest.since) >= starvation_bound {
            return Some(oldest);
        }
        while let Some(Reverse(turn)) = self.order.peek().copied() {
            if let Some(head) = self.head_of(turn) {
                return Some(head);
            }
            self.order.pop();
        }
        None
    }

    /// The call that has waited longest.
    pub(crate) fn oldest(&mut self) -> Option<HeadStep> {
        while let Some(turn) = self.arrivals.front().copied() {
            if let Some(head) = self.head_of(turn) {
                return Some(head);
            }
            self.arrivals.pop_front();
        }
        None
    }

    /// Takes the first step of a call.
    pub(crate) fn take(&mut self, call: u64) -> Option<Step> {
        let waiting = self.calls.get_mut(&call)?;
        let step = waiting.steps.pop_front();
        if waiting.steps.is_empty() {
            self.remove(call);
        }
        self.steps -= usize::from(step.is_some());
        step
    }

    /// Takes all steps of a call.
    pub(crate) fn take_call(&mut self, call: u64) -> VecDeque<Step> {
        let Some(waiting) = self.calls.remove(&call) else {
            return VecDeque::new();
        };
        self.steps -= waiting.steps.len();
        self.tidy();
        waiting.steps
    }

    /// Takes everything, the call that came first first.
    pub(crate) fn take_all(&mut self) -> Vec<Step> {
        let mut calls: Vec<WaitingCall> = self.calls.drain().map(|(_, waiting)| waiting).collect();
        calls.sort_by_key(|waiting| waiting.number);
        self.order.clear();
        self.arrivals.clear();
        self.steps = 0;
        calls.into_iter().flat_map(|waiting| waiting.steps).collect()
    }

    fn head_of(&self, turn: StepTurn) -> Option<HeadStep> {
        let waiting = self.calls.get(&turn.call)?;
        (waiting.number == turn.number).then_some(HeadStep {
            call: turn.call,
            deadline: turn.deadline,
            since: waiting.since,
        })
    }

    fn remove(&mut self, call: u64) {
        if let Some(waiting) = self.calls.remove(&call)
            && self.spare.len() < SPARE_QUEUES_MAX
        {
            self.spare.push(waiting.steps);
        }
        self.tidy();
    }

    fn tidy(&mut self) {
        let most = STALE_TURNS_FACTOR * self.calls.len() + STALE_TURNS_MAX;
        let calls = &self.calls;
        let is_valid = |turn: &StepTurn| {
            calls
                .get(&turn.call)
                .is_some_and(|waiting| waiting.number == turn.number)
        };
        if self.order.len() > most {
            self.order.retain(|Reverse(turn)| is_valid(turn));
        }
        if self.arrivals.len() > most {
            self.arrivals.retain(is_valid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use provost_engine::Parts;

    const BOUND: Nanos = 100;

    fn step(call: u64) -> Step {
        Step::new(call, Parts::MESSAGE)
    }

    fn taken(waiting: &mut WaitingSteps, now: Nanos) -> Vec<u64> {
        std::iter::from_fn(|| {
            let head = waiting.head(now, BOUND)?;
            waiting.take(head.call).map(|step| step.call)
        })
        .collect()
    }

    #[test]
    fn the_earliest_deadline_goes_first_and_a_call_keeps_its_order() {
        let mut waiting = WaitingSteps::new();
        for (call, deadline) in [(1, 50), (2, 20), (3, Nanos::MAX), (4, 20)] {
            waiting.add(step(call), deadline, 10);
        }
        waiting.add(Step::new(2, Parts::END), Nanos::MAX, 11);
        assert_eq!(waiting.steps(), 5);
        assert_eq!(taken(&mut waiting, 20), [2, 2, 4, 1, 3]);
        assert!(waiting.is_empty() && !waiting.holds(2));
    }

    #[test]
    fn who_has_waited_too_long_goes_first() {
        let mut waiting = WaitingSteps::new();
        waiting.add(step(1), Nanos::MAX, 0);
        waiting.add(step(2), 500, 60);
        assert_eq!(waiting.head(99, BOUND).map(|head| head.call), Some(2));
        assert_eq!(waiting.head(100, BOUND).map(|head| head.call), Some(1));
        assert_eq!(waiting.oldest().map(|head| head.since), Some(0));
    }

    #[test]
    fn calls_that_leave_early_leave_nothing_behind() {
        let mut waiting = WaitingSteps::new();
        waiting.add(step(0), 1, 0);
        for call in 1..10_000 {
            waiting.add(step(call), 1 + call, call);
            assert_eq!(waiting.take_call(call).len(), 1);
        }
        assert!(waiting.order.len() <= STALE_TURNS_MAX + 2 && waiting.arrivals.len() <= STALE_TURNS_MAX + 2);
        assert_eq!(waiting.take_all().len(), 1);
        assert!(waiting.is_empty() && waiting.head(5, BOUND).is_none());
    }
}
