//! Messages between what clients send and the bodies of steps.

use std::sync::Arc;

use provost_datapath::{
    Body, Buffer, BufferPool, EncodedBody, MessageCompression, Offsets, PrivateBytes, ReceiveHeap,
    ReceivedBody, UNCOUNTED_BYTES_MAX, message_offset,
};
use provost_grpc::GrpcStatus;
use provost_schema::MessageId;
use provost_wire::Code;
use provost_wire::limits::BLOCK_ALIGN_BYTES;
use provost_wire::metadata::{self, STATUS_DETAILS, STATUS_MESSAGE, without_reserved};

use crate::binding::ServiceBinding;
use crate::calls::ReplyMessage;

/// Memory beside a reply's message that is kept together with it, at most: a message in more is copied out of that, so that a
/// client's share counts little more than what waits for it.
const SPARE_BYTES_MAX: usize = 512;

/// A message of the client, as it goes on.
pub(crate) struct RequestMessage {
    pub(crate) bytes: Vec<u8>,
    /// How it is compressed.
    pub(crate) compression: Option<Box<MessageCompression>>,
}

impl RequestMessage {
    /// One that is not compressed.
    pub(crate) fn plain(bytes: Vec<u8>) -> RequestMessage {
        let compression = None;
        RequestMessage { bytes, compression }
    }
}

/// Metadata and a message of the client. Nothing of it is read here.
pub(crate) fn protobuf_body(
    metadata: &[u8],
    message: Option<RequestMessage>,
    share: &Arc<PrivateBytes>,
    buffers: &mut BufferPool,
) -> Body {
    let mut body = match message {
        None if metadata.is_empty() => return Body::Empty,
        None => EncodedBody::of(metadata, &[], buffers.take()),
        Some(RequestMessage { bytes, compression }) if metadata.is_empty() => EncodedBody {
            metadata_bytes: 0,
            message_bytes: bytes.len() as u32,
            buffer: Buffer::from(bytes),
            compression,
        },
        Some(RequestMessage { bytes, compression }) => EncodedBody {
            compression,
            ..EncodedBody::of(metadata, &bytes, buffers.take())
        },
    };
    let held = body.buffer.bytes.capacity() as u64;
    // What somebody decompresses counts where the message does.
    if held > UNCOUNTED_BYTES_MAX || body.compression.is_some() {
        body.buffer.charge = Some(share.charge(held));
    }
    Body::Encoded(body)
}

/// The message of a body, for the client.
pub(crate) fn message_of(body: EncodedBody) -> ReplyMessage {
    let EncodedBody {
        buffer,
        metadata_bytes,
        message_bytes,
        compression,
    } = body;
    let from = message_offset(metadata_bytes);
    let to = from + message_bytes as usize;
    let mut bytes = buffer.into_parts().bytes;
    // The first engine has seen that the lengths add up.
    bytes.truncate(to);
    if bytes.capacity().saturating_sub(message_bytes as usize) > SPARE_BYTES_MAX {
        return ReplyMessage {
            compression,
            ..ReplyMessage::of(bytes.get(from..to).unwrap_or_default().to_vec())
        };
    }
    ReplyMessage {
        bytes,
        from,
        compression,
    }
}

/// The protobuf form of a native message that came for the client.
pub(crate) fn protobuf_of(
    binding: &ServiceBinding,
    message: MessageId,
    body: &ReceivedBody,
    heap: &mut dyn ReceiveHeap,
) -> Result<ReplyMessage, GrpcStatus> {
    let wrong = |reason: String| GrpcStatus::new(Code::Internal, format!("the reply's message: {reason}"));
    let offset = message_offset(body.metadata_bytes);
    let window_at = match body.offsets {
        Offsets::Message => 0,
        Offsets::Window => body.block.at + (offset / BLOCK_ALIGN_BYTES) as u32,
    };
    let block = heap.bytes(&body.block);
    let linear = block.get(offset..offset + body.message_bytes as usize);
    let linear = linear.ok_or_else(|| wrong("its lengths do not add up".into()))?;
    let mut protobuf = Vec::new();
    binding
        .tables
        .encode_in_window(message, linear, window_at, &mut protobuf)
        .map_err(|error| wrong(error.to_string()))?;
    // The encoder asks for more room than most messages take.
    protobuf.shrink_to_fit();
    Ok(ReplyMessage::of(protobuf))
}

/// Splits a status's metadata into what is reserved for the status, and the rest.
pub(crate) fn status_of(code: Code, block: Vec<u8>) -> (GrpcStatus, Vec<u8>) {
    let value_of = |key| metadata::find(&block, key).and_then(|range| block.get(range));
    let message = value_of(STATUS_MESSAGE).map(|message| String::from_utf8_lossy(message).into_owned());
    let mut status = GrpcStatus::new(code, message.unwrap_or_default());
    status.details = value_of(STATUS_DETAILS).map(<[u8]>::to_vec);
    (status, without_reserved(block))
}
