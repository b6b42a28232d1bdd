//! A connection: what its app sends, what its app gets, and how it ends.

mod saved;

use std::collections::VecDeque;

use provost_datapath::{Body, Context, MissingMethods, Nanos, Step};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::frame::frame_kind;
use provost_wire::limits::{CALLS_IN_FLIGHT_MAX, MESSAGE_BYTES_MAX, STREAM_MESSAGE_COST_BYTES};

use crate::Role;
use crate::calls::{BodyTarget, OpenCalls};
use crate::handshake::{Agreement, Encoding, Limits, MethodKind, REASON_BYTES_MAX};
use crate::legal::streams;
use crate::receive::{FrameParser, ListeningClock};
use crate::send::{OutBody, Piece, SendHalf, SocketBacklog};

/// How many windows' worth of streamed messages one call may have waiting here. An app that heeds the window has one
/// at most in its own count; the rest allows for an encoding in which its messages are longer.
const WINDOWS_WAITING_MAX: u64 = 4;

/// What a connection is.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which end this is.
    pub role: Role,
    /// What the handshake agreed on.
    pub agreement: Agreement,
    /// What this end said in the handshake that it is ready to receive.
    pub limits: Limits,
    /// After how long without a byte from the peer it is asked whether it is there, in nanoseconds; 0 for never.
    pub keepalive_interval_ns: u64,
    /// How long it may take to answer, in nanoseconds.
    pub keepalive_timeout_ns: u64,
}

/// One end of a connection, past its handshake.
#[derive(Debug)]
pub struct Connection {
    pub(crate) role: Role,
    pub(crate) encoding: Encoding,
    pub(crate) methods: Vec<Option<(u16, MethodKind)>>,
    pub(crate) missing: MissingMethods,
    pub(crate) limits: Limits,
    pub(crate) peer_limits: Limits,
    pub(crate) calls: OpenCalls,
    pub(crate) outgoing: SendHalf,
    pub(crate) parser: FrameParser,
    pub(crate) inbox: VecDeque<Step>,
    pub(crate) draining: bool,
    pub(crate) peer_drains: bool,
    ending: Option<EndingConnection>,
    ended: Vec<u32>,
    keepalive: KeepaliveTimer,
    pub(crate) listening: ListeningClock,
}

/// A connection that is over; its calls are ended one after the other, as the app takes it in.
#[derive(Debug)]
struct EndingConnection {
    code: Code,
    reason: String,
    next_slot: u32,
}

#[derive(Debug)]
struct KeepaliveTimer {
    interval_ns: u64,
    timeout_ns: u64,
    heard_at: Nanos,
    asked_at: Option<Nanos>,
}

impl Connection {
    /// A connection whose handshake is done.
    #[must_use]
    pub fn new(config: Config, now: Nanos) -> Connection {
        let in_bounds = |limits: Limits| Limits {
            message_bytes_max: limits.message_bytes_max.min(MESSAGE_BYTES_MAX),
            calls_in_flight_max: limits.calls_in_flight_max.min(CALLS_IN_FLIGHT_MAX as u32),
            ..limits
        };
        Connection {
            role: config.role,
            encoding: config.agreement.encoding,
            methods: config.agreement.methods,
            missing: config.agreement.missing,
            limits: in_bounds(config.limits),
            peer_limits: in_bounds(config.agreement.peer_limits),
            calls: OpenCalls::new(),
            outgoing: SendHalf::new(config.role),
            parser: FrameParser::new(),
            inbox: VecDeque::new(),
            draining: false,
            peer_drains: false,
            ending: None,
            ended: Vec::new(),
            keepalive: KeepaliveTimer {
                interval_ns: config.keepalive_interval_ns,
                timeout_ns: config.keepalive_timeout_ns,
                heard_at: now,
                asked_at: None,
            },
            listening: ListeningClock::default(),
        }
    }

    /// Whether the app's next step may be given to [`Connection::send`]. While not, it waits in its queue.
    #[must_use]
    pub fn accepts_steps(&self) -> bool {
        self.outgoing.has_room()
    }

    /// Takes a step of the app. A step that makes no sense ends its call on both sides.
    pub fn send(&mut self, step: Step, context: &mut Context<'_>) {
        if let Some(ending) = &self.ending {
            let (code, reason) = (ending.code, ending.reason.clone());
            return self.decline(step, self.end_code(code), &reason, context);
        }
        let slot = if step.parts.contains(Parts::BEGIN) && self.role == Role::Client {
            match self.admit(&step) {
                Ok(slot) => slot,
                Err((code, reason)) => return self.decline(step, code, reason, context),
            }
        } else {
            // The call has ended meanwhile: the app will learn of it, or has.
            match self.calls.find(step.call) {
                Some(slot) => slot,
                None => return step.body.discard(context),
            }
        };
        self.send_in(slot, step, context);
    }

    /// Makes a call of the app's, if it may begin now.
    fn admit(&mut self, step: &Step) -> Result<u32, (Code, &'static str)> {
        if self.draining || self.peer_drains {
            return Err((
                Code::Unavailable,
                "the connection takes no new calls: an end is shutting down",
            ));
        }
        if let Some(slot) = self.calls.find(step.call) {
            // The step's flow shows that the call has begun before.
            return Ok(slot);
        }
        let Some(Some((_, kind))) = self.methods.get(usize::from(step.method)).copied() else {
            return Err((Code::Unimplemented, "the service has no such method"));
        };
        if self.calls.len() >= self.peer_limits.calls_in_flight_max as usize {
            return Err((
                Code::ResourceExhausted,
                "too many calls in flight on this connection",
            ));
        }
        let (send, receive) = self.windows();
        Ok(self.calls.insert_own(step.call, kind, send, receive))
    }

    /// The windows that a call begins with: what this end may send, what it is ready to receive.
    pub(crate) fn windows(&self) -> (i64, i64) {
        (
            i64::from(self.peer_limits.stream_window_bytes),
            i64::from(self.limits.stream_window_bytes),
        )
    }

    fn send_in(&mut self, slot: u32, mut step: Step, context: &mut Context<'_>) {
        if let Body::Encoded(body) = &mut step.body
            && !self.peer_limits.takes_compressed()
            && let Err(fault) = body.make_plain(context.buffers)
        {
            step.body.discard(context);
            return self.break_call(slot, fault.code(), &fault.to_string(), context);
        }
        let body = match OutBody::new(std::mem::take(&mut step.body), step.parts, context) {
            Ok(body) => body,
            Err(reason) => return self.break_call(slot, Code::Internal, reason, context),
        };
        let Some(call) = self.calls.get_mut(slot) else {
            return body.release(context);
        };
        if let Err(reason) = call
            .sent
            .check(self.role, call.kind, step.parts, body.metadata_bytes())
        {
            body.release(context);
            return self.break_call(slot, Code::Internal, reason, context);
        }
        if step.parts.contains(Parts::CANCEL) {
            return self.send_cancel(slot, step.status, body, context);
        }
        if step.parts.contains(Parts::WINDOW) {
            body.release(context);
            return self.give_window(slot, step.window_bytes);
        }
        if let Err((code, reason)) = self.check_message(slot, step.parts, &body) {
            body.release(context);
            return self.break_call(slot, code, reason, context);
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return body.release(context);
        };
        self.outgoing.push(slot, call, &step, body);
        if self.role == Role::Server && step.parts.contains(Parts::STATUS) {
            // Whatever the client still sends of this call, nobody reads.
            self.drop_partial(slot, context);
        }
    }

    fn check_message(&self, slot: u32, parts: Parts, body: &OutBody) -> Result<(), (Code, &'static str)> {
        let bytes = body.message_bytes();
        if !parts.contains(Parts::MESSAGE) {
            return Ok(());
        }
        if bytes == 0 && self.encoding == Encoding::Native {
            return Err((Code::Internal, "a native message of no bytes"));
        }
        if bytes > self.peer_limits.message_bytes_max {
            return Err((
                Code::ResourceExhausted,
                "the message is larger than the peer takes",
            ));
        }
        let Some(call) = self.calls.get(slot) else {
            return Ok(());
        };
        let waiting = call.pending.cost_bytes;
        let would_wait = streams(self.role, call.kind)
            && call.send_window.available <= i64::try_from(waiting).unwrap_or(i64::MAX);
        let too_long = waiting > WINDOWS_WAITING_MAX * u64::from(self.peer_limits.stream_window_bytes);
        if too_long || would_wait && self.outgoing.holds_enough() {
            return Err((Code::ResourceExhausted, "the stream's window was not heeded"));
        }
        Ok(())
    }

    fn send_cancel(&mut self, slot: u32, status: Code, body: OutBody, context: &mut Context<'_>) {
        let known_to_peer = |call: &crate::calls::OpenCall| self.role == Role::Server || call.pending.begun;
        match self.calls.get(slot).filter(|call| known_to_peer(call)) {
            Some(call) => self.outgoing.cancel(call.wire, status, body),
            None => body.release(context),
        }
        self.drop_call(slot, context);
    }

    fn give_window(&mut self, slot: u32, bytes: u32) {
        let window = i64::from(self.limits.stream_window_bytes);
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if !streams(self.role.peer(), call.kind) || call.received.is_done() {
            return;
        }
        // What was never taken cannot be given back.
        let bytes = i64::from(bytes).min(window - call.receive_window);
        call.receive_window += bytes;
        call.window_due = call.window_due.saturating_add(u32::try_from(bytes).unwrap_or(0));
        // A sender that waits has a whole window outstanding, so to wait for a quarter cannot block it for ever.
        if i64::from(call.window_due) * 4 >= window {
            self.outgoing.window(slot, call);
        }
    }

    /// Ends a call on both sides.
    pub(crate) fn break_call(&mut self, slot: u32, code: Code, reason: &str, context: &mut Context<'_>) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let (id, wire) = (call.id, call.wire);
        let tell_app = call.announced && !(self.role == Role::Server && self.status_is_on_its_way(slot));
        if self.role == Role::Server || call.pending.begun {
            self.refuse(wire, code, reason, context);
        }
        if tell_app {
            self.inbox
                .push_back(Step::cancel_because(id, code, reason, context.buffers));
        }
        self.drop_call(slot, context);
    }

    /// Tells the peer that a call of its has ended.
    pub(crate) fn refuse(&mut self, wire: u64, code: Code, reason: &str, context: &mut Context<'_>) {
        let step = Step::cancel_because(0, code, reason, context.buffers);
        match OutBody::new(step.body, Parts::CANCEL, context) {
            Ok(body) => self.outgoing.cancel(wire, code, body),
            Err(_) => self.outgoing.cancel(wire, code, OutBody::default()),
        }
    }

    /// Refuses a step of the app's; only one that begins a call needs an answer.
    fn decline(&mut self, step: Step, code: Code, reason: &str, context: &mut Context<'_>) {
        if step.parts.contains(Parts::BEGIN) {
            self.inbox
                .push_back(Step::cancel_because(step.call, code, reason, context.buffers));
        }
        step.body.discard(context);
    }

    /// Whether the app has given a call's status, so that the call is over as far as it is concerned.
    pub(crate) fn status_is_on_its_way(&self, slot: u32) -> bool {
        self.calls.get(slot).is_some_and(|call| call.sent.is_done())
    }

    /// Forgets a call and all that belongs to it.
    pub(crate) fn drop_call(&mut self, slot: u32, context: &mut Context<'_>) {
        self.drop_partial(slot, context);
        if let Some(call) = self.calls.get_mut(slot) {
            self.outgoing.forget(call, context);
            self.calls.remove(slot);
            self.outgoing.sweep(&mut self.calls);
        }
    }

    /// Forgets a step that has not come in whole; the rest of it is skipped.
    pub(crate) fn drop_partial(&mut self, slot: u32, context: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let wire = call.wire;
        if let Some(mut partial) = call.partial.take() {
            self.parser.end_partial(&mut partial);
            match partial.into {
                BodyTarget::Nowhere => {}
                BodyTarget::Block(block) => context.receive.free(block),
                BodyTarget::Private(buffer) => context.buffers.give(buffer),
            }
        }
        self.parser.skip_body_of(slot, wire);
    }

    /// The next step for the app, if there is one.
    pub fn poll_step(&mut self, context: &mut Context<'_>) -> Option<Step> {
        match self.inbox.pop_front() {
            Some(step) => Some(step),
            None => self.end_next_call(context),
        }
    }

    fn end_next_call(&mut self, context: &mut Context<'_>) -> Option<Step> {
        let mut ending = self.ending.take()?;
        let mut step = None;
        while step.is_none() && ending.next_slot < self.calls.slots() {
            let slot = ending.next_slot;
            ending.next_slot += 1;
            let Some(call) = self.calls.get(slot) else {
                continue;
            };
            let over = self.role == Role::Server && call.sent.is_done();
            if call.announced && !over {
                step = Some(Step::cancel_because(
                    call.id,
                    self.end_code(ending.code),
                    &ending.reason,
                    context.buffers,
                ));
            }
            self.drop_call(slot, context);
        }
        self.ending = Some(ending);
        step
    }

    /// What an end of the connection means for a call: a client's failed, a server's handler is to stop.
    fn end_code(&self, code: Code) -> Code {
        match (self.role, code) {
            (Role::Server, _) => Code::Cancelled,
            (Role::Client, Code::Ok) => Code::Unavailable,
            (Role::Client, code) => code,
        }
    }

    /// Ends the connection: nothing more is sent or received, [`Connection::poll_step`] ends the open calls.
    pub fn end(&mut self, code: Code, reason: &str, context: &mut Context<'_>) {
        if self.ending.is_none() {
            self.abandon_output(context);
            self.ending = Some(EndingConnection {
                code,
                reason: reason.to_owned(),
                next_slot: 0,
            });
        }
    }

    /// Forgets all that is to be sent, as the wire takes nothing any more: so it keeps nothing that has come from being read.
    pub fn abandon_output(&mut self, context: &mut Context<'_>) {
        // No call waits for its turn any more, as a successor would expect of one that does.
        for slot in 0..self.calls.slots() {
            if let Some(call) = self.calls.get_mut(slot) {
                self.outgoing.forget(call, context);
            }
        }
        self.outgoing.abandon(context);
    }

    /// As [`Connection::end`], but the peer is told why, if its socket takes it.
    pub fn end_with_notice(&mut self, code: Code, reason: &str, context: &mut Context<'_>) {
        if self.ending.is_none() {
            let between_frames = self.outgoing.is_between_frames();
            self.end(code, reason, context);
            if !between_frames {
                return;
            }
            let text = reason.bytes().take(REASON_BYTES_MAX).collect();
            self.outgoing.plain(frame_kind::GO_AWAY, code, text);
        }
    }

    /// Whether [`Connection::end`] was called and the app knows all that it must.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ending.is_some() && self.calls.len() == 0 && self.inbox.is_empty()
    }

    /// Whether [`Connection::end`] was called.
    pub(crate) fn has_ended(&self) -> bool {
        self.ending.is_some()
    }

    /// Begins no new call, on either side, and tells the peer so. Those in flight go on.
    pub fn drain(&mut self) {
        if !self.draining && self.ending.is_none() {
            self.draining = true;
            self.outgoing.plain(frame_kind::GO_AWAY, Code::Ok, Vec::new());
        }
    }

    /// Whether the peer wants no new calls.
    #[must_use]
    pub fn peer_drains(&self) -> bool {
        self.peer_drains
    }

    /// Whether an end drains and the last call is done: the connection can be closed without loss.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        (self.draining || self.peer_drains) && self.is_at_rest()
    }

    /// Whether no call is in flight and nothing waits in either direction.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.calls.len() == 0 && self.outgoing.is_empty() && self.inbox.is_empty()
    }

    /// Calls in flight.
    #[must_use]
    pub fn calls_in_flight(&self) -> usize {
        self.calls.len()
    }

    /// Whether steps wait for [`Connection::poll_step`].
    #[must_use]
    pub fn has_steps(&self) -> bool {
        !self.inbox.is_empty() || (self.ending.is_some() && self.calls.len() > 0)
    }

    /// Whether more should be read. While not, what comes waits in the socket, which in the end stops the peer.
    #[must_use]
    pub fn accepts_input(&self) -> bool {
        self.inbox.is_empty() && self.outgoing.control_has_room() && self.ending.is_none()
    }

    /// Prepares the next bytes for the socket, unless some are waiting already. See [`Connection::pieces`].
    pub fn fill(&mut self, context: &mut Context<'_>) {
        let mut ended = std::mem::take(&mut self.ended);
        self.outgoing.fill(&mut self.calls, context, &mut ended);
        for slot in ended.drain(..) {
            self.drop_call(slot, context);
        }
        self.ended = ended;
    }

    /// As [`Connection::fill`], but adds round after round while less than this waits: fewer and longer writes, in
    /// which a small step may stand behind several chunks of large ones.
    pub fn fill_several(&mut self, context: &mut Context<'_>, waiting: SocketBacklog) {
        let mut ended = std::mem::take(&mut self.ended);
        self.outgoing
            .fill_several(&mut self.calls, context, &mut ended, waiting);
        for slot in ended.drain(..) {
            self.drop_call(slot, context);
        }
        self.ended = ended;
    }

    /// Bytes of the frames in front of the socket, where others will follow them at once.
    #[must_use]
    pub fn followed_bytes(&self) -> Option<usize> {
        let is_followed = self.outgoing.has_frames();
        is_followed.then(|| self.outgoing.waiting_frame_bytes())
    }

    /// The memory to be sent next, in order. After some of it was sent, call [`Connection::advance`].
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.outgoing.pieces()
    }

    /// Counts bytes that were sent.
    pub fn advance(&mut self, bytes: usize, context: &mut Context<'_>) {
        self.outgoing.advance(bytes, context);
    }

    /// Whether something waits to be sent that could be sent now.
    #[must_use]
    pub fn wants_output(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Bytes of messages that could be sent now, of which not all is in frames yet.
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.outgoing.waiting_body_bytes()
    }

    /// Notes that the peer was heard, or that this end is not listening.
    pub fn peer_seen(&mut self, now: Nanos) {
        self.keepalive.heard_at = now;
        self.keepalive.asked_at = None;
    }

    /// Does what is due at this time; says if the peer must be taken for gone.
    pub fn tick(&mut self, now: Nanos) -> Result<(), PeerSilent> {
        if self.keepalive.interval_ns == 0 || self.ending.is_some() || now < self.due_at() {
            return Ok(());
        }
        if self.keepalive.asked_at.is_some() {
            return Err(PeerSilent {
                silent_ns: now.saturating_sub(self.keepalive.heard_at),
            });
        }
        self.keepalive.asked_at = Some(now);
        self.outgoing.plain(frame_kind::PING, Code::Ok, Vec::new());
        Ok(())
    }

    /// When [`Connection::tick`] or [`Connection::expire_arrivals`] has something to do, if ever.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        if self.ending.is_some() {
            return None;
        }
        let due_at = (self.keepalive.interval_ns != 0).then(|| self.due_at());
        [due_at, self.arrivals_wake_at()].into_iter().flatten().min()
    }

    /// Whether that time has come.
    #[must_use]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.wake_at().is_some_and(|at| at <= now)
    }

    fn due_at(&self) -> Nanos {
        match self.keepalive.asked_at {
            Some(asked_at) => asked_at.saturating_add(self.keepalive.timeout_ns),
            None => self.keepalive.heard_at.saturating_add(self.keepalive.interval_ns),
        }
    }

    /// What a message costs of its stream's window.
    pub(crate) fn window_cost(message_bytes: u32) -> u32 {
        message_bytes.saturating_add(STREAM_MESSAGE_COST_BYTES)
    }
}

/// The peer did not answer when it was asked whether it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has been silent for {} ms and does not answer", silent_ns / 1_000_000)]
pub struct PeerSilent {
    /// Since when, in nanoseconds.
    pub silent_ns: u64,
}
