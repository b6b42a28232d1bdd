//! A simulated server app: it does what each call's plan says, and checks that requests are what they must be.

use std::collections::{BTreeMap, BTreeSet};

use provost_datapath::{Nanos, Step};
use provost_session::handshake::MethodKind;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_WINDOW_BYTES;
use provost_wire::metadata;

use crate::client::SMALL_CALL_NS_MAX;
use crate::outcome::{CallFate, ConnectionCourse, OutgoingStep, ReceivedStep};
use crate::plan::{Answer, Plan, Way};
use crate::sabotage::Sabotage;

/// How long a call waits that is starved on purpose, in simulated nanoseconds.
const STARVED_NS: Nanos = 2 * SMALL_CALL_NS_MAX;
/// Bytes of messages that it has read before it gives them back to a stream's window.
const WINDOW_BATCH_BYTES: u32 = 100_000;

/// One connection of a server.
pub(crate) struct Server {
    kinds: Vec<MethodKind>,
    sabotage: Option<Sabotage>,
    calls: BTreeMap<u64, ServerCall>,
    begun: BTreeSet<u64>,
    /// Calls that ended as the peer said: nothing may come of them any more.
    over: Vec<u64>,
}

struct ServerCall {
    plan: Plan,
    kind: MethodKind,
    got: u16,
    ended: bool,
    sent: u16,
    headers_sent: bool,
    credit: i64,
    pending_window: u32,
    answer_at: Nanos,
}

impl Server {
    pub(crate) fn new(kinds: Vec<MethodKind>, sabotage: Option<Sabotage>) -> Server {
        Server {
            kinds,
            sabotage,
            calls: BTreeMap::new(),
            begun: BTreeSet::new(),
            over: Vec::new(),
        }
    }

    pub(crate) fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// When it wants to do something next.
    pub(crate) fn wake_at(&self, now: Nanos) -> Option<Nanos> {
        self.calls
            .values()
            .map(|call| call.answer_at)
            .filter(|at| *at > now)
            .min()
    }

    /// What it wants to send next, if anything.
    pub(crate) fn next_step(&mut self, now: Nanos) -> Option<OutgoingStep> {
        let (id, out) = self
            .calls
            .iter_mut()
            .find_map(|(id, call)| Some((*id, call.next_step(*id, now)?)))?;
        if out.step.parts.intersects(Parts::STATUS | Parts::CANCEL) {
            self.calls.remove(&id);
        }
        Some(out)
    }

    /// Takes a step that came, and says what is wrong with it.
    pub(crate) fn receive(&mut self, got: &ReceivedStep, fate: CallFate, now: Nanos) -> Result<(), String> {
        let checked = self.take(got, now);
        match fate.course {
            ConnectionCourse::Damaged => Ok(()),
            _ => checked.map_err(|what| format!("server's call {}: {what}", got.call)),
        }
    }

    fn take(&mut self, got: &ReceivedStep, now: Nanos) -> Result<(), String> {
        if self.over.contains(&got.call) {
            return Err(format!("a {:?} after its end", got.parts));
        }
        if got.parts.contains(Parts::BEGIN) {
            self.begin(got, now)?;
        }
        let Some(call) = self.calls.get_mut(&got.call) else {
            // Answered before all of it had come.
            return if self.begun.contains(&got.call) {
                Ok(())
            } else {
                Err("it never began".to_owned())
            };
        };
        if got.parts.contains(Parts::CANCEL) {
            self.calls.remove(&got.call);
            self.over.push(got.call);
            return Ok(());
        }
        call.receive(got)
    }

    fn begin(&mut self, got: &ReceivedStep, now: Nanos) -> Result<(), String> {
        if !self.begun.insert(got.call) {
            return Err("it began before".to_owned());
        }
        let plan = Plan::from_metadata(&got.metadata)
            .ok_or_else(|| format!("its plan is damaged {:?} {:?}", got.parts, got.metadata))?;
        let kind = *self
            .kinds
            .get(usize::from(got.method))
            .ok_or("its method does not exist")?;
        let is_starved = self.sabotage == Some(Sabotage::Starvation) && plan.nonce.is_multiple_of(4);
        let waits_ns = u64::from(plan.think_us) * 1_000 + if is_starved { STARVED_NS } else { 0 };
        self.calls.insert(
            got.call,
            ServerCall {
                plan,
                kind,
                got: 0,
                ended: false,
                sent: 0,
                headers_sent: plan.nonce % 3 != 0,
                credit: i64::from(STREAM_WINDOW_BYTES),
                pending_window: 0,
                answer_at: now + waits_ns,
            },
        );
        Ok(())
    }

    /// What is open now, for people.
    pub(crate) fn describe(&self) -> String {
        let describe = |(id, call): (&u64, &ServerCall)| {
            format!(
                "call {id} got {} sent {} of {:?}, credit {}",
                call.got, call.sent, call.plan, call.credit
            )
        };
        self.calls.iter().map(describe).collect::<Vec<_>>().join("; ")
    }
}

impl ServerCall {
    fn receive(&mut self, got: &ReceivedStep) -> Result<(), String> {
        self.credit += i64::from(if got.parts.contains(Parts::WINDOW) {
            got.window_bytes
        } else {
            0
        });
        if self.credit > i64::from(STREAM_WINDOW_BYTES) {
            return Err(format!("its window grew to {} bytes", self.credit));
        }
        if let Some(message) = &got.message {
            let seed = self.plan.seed(Way::Request, self.got);
            if (message.0, &message.1) != (seed, &self.plan.payload(seed)) {
                return Err(format!("request {} is not what was sent", self.got));
            }
            self.got += 1;
            self.pending_window += got.window_bytes;
        }
        if got.parts.contains(Parts::END) {
            self.ended = true;
            if self.got != self.plan.requests {
                return Err(format!("{} requests of {}", self.got, self.plan.requests));
            }
        }
        Ok(())
    }

    fn next_step(&mut self, id: u64, now: Nanos) -> Option<OutgoingStep> {
        if self.pending_window >= WINDOW_BATCH_BYTES && !self.ended {
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
        if matches!(self.plan.answer, Answer::Never | Answer::Denied) || now < self.answer_at {
            return None;
        }
        if self.plan.answer == Answer::Reset {
            let step = Step {
                status: Code::Aborted,
                ..Step::new(id, Parts::CANCEL)
            };
            return Some(OutgoingStep {
                step,
                metadata: Vec::new(),
                message: None,
            });
        }
        if !self.headers_sent {
            self.headers_sent = true;
            let mut block = Vec::new();
            metadata::append(&mut block, "x-served-by", b"sim").ok()?;
            return Some(OutgoingStep {
                step: Step::new(id, Parts::HEADERS),
                metadata: block,
                message: None,
            });
        }
        // Some servers answer a stream before they have read all of it; those of both ways answer as they read.
        let early = self.plan.nonce.is_multiple_of(17);
        let both = self.kind.client_streaming && self.kind.server_streaming;
        if !(self.ended || early || both && self.sent < self.got) {
            return None;
        }
        self.answer(id, self.ended || early)
    }

    fn answer(&mut self, id: u64, may_end: bool) -> Option<OutgoingStep> {
        let mut parts = Parts::NONE;
        let mut message = None;
        if self.sent < self.plan.responses && (!self.kind.server_streaming || self.credit > 0) {
            parts = parts | Parts::MESSAGE;
            let seed = self.plan.seed(Way::Response, self.sent);
            message = Some((seed, self.plan.payload(seed)));
            self.sent += 1;
        }
        let joined = self.plan.nonce.is_multiple_of(2);
        if may_end && self.sent == self.plan.responses && (joined || message.is_none()) {
            parts = parts | Parts::STATUS;
        }
        if parts == Parts::NONE {
            return None;
        }
        let mut step = Step {
            status: Code::from_number(u32::from(self.plan.status)),
            ..Step::new(id, parts)
        };
        if !parts.contains(Parts::STATUS) {
            step.status = Code::Ok;
        }
        let mut block = Vec::new();
        if parts.contains(Parts::STATUS) && self.plan.status != 0 {
            metadata::append(&mut block, metadata::STATUS_MESSAGE, b"as planned").ok()?;
        }
        if let Some((_, payload)) = &message
            && self.kind.server_streaming
        {
            step.window_bytes = crate::outcome::app_cost(payload);
            self.credit -= i64::from(step.window_bytes);
        }
        Some(OutgoingStep {
            step,
            metadata: block,
            message,
        })
    }
}
