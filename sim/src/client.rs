//! A simulated client app: what it asks, and whether what it gets is what it must get.

use std::collections::BTreeMap;

use provost_conformance::Random;
use provost_datapath::{Nanos, Step};
use provost_session::handshake::MethodKind;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_WINDOW_BYTES;

use crate::nodes::DEADLINE_SLACK_NS;
use crate::outcome::{CallFate, ConnectionCourse, Memory, OutgoingStep, ReceivedStep};
use crate::plan::{Answer, Plan, SMALL_SIZE, Way};

/// How long what an app has handed over may lie unread, in simulated nanoseconds.
const UNREAD_NS: Nanos = 100_000;
/// How long a small call on a connection that nothing befell waits at most for all others, in simulated nanoseconds, beside
/// the time that its server thinks: three times as long as the slowest of 2,000 seeds, behind megabytes of others on a
/// carrier that holds 4,000 bytes.
pub const SMALL_CALL_NS_MAX: Nanos = 400_000_000;
/// Calls that a client has open on one connection, at most.
const OPEN_CALLS_MAX: usize = 24;
/// Bytes of messages that it has read before it gives them back to a stream's window.
const WINDOW_BATCH_BYTES: u32 = 100_000;

/// One connection of a client.
pub(crate) struct SimulatedClient {
    random: Random,
    kinds: Vec<MethodKind>,
    calls: BTreeMap<u64, ClientCall>,
    last_call: u64,
    next_begin_at: Nanos,
    /// Calls that it gave up; steps that were under way then may still come.
    cancelled: Vec<u64>,
    pub(crate) totals: ClientTotals,
}

/// What the calls of clients came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientTotals {
    /// How they ended, by status code; the last place counts those that were given up.
    pub(crate) ends: [u64; 18],
    /// The longest that a small call waited on a connection that nothing befell.
    pub(crate) slowest_ns: Nanos,
}

impl ClientTotals {
    pub(crate) fn add(&mut self, more: &ClientTotals) {
        self.ends
            .iter_mut()
            .zip(more.ends)
            .for_each(|(sum, more)| *sum += more);
        self.slowest_ns = self.slowest_ns.max(more.slowest_ns);
    }
}

struct ClientCall {
    plan: Plan,
    method: u16,
    kind: MethodKind,
    shape: StepShape,
    begun_at: Option<Nanos>,
    sent: u16,
    end_sent: bool,
    got: u16,
    credit: i64,
    pending_window: u32,
    deadline: Nanos,
    cancel_at: Option<Nanos>,
}

/// Whether neighbouring parts share a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepShape {
    Joined,
    Apart,
}

impl SimulatedClient {
    pub(crate) fn new(seed: u64, kinds: Vec<MethodKind>, now: Nanos) -> SimulatedClient {
        SimulatedClient {
            random: Random::new(seed),
            kinds,
            calls: BTreeMap::new(),
            last_call: 0,
            next_begin_at: now,
            cancelled: Vec::new(),
            totals: ClientTotals::default(),
        }
    }

    pub(crate) fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Which call of the whole simulation an open call is.
    pub(crate) fn nonce(&self, call: u64) -> Option<u64> {
        Some(self.calls.get(&call)?.plan.nonce)
    }

    /// It begins no further call on this connection.
    pub(crate) fn begin_no_more(&mut self) {
        self.next_begin_at = Nanos::MAX;
    }

    /// When it wants to do something next.
    pub(crate) fn wake_at(&self, begins: bool) -> Option<Nanos> {
        let cancels = self.calls.values().filter_map(|call| call.cancel_at);
        let begin = (begins && self.calls.len() < OPEN_CALLS_MAX).then_some(self.next_begin_at);
        let begin = begin.filter(|at| *at != Nanos::MAX);
        cancels.chain(begin).min()
    }

    /// Begins a call if it is time; `nonce` is its number in the whole simulation.
    pub(crate) fn begin(&mut self, nonce: u64, fate: CallFate, now: Nanos) -> bool {
        if now < self.next_begin_at || self.calls.len() >= OPEN_CALLS_MAX {
            return false;
        }
        self.next_begin_at = now + self.random.below(2_000_000);
        let method = self.random.below(self.kinds.len() as u64) as u16;
        let kind = self.kinds[usize::from(method)];
        let mut plan = Plan::new(
            &mut self.random,
            nonce,
            kind.client_streaming,
            kind.server_streaming,
        );
        if self.random.one_in(20) {
            plan.answer = Answer::Denied;
        }
        let must_end = plan.answer == Answer::Never || fate.course == ConnectionCourse::Damaged;
        let deadline = match self.random.below(3) {
            0 if !must_end => 0,
            1 => now + self.random.between(10_000, 5_000_000),
            _ => now + self.random.between(5_000_000, 400_000_000),
        };
        let call = ClientCall {
            plan,
            method,
            kind,
            shape: if self.random.one_in(2) {
                StepShape::Joined
            } else {
                StepShape::Apart
            },
            begun_at: None,
            sent: 0,
            end_sent: false,
            got: 0,
            credit: i64::from(STREAM_WINDOW_BYTES),
            pending_window: 0,
            deadline,
            cancel_at: self.random.one_in(12).then(|| now + self.random.below(3_000_000)),
        };
        // Numbers increase, with gaps.
        self.last_call += 1 + self.random.below(3);
        self.calls.insert(self.last_call, call);
        true
    }

    /// What it wants to send next, if anything.
    pub(crate) fn next_step(&mut self, now: Nanos) -> Option<OutgoingStep> {
        let due = |call: &ClientCall| call.cancel_at.is_some_and(|at| at <= now);
        if let Some(id) = self.calls.iter().find(|(_, call)| due(call)).map(|(id, _)| *id) {
            let call = self.calls.remove(&id)?;
            self.totals.ends[17] += 1;
            if call.begun_at.is_none() {
                return self.next_step(now);
            }
            self.cancelled.push(id);
            let step = Step {
                status: Code::Cancelled,
                ..Step::new(id, Parts::CANCEL)
            };
            return Some(OutgoingStep {
                step,
                metadata: Vec::new(),
                message: None,
            });
        }
        self.calls
            .iter_mut()
            .find_map(|(id, call)| call.next_step(*id, now))
    }

    /// Takes a step that came, and says what is wrong with it.
    pub(crate) fn receive(&mut self, got: &ReceivedStep, fate: CallFate, now: Nanos) -> Result<(), String> {
        let Some(call) = self.calls.get_mut(&got.call) else {
            return if self.cancelled.contains(&got.call) {
                Ok(())
            } else {
                Err(format!("call {}: a {:?} after its end", got.call, got.parts))
            };
        };
        let checked = call.receive(got, fate, now);
        let mut waited_ns = 0;
        if got.parts.intersects(Parts::STATUS | Parts::CANCEL) {
            waited_ns = call.waited_ns(fate, now);
            self.calls.remove(&got.call);
            self.totals.ends[got.status.number() as usize] += 1;
            self.totals.slowest_ns = self.totals.slowest_ns.max(waited_ns);
        }
        if fate.course == ConnectionCourse::Damaged {
            return Ok(());
        }
        checked.map_err(|what| format!("call {}: {what}", got.call))?;
        if waited_ns > SMALL_CALL_NS_MAX {
            let waited_us = waited_ns / 1_000;
            return Err(format!("call {}: small, and waited {waited_us} µs", got.call));
        }
        Ok(())
    }

    /// Whether a call is open past its deadline, and past what its node rested last. A call that its app hands over late, for
    /// want of room, is its node's from then on.
    pub(crate) fn check_deadlines(&self, now: Nanos, rested_until: Nanos) -> Result<(), String> {
        for (id, call) in &self.calls {
            let Some(begun_at) = call.begun_at.filter(|_| call.deadline != 0) else {
                continue;
            };
            let late_ns = now.saturating_sub(call.deadline.max(rested_until).max(begun_at));
            if late_ns > DEADLINE_SLACK_NS {
                return Err(format!(
                    "call {id} is open {} µs after its deadline",
                    (now - call.deadline) / 1_000
                ));
            }
        }
        Ok(())
    }

    /// Its connection is gone: what it had not handed over never began, and what it handed over just now its node may not have
    /// read. Such calls a library ends itself, or begins anew.
    pub(crate) fn forget_unread(&mut self, now: Nanos) {
        let is_read = |call: &ClientCall| call.begun_at.is_some_and(|begun_at| begun_at + UNREAD_NS < now);
        self.calls.retain(|_, call| is_read(call) || call.got > 0);
    }

    /// What is open now, for people.
    pub(crate) fn describe(&self) -> String {
        let describe = |(id, call): (&u64, &ClientCall)| {
            format!(
                "call {id} sent {} got {} of {:?}, credit {}",
                call.sent, call.got, call.plan, call.credit
            )
        };
        self.calls.iter().map(describe).collect::<Vec<_>>().join("; ")
    }
}

impl ClientCall {
    fn next_step(&mut self, id: u64, now: Nanos) -> Option<OutgoingStep> {
        if self.pending_window >= WINDOW_BATCH_BYTES {
            let step = Step {
                window_bytes: std::mem::take(&mut self.pending_window),
                ..Step::new(id, Parts::WINDOW)
            };
            return Some(OutgoingStep {
                step,
                metadata: Vec::new(),
                message: None,
            });
        }
        let mut parts = Parts::NONE;
        let mut metadata = Vec::new();
        if self.begun_at.is_none() {
            parts = parts | Parts::BEGIN;
            metadata = self.plan.metadata();
        }
        let alone = self.shape == StepShape::Apart && self.begun_at.is_none();
        let mut message = None;
        if !alone && self.sent < self.plan.requests && (!self.kind.client_streaming || self.credit > 0) {
            parts = parts | Parts::MESSAGE;
            let seed = self.plan.seed(Way::Request, self.sent);
            message = Some((seed, self.plan.payload(seed)));
        }
        let sent = self.sent + u16::from(message.is_some());
        let last = sent == self.plan.requests && !self.end_sent;
        if last && !alone && (self.shape == StepShape::Joined || message.is_none()) {
            parts = parts | Parts::END;
        }
        if parts == Parts::NONE {
            return None;
        }
        self.begun_at.get_or_insert(now);
        self.sent = sent;
        self.end_sent |= parts.contains(Parts::END);
        let mut step = Step {
            method: self.method,
            deadline: self.deadline,
            ..Step::new(id, parts)
        };
        if let Some((_, payload)) = &message
            && self.kind.client_streaming
        {
            step.window_bytes = crate::outcome::app_cost(payload);
            self.credit -= i64::from(step.window_bytes);
        }
        if !parts.contains(Parts::BEGIN) {
            (step.method, step.deadline) = (0, 0);
        }
        Some(OutgoingStep {
            step,
            metadata,
            message,
        })
    }

    /// How long it waited for others; 0 unless it is small and nothing befell its connection.
    fn waited_ns(&self, fate: CallFate, now: Nanos) -> Nanos {
        let is_small =
            !self.kind.client_streaming && !self.kind.server_streaming && self.plan.size == SMALL_SIZE;
        let is_undisturbed = (fate.memory, fate.course) == (Memory::Ample, ConnectionCourse::Fair);
        match self.begun_at {
            Some(begun_at) if is_small && is_undisturbed && self.plan.answer == Answer::Full => {
                now.saturating_sub(begun_at + u64::from(self.plan.think_us) * 1_000)
            }
            _ => 0,
        }
    }

    fn receive(&mut self, got: &ReceivedStep, fate: CallFate, now: Nanos) -> Result<(), String> {
        if got.parts.contains(Parts::WINDOW) {
            self.credit += i64::from(got.window_bytes);
            return if self.credit > i64::from(STREAM_WINDOW_BYTES) {
                Err(format!("its window grew to {} bytes", self.credit))
            } else {
                Ok(())
            };
        }
        if let Some(message) = &got.message {
            let seed = self.plan.seed(Way::Response, self.got);
            if self.got >= self.plan.responses {
                return Err("a response too many".to_owned());
            }
            if (message.0, &message.1) != (seed, &self.plan.payload(seed)) {
                return Err(format!("response {} is not what was sent", self.got));
            }
            self.got += 1;
            self.pending_window += got.window_bytes;
        }
        if got.parts.contains(Parts::STATUS) {
            return self.check_status(got.status);
        }
        if got.parts.contains(Parts::CANCEL) {
            return self.check_cancel(got, fate, now);
        }
        Ok(())
    }

    fn check_status(&self, status: Code) -> Result<(), String> {
        if status.number() != u32::from(self.plan.status) {
            return Err(format!("ended with {status}, planned was {}", self.plan.status));
        }
        if self.plan.answer == Answer::Full && self.got == self.plan.responses {
            Ok(())
        } else {
            Err(format!("ended after {} responses of {:?}", self.got, self.plan))
        }
    }

    fn check_cancel(&self, got: &ReceivedStep, fate: CallFate, now: Nanos) -> Result<(), String> {
        let allowed = match got.status {
            Code::DeadlineExceeded => self.deadline != 0 && now >= self.deadline,
            Code::Aborted => self.plan.answer == Answer::Reset,
            Code::PermissionDenied => self.plan.answer == Answer::Denied,
            Code::ResourceExhausted => fate.memory == Memory::Tight,
            Code::Unavailable => fate.course == ConnectionCourse::Troubled,
            _ => false,
        };
        if allowed {
            Ok(())
        } else {
            Err(format!(
                "cancelled with {} ({}) for no reason",
                got.status,
                got.status_message()
            ))
        }
    }
}
