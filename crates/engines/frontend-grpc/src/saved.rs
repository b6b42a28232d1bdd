//! A port as bytes, for the process that goes on with its client: the connection, the calls, replies that the client has not read,
//! and blocks that engines of its datapaths name.
//!
//! What the client is told by its connection depends on nothing else, so it notices nothing. Bodies are in the state in the form
//! that clients have, and in that of their engines in the blocks.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use provost_datapath::{
    BlockContent, FieldReader, FieldWriter, Nanos, NotSaved, ReceivedBlock, RestoreError, SavedField, Step,
};
use provost_grpc::{GrpcConnection, GrpcMessage, GrpcStatus, MessageEncoding, MessageForm};
use provost_http2::EndpointRole;
use provost_wire::Code;

use crate::binding::{BindingUse, NumberedBinding, SERVICES_MAX, ServiceBinding};
use crate::calls::{
    CallPhase, CallTarget, CompressedReplies, PortCall, PortReply, ReplyBytes, ReplyCompression, ReplyMessage,
};
use crate::heap::{PrivateHeap, SavedBlock};
use crate::node_services::{NodeCall, NodeCallPhase, NodeEvent, NodeQuestion};
use crate::port::{GrpcPort, GrpcPortParts, GrpcRequest, PortLife};

/// What errors call the state.
const KIND: &str = "port of a gRPC client";
/// The newest version of the form: what a process says that it reads before it is given one.
pub const PORT_STATE_VERSION: u32 = 1;
/// Bytes of the state of one client, at most. A connection that has more cannot be gone on with.
pub const PORT_STATE_BYTES_MAX: usize = 256 << 20;
/// Calls, messages, replies or blocks that are read.
const ITEMS_MAX: usize = 1 << 22;

/// Why a port cannot be saved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortNotSaved {
    /// Its bytes are carried by what no successor can go on with.
    #[error("what carries its bytes cannot be handed over")]
    Carrier,
    /// Its client has left too much unread.
    #[error("its state has {bytes} bytes, and {PORT_STATE_BYTES_MAX} are the most")]
    TooLarge {
        /// How many it has.
        bytes: usize,
    },
}

impl GrpcPort {
    /// The socket of the connection, of which a successor gets a duplicate; none if none can go on with what carries it.
    #[must_use]
    pub fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        self.carrier.carried_socket()
    }

    /// The state of the port, which stays as it is. `named` are the blocks that the states of the engines of its datapaths name:
    /// others are in nobody's hands, and left out.
    ///
    /// # Errors
    /// No successor can go on with the connection.
    pub fn save(
        &self,
        named: &[(ReceivedBlock, BlockContent)],
        out: &mut FieldWriter,
    ) -> Result<(), PortNotSaved> {
        if self.carried_socket().is_none() {
            return Err(PortNotSaved::Carrier);
        }
        let before = out.bytes.len();
        out.u32(PORT_STATE_VERSION);
        self.carrier.save(out);
        self.save_behind_carrier(named, out);
        let bytes = out.bytes.len() - before;
        if bytes > PORT_STATE_BYTES_MAX {
            return Err(PortNotSaved::TooLarge { bytes });
        }
        Ok(())
    }

    /// Appends what [`GrpcPort::restore`] reads: all but the carrier.
    pub(crate) fn save_behind_carrier(&self, named: &[(ReceivedBlock, BlockContent)], out: &mut FieldWriter) {
        match &self.life {
            PortLife::Open => out.text(""),
            PortLife::Closing(reason) | PortLife::Ended(reason) => out.text(reason),
        }
        out.run(&self.input);
        self.grpc.save(out);
        self.blocked_since.save(out);
        self.save_calls(out);
        out.count(self.ready.len());
        self.ready.iter().for_each(|stream| out.u32(*stream));
        out.count(self.waiting_for_output.len());
        self.waiting_for_output.iter().for_each(|stream| out.u32(*stream));
        out.count(self.cancels.len());
        for cancel in &self.cancels {
            out.u32(cancel.connection);
            out.u64(cancel.step.call);
            out.code(cancel.step.status);
        }
        self.heap.save(named, out);
    }

    fn save_calls(&self, out: &mut FieldWriter) {
        let bindings = self.bindings_in_use();
        out.count(bindings.len());
        for binding in &bindings {
            out.u32(binding.binding.service.connection);
            out.u64(binding.binding.last_number());
            out.text(binding.service);
            out.flag(binding.is_current);
        }
        out.count(self.calls.len());
        for (stream, call) in self.calls.iter() {
            out.u32(stream);
            save_call(call, &bindings, out);
        }
    }

    /// Where calls go now, and where those go that began earlier.
    fn bindings_in_use(&self) -> Vec<BindingUse<'_>> {
        let mut bindings = self.services.bindings();
        for call in self.calls.values() {
            if let Some(target) = &call.target
                && !bindings
                    .iter()
                    .any(|known| Arc::ptr_eq(known.binding, &target.binding))
            {
                bindings.push(BindingUse {
                    service: call.service(),
                    binding: &target.binding,
                    is_current: false,
                });
            }
        }
        bindings
    }

    /// A port that goes on with the connection of another process. Nothing that the client can see is done before it is polled.
    /// `binding_of` says where calls go over a connection of this number, unless there is none.
    ///
    /// # Errors
    /// The state is not one of a port.
    pub fn restore(
        fields: &mut FieldReader<'_>,
        parts: GrpcPortParts,
        binding_of: &dyn Fn(u32) -> Option<ServiceBinding>,
        now: Nanos,
    ) -> Result<GrpcPort, RestoreError> {
        let (config, share) = (parts.config, Arc::clone(&parts.share));
        let counts = Arc::clone(&parts.counts);
        let heap_bytes = parts.receive_heap_bytes;
        let mut port = GrpcPort::new(parts, now);
        let reason = fields.text()?;
        if !reason.is_empty() {
            port.life = PortLife::Closing(reason.to_owned());
        }
        port.input = fields.run()?.to_vec();
        port.grpc = GrpcConnection::restore(fields, EndpointRole::Server, config, |bytes| {
            ReplyBytes::counted_in(&share, ReplyMessage::of(bytes))
        })?;
        port.grpc.count_in(counts);
        port.blocked_since = Option::restore(fields)?;
        let lost = port.restore_calls(fields, binding_of)?;
        for _ in 0..fields.count(ITEMS_MAX)? {
            let stream = fields.u32()?;
            if let Some(call) = port.calls.get_mut(stream).filter(|call| !call.is_ready) {
                call.is_ready = true;
                port.ready.push_back(stream);
            }
        }
        for _ in 0..fields.count(ITEMS_MAX)? {
            port.wait_for_output(fields.u32()?);
        }
        for _ in 0..fields.count(ITEMS_MAX)? {
            let (connection, call) = (fields.u32()?, fields.u64()?);
            let step = Step::cancel(call, fields.code()?);
            port.cancels.push_back(GrpcRequest { connection, step });
        }
        port.heap = PrivateHeap::restore(fields, heap_bytes)?;
        port.is_flushed = false;
        port.resume_calls(&lost);
        Ok(port)
    }

    /// Reads the calls; those whose connection is gone.
    fn restore_calls(
        &mut self,
        fields: &mut FieldReader<'_>,
        binding_of: &dyn Fn(u32) -> Option<ServiceBinding>,
    ) -> Result<Vec<u32>, RestoreError> {
        let mut bindings = Vec::new();
        // Each call may have its own.
        for _ in 0..fields.count(SERVICES_MAX + ITEMS_MAX)? {
            let (connection, last_number) = (fields.u32()?, fields.u64()?);
            let (service, is_current) = (fields.text()?, fields.flag()?);
            let binding = binding_of(connection);
            let binding = binding.map(|binding| Arc::new(NumberedBinding::going_on(binding, last_number)));
            if let (Some(binding), true) = (&binding, is_current) {
                self.services.bind(service, Arc::clone(binding));
            }
            bindings.push(binding);
        }
        let mut lost = Vec::new();
        for _ in 0..fields.count(ITEMS_MAX)? {
            let stream = fields.u32()?;
            let restored = restore_call(fields, &self.share, &bindings)?;
            if self.calls.contains_key(stream) {
                return Err(fields.damaged(format!("call {stream} is there twice")));
            }
            if restored.binding == CallBinding::Lost {
                lost.push(stream);
            }
            self.adopt_call(stream, restored);
        }
        Ok(lost)
    }

    /// Puts a call in its place, with what follows from it.
    fn adopt_call(&mut self, stream: u32, restored: RestoredCall) {
        let mut call = restored.call;
        call.incoming
            .iter()
            .for_each(|message| self.incoming.add(message));
        if let (CallPhase::Begun, Some(target)) = (call.phase, &call.target) {
            self.streams.insert((target.connection(), target.number), stream);
        }
        let method = self.node_methods.get(call.path().trim_start_matches('/'));
        call.node = restored
            .node
            .zip(method)
            .map(|(phase, method)| NodeCall::going_on(*method, phase));
        // Its question is asked anew: who had it has not answered.
        if let (Some(node), Some(message)) = (call.node, &call.question)
            && node.is_asked()
        {
            let question = NodeQuestion {
                stream,
                method: node.method_number(),
                message: message.clone(),
            };
            self.node_events.push_back(NodeEvent::Asked(question));
        }
        self.calls.insert(stream, call);
    }

    /// Calls that wait for their service ask for it anew, and those whose connection is gone end as they do when it ends.
    fn resume_calls(&mut self, lost: &[u32]) {
        let waits = |call: &PortCall| call.phase == CallPhase::Waiting && call.node.is_none();
        let waiting = self.calls.iter().filter(|(_, call)| waits(call));
        let waiting: Vec<u32> = waiting.map(|(stream, _)| stream).collect();
        for stream in waiting {
            self.find_target(stream);
        }
        for stream in lost {
            let Some(call) = self.calls.get_mut(*stream) else {
                continue;
            };
            if !call.is_over_behind {
                let status = GrpcStatus::new(
                    Code::Unavailable,
                    "the connection to the service was not carried over",
                );
                let metadata = Vec::new();
                call.is_over_behind = true;
                call.replies.push_back(PortReply::End { status, metadata });
            }
            self.pump(*stream);
        }
    }

    /// The streams whose answers come by themselves: what the control plane watches for this client.
    #[must_use]
    pub fn watching_streams(&self) -> Vec<u32> {
        let watching = self
            .calls
            .iter()
            .filter(|(_, call)| call.node.is_some_and(NodeCall::is_watching));
        watching.map(|(stream, _)| stream).collect()
    }

    /// The block to use for one that the state of an engine names.
    ///
    /// # Errors
    /// It was not saved, or is named twice.
    pub fn claim(&mut self, saved: &ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        self.heap.claim(saved)
    }

    /// Every state has been restored: blocks that none of them has claimed are in nobody's hands.
    pub fn end_claims(&mut self) {
        self.heap.end_claims();
    }
}

/// Begins to read the state of a port: what comes first is its carrier's, and then [`GrpcPort::restore`] reads the rest.
///
/// # Errors
/// A newer program wrote it.
pub fn open_port_state(state: &[u8]) -> Result<FieldReader<'_>, RestoreError> {
    let mut fields = FieldReader::new(KIND, state);
    let version = fields.u32()?;
    if version != PORT_STATE_VERSION {
        return Err(fields.unknown_version(version, PORT_STATE_VERSION));
    }
    Ok(fields)
}

/// A call as it was saved, before it has its place.
struct RestoredCall {
    call: PortCall,
    /// How far it is, if the node answers it itself.
    node: Option<NodeCallPhase>,
    binding: CallBinding,
}

/// Whether the place that a call has on a connection is there still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallBinding {
    /// It has one, or never had.
    Kept,
    Lost,
}

fn save_call(call: &PortCall, bindings: &[BindingUse<'_>], out: &mut FieldWriter) {
    call.phase.save(out);
    out.text(call.path());
    call.node.map(NodeCall::phase).save(out);
    out.flag(call.question.is_some());
    out.run(call.question.as_deref().unwrap_or_default());
    let target = call.target.as_ref().and_then(|target| {
        let mut known = bindings.iter();
        let at = known.position(|known| Arc::ptr_eq(known.binding, &target.binding))?;
        Some((at as u64, target.number))
    });
    target.save(out);
    out.run(&call.metadata);
    out.u64(call.deadline);
    call.encoding.save(out);
    out.list(call.incoming.iter());
    out.flag(call.is_half_closed);
    out.flag(call.has_ended_requests);
    out.i64(call.send_window);
    out.u32(call.window_due);
    save_replies(call, out);
    out.flag(call.is_over_behind);
}

fn restore_call(
    fields: &mut FieldReader<'_>,
    share: &Arc<provost_datapath::PrivateBytes>,
    bindings: &[Option<Arc<NumberedBinding>>],
) -> Result<RestoredCall, RestoreError> {
    let phase = CallPhase::restore(fields)?;
    let mut call = PortCall::new(fields.text()?.to_owned());
    call.phase = phase;
    let node = Option::restore(fields)?;
    let is_asked = fields.flag()?;
    let question = fields.run()?.to_vec();
    call.question = is_asked.then_some(question);
    let target: Option<(u64, u64)> = Option::restore(fields)?;
    call.metadata = fields.run()?.to_vec();
    provost_wire::metadata::check(&call.metadata).map_err(|fault| fields.damaged(fault.to_string()))?;
    call.deadline = fields.u64()?;
    call.encoding = MessageEncoding::restore(fields)?;
    call.incoming = fields.list::<GrpcMessage>(ITEMS_MAX)?.into();
    call.is_half_closed = fields.flag()?;
    call.has_ended_requests = fields.flag()?;
    call.send_window = fields.i64()?;
    call.window_due = fields.u32()?;
    for _ in 0..fields.count(ITEMS_MAX)? {
        restore_reply(fields, share, &mut call)?;
    }
    call.is_over_behind = fields.flag()?;
    let binding = restore_target(fields, &mut call, target, bindings)?;
    Ok(RestoredCall { call, node, binding })
}

fn restore_target(
    fields: &FieldReader<'_>,
    call: &mut PortCall,
    target: Option<(u64, u64)>,
    bindings: &[Option<Arc<NumberedBinding>>],
) -> Result<CallBinding, RestoreError> {
    let Some((at, number)) = target else {
        if call.phase != CallPhase::Waiting {
            return Err(fields.damaged("a call goes nowhere"));
        }
        return Ok(CallBinding::Kept);
    };
    let binding = bindings
        .get(at as usize)
        .ok_or_else(|| fields.damaged("a call goes to what is not named"))?;
    let (_, name) = call.service_and_method();
    let found = binding.as_ref().and_then(|binding| {
        let method = binding.service.methods.get(name).copied()?;
        Some((Arc::clone(binding), method))
    });
    call.target = found.map(|(binding, method)| CallTarget {
        binding,
        method,
        number,
    });
    Ok(match (&call.target, call.phase) {
        (Some(_), _) => CallBinding::Kept,
        (None, CallPhase::Begun) => CallBinding::Lost,
        (None, _) => {
            // Nothing was said of it to anybody: it looks for its service anew.
            call.phase = CallPhase::Waiting;
            CallBinding::Kept
        }
    })
}

/// How replies are told apart.
mod reply {
    pub(super) const HEAD: u8 = 0;
    pub(super) const MESSAGE: u8 = 1;
    pub(super) const END: u8 = 2;
    /// How messages are compressed that follow as they came, and those that come later. Earlier programs do not know it.
    pub(super) const PASSING: u8 = 3;
    /// A message as it came, compressed.
    pub(super) const COMPRESSED: u8 = 4;
}

fn save_replies(call: &PortCall, out: &mut FieldWriter) {
    let compression = call.reply_compression.unwrap_or_default();
    let passes = compression.messages == CompressedReplies::AsTheyCame;
    out.count(call.replies.len() + usize::from(passes));
    if passes {
        out.u8(reply::PASSING);
        compression.encoding.save(out);
    }
    let replies = call.replies.iter();
    replies.for_each(|reply| save_reply(reply, compression, out));
}

/// Saves a reply: as it came, or as it was before this end compressed it. A successor sends what is left of the call plain, but for
/// what passes.
fn save_reply(saved: &PortReply, compression: ReplyCompression, out: &mut FieldWriter) {
    use provost_http2::DataChunk;
    match saved {
        PortReply::Head { metadata } => {
            out.u8(reply::HEAD);
            out.run(metadata);
        }
        PortReply::Message {
            form,
            bytes,
            window_bytes,
        } => {
            match (form, compression.messages) {
                (MessageForm::Compressed, CompressedReplies::AsTheyCame) => {
                    out.u8(reply::COMPRESSED);
                    out.run(bytes.bytes());
                }
                (MessageForm::Plain, _) => {
                    out.u8(reply::MESSAGE);
                    out.run(bytes.bytes());
                }
                // This end has compressed it itself, so nothing is wrong with it.
                (MessageForm::Compressed, CompressedReplies::Long | CompressedReplies::All) => {
                    out.u8(reply::MESSAGE);
                    let plain = compression.encoding.decompress(bytes.bytes(), u32::MAX);
                    out.run(&plain.unwrap_or_default());
                }
            }
            out.u32(*window_bytes);
        }
        PortReply::End { status, metadata } => {
            out.u8(reply::END);
            status.save(out);
            out.run(metadata);
        }
    }
}

fn restore_reply(
    fields: &mut FieldReader<'_>,
    share: &Arc<provost_datapath::PrivateBytes>,
    call: &mut PortCall,
) -> Result<(), RestoreError> {
    let kind = fields.u8()?;
    let restored = match kind {
        reply::PASSING => {
            call.reply_compression = Some(ReplyCompression {
                encoding: MessageEncoding::restore(fields)?,
                messages: CompressedReplies::AsTheyCame,
            });
            return Ok(());
        }
        reply::HEAD => PortReply::Head {
            metadata: fields.run()?.to_vec(),
        },
        reply::COMPRESSED if call.reply_compression.is_none() => {
            return Err(fields.damaged("a compressed reply, and nothing says how"));
        }
        reply::MESSAGE | reply::COMPRESSED => PortReply::Message {
            form: if kind == reply::COMPRESSED {
                MessageForm::Compressed
            } else {
                MessageForm::Plain
            },
            bytes: ReplyBytes::counted_in(share, ReplyMessage::of(fields.run()?.to_vec())),
            window_bytes: fields.u32()?,
        },
        reply::END => PortReply::End {
            status: GrpcStatus::restore(fields)?,
            metadata: fields.run()?.to_vec(),
        },
        other => return Err(fields.damaged(format!("{other} is no reply"))),
    };
    call.replies.push_back(restored);
    Ok(())
}

impl SavedField for CallPhase {
    fn save(&self, out: &mut FieldWriter) {
        out.u8(match self {
            CallPhase::Waiting => 0,
            CallPhase::Ready => 1,
            CallPhase::Begun => 2,
        });
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<CallPhase, RestoreError> {
        match fields.u8()? {
            0 => Ok(CallPhase::Waiting),
            1 => Ok(CallPhase::Ready),
            2 => Ok(CallPhase::Begun),
            other => Err(fields.damaged(format!("{other} is no phase of a call"))),
        }
    }
}

impl SavedField for NodeCallPhase {
    fn save(&self, out: &mut FieldWriter) {
        out.u8(match self {
            NodeCallPhase::Fresh => 0,
            NodeCallPhase::Listens => 1,
            NodeCallPhase::Asked => 2,
            NodeCallPhase::Watches => 3,
        });
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<NodeCallPhase, RestoreError> {
        match fields.u8()? {
            0 => Ok(NodeCallPhase::Fresh),
            1 => Ok(NodeCallPhase::Listens),
            2 => Ok(NodeCallPhase::Asked),
            3 => Ok(NodeCallPhase::Watches),
            other => Err(fields.damaged(format!("{other} is no phase of a call of the node's"))),
        }
    }
}

impl PrivateHeap {
    /// Appends the blocks that states name, which stay as they are.
    pub fn save(&self, named: &[(ReceivedBlock, BlockContent)], out: &mut FieldWriter) {
        out.count(named.len());
        for (block, content) in named {
            out.u32(block.at);
            out.u32(block.bytes);
            let filled = match content {
                BlockContent::Movable { filled } => *filled,
                BlockContent::Fixed => block.bytes,
            };
            let bytes = self.live(block.at).unwrap_or_default();
            out.run(bytes.get(..filled as usize).unwrap_or_default());
        }
    }

    /// A heap of so many bytes with the blocks that [`PrivateHeap::save`] appended, each to be claimed.
    ///
    /// # Errors
    /// Two have one place, or they have no room.
    pub fn restore(fields: &mut FieldReader<'_>, bytes_max: u64) -> Result<PrivateHeap, RestoreError> {
        let mut blocks = Vec::new();
        for _ in 0..fields.count(ITEMS_MAX)? {
            blocks.push(SavedBlock {
                at: fields.u32()?,
                bytes: fields.u32()?,
                filled: fields.run()?,
            });
        }
        PrivateHeap::of_saved(&blocks, bytes_max)
            .ok_or_else(|| fields.damaged("blocks are there twice, or have no room in the heap"))
    }
}
