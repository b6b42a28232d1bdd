//! Policies that come, go and change in the midst of calls: the same for every kind. (Feature `rig`.)
//!
//! [`run`] makes calls of random shapes through one engine, and at random moments puts another policy in its place,
//! takes it away, puts it back, or makes the engine wait for room. It checks that each call that a policy let pass has
//! all its steps, once and in their order, on both sides, and that each one that it denied ends on both sides as far as
//! they know it.

use std::collections::BTreeMap;
use std::sync::Arc;

use provost_random::SeededRandom;

use crate::rig::{Rig, RigQueues, Service, end_of};
use crate::{Code, Nanos, Parts, Policy, Progress, SharedState, Side, Step};

/// Calls in flight at once, at most.
const CALLS_MAX: usize = 24;
/// Polls until everything that is due must have happened.
const SETTLING_POLLS: usize = 100_000;

/// Makes a policy, from what the one before it left.
pub type Make<'a> = &'a dyn Fn(Option<&SharedState>) -> Arc<dyn Policy>;

/// What to do.
pub struct Churn<'a> {
    /// The service whose first method is called; the requests have no fields set.
    pub service: &'a Service,
    /// Which end of the calls the app is.
    pub side: Side,
    /// What the random choices come from.
    pub seed: u64,
    /// How many actions there are.
    pub actions: usize,
    /// How far the clock goes in an action, at most.
    pub gap_ns: Nanos,
    /// The policies that follow each other.
    pub policies: &'a [Make<'a>],
    /// What each step that begins a call passes through before it is offered, to add metadata, say.
    pub request: &'a dyn Fn(Step) -> Step,
}

/// How the calls went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChurnOutcome {
    /// Calls that ended with the server's status.
    pub answered: usize,
    /// Calls that the client gave up.
    pub cancelled: usize,
    /// Calls that a policy denied.
    pub denied: usize,
    /// Times that an engine took another's place.
    pub changes: usize,
}

/// Which party of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Party {
    Client,
    Server,
}

#[derive(Default)]
struct ChurnCall {
    /// Steps that each party has offered, and those that came to the other one.
    requests: ChurnFlow,
    responses: ChurnFlow,
    /// What ended it, by whom it was offered.
    client_ended: bool,
    cancelled: bool,
    answered: bool,
    /// By the policy's denial.
    denied_to_client: bool,
    denied_to_server: bool,
}

#[derive(Default)]
struct ChurnFlow {
    offered: u32,
    came: u32,
}

impl ChurnCall {
    /// Whether neither party has anything more to say or to hear.
    fn is_over(&self) -> bool {
        let all_came =
            self.requests.came == self.requests.offered && self.responses.came == self.responses.offered;
        self.denied_to_client || (self.answered && all_came) || self.cancelled
    }
}

/// Runs it.
///
/// # Panics
/// If a call loses a step, gets one twice or in another order, or does not end: with the seed in the message.
pub fn run(churn: &Churn<'_>) -> ChurnOutcome {
    let mut run = ChurnRun::new(churn);
    for _ in 0..churn.actions {
        run.act();
    }
    run.settle();
    run.outcome
}

struct ChurnRun<'a> {
    churn: &'a Churn<'a>,
    random: SeededRandom,
    rig: Rig,
    policy: Option<Arc<dyn Policy>>,
    calls: BTreeMap<u64, ChurnCall>,
    /// Calls of which late steps may still come out: the other party had not heard of the end.
    over: BTreeMap<u64, ChurnCall>,
    next_call: u64,
    outcome: ChurnOutcome,
}

impl<'a> ChurnRun<'a> {
    fn new(churn: &'a Churn<'a>) -> ChurnRun<'a> {
        ChurnRun {
            churn,
            random: SeededRandom::new(churn.seed),
            rig: Rig::empty(churn.service.datapath_context(churn.side)),
            policy: None,
            calls: BTreeMap::new(),
            over: BTreeMap::new(),
            next_call: 1,
            outcome: ChurnOutcome::default(),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn act(&mut self) {
        match self.below(20) {
            0..4 if self.calls.len() < CALLS_MAX => self.begin(),
            4..8 => self.go_on(),
            8..11 => self.answer(),
            11 => self.cancel(),
            12 => self.change(),
            13 if self.below(4) == 0 => self.squeeze(),
            _ => self.poll(),
        }
    }

    fn begin(&mut self) {
        let id = self.next_call;
        self.next_call += 1;
        let mut step = (self.churn.request)(self.churn.service.request(id, 0, &[]));
        let is_unary = self.below(2) == 0;
        if !is_unary {
            step.parts = step.parts.without(Parts::END);
        }
        if self.below(4) == 0 {
            step.deadline = self.rig.now + self.below(20 * self.churn.gap_ns);
        }
        let call = ChurnCall {
            client_ended: is_unary,
            ..ChurnCall::default()
        };
        self.calls.insert(id, call);
        self.offer(Party::Client, step);
    }

    fn any_call(&mut self, which: impl Fn(&ChurnCall) -> bool) -> Option<u64> {
        let some: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, call)| which(call))
            .map(|(id, _)| *id)
            .collect();
        let at = self.below(some.len() as u64) as usize;
        some.get(at).copied()
    }

    fn go_on(&mut self) {
        let Some(id) = self.any_call(|call| !call.client_ended && !call.cancelled) else {
            return;
        };
        let parts = match self.below(3) {
            0 => Parts::END,
            1 => Parts::MESSAGE | Parts::END,
            _ => Parts::MESSAGE,
        };
        if let Some(call) = self.calls.get_mut(&id) {
            call.client_ended = parts.contains(Parts::END);
        }
        self.offer(Party::Client, Step::new(id, parts));
    }

    /// A server answers what it has heard of.
    fn answer(&mut self) {
        let Some(id) =
            self.any_call(|call| call.requests.came > 0 && !call.answered && !call.denied_to_server)
        else {
            return;
        };
        let parts = match self.below(3) {
            0 => Parts::HEADERS,
            1 => Parts::MESSAGE,
            _ => Parts::MESSAGE | Parts::STATUS,
        };
        if let Some(call) = self.calls.get_mut(&id) {
            call.answered = parts.contains(Parts::STATUS);
        }
        self.offer(Party::Server, Step::new(id, parts));
    }

    fn cancel(&mut self) {
        let Some(id) = self.any_call(|call| !call.cancelled && !call.answered) else {
            return;
        };
        if let Some(call) = self.calls.get_mut(&id) {
            (call.cancelled, call.client_ended) = (true, true);
        }
        self.offer(Party::Client, Step::cancel(id, Code::Cancelled));
    }

    fn change(&mut self) {
        self.outcome.changes += 1;
        let count = self.churn.policies.len() as u64;
        match self.below(count + 1) {
            at if at < count => {
                let shared = self.policy.as_ref().map(|policy| policy.save());
                let policy = (self.churn.policies[at as usize])(shared.as_ref());
                self.rig
                    .replace(&*policy)
                    .expect("each policy takes over from each");
                self.policy = Some(policy);
            }
            _ => {
                self.rig.remove();
                self.policy = None;
            }
        }
    }

    /// Little room behind the engine for a while.
    fn squeeze(&mut self) {
        let bound = 1 + self.below(4) as usize;
        let mut narrow = RigQueues::with_bound(provost_datapath::QUEUE_STEPS_MAX);
        narrow.tx_out = crate::Queue::with_bound(bound);
        narrow.rx_out = crate::Queue::with_bound(bound);
        for _ in 0..3 {
            self.rig.now += self.churn.gap_ns;
            std::mem::swap(&mut narrow.tx_in, &mut self.rig.queues.tx_in);
            std::mem::swap(&mut narrow.rx_in, &mut self.rig.queues.rx_in);
            std::mem::swap(&mut narrow, &mut self.rig.queues);
            self.rig.poll();
            self.take_out();
            std::mem::swap(&mut narrow, &mut self.rig.queues);
            std::mem::swap(&mut narrow.tx_in, &mut self.rig.queues.tx_in);
            std::mem::swap(&mut narrow.rx_in, &mut self.rig.queues.rx_in);
        }
    }

    fn poll(&mut self) {
        self.rig.now += self.below(self.churn.gap_ns);
        self.rig.poll();
        self.take_out();
    }

    /// Offers a step with its number, unless the queue is full: then first polls.
    fn offer(&mut self, party: Party, mut step: Step) {
        let Some(call) = self.calls.get_mut(&step.call) else {
            return;
        };
        let flow = match party {
            Party::Client => &mut call.requests,
            Party::Server => &mut call.responses,
        };
        flow.offered += 1;
        step.window_bytes = flow.offered;
        let is_tx = (party == Party::Client) == (self.churn.side == Side::Client);
        for _ in 0..SETTLING_POLLS {
            let full = if is_tx {
                self.rig.queues.tx_in.is_full()
            } else {
                self.rig.queues.rx_in.is_full()
            };
            if !full {
                break;
            }
            self.poll();
        }
        // Polling may have brought the end of the call.
        if is_tx {
            self.rig.send(step)
        } else {
            self.rig.receive(step)
        }
    }

    fn take_out(&mut self) {
        let (at_server, at_client) = match self.churn.side {
            Side::Client => (self.rig.to_wire(), self.rig.to_app()),
            Side::Server => (self.rig.to_app(), self.rig.to_wire()),
        };
        at_server.iter().for_each(|step| self.came(Party::Server, step));
        at_client.iter().for_each(|step| self.came(Party::Client, step));
        let done: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, call)| call.is_over())
            .map(|(id, _)| *id)
            .collect();
        for id in done {
            if let Some(call) = self.calls.remove(&id) {
                match (call.denied_to_client, call.cancelled) {
                    (true, _) => self.outcome.denied += 1,
                    (_, true) => self.outcome.cancelled += 1,
                    _ => self.outcome.answered += 1,
                }
                self.over.insert(id, call);
            }
        }
    }

    /// A step came to a party: it is the next one of its call, or the policy's word that the call is over.
    fn came(&mut self, at: Party, step: &Step) {
        let seed = self.churn.seed;
        let known = self
            .calls
            .get_mut(&step.call)
            .or_else(|| self.over.get_mut(&step.call));
        let call = known.unwrap_or_else(|| panic!("seed {seed}: a step of no call: {step:?}"));
        if step.window_bytes == 0 {
            let told = match at {
                Party::Client => &mut call.denied_to_client,
                Party::Server => &mut call.denied_to_server,
            };
            assert!(
                end_of(step).is_some(),
                "seed {seed}: a step that nobody offered: {step:?}"
            );
            assert!(!*told, "seed {seed}: told twice that call {} is over", step.call);
            *told = true;
            return;
        }
        let (flow, is_told) = match at {
            Party::Client => (&mut call.responses, call.denied_to_client),
            Party::Server => (&mut call.requests, call.denied_to_server),
        };
        assert!(
            !is_told,
            "seed {seed}: a step of call {} behind its end: {step:?}",
            step.call
        );
        let is_next = step.window_bytes == flow.came + 1;
        // A call that is given up need not show what it had before.
        let may_skip = step.parts.contains(Parts::CANCEL);
        assert!(
            is_next || may_skip,
            "seed {seed}: step {} of call {} came behind {}",
            step.window_bytes,
            step.call,
            flow.came
        );
        flow.came = step.window_bytes;
    }

    /// Lets everything come to its end: nothing may be left behind.
    fn settle(&mut self) {
        for _ in 0..SETTLING_POLLS {
            let progress = self.rig.poll();
            self.take_out();
            let queues = &self.rig.queues;
            let moves = progress == Progress::Busy || !queues.tx_in.is_empty() || !queues.rx_in.is_empty();
            match self.rig.wake_at() {
                _ if moves => self.rig.now += 1,
                Some(at) => self.rig.now = self.rig.now.max(at),
                None => break,
            }
        }
        for (id, call) in &self.calls {
            let flows = [&call.requests, &call.responses];
            let is_whole = flows.iter().all(|flow| flow.came == flow.offered);
            assert!(
                is_whole,
                "seed {}: call {id} lost steps: {} of {} requests, {} of {} responses came",
                self.churn.seed,
                call.requests.came,
                call.requests.offered,
                call.responses.came,
                call.responses.offered
            );
        }
    }
}
