//! From datapaths to the client.

use provost_datapath::{Body, CONNECTION_PRIVATE_BYTES_FLOOR, ReceiveHeap, Step};
use provost_grpc::{CallFault, GrpcStatus, ResponseHead, take_compression_request};
use provost_http2::SendError;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::metadata::without_reserved;

use crate::bodies::{message_of, protobuf_of, status_of};
use crate::calls::{CallTarget, PortReply, REPLY_COST_BYTES, ReplyBytes, ReplyCompression, ReplyMessage};
use crate::port::GrpcPort;

/// What became of a reply at the protocol.
enum ReplyOutcome {
    Sent,
    /// It comes again when output has left, or the stream has room.
    Waits(PortReply),
    /// The call is over.
    Over,
}

impl GrpcPort {
    /// Takes a step of a datapath for the client. It comes back while the client's share of memory is used up by replies that
    /// the client has not read, unless it is counted there already.
    ///
    /// # Errors
    /// The step, to be given again later.
    pub fn push_step(&mut self, connection: u32, step: Step) -> Result<(), Step> {
        if step.parts.contains(Parts::MESSAGE) {
            if self.has_room_for_reply(&step) {
                self.blocked_since = None;
            } else {
                self.note_blocked();
                if !is_counted(&step.body) {
                    return Err(step);
                }
            }
        }
        let stream = self.streams.get(&(connection, step.call)).copied();
        let target = stream.and_then(|stream| self.calls.get(stream)?.target.clone());
        let (Some(stream), Some(target)) = (stream, target) else {
            // The client has given the call up meanwhile.
            self.free(step.body);
            return Ok(());
        };
        self.take_reply(stream, &target, step);
        self.pump(stream);
        Ok(())
    }

    /// The connection takes no more calls: further calls of its service ask for another.
    pub fn going_away(&mut self, connection: u32) {
        self.leave_connection(connection);
    }

    /// The connection has ended; the calls that it had were answered before.
    pub fn closed(&mut self, connection: u32, code: Code) {
        self.leave_connection(connection);
        let on_it = self.streams.iter().filter(|((of, _), _)| *of == connection);
        let left: Vec<u32> = on_it.map(|(_, stream)| *stream).collect();
        for stream in left {
            let code = match code {
                Code::Ok => Code::Unavailable,
                code => code,
            };
            let status = GrpcStatus::new(code, "the connection to the service ended");
            if let Some(call) = self.calls.get_mut(stream)
                && !matches!(call.replies.back(), Some(PortReply::End { .. }))
            {
                let metadata = Vec::new();
                call.is_over_behind = true;
                call.replies.push_back(PortReply::End { status, metadata });
                self.pump(stream);
            }
        }
    }

    /// A reply finds no room. The client's time counts while it is the one that leaves much unread: what others hold is not its fault.
    fn note_blocked(&mut self) {
        let since = match self.blocked_since {
            Some(since) if self.leaves_much_unread() => since,
            _ => self.now,
        };
        self.blocked_since = Some(since);
    }

    /// Whether replies wait for the client to read, more than every client may leave.
    pub(crate) fn leaves_much_unread(&self) -> bool {
        self.share.held() > CONNECTION_PRIVATE_BYTES_FLOOR
    }

    fn has_room_for_reply(&self, step: &Step) -> bool {
        let bytes = match &step.body {
            Body::Received(body) => body.message_bytes,
            Body::Encoded(body) => body.message_bytes,
            _ => 0,
        };
        self.share.message_bytes_now() > u64::from(bytes) + REPLY_COST_BYTES
    }

    fn take_reply(&mut self, stream: u32, target: &CallTarget, mut step: Step) {
        let mut block = Vec::new();
        if step
            .parts
            .intersects(Parts::HEADERS | Parts::STATUS | Parts::CANCEL)
        {
            block = self.metadata_of(&step.body);
        }
        let ends = step.parts.intersects(Parts::STATUS | Parts::CANCEL);
        let body = std::mem::take(&mut step.body);
        let Some(call) = self.calls.get_mut(stream) else {
            return self.free(body);
        };
        if step.parts.contains(Parts::WINDOW) {
            call.send_window += i64::from(step.window_bytes);
            self.note_step(stream);
            return self.free(body);
        }
        if step.parts.contains(Parts::HEADERS) {
            let of_head = if ends {
                block.clone()
            } else {
                std::mem::take(&mut block)
            };
            let mut metadata = without_reserved(of_head);
            let asked = take_compression_request(&mut metadata);
            let (configured, accepts) = (self.compression, call.accepts);
            let passing = target.binding.service.compressed;
            let choose = || ReplyCompression::choose(asked, configured, accepts, passing);
            call.reply_compression.get_or_insert_with(choose);
            call.replies.push_back(PortReply::Head { metadata });
        }
        if !step.parts.contains(Parts::MESSAGE) {
            self.free(body);
        } else if let Err(status) = self.take_message(stream, target, step.window_bytes, body) {
            let metadata = Vec::new();
            return self.queue(stream, PortReply::End { status, metadata });
        }
        if ends {
            let (status, metadata) = status_of(step.status, block);
            if let Some(call) = self.calls.get_mut(stream) {
                call.is_over_behind = true;
            }
            self.queue(stream, PortReply::End { status, metadata });
        }
    }

    fn queue(&mut self, stream: u32, reply: PortReply) {
        if let Some(call) = self.calls.get_mut(stream) {
            call.replies.push_back(reply);
        }
    }

    fn metadata_of(&mut self, body: &Body) -> Vec<u8> {
        let block = match body {
            Body::Received(body) => {
                let bytes = self.heap.bytes(&body.block);
                bytes.get(..body.metadata_bytes as usize).unwrap_or_default()
            }
            Body::Encoded(body) => body.metadata(),
            _ => &[],
        };
        block.to_vec()
    }

    /// Has a message wait for the client: as it came, or encoded if it is native.
    fn take_message(
        &mut self,
        stream: u32,
        target: &CallTarget,
        window_bytes: u32,
        body: Body,
    ) -> Result<(), GrpcStatus> {
        let message = match body {
            Body::Encoded(body) => message_of(body),
            Body::Received(body) => {
                let (service, output) = (&target.binding.service, target.method.output);
                let encoded = protobuf_of(service, output, &body, &mut self.heap);
                self.heap.free(body.block);
                encoded?
            }
            _ => ReplyMessage::of(Vec::new()),
        };
        let configured = self.compression;
        let Some(call) = self.calls.get_mut(stream) else {
            return Ok(());
        };
        let accepts = call.accepts;
        let passing = target.binding.service.compressed;
        let choose = || ReplyCompression::choose(None, configured, accepts, passing);
        let compressed = call.reply_compression.get_or_insert_with(choose).apply(message);
        let (form, message) = compressed.map_err(|fault| GrpcStatus::new(fault.code(), fault.to_string()))?;
        let reply = PortReply::Message {
            form,
            bytes: ReplyBytes::counted_in(&self.share, message),
            window_bytes: if target.method.server_streaming {
                window_bytes
            } else {
                0
            },
        };
        self.queue(stream, reply);
        Ok(())
    }

    fn free(&mut self, body: Body) {
        if let Body::Received(body) = body {
            self.heap.free(body.block);
        }
    }

    /// Hands replies to the protocol that had no room before.
    pub(crate) fn pump_waiting(&mut self) {
        for _ in 0..self.waiting_for_output.len() {
            if let Some(stream) = self.waiting_for_output.pop_front() {
                if let Some(call) = self.calls.get_mut(stream) {
                    call.waits_for_output = false;
                }
                self.pump(stream);
            }
        }
    }

    /// Hands a call's replies to the protocol, as far as it takes them.
    pub(crate) fn pump(&mut self, stream: u32) {
        loop {
            let Some(call) = self.calls.get_mut(stream) else {
                return;
            };
            let Some(reply) = call.replies.pop_front() else {
                return self.note_step(stream);
            };
            match self.send(stream, reply) {
                ReplyOutcome::Sent => {}
                ReplyOutcome::Waits(reply) => {
                    if let Some(call) = self.calls.get_mut(stream) {
                        call.replies.push_front(reply);
                    }
                    return self.note_step(stream);
                }
                ReplyOutcome::Over => return self.cancel(stream, Code::Cancelled),
            }
        }
    }

    fn send(&mut self, stream: u32, reply: PortReply) -> ReplyOutcome {
        match reply {
            PortReply::Head { metadata } => self.send_head(stream, metadata),
            PortReply::Message {
                form,
                bytes,
                window_bytes,
            } => {
                let waits = |bytes| {
                    ReplyOutcome::Waits(PortReply::Message {
                        form,
                        bytes,
                        window_bytes,
                    })
                };
                // A message is preceded by a head; one that was sent already stays.
                if let ReplyOutcome::Waits(_) = self.send_head(stream, Vec::new()) {
                    return waits(bytes);
                }
                match self.grpc.send_message(stream, form, bytes, self.now) {
                    Ok(()) => {
                        if let Some(call) = self.calls.get_mut(stream) {
                            call.window_due = call.window_due.saturating_add(window_bytes);
                        }
                        ReplyOutcome::Sent
                    }
                    Err((CallFault::Http2(SendError::QueueFull), bytes)) => waits(bytes),
                    Err((fault, _)) => self.fail_reply(stream, &fault),
                }
            }
            PortReply::End { status, metadata } => {
                let finished = self.grpc.finish(stream, &status, &metadata, self.now);
                match finished {
                    Ok(()) => ReplyOutcome::Over,
                    Err(fault) => self.fail_reply(stream, &fault),
                }
            }
        }
    }

    fn send_head(&mut self, stream: u32, metadata: Vec<u8>) -> ReplyOutcome {
        let call = self.calls.get(stream);
        let compression = call.and_then(|call| call.reply_compression);
        let head = ResponseHead {
            encoding: compression.unwrap_or_default().encoding,
            metadata,
            ..ResponseHead::default()
        };
        match self.grpc.respond(stream, &head, self.now) {
            Ok(()) | Err(CallFault::State(_)) => ReplyOutcome::Sent,
            Err(CallFault::Http2(SendError::OutputFull)) => {
                self.wait_for_output(stream);
                ReplyOutcome::Waits(PortReply::Head {
                    metadata: head.metadata,
                })
            }
            Err(fault) => self.fail_reply(stream, &fault),
        }
    }

    pub(crate) fn wait_for_output(&mut self, stream: u32) {
        if let Some(call) = self.calls.get_mut(stream)
            && !call.waits_for_output
        {
            call.waits_for_output = true;
            self.waiting_for_output.push_back(stream);
        }
    }

    /// What the service has answered cannot be said to the client.
    fn fail_reply(&mut self, stream: u32, fault: &CallFault) -> ReplyOutcome {
        let status = GrpcStatus::new(Code::Internal, format!("the reply cannot be sent: {fault}"));
        // The call may be over already.
        let _ = self.grpc.finish(stream, &status, &[], self.now);
        ReplyOutcome::Over
    }
}

/// Whether a body counts in its client's share before it is here.
fn is_counted(body: &Body) -> bool {
    matches!(body, Body::Encoded(body) if body.buffer.charge.is_some())
}
