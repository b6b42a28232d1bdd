//! Calls that wait in one queue direction of a filter engine.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use provost_datapath::{CallMap, CallTable, Nanos, Step};

/// Turns of calls that are gone stay in the order until they come up; past so many times the calls it is made anew.
const STALE_TURNS_FACTOR: usize = 2;
/// Below this many turns it never is.
const TURNS_SMALL: usize = 64;

/// The calls that wait in one queue direction: by number, and in the order in which they are judged again.
#[derive(Default)]
pub(super) struct HeldCalls {
    calls: CallTable<HeldCall>,
    order: BinaryHeap<Reverse<JudgeTurn>>,
    steps: usize,
    last: u64,
}

/// A call that waits: its first step, and what came behind it.
pub(super) struct HeldCall {
    pub(super) wait: CallWait,
    pub(super) first: Step,
    pub(super) rest: VecDeque<Step>,
    /// Its place among all that ever waited here.
    number: u64,
}

/// What the first step of a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallWait {
    /// To be judged again.
    Verdict { since: Nanos, until: Nanos },
    /// Only for room behind the engine.
    Room,
}

impl CallWait {
    const fn until(self) -> Nanos {
        match self {
            CallWait::Verdict { until, .. } => until,
            CallWait::Room => 0,
        }
    }
}

/// When a call is judged again; of two at the same time, the one that waits longer goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct JudgeTurn {
    until: Nanos,
    number: u64,
    call: u64,
}

impl HeldCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// How many steps wait.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    pub(super) fn holds(&self, call: u64) -> bool {
        !self.calls.is_empty() && self.calls.get(call).is_some()
    }

    /// The earliest time at which a call is judged again.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.order.peek().map(|turn| turn.0.until)
    }

    /// Lets a step wait of whose call nothing waits yet.
    pub(super) fn add(&mut self, step: Step, wait: CallWait) {
        self.last += 1;
        self.insert(HeldCall {
            wait,
            first: step,
            rest: VecDeque::new(),
            number: self.last,
        });
    }

    /// Lets a step wait behind those of its call.
    pub(super) fn add_behind(&mut self, step: Step) {
        if let Some(held) = self.calls.get_mut(step.call) {
            held.rest.push_back(step);
            self.steps += 1;
        }
    }

    /// Lets a call wait again that was taken, in its place among the others.
    pub(super) fn insert(&mut self, held: HeldCall) {
        self.order.push(Reverse(JudgeTurn {
            until: held.wait.until(),
            number: held.number,
            call: held.first.call,
        }));
        self.steps += 1 + held.rest.len();
        self.calls.insert(held.first.call, held);
        self.tidy();
    }

    /// Takes the call whose turn it is.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<HeldCall> {
        let turn = self.order.peek()?.0;
        if turn.until <= now {
            self.remove(turn.call)
        } else {
            None
        }
    }

    /// Takes what waits of a call.
    pub(super) fn remove(&mut self, call: u64) -> Option<HeldCall> {
        let held = self.calls.remove(call)?;
        self.steps -= 1 + held.rest.len();
        self.tidy();
        Some(held)
    }

    /// Takes all steps, those of the call that waited first before those of the next.
    pub(super) fn take_all(&mut self) -> impl DoubleEndedIterator<Item = Step> {
        let mut calls: Vec<HeldCall> = self.calls.take_all().collect();
        calls.sort_by_key(|held| held.number);
        self.order.clear();
        self.steps = 0;
        calls
            .into_iter()
            .flat_map(|held| std::iter::once(held.first).chain(held.rest))
    }

    /// Sees to it that the next turn is one of a call that waits, and that the order stays short.
    fn tidy(&mut self) {
        while let Some(Reverse(turn)) = self.order.peek()
            && !is_current(&self.calls, turn)
        {
            self.order.pop();
        }
        if self.order.len() > TURNS_SMALL + STALE_TURNS_FACTOR * self.calls.len() {
            let calls = &self.calls;
            self.order.retain(|Reverse(turn)| is_current(calls, turn));
        }
    }
}

fn is_current(calls: &CallTable<HeldCall>, turn: &JudgeTurn) -> bool {
    calls
        .get(turn.call)
        .is_some_and(|held| held.number == turn.number && held.wait.until() == turn.until)
}

/// Calls that were denied in their midst, the latest: what is still under way of them goes no further.
#[derive(Default)]
pub(super) struct DeniedCalls {
    calls: CallMap<()>,
    order: VecDeque<u64>,
}

/// Denied calls that are kept in mind, at most. (Whatever gets past them ends at the frontend or at the transport, which
/// know of their ends.)
pub(super) const DENIED_CALLS_MAX: usize = 1024;

impl DeniedCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn contains(&self, call: u64) -> bool {
        !self.calls.is_empty() && self.calls.contains_key(&call)
    }

    pub(super) fn add(&mut self, call: u64) {
        if self.calls.insert(call, ()).is_some() {
            return;
        }
        self.order.push_back(call);
        if self.order.len() > DENIED_CALLS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.calls.remove(&oldest);
        }
    }

    /// Forgets a call whose number is used anew.
    pub(super) fn forget(&mut self, call: u64) {
        if self.calls.remove(&call).is_some() {
            self.order.retain(|denied| *denied != call);
        }
    }

    /// The oldest first.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = u64> {
        self.order.iter().copied()
    }
}
