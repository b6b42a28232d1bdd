//! Messages between the form that clients send and the one that the engines of a datapath have.

use std::cell::RefCell;
use std::sync::Arc;

use provost_datapath::{
    Body, Buffer, BufferPool, Gathered, Offsets, PrivateBytes, ReceiveHeap, ReceivedBody,
    UNCOUNTED_BYTES_MAX, message_offset,
};
use provost_grpc::GrpcStatus;
use provost_marshal::{DecodeError, Scratch};
use provost_schema::MessageId;
use provost_wire::Code;
use provost_wire::limits::BLOCK_ALIGN_BYTES;
use provost_wire::metadata::{self, STATUS_DETAILS, STATUS_MESSAGE, without_reserved};

use crate::binding::ServiceBinding;

thread_local! {
    /// One serves all connections of a thread.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Metadata and a message of the client, in the form that the first engine passes on.
pub(crate) fn native_body(
    binding: &ServiceBinding,
    metadata: &[u8],
    message: Option<(MessageId, &[u8])>,
    share: &Arc<PrivateBytes>,
    buffers: &mut BufferPool,
) -> Result<Body, GrpcStatus> {
    if metadata.is_empty() && message.is_none() {
        return Ok(Body::Empty);
    }
    let mut buffer = buffers.take();
    buffer.bytes.extend_from_slice(metadata);
    buffer.bytes.resize(message_offset(metadata.len() as u32), 0);
    let message_bytes = match message {
        None => 0,
        Some((message, protobuf)) => match decode(binding, message, protobuf, &mut buffer) {
            Ok(message_bytes) => message_bytes,
            Err(error) => {
                buffers.give(buffer);
                return Err(malformed(&error));
            }
        },
    };
    let held = buffer.bytes.capacity() as u64;
    if held > UNCOUNTED_BYTES_MAX {
        buffer.charge = Some(share.charge(held));
    }
    Ok(Body::Gathered(Gathered {
        buffer,
        metadata_bytes: metadata.len() as u32,
        message_bytes,
        token: 0,
    }))
}

fn decode(
    binding: &ServiceBinding,
    message: MessageId,
    protobuf: &[u8],
    buffer: &mut Buffer,
) -> Result<u32, DecodeError> {
    let bytes_max = binding.message_bytes_max;
    SCRATCH.with_borrow_mut(|scratch| {
        let tables = &binding.tables;
        tables.decode(message, protobuf, &mut buffer.bytes, bytes_max, scratch)
    })
}

fn malformed(error: &DecodeError) -> GrpcStatus {
    let code = match error {
        DecodeError::TooLong { .. } => Code::ResourceExhausted,
        _ => Code::Internal,
    };
    GrpcStatus::new(code, format!("the request's message is malformed: {error}"))
}

/// The protobuf form of a message that came for the client.
pub(crate) fn protobuf_of(
    binding: &ServiceBinding,
    message: MessageId,
    body: &ReceivedBody,
    heap: &mut dyn ReceiveHeap,
) -> Result<Vec<u8>, GrpcStatus> {
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
    Ok(protobuf)
}

/// Splits a status's metadata into what is reserved for the status, and the rest.
pub(crate) fn status_of(code: Code, block: &[u8]) -> (GrpcStatus, Vec<u8>) {
    let value_of = |key| metadata::find(block, key).and_then(|range| block.get(range));
    let message = value_of(STATUS_MESSAGE).map(|message| String::from_utf8_lossy(message).into_owned());
    let mut status = GrpcStatus::new(code, message.unwrap_or_default());
    status.details = value_of(STATUS_DETAILS).map(<[u8]>::to_vec);
    (status, without_reserved(block))
}
