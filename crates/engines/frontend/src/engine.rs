//! The engine: what an app claims becomes a checked private copy, what a peer sent becomes the app's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use provost_datapath::{
    Body, BodyForm, ConnectionSignals, Context, Engine, Nanos, Offsets, Ports, PrivateBytes, Progress, Queue,
    ReceivedBody, RestoreError, Restorer, SavedState, Saver, Step,
};
use provost_marshal::{GatherError, MessageError, Tables};
use provost_schema::{MessageId, Service};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::{CALLS_IN_FLIGHT_MAX, STREAM_MESSAGE_COST_BYTES, STREAM_WINDOW_BYTES};
use provost_wire::metadata;

use crate::SendHeap;
use crate::calls::{FrontendCall, FrontendCalls};
use crate::legal::{self, StepViolation};
use crate::saved::{FrontendState, SavedCopy};

/// [`Engine::kind`] of this engine.
pub const KIND: &str = "frontend";

/// Steps that one poll moves in each direction, at most.
const BATCH_STEPS: usize = 64;
/// Steps that wait in the engine while its output is full, at most; past it the app's ring is not read any more.
pub(crate) const WAITING_STEPS_MAX: usize = 2 * CALLS_IN_FLIGHT_MAX;
/// Failures of calls that wait for room towards the app, at most; past it no step is taken that could fail.
pub(crate) const FAILED_STEPS_MAX: usize = 64;
/// Cancellations that wait for the wire before a server's frontend takes no more of what the peer sends: it could begin
/// calls for ever that are refused, and not read the refusals. (A client's frontend reads on, so that two nodes never wait
/// for each other; what it cancels are its app's calls.)
pub(crate) const PENDING_STEPS_MAX: usize = 64;
/// What a peer may add to a stream's window at most, so that sums stay in range.
pub(crate) const SEND_WINDOW_MAX: i64 = 1 << 40;

/// Which side of its calls the app is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppRole {
    Client,
    Server,
}

/// What the engine needs of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodShape {
    pub input: MessageId,
    pub output: MessageId,
    /// Whether the client sends any number of messages.
    pub client_streaming: bool,
    /// Whether the server sends any number of messages.
    pub server_streaming: bool,
}

impl MethodShape {
    /// The methods of a service, in its order.
    #[must_use]
    pub fn of_service(service: &Service) -> Arc<[MethodShape]> {
        let shape = |method: &provost_schema::Method| MethodShape {
            input: method.input,
            output: method.output,
            client_streaming: method.client_streaming,
            server_streaming: method.server_streaming,
        };
        service.methods.iter().map(shape).collect()
    }
}

/// How many calls a server's app takes at once, over all its connections.
#[derive(Debug)]
pub struct CallQuota {
    in_flight: AtomicU32,
    max: u32,
}

impl CallQuota {
    /// A quota of so many calls.
    #[must_use]
    pub fn new(max: u32) -> CallQuota {
        CallQuota {
            in_flight: AtomicU32::new(0),
            max,
        }
    }

    /// How many calls may be in flight.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Calls in flight now.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn take(&self) -> bool {
        let taken = self.in_flight.fetch_add(1, Ordering::Relaxed);
        if taken >= self.max {
            self.give_back(1);
        }
        taken < self.max
    }

    fn give_back(&self, count: u32) {
        self.in_flight.fetch_sub(count, Ordering::Relaxed);
    }
}

/// What a [`Frontend`] is made of.
pub struct FrontendParts {
    /// Which side the app is on.
    pub role: AppRole,
    /// In which form the app's port takes messages, and gives them where they are no claims.
    pub form: BodyForm,
    /// Tables of the app's own schema of the service.
    pub tables: Arc<Tables>,
    /// Methods of the service in that schema.
    pub methods: Arc<[MethodShape]>,
    /// The app's send heap.
    pub send_heap: SendHeap,
    /// Largest message that the app may send on this connection, in bytes.
    pub message_bytes_max: u32,
    /// Calls in flight on this connection.
    pub calls_max: u32,
    /// The server app's bound over all connections.
    pub quota: Option<Arc<CallQuota>>,
    pub link: Arc<ConnectionSignals>,
}

/// The first engine of a datapath.
///
/// ```text
/// app ─► tx_in ─ admit ─► waiting ─ gather ─► tx_out      admit: is it a step that the app may take now?
/// app ◄─ rx_out ◄──────── deliver ◄───────── rx_in        deliver: is it a step that the peer may take now?
/// ```
///
/// A step that its call does not allow fails the call: the app gets a `CANCEL` with a status and its reason, the peer
/// a `CANCEL`. The engine keeps deadlines, too.
pub struct Frontend {
    pub(crate) parts: FrontendParts,
    pub(crate) calls: FrontendCalls,
    /// The highest call that the app has begun (client).
    last_begun: u64,
    /// Steps of the app for which the output, or a share of memory or time, had no room yet.
    pub(crate) waiting: VecDeque<Step>,
    /// Cancellations for which the output had no room yet: at most [`PENDING_STEPS_MAX`], and one for each call that was open.
    pub(crate) pending: VecDeque<Step>,
    /// Ends of calls for which there was no room towards the app yet.
    pub(crate) failed: VecDeque<Step>,
    /// The private memory that messages of this connection take.
    pub(crate) share: Arc<PrivateBytes>,
    /// What is known of the first step that waits for a share: its message is longer than this, in bytes.
    pub(crate) front_longer_than: u32,
    /// When room for it is looked for again.
    pub(crate) retry_at: Option<Nanos>,
}

impl Frontend {
    /// A frontend of a new connection.
    #[must_use]
    pub fn new(parts: FrontendParts) -> Frontend {
        Frontend {
            share: PrivateBytes::of_connection(parts.send_heap.share()),
            front_longer_than: 0,
            retry_at: None,
            parts,
            calls: FrontendCalls::new(),
            last_begun: 0,
            waiting: VecDeque::new(),
            pending: VecDeque::new(),
            failed: VecDeque::new(),
        }
    }

    /// The frontend from the saved state of another version of it. It takes its share of the quota anew: in the same
    /// process its predecessor, or whichever of the two is dropped, gives its own back.
    pub fn restore(
        parts: FrontendParts,
        saved: &SavedState,
        restorer: &mut dyn Restorer,
    ) -> Result<Frontend, RestoreError> {
        let state = FrontendState::load(saved, restorer)?;
        let mut frontend = Frontend::new(parts);
        frontend.last_begun = state.last_begun;
        frontend.waiting = state.waiting.into();
        frontend.pending = state.pending.into();
        frontend.failed = state.failed.into();
        for call in state.calls {
            let known = usize::from(call.method) < frontend.parts.methods.len();
            if !known || frontend.calls.contains(call.call) {
                return Err(RestoreError::Damaged {
                    kind: KIND,
                    reason: format!("call {} is there twice or of no method", call.call),
                });
            }
            if let Some(quota) = &frontend.parts.quota {
                quota.in_flight.fetch_add(1, Ordering::Relaxed);
            }
            frontend.calls.insert(call);
        }
        Ok(frontend)
    }
}

impl Engine for Frontend {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn do_work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        let progress = self.work(ports, context);
        context.flow.calls = self.calls.len();
        progress
    }

    fn wake_at(&self) -> Option<Nanos> {
        let wanted = [self.calls.next_deadline(), self.retry_at];
        wanted.into_iter().flatten().min()
    }

    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        let saving = SavedCopy {
            last_begun: self.last_begun,
            calls: &self.calls,
            waiting: &self.waiting,
            pending: &self.pending,
            failed: &self.failed,
        };
        saving.save(saver)
    }
}

impl Frontend {
    fn work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        let mut directions = Directions {
            tx_in: ports.tx_in,
            tx_out: ports.tx_out,
            rx_out: ports.rx_out,
        };
        let pending = self.send_pending(&mut directions);
        let expired = self.expire(&mut directions, context);
        let inbound = self.inbound(ports.rx_in, &mut directions, context);
        if ports.rx_in.is_empty() && self.parts.link.delivered() {
            return self.end(&mut directions, context);
        }
        let outbound = self.outbound(&mut directions, context);
        if pending | expired | inbound | outbound {
            Progress::Busy
        } else {
            Progress::Idle
        }
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        if let Some(quota) = &self.parts.quota {
            quota.give_back(self.calls.len() as u32);
        }
    }
}

/// The engine's queues but the one that is read while the others are written.
pub(crate) struct Directions<'a> {
    tx_in: &'a mut Queue<Step>,
    pub(crate) tx_out: &'a mut Queue<Step>,
    rx_out: &'a mut Queue<Step>,
}

/// Why the service ends a call.
pub(crate) struct CallFailure {
    code: Code,
    reason: String,
}

impl CallFailure {
    pub(crate) fn new(code: Code, reason: impl Into<String>) -> CallFailure {
        let reason = reason.into();
        CallFailure { code, reason }
    }
}

impl From<StepViolation> for CallFailure {
    fn from(violation: StepViolation) -> CallFailure {
        CallFailure::new(Code::Internal, violation.to_string())
    }
}

impl From<GatherError> for CallFailure {
    fn from(error: GatherError) -> CallFailure {
        let code = match error {
            GatherError::Message(MessageError::TooLong { .. }) => Code::ResourceExhausted,
            GatherError::Message(MessageError::Nesting { .. } | MessageError::Utf8 { .. }) => {
                Code::InvalidArgument
            }
            _ => Code::Internal,
        };
        CallFailure::new(code, format!("the message was not sent: {error}"))
    }
}

// From the app to the wire.
impl Frontend {
    fn outbound(&mut self, directions: &mut Directions<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        let mut copying = self.begin_copying(context);
        for _ in 0..BATCH_STEPS {
            // Every step may fail its call, which the app must hear of.
            if !self.may_fail() || copying.is_over() {
                break;
            }
            let may_gather = self.pending.is_empty() && !directions.tx_out.is_full() && !copying.is_short();
            let step = if may_gather && let Some(step) = self.waiting.pop_front() {
                Some(step)
            } else if self.waiting.len() < WAITING_STEPS_MAX
                && let Some(step) = directions.tx_in.pop()
            {
                moved = true;
                self.admit(step, directions, context)
            } else {
                break;
            };
            match step {
                Some(step) if may_gather => moved |= self.gather(step, &mut copying, directions, context),
                Some(step) => self.waiting.push_back(step),
                None => {}
            }
        }
        self.end_copying(&copying, context) | moved
    }

    /// Opens and cancels calls, even while the wire is stuck. Steps that remain are to be gathered.
    fn admit(
        &mut self,
        step: Step,
        directions: &mut Directions<'_>,
        context: &mut Context<'_>,
    ) -> Option<Step> {
        if let Err(violation) = legal::check_app_parts(self.parts.role, step.parts) {
            return self.refuse(step, violation.into(), directions, context);
        }
        if step.parts.contains(Parts::BEGIN) {
            return self.admit_begin(step, directions, context);
        }
        if !self.calls.contains(step.call) {
            // A call that has ended may have steps under way; one that never was is the app's mistake.
            let never_was = self.parts.role == AppRole::Client && step.call > self.last_begun;
            return if never_was {
                self.refuse(step, StepViolation::NeverBegun.into(), directions, context)
            } else {
                return_token(&step.body, context);
                None
            };
        }
        if step.parts.contains(Parts::CANCEL) {
            return_token(&step.body, context);
            if self.remove(step.call).is_some_and(|call| call.on_wire) {
                self.send_to_wire(Step::cancel(step.call, step.status), directions);
            }
            return None;
        }
        Some(step)
    }

    fn admit_begin(
        &mut self,
        mut step: Step,
        directions: &mut Directions<'_>,
        context: &mut Context<'_>,
    ) -> Option<Step> {
        if step.call <= self.last_begun {
            return self.refuse(step, StepViolation::CallNumber.into(), directions, context);
        }
        self.last_begun = step.call;
        if usize::from(step.method) >= self.parts.methods.len() {
            let reason = format!("the service has no method number {}", step.method);
            return self.refuse(
                step,
                CallFailure::new(Code::Unimplemented, reason),
                directions,
                context,
            );
        }
        if self.calls.len() >= self.parts.calls_max as usize {
            let reason = format!(
                "as many calls are in flight on this connection as may be ({}): wait for one to end",
                self.parts.calls_max
            );
            return self.refuse(
                step,
                CallFailure::new(Code::ResourceExhausted, reason),
                directions,
                context,
            );
        }
        self.calls
            .insert(FrontendCall::new(step.call, step.method, step.deadline));
        if step.deadline != 0 && step.deadline <= context.now {
            return_token(&step.body, context);
            step.body = Body::Empty;
            self.fail(step.call, &deadline_passed(), directions, context);
            return None;
        }
        Some(step)
    }
}

// From the wire to the app.
impl Frontend {
    fn inbound(
        &mut self,
        rx_in: &mut Queue<Step>,
        directions: &mut Directions<'_>,
        context: &mut Context<'_>,
    ) -> bool {
        let mut moved = false;
        for _ in 0..BATCH_STEPS {
            if directions.rx_out.is_full() || !self.failed.is_empty() || self.answers_peer_no_more() {
                break;
            }
            let Some(step) = rx_in.pop() else {
                break;
            };
            self.deliver(step, directions, context);
            moved = true;
        }
        moved
    }

    /// Whether the peer is to read what the service refused before it sends more.
    fn answers_peer_no_more(&self) -> bool {
        self.parts.role == AppRole::Server && self.pending.len() >= PENDING_STEPS_MAX
    }

    /// Passes a step of the peer to the app. There is room in `rx_out`.
    fn deliver(&mut self, mut step: Step, directions: &mut Directions<'_>, context: &mut Context<'_>) {
        if step.parts.contains(Parts::BEGIN)
            && let Err(failure) = self.open(&step)
        {
            step.body.discard(context);
            self.send_to_wire(refusal(step.call, &failure, context), directions);
            return;
        }
        let Some(call) = self.calls.get_mut(step.call) else {
            // The call has ended here while the step was under way.
            step.body.discard(context);
            return;
        };
        step.method = call.method;
        let shape = self.parts.methods[usize::from(call.method)];
        let streaming = MessageDirection::of_peer(self.parts.role, shape).streaming;
        if let Err(violation) = make_deliverable(&mut step.body, self.parts.form, context) {
            self.fail(step.call, &violation.into(), directions, context);
            return;
        }
        let (role, form) = (self.parts.role, self.parts.form);
        if let Err(violation) = legal::check_peer_step(role, form, call, streaming, &step) {
            step.body.discard(context);
            self.fail(step.call, &violation.into(), directions, context);
            return;
        }
        count_peer_step(call, streaming, &mut step);
        if step.parts.intersects(Parts::STATUS | Parts::CANCEL) {
            self.remove(step.call);
        }
        let begin = begin_apart(&mut step, form, context);
        // The caller saw the room for one. The queue is a list: a second one costs no more than its place.
        if let Some(begin) = begin {
            let _ = directions.rx_out.push(begin);
            match step.parts {
                Parts::NONE => step.body.discard(context),
                _ => directions.rx_out.push_past_bound(step),
            }
        } else {
            let _ = directions.rx_out.push(step);
        }
    }

    /// Opens a call that the peer begins.
    fn open(&mut self, step: &Step) -> Result<(), CallFailure> {
        if self.parts.role == AppRole::Client || self.calls.contains(step.call) {
            return Err(StepViolation::CallNumber.into());
        }
        if usize::from(step.method) >= self.parts.methods.len() {
            return Err(CallFailure::new(
                Code::Unimplemented,
                "the service has no such method",
            ));
        }
        if self.calls.len() >= self.parts.calls_max as usize {
            return Err(CallFailure::new(
                Code::ResourceExhausted,
                "too many calls in flight on this connection",
            ));
        }
        if self.parts.quota.as_ref().is_some_and(|quota| !quota.take()) {
            let reason = "the server has as many calls in flight as it takes: try again later";
            return Err(CallFailure::new(Code::ResourceExhausted, reason));
        }
        let mut call = FrontendCall::new(step.call, step.method, step.deadline);
        call.on_wire = true;
        self.calls.insert(call);
        Ok(())
    }
}

// Ends of calls.
impl Frontend {
    fn expire(&mut self, directions: &mut Directions<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while self.may_fail()
            && let Some(call) = self.calls.expired(context.now)
        {
            self.fail(call, &deadline_passed(), directions, context);
            moved = true;
        }
        moved
    }

    /// The connection is gone: ends every call, those among them that only just begin.
    fn end(&mut self, directions: &mut Directions<'_>, context: &mut Context<'_>) -> Progress {
        let failure = match self.parts.link.ended() {
            Some(end) if end.code == Code::Ok => CallFailure::new(Code::Unavailable, end.reason.clone()),
            Some(end) => CallFailure::new(end.code, end.reason.clone()),
            None => CallFailure::new(Code::Unavailable, "the connection was closed"),
        };
        self.pending.clear();
        let mut progress = Progress::Idle;
        while self.may_fail() {
            if let Some(call) = self.calls.any() {
                if let Some(call) = self.calls.get_mut(call) {
                    call.on_wire = false;
                }
                self.fail(call, &failure, directions, context);
            } else if let Some(step) = self.waiting.pop_front() {
                return_token(&step.body, context);
            } else if let Some(step) = directions.tx_in.pop() {
                if let Some(step) = self.admit(step, directions, context) {
                    return_token(&step.body, context);
                }
            } else if self.failed.is_empty() {
                return Progress::Ended;
            } else {
                break;
            }
            progress = Progress::Busy;
        }
        progress
    }

    /// A step that the app may not take: its call, if there is one, fails.
    pub(crate) fn refuse(
        &mut self,
        step: Step,
        failure: CallFailure,
        directions: &mut Directions<'_>,
        context: &mut Context<'_>,
    ) -> Option<Step> {
        return_token(&step.body, context);
        self.fail(step.call, &failure, directions, context);
        None
    }

    /// Ends a call at the service's initiative, on both sides.
    pub(crate) fn fail(
        &mut self,
        call: u64,
        failure: &CallFailure,
        directions: &mut Directions<'_>,
        context: &mut Context<'_>,
    ) {
        if self.remove(call).is_some_and(|call| call.on_wire) {
            self.send_to_wire(refusal(call, failure, context), directions);
        }
        let mut step = refusal(call, failure, context);
        // The app gets the step without what it cannot have.
        let _ = make_deliverable(&mut step.body, self.parts.form, context);
        if !self.failed.is_empty() {
            self.failed.push_back(step);
        } else if let Err(full) = directions.rx_out.push(step) {
            self.failed.push_back(full.0);
        }
    }

    /// Whether the failure of another call could be kept for the app.
    fn may_fail(&self) -> bool {
        self.failed.len() < FAILED_STEPS_MAX
    }

    pub(crate) fn remove(&mut self, call: u64) -> Option<FrontendCall> {
        let removed = self.calls.remove(call)?;
        if let Some(quota) = &self.parts.quota {
            quota.give_back(1);
        }
        Some(removed)
    }

    fn send_to_wire(&mut self, step: Step, directions: &mut Directions<'_>) {
        if !self.pending.is_empty() {
            self.pending.push_back(step);
        } else if let Err(full) = directions.tx_out.push(step) {
            self.pending.push_back(full.0);
        }
    }

    fn send_pending(&mut self, directions: &mut Directions<'_>) -> bool {
        let mut moved = false;
        while !directions.tx_out.is_full()
            && let Some(step) = self.pending.pop_front()
        {
            let _ = directions.tx_out.push(step);
            moved = true;
        }
        while !directions.rx_out.is_full()
            && let Some(step) = self.failed.pop_front()
        {
            let _ = directions.rx_out.push(step);
            moved = true;
        }
        moved
    }
}

/// The messages of one direction of a method.
pub(crate) struct MessageDirection {
    pub(crate) message: MessageId,
    pub(crate) streaming: bool,
}

impl MessageDirection {
    pub(crate) fn of_app(role: AppRole, shape: MethodShape) -> MessageDirection {
        match role {
            AppRole::Client => MessageDirection {
                message: shape.input,
                streaming: shape.client_streaming,
            },
            AppRole::Server => MessageDirection {
                message: shape.output,
                streaming: shape.server_streaming,
            },
        }
    }

    fn of_peer(role: AppRole, shape: MethodShape) -> MessageDirection {
        match role {
            AppRole::Client => MessageDirection::of_app(AppRole::Server, shape),
            AppRole::Server => MessageDirection::of_app(AppRole::Client, shape),
        }
    }
}

fn deadline_passed() -> CallFailure {
    CallFailure::new(Code::DeadlineExceeded, "the call's deadline passed")
}

/// A cancellation with its reason.
fn refusal(call: u64, failure: &CallFailure, context: &mut Context<'_>) -> Step {
    Step::cancel_because(call, failure.code, &failure.reason, context.buffers)
}

/// Checks that a body may go to the app; one that may not has been given back. Metadata that the service itself made is copied to the
/// app's receive heap; if that is full the app gets the step without it. A port of protobuf takes private memory as it is.
fn make_deliverable(body: &mut Body, form: BodyForm, context: &mut Context<'_>) -> Result<(), StepViolation> {
    let violation = match body {
        Body::Empty => return Ok(()),
        Body::Received(body) => {
            let bytes = context.receive.bytes(&body.block);
            let metadata = bytes.get(..body.metadata_bytes as usize);
            if metadata.is_some_and(|block| metadata::check(block).is_ok()) {
                return Ok(());
            }
            StepViolation::PeerMetadata
        }
        Body::Encoded(body) if form == BodyForm::Protobuf => {
            if body.message().is_some() && metadata::check(body.metadata()).is_ok() {
                return Ok(());
            }
            StepViolation::PeerMetadata
        }
        Body::Encoded(encoded) if encoded.message_bytes == 0 => {
            let bytes = &encoded.buffer.bytes;
            let metadata = &bytes[..(encoded.metadata_bytes as usize).min(bytes.len())];
            let copied = copy_to_heap(metadata, context.receive);
            std::mem::replace(body, copied).discard(context);
            return Ok(());
        }
        _ => StepViolation::PeerBody,
    };
    std::mem::take(body).discard(context);
    Err(violation)
}

/// Of a step whose metadata an engine has added to, what the app is to get first: it begins the call with a block of the whole
/// metadata, and what else the step has, if anything, comes behind in its own block, as a stream's first message does. Every app's
/// library takes calls in such pieces. Where there is no room for the block, the app gets what came.
fn begin_apart(step: &mut Step, form: BodyForm, context: &mut Context<'_>) -> Option<Step> {
    let Body::Received(received) = &mut step.body else {
        return None;
    };
    let all = received.added.take()?;
    let metadata = match form {
        BodyForm::Native => copy_to_heap(&all.bytes, context.receive),
        BodyForm::Protobuf => Body::Empty,
    };
    context.buffers.give(all);
    if matches!(metadata, Body::Empty) {
        return None;
    }
    step.parts = step.parts.without(Parts::BEGIN);
    Some(Step {
        method: step.method,
        deadline: std::mem::take(&mut step.deadline),
        taken_at: step.taken_at,
        body: metadata,
        ..Step::new(step.call, Parts::BEGIN)
    })
}

fn copy_to_heap(metadata: &[u8], receive: &mut dyn provost_datapath::ReceiveHeap) -> Body {
    let metadata_bytes = metadata.len() as u32;
    if metadata_bytes == 0 || metadata::check(metadata).is_err() {
        return Body::Empty;
    }
    let Ok(mut block) = receive.allocate(metadata_bytes) else {
        return Body::Empty;
    };
    receive.bytes_mut(&mut block).copy_from_slice(metadata);
    Body::Received(ReceivedBody {
        added: None,
        block,
        metadata_bytes,
        message_bytes: 0,
        offsets: Offsets::Message,
    })
}

fn count_peer_step(call: &mut FrontendCall, streaming: bool, step: &mut Step) {
    if step.parts.contains(Parts::WINDOW) {
        call.send_window = (call.send_window + i64::from(step.window_bytes)).min(SEND_WINDOW_MAX);
    }
    if step.parts.contains(Parts::MESSAGE) {
        call.peer_messages = 1;
        if streaming {
            if step.window_bytes == 0 {
                step.window_bytes = message_bytes(&step.body).saturating_add(STREAM_MESSAGE_COST_BYTES);
            }
            call.unread_bytes += u64::from(step.window_bytes);
        } else {
            step.window_bytes = 0;
        }
    }
    call.peer_ended |= step.parts.contains(Parts::END);
}

/// Tells the app that memory it offered has been read (or never will be).
pub(crate) fn return_token(body: &Body, context: &mut Context<'_>) {
    let token = match body {
        Body::Untrusted(untrusted) => untrusted.token,
        Body::Gathered(gathered) => gathered.token,
        _ => 0,
    };
    if token != 0 {
        context.sent.push(token);
    }
}

pub(crate) fn message_bytes(body: &Body) -> u32 {
    match body {
        Body::Gathered(body) => body.message_bytes,
        Body::Received(body) => body.message_bytes,
        Body::Encoded(body) => body.message_bytes,
        Body::Empty | Body::Untrusted(_) => 0,
    }
}

/// What the peer's stream may have unread at most before its next message.
pub(crate) const UNREAD_BYTES_MAX: u64 = STREAM_WINDOW_BYTES as u64;
