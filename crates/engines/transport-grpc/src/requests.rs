//! From the app to the server.

use provost_datapath::{Body, Buffer, Context, EncodedBody, Ports, Step};
use provost_grpc::{CallFault, MessageEncoding, take_compression_request};
use provost_http2::SendError;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_MESSAGE_COST_BYTES;
use provost_wire::metadata;

use crate::call::{CallPlace, GrpcCall, OutMessage, RequestEnd, StreamPlace};
use crate::chunk::{FormedChunk, PlainMessages};
use crate::config::{
    CALL_PENDING_BYTES_MAX, REFUSALS_MAX, REPLAY_BYTES_MAX, REPLAY_CALL_BYTES_MAX, WAITING_CALLS_MAX,
};
use crate::engine::GrpcTransport;

/// What servers are told of who calls (PROTOCOL-HTTP2, User Agents).
const USER_AGENT: &str = concat!("grpc-provost/", env!("CARGO_PKG_VERSION"));

/// What a step brings.
struct StepContent {
    metadata: Vec<u8>,
    message: Option<EncodedBody>,
}

impl GrpcTransport {
    /// Takes the steps that are to go out; says whether there were some.
    pub(crate) fn take_steps(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while self.refusals.len() < REFUSALS_MAX
            && let Some(step) = ports.tx_in.pop()
        {
            moved = true;
            self.take_step(step, context);
        }
        moved
    }

    pub(crate) fn take_step(&mut self, step: Step, context: &mut Context<'_>) {
        if step.parts.contains(Parts::BEGIN) {
            return self.begin(step, context);
        }
        if !self.calls.contains_key(&step.call) {
            // The call has ended meanwhile: the app will learn of it, or has.
            return step.body.discard(context);
        }
        if step.parts.contains(Parts::CANCEL) {
            self.leave_stream(step.call, step.status);
            self.forget(step.call);
            return step.body.discard(context);
        }
        if step.parts.contains(Parts::WINDOW) {
            self.give_back(step.call, step.window_bytes);
            return step.body.discard(context);
        }
        self.take_message(step, context);
    }

    /// Forgets a call of which nobody is to be told any more.
    pub(crate) fn forget(&mut self, id: u64) {
        self.drop_arrivals(id);
        self.forget_replay(id);
        if self.calls.remove(&id).is_some_and(|call| call.is_ready) {
            self.ready.retain(|ready| *ready != id);
        }
    }

    /// Answers a step that begins a call; others need no answer.
    pub(crate) fn refuse(&mut self, step: Step, code: Code, reason: &str, context: &mut Context<'_>) {
        if step.parts.contains(Parts::BEGIN) {
            let end = Step::cancel_because(step.call, code, reason, context.buffers);
            self.refusals.push_back(end);
        }
        step.body.discard(context);
    }

    fn begin(&mut self, step: Step, context: &mut Context<'_>) {
        if self.calls.contains_key(&step.call) {
            return step.body.discard(context);
        }
        if let Err((code, reason)) = self.may_begin(&step) {
            return self.refuse(step, code, reason, context);
        }
        let Some(method) = self.methods.get(usize::from(step.method)) else {
            let reason = "the service has no such method";
            return self.refuse(step, Code::Unimplemented, reason, context);
        };
        let mut call = GrpcCall::new(step.method, method.client_streaming, method.server_streaming);
        call.deadline = step.deadline;
        if step.deadline != 0 {
            self.waiting_deadlines.insert((step.deadline, step.call));
        }
        self.calls.insert(step.call, call);
        self.waiting.push_back(step.call);
        self.take_message(step, context);
    }

    fn may_begin(&self, step: &Step) -> Result<(), (Code, &'static str)> {
        if self.calls.len() >= self.config.calls_max as usize {
            let reason = "too many calls in flight on this connection";
            return Err((Code::ResourceExhausted, reason));
        }
        if self.waiting.len() >= WAITING_CALLS_MAX {
            let reason = "too many calls wait until the server allows more of them at a time";
            return Err((Code::ResourceExhausted, reason));
        }
        if step.deadline != 0 && step.deadline <= self.now {
            return Err((Code::DeadlineExceeded, "the deadline of the call has passed"));
        }
        Ok(())
    }

    /// Puts what a step brings behind what its call has to send.
    fn take_message(&mut self, step: Step, context: &mut Context<'_>) {
        let Step {
            call: id,
            parts,
            window_bytes,
            body,
            ..
        } = step;
        let mut content = content_of(body, parts, context);
        let (encoding, plain_ones) = match &mut content {
            Some(content) if parts.contains(Parts::BEGIN) => self.encoding_of_call(&mut content.metadata),
            _ => (MessageEncoding::Identity, PlainMessages::Compressed),
        };
        let Some(call) = self
            .calls
            .get_mut(&id)
            .filter(|call| call.place != CallPlace::Over)
        else {
            return;
        };
        let Some(content) = content else {
            return self.end_call(id, Code::Internal, "the lengths of a step do not add up");
        };
        if parts.contains(Parts::BEGIN) {
            call.metadata = content.metadata;
            (call.sent_encoding, call.plain_ones) = (encoding, plain_ones);
        }
        if call.request_end == RequestEnd::NotYet
            && let Some(body) = content.message
        {
            // Without this message: one that finds window may be as large as messages may be.
            if call.pending_cost > CALL_PENDING_BYTES_MAX {
                let reason = "the stream's window was not heeded";
                return self.end_call(id, Code::ResourceExhausted, reason);
            }
            let bytes = body.message_bytes;
            let formed = FormedChunk::of_body(body, call.sent_encoding, call.plain_ones, context.buffers);
            let message = match formed {
                Ok(message) => message,
                Err(unsent) => return self.end_call(id, unsent.code(), &unsent.to_string()),
            };
            let counted = match window_bytes {
                0 => bytes.saturating_add(STREAM_MESSAGE_COST_BYTES),
                counted => counted,
            };
            let app_cost = if call.client_streaming { counted } else { 0 };
            call.pending_cost += u64::from(app_cost);
            call.outgoing.push_back(OutMessage { message, app_cost });
        }
        if parts.contains(Parts::END) && call.request_end == RequestEnd::NotYet {
            call.request_end = RequestEnd::Asked;
        }
        self.pump(id);
    }

    /// How the messages of a call are compressed, and which: as its caller asks, else as is configured; not at all where the server has said
    /// that it does not take that.
    fn encoding_of_call(&self, metadata: &mut Vec<u8>) -> (MessageEncoding, PlainMessages) {
        let asked = take_compression_request(metadata);
        let encoding = asked.unwrap_or(self.config.compression);
        let plain_ones = match asked {
            Some(_) => self.config.plain_ones(),
            None => PlainMessages::Compressed,
        };
        match self.server_accepts {
            Some(accepted) if !accepted.contains(encoding) => (MessageEncoding::Identity, plain_ones),
            _ => (encoding, plain_ones),
        }
    }

    fn give_back(&mut self, id: u64, window_bytes: u32) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let place = call.place;
        let links = &mut self.links;
        call.give_back(window_bytes, |bytes| {
            if let CallPlace::Open(StreamPlace { link, stream }) = place
                && let Some(link) = &mut links[link]
            {
                link.grpc.consume(stream, bytes);
            }
        });
        if call.first_arrival().is_some() {
            self.note_ready(id);
        }
    }

    /// Begins calls that wait, as far as the server allows.
    pub(crate) fn open_waiting(&mut self) -> bool {
        let mut moved = false;
        while let Some(id) = self.waiting.front().copied() {
            match self.link_of_new_calls() {
                // Another link may have room for it.
                Ok(Some(at)) => moved |= self.open_call(id, at),
                Ok(None) => break,
                Err(reason) => {
                    self.end_call(id, Code::Unavailable, &reason);
                    moved = true;
                }
            }
        }
        moved
    }

    /// Begins a call on a link, unless it has no room; whether anything has come of it.
    fn open_call(&mut self, id: u64, at: usize) -> bool {
        let (Some(call), Some(link)) = (self.calls.get_mut(&id), &mut self.links[at]) else {
            return false;
        };
        if !link.may_call() {
            link.has_room = false;
            return false;
        }
        let head = &mut self.head;
        head.timeout_ns = (call.deadline != 0).then(|| call.deadline.saturating_sub(self.now));
        head.path.clear();
        if let Some(method) = self.methods.get(usize::from(call.method)) {
            head.path.push_str(&method.path);
        }
        head.encoding = call.sent_encoding;
        head.metadata.clear();
        head.metadata.extend_from_slice(&call.metadata);
        add_user_agent(&mut head.metadata);
        match link.grpc.call(head, self.now) {
            Ok(stream) => {
                let place = StreamPlace { link: at, stream };
                self.waiting.pop_front();
                self.waiting_deadlines.remove(&(call.deadline, id));
                call.place = CallPlace::Open(place);
                self.streams.insert(place, id);
                self.pump(id);
                true
            }
            Err(CallFault::Http2(SendError::NoMoreStreams)) => {
                link.is_draining = true;
                self.signals.set_peer_drains();
                true
            }
            Err(CallFault::Http2(fault @ (SendError::TooManyStreams | SendError::OutputFull))) => {
                link.has_room = false;
                link.is_full = fault == SendError::TooManyStreams;
                false
            }
            Err(fault) => {
                let code = code_of_fault(&fault);
                self.end_call(id, code, &format!("the call cannot be sent: {fault}"));
                true
            }
        }
    }

    /// Gives a call's stream what waits, as far as it has room.
    pub(crate) fn pump(&mut self, id: u64) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let CallPlace::Open(place) = call.place else {
            return;
        };
        let Some(link) = &mut self.links[place.link] else {
            return;
        };
        let mut fault = None;
        while let Some(message) = call.outgoing.front() {
            let FormedChunk { form, chunk } = message.message.clone();
            match link.grpc.send_message(place.stream, form, chunk, self.now) {
                Ok(()) => {}
                Err((CallFault::Http2(SendError::QueueFull), _)) => break,
                Err((error, _)) => {
                    fault = Some(error);
                    break;
                }
            }
            let Some(OutMessage { message, app_cost }) = call.outgoing.pop_front() else {
                break;
            };
            call.pending_cost -= u64::from(app_cost);
            call.window_due = call.window_due.saturating_add(app_cost);
            keep_for_replay(call, message, &mut self.replay_cost);
        }
        if call.outgoing.is_empty() && call.request_end == RequestEnd::Asked && fault.is_none() {
            call.request_end = RequestEnd::Said;
            // A stream that was reset meanwhile is heard of.
            let _ = link.grpc.half_close(place.stream, self.now);
        }
        let has_window = call.has_window_due();
        match fault {
            // The end of a call that is over comes by itself.
            Some(CallFault::NoCall | CallFault::Http2(SendError::NoStream)) | None => {}
            Some(fault) => {
                let reason = format!("the message cannot be sent: {fault}");
                self.end_call(id, code_of_fault(&fault), &reason);
            }
        }
        if has_window {
            self.note_ready(id);
        }
    }
}

/// Keeps a message that was sent, unless that is too much: then its call cannot be begun again.
fn keep_for_replay(call: &mut GrpcCall, message: FormedChunk, cost_of_all: &mut usize) {
    let cost = message.chunk.kept_cost();
    let has_room =
        call.replay_cost + cost <= REPLAY_CALL_BYTES_MAX && *cost_of_all + cost <= REPLAY_BYTES_MAX;
    match &mut call.replay {
        None => {}
        Some(kept) if has_room => {
            call.replay_cost += cost;
            *cost_of_all += cost;
            kept.push(message);
        }
        Some(_) => {
            *cost_of_all -= std::mem::take(&mut call.replay_cost);
            call.replay = None;
        }
    }
}

fn content_of(body: Body, parts: Parts, context: &mut Context<'_>) -> Option<StepContent> {
    let has_message = parts.contains(Parts::MESSAGE);
    match body {
        Body::Encoded(body) => {
            let metadata = body.buffer.bytes.get(..body.metadata_bytes as usize)?.to_vec();
            if !has_message {
                context.buffers.give(body.buffer);
                return Some(StepContent {
                    metadata,
                    message: None,
                });
            }
            let message = Some(body);
            Some(StepContent { metadata, message })
        }
        // Metadata alone, which is in no encoding.
        Body::Gathered(body) if !has_message => {
            let metadata = body.buffer.bytes.get(..body.metadata_bytes as usize);
            let metadata = metadata.map(<[u8]>::to_vec);
            Body::Gathered(body).discard(context);
            Some(StepContent {
                metadata: metadata?,
                message: None,
            })
        }
        Body::Empty => Some(StepContent {
            metadata: Vec::new(),
            message: has_message.then(|| EncodedBody::plain(Buffer::default(), 0, 0)),
        }),
        other => {
            other.discard(context);
            None
        }
    }
}

fn code_of_fault(fault: &CallFault) -> Code {
    match fault {
        CallFault::TooLarge { .. } | CallFault::Http2(SendError::ListTooLarge { .. }) => {
            Code::ResourceExhausted
        }
        _ => Code::Internal,
    }
}

/// Says who calls, unless the app does.
fn add_user_agent(block: &mut Vec<u8>) {
    if metadata::find(block, "user-agent").is_none() {
        // Metadata that leaves no room for it goes without.
        let _ = metadata::append(block, "user-agent", USER_AGENT.as_bytes());
    }
}
