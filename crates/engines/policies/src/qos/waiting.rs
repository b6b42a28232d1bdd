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
    /// Calls by deadline, then by the number of their first step. A turn of another step than that is stale: its number tells.
    order: BinaryHeap<Reverse<StepTurn>>,
    /// The same by number, which is the order of arrival.
    arrivals: BinaryHeap<Reverse<ArrivalTurn>>,
    steps: usize,
    next_number: u64,
    spare: Vec<VecDeque<WaitingStep>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StepTurn {
    deadline: Nanos,
    number: u64,
    call: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ArrivalTurn {
    number: u64,
    call: u64,
}

#[derive(Debug)]
struct WaitingCall {
    deadline: Nanos,
    steps: VecDeque<WaitingStep>,
}

#[derive(Debug)]
struct WaitingStep {
    step: Step,
    /// Its place among all that ever waited here.
    number: u64,
    since: Nanos,
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
        let call = step.call;
        let waiting = WaitingStep {
            step,
            number: self.next_number,
            since: now,
        };
        self.steps += 1;
        self.next_number += 1;
        if let Some(of_call) = self.calls.get_mut(&call) {
            of_call.steps.push_back(waiting);
            return;
        }
        let mut steps = self.spare.pop().unwrap_or_default();
        steps.push_back(waiting);
        self.calls.insert(call, WaitingCall { deadline, steps });
        self.take_place(call);
    }

    /// Has the first step of a call have its turn.
    fn take_place(&mut self, call: u64) {
        let Some(of_call) = self.calls.get(&call) else {
            return;
        };
        let Some(WaitingStep { number, .. }) = of_call.steps.front() else {
            return;
        };
        self.order.push(Reverse(StepTurn {
            deadline: of_call.deadline,
            number: *number,
            call,
        }));
        self.arrivals.push(Reverse(ArrivalTurn {
            number: *number,
            call,
        }));
    }

    /// Whose turn it is: of the call whose first step has waited longest, if that has been too long, else of the one whose
    /// deadline is the earliest.
    pub(crate) fn head(&mut self, now: Nanos, starvation_bound: Nanos) -> Option<HeadStep> {
        let oldest = self.oldest()?;
        if now.saturating_sub(oldest.since) >= starvation_bound {
            return Some(oldest);
        }
        while let Some(Reverse(turn)) = self.order.peek().copied() {
            if let Some(head) = self.head_of(turn.call, turn.number) {
                return Some(head);
            }
            self.order.pop();
        }
        None
    }

    /// The call whose first step has waited longest.
    pub(crate) fn oldest(&mut self) -> Option<HeadStep> {
        while let Some(Reverse(turn)) = self.arrivals.peek().copied() {
            if let Some(head) = self.head_of(turn.call, turn.number) {
                return Some(head);
            }
            self.arrivals.pop();
        }
        None
    }

    /// Takes the first step of a call.
    pub(crate) fn take(&mut self, call: u64) -> Option<Step> {
        let of_call = self.calls.get_mut(&call)?;
        let taken = of_call.steps.pop_front()?;
        self.steps -= 1;
        if of_call.steps.is_empty() {
            self.remove(call);
        } else {
            self.take_place(call);
            self.tidy();
        }
        Some(taken.step)
    }

    /// Takes all steps of a call.
    pub(crate) fn take_call(&mut self, call: u64) -> Vec<Step> {
        let Some(waiting) = self.calls.remove(&call) else {
            return Vec::new();
        };
        self.steps -= waiting.steps.len();
        self.tidy();
        waiting.steps.into_iter().map(|waiting| waiting.step).collect()
    }

    /// Takes everything, the call that came first first.
    pub(crate) fn take_all(&mut self) -> Vec<Step> {
        let mut calls: Vec<WaitingCall> = self.calls.drain().map(|(_, waiting)| waiting).collect();
        calls.sort_by_key(|waiting| waiting.steps.front().map(|first| first.number));
        self.order.clear();
        self.arrivals.clear();
        self.steps = 0;
        let steps = calls.into_iter().flat_map(|waiting| waiting.steps);
        steps.map(|waiting| waiting.step).collect()
    }

    /// The first step of a call, if it has this number.
    fn head_of(&self, call: u64, number: u64) -> Option<HeadStep> {
        let of_call = self.calls.get(&call)?;
        let first = of_call.steps.front().filter(|first| first.number == number)?;
        Some(HeadStep {
            call,
            deadline: of_call.deadline,
            since: first.since,
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
        let is_valid = |call: u64, number: u64| {
            let first = calls.get(&call).and_then(|of_call| of_call.steps.front());
            first.is_some_and(|first| first.number == number)
        };
        if self.order.len() > most {
            self.order
                .retain(|Reverse(turn)| is_valid(turn.call, turn.number));
        }
        if self.arrivals.len() > most {
            self.arrivals
                .retain(|Reverse(turn)| is_valid(turn.call, turn.number));
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
        assert_eq!(taken(&mut waiting, 20), [2, 4, 2, 1, 3]);
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
    fn each_step_of_a_call_has_waited_since_it_came() {
        let mut waiting = WaitingSteps::new();
        waiting.add(step(1), Nanos::MAX, 0);
        waiting.add(step(2), 500, 60);
        waiting.add(step(3), Nanos::MAX, 65);
        waiting.add(step(1), Nanos::MAX, 70);
        // The first of the stream has waited too long, and its next has not; and then all have.
        assert_eq!(
            waiting.head(100, BOUND).map(|head| (head.call, head.since)),
            Some((1, 0))
        );
        waiting.take(1);
        assert_eq!(
            waiting.head(159, BOUND).map(|head| (head.call, head.since)),
            Some((2, 60))
        );
        assert_eq!(waiting.oldest().map(|head| head.since), Some(60));
        waiting.take(2);
        assert_eq!(taken(&mut waiting, 170), [3, 1]);
    }

    #[test]
    fn a_stream_that_always_waits_leaves_nothing_behind() {
        let mut waiting = WaitingSteps::new();
        waiting.add(step(1), Nanos::MAX, 0);
        for now in 1..10_000 {
            waiting.add(step(1), Nanos::MAX, now);
            assert!(waiting.take(1).is_some());
        }
        assert!(waiting.order.len() <= STALE_TURNS_MAX + 2 && waiting.arrivals.len() <= STALE_TURNS_MAX + 2);
        assert_eq!(waiting.head(10_000, BOUND).map(|head| head.since), Some(9_999));
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
