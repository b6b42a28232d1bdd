//! From the server to the app.

use provost_datapath::{
    Body, Buffer, BufferPool, CompressedMessages, Context, EncodedBody, MessageCompression, Ports, Step,
};
use provost_grpc::{
    CompressionFault, EncodingSet, EndCause, GrpcEvent, GrpcMessage, GrpcStatus, MessageEncoding,
    MessageForm, ResponseHead, ask_compression, take_compression_request,
};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::metadata::{self, STATUS_DETAILS, STATUS_MESSAGE};

use crate::call::{CallArrival, CallPlace, GrpcCall, OutMessage, RequestEnd, StreamPlace};
use crate::config::{GrpcTransportConfig, HELD_BYTES_MAX};
use crate::engine::GrpcTransport;
use crate::link::GrpcLink;

/// How a call ends whose server sends another number of responses than one. gRPC's status codes: "Response cardinality violation".
const WRONG_NUMBER: Code = Code::Unimplemented;

/// What the app is told of a call.
enum AppTelling {
    /// This, and there may be more.
    Step(Step),
    /// This, and the call is over.
    Last(Step),
    Nothing,
    /// What has come cannot be told.
    Fault(Code, String),
}

// What comes of the server.
impl GrpcTransport {
    pub(crate) fn on_event(&mut self, at: usize, event: GrpcEvent) {
        match event {
            GrpcEvent::Response { call, head } => self.on_head(at, call, head),
            GrpcEvent::Message { call, message } => self.on_message(at, call, message),
            GrpcEvent::Ended {
                call,
                status,
                metadata,
                cause,
            } => self.on_end(at, call, status, &metadata, cause),
            GrpcEvent::Writable { call } => {
                if let Some(id) = self.call_at(at, call) {
                    self.pump(id);
                }
            }
            GrpcEvent::PeerSettings => self.on_settings(at),
            GrpcEvent::Draining => {
                if let Some(link) = &mut self.links[at] {
                    link.is_draining = true;
                }
                // The app connects anew for its next calls, where the names of servers lead by then.
                self.signals.set_peer_drains();
            }
            // A client gets none.
            GrpcEvent::Request { .. } | GrpcEvent::HalfClosed { .. } => {}
        }
    }

    fn call_at(&self, link: usize, stream: u32) -> Option<u64> {
        self.streams.get(&StreamPlace { link, stream }).copied()
    }

    fn on_head(&mut self, at: usize, stream: u32, head: ResponseHead) {
        let Some(id) = self.call_at(at, stream) else {
            return;
        };
        self.forget_replay(id);
        if head.accepts != EncodingSet::UNSAID {
            self.server_accepts = Some(head.accepts);
        }
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        call.encoding = head.encoding;
        let mut metadata = head.metadata;
        // How it compresses its head says.
        let _ = take_compression_request(&mut metadata);
        call.untold_head = Some(metadata);
        if call.server_streaming {
            self.send_head(id, head.encoding);
        }
    }

    /// Has the app told of the head, and of how the server compresses. A single response without either says itself that it came.
    fn send_head(&mut self, id: u64, encoding: MessageEncoding) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let Some(mut metadata) = call.untold_head.take() else {
            return;
        };
        if encoding != MessageEncoding::Identity {
            ask_compression(&mut metadata, encoding);
        }
        if call.server_streaming || !metadata.is_empty() {
            self.held_cost += call.hold(CallArrival::Head(metadata));
            self.note_ready(id);
        }
    }

    fn on_message(&mut self, at: usize, stream: u32, message: GrpcMessage) {
        let Some(id) = self.call_at(at, stream) else {
            return;
        };
        self.forget_replay(id);
        let Some(call) = self.calls.get(&id) else {
            return;
        };
        let encoding = match message.form {
            MessageForm::Plain => MessageEncoding::Identity,
            MessageForm::Compressed => call.encoding,
        };
        self.send_head(id, encoding);
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        call.messages_came = call.messages_came.saturating_add(1);
        self.held_cost += call.hold(CallArrival::Message(message));
        let is_second = !call.server_streaming && call.messages_came > 1;
        if is_second {
            let reason = "the server sent more than one response, and the method has one";
            return self.end_call(id, WRONG_NUMBER, reason);
        }
        self.note_ready(id);
        if self.held_cost > HELD_BYTES_MAX {
            self.end_largest();
        }
    }

    /// Ends the call of which the most waits for the app.
    fn end_largest(&mut self) {
        let held = self.calls.iter().map(|(id, call)| (call.held_cost(), *id));
        let Some((_, id)) = held.max() else { return };
        if let Some(call) = self.calls.get_mut(&id) {
            // Should its status have come, the app is not to take it for that of all messages.
            call.end = None;
        }
        let reason = "messages that have come wait for the app, and fill their share of memory";
        self.end_call(id, Code::ResourceExhausted, reason);
    }

    fn on_end(&mut self, at: usize, stream: u32, status: GrpcStatus, trailers: &[u8], cause: EndCause) {
        if let Some(link) = &mut self.links[at] {
            link.has_room = true;
        }
        let Some(id) = self.streams.remove(&StreamPlace { link: at, stream }) else {
            return;
        };
        if cause == EndCause::NotProcessed && self.begin_again(id) {
            return;
        }
        self.send_head(id, MessageEncoding::Identity);
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        call.place = CallPlace::Over;
        let status = match cause {
            EndCause::Lost => {
                let link = self.links[at].as_ref();
                let reason = link.map(GrpcLink::why_lost).unwrap_or_default();
                GrpcStatus::new(Code::Unavailable, reason)
            }
            _ => status,
        };
        let parts = if cause == EndCause::Answered {
            Parts::STATUS
        } else {
            Parts::CANCEL
        };
        if cause == EndCause::Local {
            self.drop_arrivals(id);
        }
        self.end_with(id, parts, status.code, status_block(&status, trailers));
    }

    /// Has a call wait for another stream, if the server has not begun it and everything that was sent is still there
    /// (gRFC A6, transparent retries). Whether it does.
    fn begin_again(&mut self, id: u64) -> bool {
        let Some(call) = self.calls.get_mut(&id) else {
            return false;
        };
        if call.was_retried || call.end.is_some() {
            return false;
        }
        let Some(sent) = call.replay.replace(Vec::new()) else {
            call.replay = None;
            return false;
        };
        self.replay_cost -= std::mem::take(&mut call.replay_cost);
        // What it cost was given back when it was sent.
        let again = |message| OutMessage { message, app_cost: 0 };
        for message in sent.into_iter().rev() {
            call.outgoing.push_front(again(message));
        }
        if call.request_end == RequestEnd::Said {
            call.request_end = RequestEnd::Asked;
        }
        call.was_retried = true;
        call.place = CallPlace::Waiting;
        if call.deadline != 0 {
            self.waiting_deadlines.insert((call.deadline, id));
        }
        self.waiting.push_back(id);
        true
    }
}

// What goes to the app.
impl GrpcTransport {
    /// Hands on what has come, as far as there is room; says whether there was some.
    pub(crate) fn deliver(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while !ports.rx_out.is_full()
            && let Some(step) = self.refusals.pop_front()
        {
            moved |= ports.rx_out.push(step).is_ok();
        }
        while !ports.rx_out.is_full()
            && let Some(id) = self.ready.pop_front()
        {
            let telling = self.next_of(id, context.buffers);
            match telling {
                AppTelling::Step(step) => {
                    moved |= ports.rx_out.push(step).is_ok();
                    // Others have their turn before.
                    self.ready.push_back(id);
                }
                AppTelling::Last(step) => {
                    self.forget(id);
                    moved |= ports.rx_out.push(step).is_ok();
                }
                AppTelling::Nothing => {
                    if let Some(call) = self.calls.get_mut(&id) {
                        call.is_ready = false;
                    }
                }
                AppTelling::Fault(code, reason) => {
                    if let Some(call) = self.calls.get_mut(&id) {
                        call.is_ready = false;
                        // The status that came is of a response that did not.
                        call.end = None;
                    }
                    self.end_call(id, code, &reason);
                }
            }
        }
        moved
    }

    fn next_of(&mut self, id: u64, buffers: &mut BufferPool) -> AppTelling {
        let config = self.config;
        let Some(call) = self.calls.get_mut(&id) else {
            return AppTelling::Nothing;
        };
        let before = call.held_cost();
        let telling = next_of(call, id, &config, buffers);
        self.held_cost -= before - call.held_cost();
        telling
    }
}

fn next_of(
    call: &mut GrpcCall,
    id: u64,
    config: &GrpcTransportConfig,
    buffers: &mut BufferPool,
) -> AppTelling {
    if call.has_window_due() {
        let window_bytes = std::mem::take(&mut call.window_due);
        return AppTelling::Step(Step {
            window_bytes,
            ..Step::new(id, Parts::WINDOW)
        });
    }
    match call.first_arrival() {
        Some(CallArrival::Head(block)) => {
            let body = body_of(block, ResponseMessage::default(), buffers);
            call.take_arrival();
            AppTelling::Step(Step {
                body,
                ..Step::new(id, Parts::HEADERS)
            })
        }
        Some(CallArrival::Message(_)) if call.server_streaming => next_message(call, id, config, buffers),
        // The single response goes with the status.
        Some(CallArrival::Message(_)) | None => end_of(call, id, config, buffers),
    }
}

fn next_message(
    call: &mut GrpcCall,
    id: u64,
    config: &GrpcTransportConfig,
    buffers: &mut BufferPool,
) -> AppTelling {
    if !call.may_deliver() {
        return AppTelling::Nothing;
    }
    let Some(CallArrival::Message(message)) = call.take_arrival() else {
        return AppTelling::Nothing;
    };
    let came_bytes = message.bytes.len() as u32;
    match ResponseMessage::of(message, call.encoding, config) {
        Ok(message) => AppTelling::Step(Step {
            window_bytes: call.deliver(came_bytes, message.bytes.len() as u32),
            body: body_of(&[], message, buffers),
            ..Step::new(id, Parts::MESSAGE)
        }),
        Err(fault) => AppTelling::Fault(fault.code(), fault.to_string()),
    }
}

fn end_of(
    call: &mut GrpcCall,
    id: u64,
    config: &GrpcTransportConfig,
    buffers: &mut BufferPool,
) -> AppTelling {
    let Some(end) = call.end.take() else {
        return AppTelling::Nothing;
    };
    let mut step = Step {
        status: end.status,
        ..Step::new(id, end.parts)
    };
    let succeeded = end.parts == Parts::STATUS && end.status == Code::Ok;
    let mut response = ResponseMessage::default();
    if succeeded && !call.server_streaming {
        let Some(CallArrival::Message(message)) = call.take_arrival() else {
            let reason = "the server ended the call well without the response that the method has";
            return AppTelling::Fault(WRONG_NUMBER, reason.to_owned());
        };
        step.parts = Parts::MESSAGE | Parts::STATUS;
        response = match ResponseMessage::of(message, call.encoding, config) {
            Ok(response) => response,
            Err(fault) => return AppTelling::Fault(fault.code(), fault.to_string()),
        };
    }
    step.body = body_of(&end.metadata, response, buffers);
    AppTelling::Last(step)
}

/// A message of the server, as it goes on.
#[derive(Default)]
struct ResponseMessage {
    bytes: Vec<u8>,
    /// How it is compressed.
    compression: Option<Box<MessageCompression>>,
}

impl ResponseMessage {
    /// One that came in a call of this encoding: as it came, or decompressed for an app that does not take it so.
    fn of(
        message: GrpcMessage,
        encoding: MessageEncoding,
        config: &GrpcTransportConfig,
    ) -> Result<ResponseMessage, CompressionFault> {
        let bytes_max = config.message_bytes_max;
        if (message.form, config.compressed) == (MessageForm::Compressed, CompressedMessages::Passed) {
            return Ok(ResponseMessage {
                bytes: message.bytes,
                compression: MessageCompression::new(encoding, bytes_max),
            });
        }
        let (bytes, compression) = (message.into_plain(encoding, bytes_max)?, None);
        Ok(ResponseMessage { bytes, compression })
    }
}

/// Metadata and a message, which stays in its memory where there is no metadata.
fn body_of(block: &[u8], message: ResponseMessage, buffers: &mut BufferPool) -> Body {
    let ResponseMessage { bytes, compression } = message;
    let body = match (block, bytes.len()) {
        ([], 0) => return Body::Empty,
        ([], message_bytes) => {
            let buffer = Buffer::from(bytes);
            EncodedBody::plain(buffer, 0, message_bytes as u32)
        }
        _ => EncodedBody::of(block, &bytes, buffers.take()),
    };
    Body::Encoded(EncodedBody { compression, ..body })
}

/// A status as metadata has it, before trailing metadata. What finds no room is left out: the code says the most of it.
pub(crate) fn status_block(status: &GrpcStatus, trailers: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    if !status.message.is_empty() {
        let _ = metadata::append(&mut block, STATUS_MESSAGE, status.message.as_bytes());
    }
    if let Some(details) = &status.details {
        let _ = metadata::append(&mut block, STATUS_DETAILS, details);
    }
    for (key, value) in metadata::entries(trailers) {
        let _ = metadata::append(&mut block, key, value);
    }
    block
}
