//! From the client into datapaths.

use provost_datapath::{
    Body, BufferPool, CONNECTION_PRIVATE_BYTES_FLOOR, CompressedMessages, MessageCompression, Step,
    no_such_method,
};
use provost_grpc::{
    EndCause, GrpcEvent, GrpcMessage, GrpcStatus, MessageCodec, MessageEncoding, MessageForm, RequestHead,
    ask_compression, take_compression_request,
};
use provost_schema::is_method_name;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_MESSAGE_COST_BYTES;
use provost_wire::metadata::without_reserved;

use crate::binding::{ServiceLookup, ServiceRefusal, WantedService};
use crate::bodies::{RequestMessage, protobuf_body};
use crate::calls::{CallPhase, CallTarget, PortCall};
use crate::node_services::{NodeCall, NodeEvent};
use crate::port::{GrpcPort, GrpcRequest, ROOM_RETRY_NS};

/// A call's bytes, whatever its service, that are not counted in a share.
const SMALL_MESSAGE_BYTES: usize = 2 << 10;
/// What waits of requests is counted in steps of so many bytes: what small messages take comes and goes too quickly.
const COUNTED_STEP_BYTES: u64 = 64 << 10;

// What comes of the client.
impl GrpcPort {
    pub(crate) fn on_event(&mut self, event: GrpcEvent) {
        match event {
            GrpcEvent::Request { call, head } => self.begin(call, head),
            GrpcEvent::Message { call, message } => self.keep_message(call, message),
            GrpcEvent::HalfClosed { call } => {
                if let Some(known) = self.calls.get_mut(call) {
                    known.is_half_closed = true;
                    self.note_step(call);
                }
            }
            GrpcEvent::Ended {
                call, status, cause, ..
            } => {
                let code = match (cause, status.code) {
                    (EndCause::Local, Code::DeadlineExceeded) => Code::DeadlineExceeded,
                    _ => Code::Cancelled,
                };
                self.cancel(call, code);
            }
            GrpcEvent::Writable { call } => self.pump(call),
            // A server has none of the first, and the others change nothing for calls under way.
            GrpcEvent::Response { .. } | GrpcEvent::PeerSettings | GrpcEvent::Draining => {}
        }
    }

    /// Keeps a message until it is passed on, within the memory of the connection.
    fn keep_message(&mut self, stream: u32, message: GrpcMessage) {
        let reason = if !self.incoming.has_room_for(&message) {
            "messages that wait fill this connection's memory"
        } else if !self.has_room_to_wait(&message) {
            "messages that wait fill what this user, or this node, has for those of gRPC clients"
        } else if let Some(call) = self.calls.get_mut(stream) {
            self.incoming.add(&message);
            call.incoming.push_back(message);
            return self.note_step(stream);
        } else {
            return self.grpc.consume(stream, message.bytes.len());
        };
        self.answer(stream, &GrpcStatus::new(Code::ResourceExhausted, reason));
    }

    fn begin(&mut self, stream: u32, head: RequestHead) {
        let path = || head.path.chars().take(200).collect::<String>();
        let wrong = match head.service_and_method() {
            None => format!("the path {:?} is not of the form /package.Service/Method", path()),
            // Nothing is asked for: the answer would be that of all calls of the service.
            Some((service, method)) if !is_method_name(service, method) => {
                let path = path();
                format!("there is no method {path}: a method's name has letters, digits and '_' alone")
            }
            Some(_) => String::new(),
        };
        if !wrong.is_empty() {
            return self.answer(stream, &GrpcStatus::new(Code::Unimplemented, wrong));
        }
        if let MessageCodec::Named(codec) = &head.codec
            && codec != "proto"
        {
            let message = format!("messages as {codec:?} are not understood: send application/grpc+proto");
            return self.answer(stream, &GrpcStatus::new(Code::Unimplemented, message));
        }
        let own = self.node_methods.get(head.path.trim_start_matches('/'));
        let own = own.copied().map(NodeCall::new);
        let mut call = PortCall::new(head.path);
        call.node = own;
        // Reserved keys say what a status is, and come of no client. How it compresses its head says.
        call.metadata = without_reserved(head.metadata);
        let _ = take_compression_request(&mut call.metadata);
        call.accepts = head.accepts;
        call.deadline = head
            .timeout_ns
            .map_or(0, |timeout_ns| self.now.saturating_add(timeout_ns).max(1));
        call.encoding = head.encoding;
        let is_own = own.is_some();
        self.calls.insert(stream, call);
        if !is_own {
            self.find_target(stream);
        }
    }

    /// Finds out where a call goes, or has it wait for its service.
    pub(crate) fn find_target(&mut self, stream: u32) {
        let Some(call) = self.calls.get_mut(stream) else {
            return;
        };
        match self.services.look_up(call.service_and_method(), stream, self.now) {
            ServiceLookup::Bound(binding) => {
                let (service, method_name) = call.service_and_method();
                let Some(method) = binding.service.methods.get(method_name).copied() else {
                    let message = no_such_method(service, method_name);
                    return self.answer(stream, &GrpcStatus::new(Code::Unimplemented, message));
                };
                call.target = Some(CallTarget {
                    binding,
                    method,
                    number: 0,
                });
                call.phase = CallPhase::Ready;
                self.note_step(stream);
            }
            ServiceLookup::Waits { asks } => {
                if asks {
                    let (service, method) = call.service_and_method();
                    self.wanted.push_back(WantedService {
                        service: service.to_owned(),
                        method: method.to_owned(),
                    });
                }
            }
            ServiceLookup::Refused(refusal) => self.refuse(stream, &refusal),
        }
    }

    /// Finds out anew where calls go that have not begun on a connection.
    pub(crate) fn leave_connection(&mut self, connection: u32) {
        self.services.forget_connection(connection);
        let is_left = |call: &PortCall| {
            let target = call.target.as_ref();
            call.phase == CallPhase::Ready && target.is_some_and(|target| target.connection() == connection)
        };
        let calls = self.calls.iter();
        let left: Vec<u32> = calls
            .filter(|(_, call)| is_left(call))
            .map(|(stream, _)| stream)
            .collect();
        for stream in left {
            if let Some(call) = self.calls.get_mut(stream) {
                call.target = None;
                call.phase = CallPhase::Waiting;
                self.find_target(stream);
            }
        }
    }

    pub(crate) fn refuse(&mut self, stream: u32, refusal: &ServiceRefusal) {
        self.answer(stream, &GrpcStatus::new(refusal.code, refusal.message.clone()));
    }

    /// Ends a call at once, and its datapath's part of it.
    pub(crate) fn answer(&mut self, stream: u32, status: &GrpcStatus) {
        // A call that is not there any more needs no answer.
        let _ = self.grpc.finish(stream, status, &[], self.now);
        self.cancel(stream, Code::Cancelled);
    }

    /// Forgets a call, whose datapath is told if it knows of it.
    pub(crate) fn cancel(&mut self, stream: u32, code: Code) {
        let Some(call) = self.forget(stream) else {
            return;
        };
        if let (CallPhase::Begun, Some(target), false) = (call.phase, &call.target, call.is_over_behind) {
            self.cancels.push_back(GrpcRequest {
                connection: target.connection(),
                step: Step::cancel(target.number, code),
            });
        }
    }

    pub(crate) fn forget(&mut self, stream: u32) -> Option<PortCall> {
        let call = self.calls.remove(stream)?;
        call.incoming
            .iter()
            .for_each(|message| self.incoming.subtract(message));
        if call.node.is_some_and(NodeCall::is_asked) {
            let is_other =
                |event: &NodeEvent| !matches!(event, NodeEvent::Asked(asked) if asked.stream == stream);
            self.node_events.retain(is_other);
        }
        if call.node.is_some_and(NodeCall::is_watching) {
            self.node_events.push_back(NodeEvent::Ended { stream });
        }
        match &call.target {
            Some(target) => {
                self.streams.remove(&(target.connection(), target.number));
            }
            None => self.services.forget_waiting(call.service(), stream),
        }
        Some(call)
    }

    /// Puts a call among those that have steps, if it has one. Of a call that the node answers, it asks.
    pub(crate) fn note_step(&mut self, stream: u32) {
        self.ask_node(stream);
        if let Some(call) = self.calls.get_mut(stream)
            && !call.is_ready
            && call.has_step()
        {
            call.is_ready = true;
            self.ready.push_back(stream);
        }
    }
}

// What goes into datapaths.
impl GrpcPort {
    /// The next step of a call, if there is one and room for it.
    pub fn next_request(&mut self, buffers: &mut BufferPool) -> Option<GrpcRequest> {
        if let Some(cancel) = self.cancels.pop_front() {
            return Some(cancel);
        }
        self.retry_at = None;
        // Each is looked at once: one that has no room goes behind the others.
        for _ in 0..self.ready.len() {
            let stream = self.ready.pop_front()?;
            if let Some(call) = self.calls.get_mut(stream) {
                call.is_ready = false;
                match self.make_step(stream, buffers) {
                    Ok(Some(request)) => {
                        self.note_step(stream);
                        return Some(request);
                    }
                    Ok(None) => self.note_step(stream),
                    Err(status) => self.answer(stream, &status),
                }
            }
        }
        None
    }

    fn make_step(
        &mut self,
        stream: u32,
        buffers: &mut BufferPool,
    ) -> Result<Option<GrpcRequest>, GrpcStatus> {
        let Some(call) = self.calls.get_mut(stream).filter(|call| call.has_step()) else {
            return Ok(None);
        };
        let Some(target) = call.target.clone() else {
            return Ok(None);
        };
        let connection = target.connection();
        if call.window_due > 0 && call.phase == CallPhase::Begun {
            let window_bytes = std::mem::take(&mut call.window_due);
            let step = Step {
                window_bytes,
                ..Step::new(target.number, Parts::WINDOW)
            };
            return Ok(Some(GrpcRequest { connection, step }));
        }
        if !target.method.client_streaming {
            check_single(call)?;
        }
        let takes_message = !call.incoming.is_empty() && call.send_window > 0;
        if takes_message && !self.has_room(stream) {
            self.retry_at = Some(self.now + ROOM_RETRY_NS);
            return Ok(None);
        }
        let step = self.request_step(stream, &target, takes_message, buffers)?;
        Ok(step.map(|step| GrpcRequest { connection, step }))
    }

    /// Whether the client's share has room for the first message of a call.
    fn has_room(&self, stream: u32) -> bool {
        let call = self.calls.get(stream);
        let bytes = call
            .and_then(|call| call.incoming.front())
            .map_or(0, |message| message.bytes.len());
        // What is counted as it waits takes no more when it goes on, but for the client's own share.
        let is_counted = self.requests_held.bytes() >= bytes as u64 && self.share.is_below_own_bound();
        bytes <= SMALL_MESSAGE_BYTES || is_counted || self.share.message_bytes_now() > bytes as u64
    }

    /// Whether there is memory for a whole message that waits.
    fn has_room_to_wait(&self, message: &GrpcMessage) -> bool {
        let held = self.request_bytes() + message.bytes.len() as u64;
        held <= CONNECTION_PRIVATE_BYTES_FLOOR || self.requests_held.share_has_room()
    }

    /// Bytes of requests that wait, whole or in part.
    fn request_bytes(&self) -> u64 {
        (self.incoming.bytes() + self.grpc.partial_bytes()) as u64
    }

    /// Counts what waits of requests, and says what may come in part from now on: any, or no more where this connection has its floor and
    /// nobody has room.
    pub(crate) fn count_requests(&mut self) {
        let is_reading = self.input.is_empty() && !self.is_crowded() && !self.grpc.is_blocked();
        self.grpc.watch_progress(is_reading, self.now);
        let bytes = self.request_bytes();
        let counted = bytes - bytes % COUNTED_STEP_BYTES;
        if counted != self.requests_held.bytes() {
            self.requests_held.set_bytes(counted);
        }
        if counted == 0 {
            return self.grpc.bound_partial_bytes(usize::MAX);
        }
        let whole = self.incoming.bytes() as u64;
        let floor = CONNECTION_PRIVATE_BYTES_FLOOR.saturating_sub(whole);
        let bound = if self.requests_held.share_has_room() {
            usize::MAX
        } else {
            floor.max(bytes - whole) as usize
        };
        self.grpc.bound_partial_bytes(bound);
    }

    fn request_step(
        &mut self,
        stream: u32,
        target: &CallTarget,
        takes_message: bool,
        buffers: &mut BufferPool,
    ) -> Result<Option<Step>, GrpcStatus> {
        let Some(call) = self.calls.get_mut(stream) else {
            return Ok(None);
        };
        let mut step = Step::new(target.number, Parts::NONE);
        step.method = target.method.index;
        let mut metadata = Vec::new();
        if call.phase == CallPhase::Ready {
            // A datapath takes calls in the order of their numbers, and those that find no room begin later than others.
            step.call = target.binding.next_number();
            if let Some(target) = &mut call.target {
                target.number = step.call;
            }
            self.streams.insert((target.connection(), step.call), stream);
            step.parts = step.parts | Parts::BEGIN;
            step.deadline = call.deadline;
            metadata = std::mem::take(&mut call.metadata);
            if compresses(call, target.method.client_streaming) {
                ask_compression(&mut metadata, call.encoding);
            }
        }
        let message = if takes_message {
            call.incoming.pop_front()
        } else {
            None
        };
        let message = match message {
            None => None,
            Some(message) => {
                step.parts = step.parts | Parts::MESSAGE;
                self.incoming.subtract(&message);
                self.grpc.consume(stream, message.bytes.len());
                // The client is not to send more than the peer takes.
                let bytes_max = self
                    .message_bytes_max
                    .min(target.binding.service.message_bytes_max);
                Some(match target.binding.service.compressed {
                    CompressedMessages::Passed => as_it_came(message, call, bytes_max)?,
                    CompressedMessages::Decompressed => {
                        RequestMessage::plain(plain(message, call, bytes_max)?)
                    }
                })
            }
        };
        let has_message = message.is_some();
        step.body = protobuf_body(&metadata, message, &self.share, buffers);
        if call.incoming.is_empty() && call.is_half_closed && !call.has_ended_requests {
            call.has_ended_requests = true;
            step.parts = step.parts | Parts::END;
        }
        if has_message && target.method.client_streaming {
            step.window_bytes = message_bytes(&step.body).saturating_add(STREAM_MESSAGE_COST_BYTES);
            call.send_window -= i64::from(step.window_bytes);
        }
        call.phase = CallPhase::Begun;
        Ok(Some(step))
    }
}

/// Whether the client compresses its messages: of a call that has one message, this one.
fn compresses(call: &PortCall, client_streaming: bool) -> bool {
    let first = call.incoming.front();
    let is_compressed = first.is_some_and(|message| message.form == MessageForm::Compressed);
    call.encoding != MessageEncoding::Identity && (client_streaming || is_compressed)
}

/// A call whose method takes one message has just that.
fn check_single(call: &PortCall) -> Result<(), GrpcStatus> {
    // gRPC's status codes: "Request cardinality violation".
    let wrong = |message: &str| Err(GrpcStatus::new(Code::Unimplemented, message));
    match (call.phase, call.incoming.len()) {
        (CallPhase::Ready, 0) => wrong("the request has no message, and the method takes one"),
        (CallPhase::Ready, 1) | (CallPhase::Begun, 0) => Ok(()),
        _ => wrong("the request has more than one message, and the method takes one"),
    }
}

/// A message in the form in which its client sent it.
fn as_it_came(message: GrpcMessage, call: &PortCall, bytes_max: u32) -> Result<RequestMessage, GrpcStatus> {
    check_length(&message, bytes_max)?;
    let encoding = match message.form {
        MessageForm::Plain => MessageEncoding::Identity,
        MessageForm::Compressed => call.encoding,
    };
    Ok(RequestMessage {
        bytes: message.bytes,
        compression: MessageCompression::new(encoding, bytes_max),
    })
}

fn check_length(message: &GrpcMessage, bytes_max: u32) -> Result<(), GrpcStatus> {
    let bytes = message.bytes.len();
    if bytes <= bytes_max as usize {
        return Ok(());
    }
    let reason = format!("a message of {bytes} bytes is over the limit of {bytes_max}");
    Err(GrpcStatus::new(Code::ResourceExhausted, reason))
}

/// A message as it was before its client compressed it.
pub(crate) fn plain(message: GrpcMessage, call: &PortCall, bytes_max: u32) -> Result<Vec<u8>, GrpcStatus> {
    check_length(&message, bytes_max)?;
    message
        .into_plain(call.encoding, bytes_max)
        .map_err(|fault| GrpcStatus::new(fault.code(), fault.to_string()))
}

fn message_bytes(body: &Body) -> u32 {
    match body {
        Body::Encoded(body) => body.message_bytes,
        _ => 0,
    }
}
