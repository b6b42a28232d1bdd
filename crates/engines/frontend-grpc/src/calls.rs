//! What a port knows of a call.
//!
//! ```text
//! Waiting (its service was asked for) ──► Ready (nothing was said of it) ──► Begun (it has a number) ──► gone
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use provost_datapath::{
    ATTACHMENT_PRIVATE_BYTES_MAX, CompressedMessages, MessageCompression, Nanos, PrivateBytes, PrivateCharge,
};
use provost_grpc::{CompressionFault, EncodingSet, GrpcMessage, GrpcStatus, MessageEncoding, MessageForm};
use provost_http2::{DataChunk, FewBytes};
use provost_wire::limits::STREAM_WINDOW_BYTES;

use crate::binding::{MethodBinding, NumberedBinding};
use crate::node_services::NodeCall;

/// What a reply counts in the client's share beside its bytes: its allocations, its place in a queue, the prefix that is sent
/// before it.
pub(crate) const REPLY_COST_BYTES: u64 = 192;

/// What a message that waits takes beside its bytes.
const INCOMING_COST_BYTES: usize = 64;
/// What messages of a connection that wait may take beside their bytes. The windows of HTTP/2 count a message of no bytes as
/// five, so that they alone let far more in.
const INCOMING_COST_BYTES_MAX: usize = 16 << 20;
/// Bytes of whole messages of a connection that wait: as many as its client's share has. Each call may have one message that is
/// larger than its window.
const INCOMING_BYTES_MAX: usize = ATTACHMENT_PRIVATE_BYTES_MAX as usize;

/// What messages of the client take that have come whole and were not passed on, over all calls of a connection.
#[derive(Debug, Default)]
pub(crate) struct IncomingCost {
    messages: usize,
    bytes: usize,
}

impl IncomingCost {
    /// Whether another message may wait.
    pub(crate) fn has_room_for(&self, message: &GrpcMessage) -> bool {
        (self.messages + 1) * INCOMING_COST_BYTES <= INCOMING_COST_BYTES_MAX
            && self.bytes + message.bytes.len() <= INCOMING_BYTES_MAX
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn add(&mut self, message: &GrpcMessage) {
        self.messages += 1;
        self.bytes += message.bytes.len();
    }

    pub(crate) fn subtract(&mut self, message: &GrpcMessage) {
        self.messages -= 1;
        self.bytes -= message.bytes.len();
    }
}

/// Messages that are shorter go plain where only the listener's configuration asks for compression: their frames would hardly be fewer.
const COMPRESSED_BYTES_MIN: usize = 512;

/// How the replies of a call are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyCompression {
    /// What the head of the response names.
    pub(crate) encoding: MessageEncoding,
    pub(crate) messages: CompressedReplies,
}

/// Which replies of a call are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CompressedReplies {
    /// Those that gain by it, as the listener's configuration has it.
    #[default]
    Long,
    /// All of them: the app that serves asks for it.
    All,
    /// Those that the server has compressed.
    AsTheyCame,
}

impl ReplyCompression {
    /// By what the server behind asked, else by the configuration; none where the client does not take that.
    pub(crate) fn choose(
        asked: Option<MessageEncoding>,
        configured: MessageEncoding,
        accepted: EncodingSet,
        passing: CompressedMessages,
    ) -> ReplyCompression {
        let encoding = asked.unwrap_or(configured);
        if !accepted.contains(encoding) {
            return ReplyCompression::default();
        }
        let messages = match (asked, passing) {
            (None, _) => CompressedReplies::Long,
            (Some(_), CompressedMessages::Decompressed) => CompressedReplies::All,
            (Some(_), CompressedMessages::Passed) => CompressedReplies::AsTheyCame,
        };
        ReplyCompression { encoding, messages }
    }

    /// A message as it is sent.
    ///
    /// # Errors
    /// It came in an encoding that the client does not take, and is not what that makes of a message, or too large.
    pub(crate) fn apply(
        self,
        message: ReplyMessage,
    ) -> Result<(MessageForm, ReplyMessage), CompressionFault> {
        if message.is_compressed_by(self.encoding) {
            return Ok((MessageForm::Compressed, message));
        }
        let message = message.into_plain()?;
        let bytes = message.bytes();
        let is_left = match self.messages {
            CompressedReplies::Long => bytes.len() < COMPRESSED_BYTES_MIN,
            CompressedReplies::All => false,
            CompressedReplies::AsTheyCame => true,
        };
        if self.encoding == MessageEncoding::Identity || is_left {
            return Ok((MessageForm::Plain, message));
        }
        let compressed = self.encoding.compress(bytes);
        if compressed.len() >= bytes.len() && self.messages == CompressedReplies::Long {
            return Ok((MessageForm::Plain, message));
        }
        Ok((MessageForm::Compressed, ReplyMessage::of(compressed)))
    }
}

/// How far a call is on its way into its datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPhase {
    /// Its service was asked for.
    Waiting,
    /// It is known where it goes, and its datapath has not heard of it.
    Ready,
    /// Its datapath knows of it.
    Begun,
}

/// A call of the client.
#[derive(Debug)]
pub(crate) struct PortCall {
    pub(crate) phase: CallPhase,
    /// As the client has it: `/package.Service/Method`.
    path: String,
    /// Of a service that the node answers itself.
    pub(crate) node: Option<NodeCall>,
    /// What the control plane was asked about such a call, until it has answered: a successor asks it anew.
    pub(crate) question: Option<Vec<u8>>,
    /// Once its service is known.
    pub(crate) target: Option<CallTarget>,
    /// The request's metadata, until the call begins.
    pub(crate) metadata: Vec<u8>,
    /// When it must end; 0 for never.
    pub(crate) deadline: Nanos,
    /// How the client compresses its messages.
    pub(crate) encoding: MessageEncoding,
    /// How it takes replies compressed.
    pub(crate) accepts: EncodingSet,
    /// How its replies are compressed, from the first one on that was made ready.
    pub(crate) reply_compression: Option<ReplyCompression>,
    /// What came of the client and was not passed on.
    pub(crate) incoming: VecDeque<GrpcMessage>,
    pub(crate) is_half_closed: bool,
    pub(crate) has_ended_requests: bool,
    /// What may be sent into the datapath of a stream.
    pub(crate) send_window: i64,
    /// What is to be given back of the server's stream.
    pub(crate) window_due: u32,
    pub(crate) is_ready: bool,
    pub(crate) replies: VecDeque<PortReply>,
    pub(crate) waits_for_output: bool,
    /// Its datapath has ended it.
    pub(crate) is_over_behind: bool,
}

/// Where a call goes.
#[derive(Clone, Debug)]
pub(crate) struct CallTarget {
    pub(crate) binding: Arc<NumberedBinding>,
    pub(crate) method: MethodBinding,
    /// The call's number on its connection; 0 as long as it has not begun.
    pub(crate) number: u64,
}

/// The bytes of a reply, which count in the client's share until its socket has taken them.
#[derive(Clone, Debug)]
pub(crate) enum ReplyBytes {
    Counted(Arc<CountedReply>),
    Few(FewBytes),
}

/// A message for the client, behind what comes before it in its memory.
#[derive(Debug)]
pub(crate) struct ReplyMessage {
    pub(crate) bytes: Vec<u8>,
    pub(crate) from: usize,
    /// How it is compressed, if it passes as it came.
    pub(crate) compression: Option<Box<MessageCompression>>,
}

#[derive(Debug)]
pub(crate) struct CountedReply {
    message: ReplyMessage,
    _charge: Option<PrivateCharge>,
}

impl ReplyMessage {
    /// One that is alone in its memory.
    pub(crate) fn of(bytes: Vec<u8>) -> ReplyMessage {
        ReplyMessage {
            bytes,
            from: 0,
            compression: None,
        }
    }

    fn is_compressed_by(&self, encoding: MessageEncoding) -> bool {
        let compression = self.compression.as_ref();
        compression.is_some_and(|compression| compression.encoding == encoding)
    }

    fn into_plain(self) -> Result<ReplyMessage, CompressionFault> {
        let Some(compression) = &self.compression else {
            return Ok(self);
        };
        let plain = compression
            .encoding
            .decompress(self.bytes(), compression.plain_bytes_max)?;
        Ok(ReplyMessage::of(plain))
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(self.from..).unwrap_or_default()
    }
}

impl ReplyBytes {
    /// Bytes that count nowhere.
    pub(crate) fn uncounted(bytes: Vec<u8>) -> ReplyBytes {
        let (message, _charge) = (ReplyMessage::of(bytes), None);
        ReplyBytes::Counted(Arc::new(CountedReply { message, _charge }))
    }

    pub(crate) fn counted_in(share: &Arc<PrivateBytes>, message: ReplyMessage) -> ReplyBytes {
        let charge = share.charge(message.bytes.capacity() as u64 + REPLY_COST_BYTES);
        ReplyBytes::Counted(Arc::new(CountedReply {
            message,
            _charge: Some(charge),
        }))
    }
}

impl DataChunk for ReplyBytes {
    fn bytes(&self) -> &[u8] {
        match self {
            ReplyBytes::Counted(reply) => reply.message.bytes(),
            ReplyBytes::Few(few) => few.bytes(),
        }
    }

    fn from_saved(bytes: Vec<u8>) -> ReplyBytes {
        ReplyBytes::uncounted(bytes)
    }

    fn of_few(bytes: &[u8]) -> ReplyBytes {
        match FewBytes::of(bytes) {
            Some(few) => ReplyBytes::Few(few),
            None => ReplyBytes::from_saved(bytes.to_vec()),
        }
    }
}

/// What the client is to be told of a call, in order.
#[derive(Debug)]
pub(crate) enum PortReply {
    Head {
        metadata: Vec<u8>,
    },
    Message {
        form: MessageForm,
        bytes: ReplyBytes,
        /// What its stream's window gets back once it was taken.
        window_bytes: u32,
    },
    End {
        status: GrpcStatus,
        metadata: Vec<u8>,
    },
}

impl CallTarget {
    /// On which connection of the node.
    pub(crate) fn connection(&self) -> u32 {
        self.binding.service.connection
    }
}

impl PortCall {
    /// A call of a path that has a service and a method.
    pub(crate) fn new(path: String) -> PortCall {
        PortCall {
            phase: CallPhase::Waiting,
            path,
            node: None,
            question: None,
            target: None,
            metadata: Vec::new(),
            deadline: 0,
            encoding: MessageEncoding::Identity,
            accepts: EncodingSet::IDENTITY,
            reply_compression: None,
            incoming: VecDeque::new(),
            is_half_closed: false,
            has_ended_requests: false,
            send_window: i64::from(STREAM_WINDOW_BYTES),
            window_due: 0,
            is_ready: false,
            replies: VecDeque::new(),
            waits_for_output: false,
            is_over_behind: false,
        }
    }

    /// As the client has it: `/package.Service/Method`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The full name of the service.
    pub(crate) fn service(&self) -> &str {
        self.service_and_method().0
    }

    /// The names of the service and the method.
    pub(crate) fn service_and_method(&self) -> (&str, &str) {
        let path = self.path.strip_prefix('/').unwrap_or(&self.path);
        path.rsplit_once('/').unwrap_or((path, ""))
    }

    /// Whether a step can be made of what is there. One with a single request is begun when that is whole.
    pub(crate) fn has_step(&self) -> bool {
        let Some(target) = &self.target else {
            return false;
        };
        let streams = target.method.client_streaming;
        match self.phase {
            CallPhase::Waiting => false,
            CallPhase::Ready => streams || self.is_half_closed || self.incoming.len() > 1,
            CallPhase::Begun => {
                let window = self.window_due > 0;
                let message = streams && !self.incoming.is_empty() && self.send_window > 0;
                let end = self.incoming.is_empty() && self.is_half_closed && !self.has_ended_requests;
                window || message || end
            }
        }
    }
}
