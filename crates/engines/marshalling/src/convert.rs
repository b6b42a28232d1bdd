//! Bodies from one form into another. A body that cannot be converted has been given back when the failure returns, but for one
//! that is checked where it is.

use provost_compression::CompressionFault;
use provost_datapath::{
    Body, Buffer, Context, EncodedBody, Gathered, HeapFull, Offsets, PrivateCharge, ReceivedBody,
    UNCOUNTED_BYTES_MAX, message_offset,
};
use provost_marshal::{DecodeError, EncodeError, MessageError, Scratch, linearize};
use provost_schema::MessageId;
use provost_wire::Code;
use provost_wire::metadata::{self, MetadataError};

use crate::engine::{Binding, Side};

/// Why a message does not pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConversionFailure {
    #[error("the app's message is malformed: {0}")]
    Outbound(MessageError),
    #[error("the message was not sent: {0}")]
    TooLong(EncodeError),
    #[error("the peer's message is malformed: {0}")]
    Inbound(#[from] MessageError),
    #[error("the peer's message is malformed: {0}")]
    Protobuf(#[from] DecodeError),
    #[error(transparent)]
    Compressed(#[from] CompressionFault),
    #[error("the peer's {0}")]
    Metadata(#[from] MetadataError),
    #[error("the request's message is malformed: {0}")]
    Request(DecodeError),
    #[error("the response's message is malformed: {0}")]
    Response(DecodeError),
    #[error("the transport delivered a step whose lengths do not add up")]
    Lengths,
    #[error(transparent)]
    HeapFull(#[from] HeapFull),
    #[error("the service has no method {0}")]
    NoMethod(u16),
    #[error("too many calls are open on this connection")]
    TooManyCalls,
}

impl ConversionFailure {
    pub(crate) fn code(&self) -> Code {
        match self {
            ConversionFailure::HeapFull(_)
            | ConversionFailure::TooManyCalls
            | ConversionFailure::TooLong(_) => Code::ResourceExhausted,
            // As of a text that was checked when the message was gathered, because it is short.
            ConversionFailure::Outbound(MessageError::Utf8 { .. }) => Code::InvalidArgument,
            ConversionFailure::Protobuf(DecodeError::TooLong { .. })
            | ConversionFailure::Request(DecodeError::TooLong { .. })
            | ConversionFailure::Response(DecodeError::TooLong { .. }) => Code::ResourceExhausted,
            ConversionFailure::NoMethod(_) => Code::Unimplemented,
            ConversionFailure::Compressed(fault) => fault.code(),
            _ => Code::Internal,
        }
    }
}

/// What a message is converted by.
pub(crate) struct ConversionTables<'a> {
    pub(crate) binding: &'a Binding,
    pub(crate) message: MessageId,
}

impl ConversionTables<'_> {
    /// A gathered message as protobuf. The app's memory is not needed any more.
    pub(crate) fn encoded(
        &self,
        body: Gathered,
        context: &mut Context<'_>,
    ) -> Result<Body, ConversionFailure> {
        let Gathered {
            mut buffer,
            metadata_bytes,
            token,
            ..
        } = body;
        linearize(&mut buffer);
        if token != 0 {
            context.sent.push(token);
        }
        let offset = message_offset(metadata_bytes);
        let mut out = context.buffers.take();
        let mut encode = || {
            let metadata = buffer.bytes.get(..offset).ok_or(ConversionFailure::Lengths)?;
            let linear = buffer.bytes.get(offset..).ok_or(ConversionFailure::Lengths)?;
            out.bytes.extend_from_slice(metadata);
            self.binding
                .tables
                .validate(self.message, linear)
                .map_err(ConversionFailure::Outbound)?;
            let encoded = self.binding.tables.encode(self.message, linear, &mut out.bytes);
            encoded.map_err(|error| match error {
                EncodeError::Message(error) => ConversionFailure::Outbound(error),
                EncodeError::TooLong => ConversionFailure::TooLong(error),
            })
        };
        let encoded = encode();
        out.charge = self.recount(buffer.charge.take(), out.bytes.capacity());
        context.buffers.give(buffer);
        if let Err(failure) = encoded {
            context.buffers.give(out);
            return Err(failure);
        }
        let message_bytes = (out.bytes.len() - offset) as u32;
        Ok(Body::Encoded(EncodedBody::plain(
            out,
            metadata_bytes,
            message_bytes,
        )))
    }

    /// Has what counted a message count what it holds in another form, which may be several times as long. What is small and was not
    /// counted stays uncounted.
    fn recount(&self, charge: Option<PrivateCharge>, held: usize) -> Option<PrivateCharge> {
        let held = held as u64;
        let Some(mut charge) = charge else {
            return (held > UNCOUNTED_BYTES_MAX).then(|| self.binding.share.charge(held));
        };
        charge.set_bytes(held);
        Some(charge)
    }

    /// Checks a native message where it was received, and relocates it to its place in the app's window. The body of one that
    /// does not pass is still to be given back.
    pub(crate) fn check_in_place(
        &self,
        body: &mut ReceivedBody,
        context: &mut Context<'_>,
    ) -> Result<(), ConversionFailure> {
        self.check_block(body, context)?;
        body.offsets = Offsets::Window;
        Ok(())
    }

    fn check_block(
        &self,
        body: &mut ReceivedBody,
        context: &mut Context<'_>,
    ) -> Result<(), ConversionFailure> {
        let offset = message_offset(body.metadata_bytes);
        let bytes = context.receive.bytes_mut(&mut body.block);
        // Read after the block's bytes were asked for, which may have moved it.
        let at = body.block.at;
        let whole = bytes
            .get_mut(..offset + body.message_bytes as usize)
            .ok_or(ConversionFailure::Lengths)?;
        let (metadata, message) = whole.split_at_mut(offset);
        metadata::check(&metadata[..body.metadata_bytes as usize])?;
        let units = (offset / provost_wire::limits::BLOCK_ALIGN_BYTES) as u32;
        let window_at = at
            .checked_add(units)
            .ok_or(MessageError::Window { window_at: at })?;
        Ok(self
            .binding
            .tables
            .validate_and_relocate(self.message, message, window_at)?)
    }

    /// A protobuf message as a native one in the app's receive heap.
    pub(crate) fn decoded(
        &self,
        body: EncodedBody,
        scratch: &mut Scratch,
        context: &mut Context<'_>,
    ) -> Result<Body, ConversionFailure> {
        let body = plain(body, context)?;
        let mut native = context.buffers.take();
        let decoded = self.decode(&body, &mut native, scratch);
        context.buffers.give(body.buffer);
        let placed = decoded.and_then(|message_bytes| {
            let bytes = &native.bytes;
            self.place(bytes, body.metadata_bytes, message_bytes, context)
        });
        context.buffers.give(native);
        placed
    }

    /// A protobuf message of the app's port as a native one to be sent, which counts in the share.
    pub(crate) fn decoded_to_send(
        &self,
        body: EncodedBody,
        scratch: &mut Scratch,
        context: &mut Context<'_>,
    ) -> Result<Body, ConversionFailure> {
        let body = plain(body, context)?;
        let mut native = context.buffers.take();
        let decoded = self.decode(&body, &mut native, scratch);
        context.buffers.give(body.buffer);
        match decoded {
            Ok(message_bytes) => {
                let held = native.bytes.capacity() as u64;
                native.charge = (held > UNCOUNTED_BYTES_MAX).then(|| self.binding.share.charge(held));
                Ok(Body::Gathered(Gathered {
                    buffer: native,
                    metadata_bytes: body.metadata_bytes,
                    message_bytes,
                    token: 0,
                }))
            }
            Err(failure) => {
                context.buffers.give(native);
                Err(match failure {
                    ConversionFailure::Protobuf(error) => match self.binding.side {
                        Side::Client => ConversionFailure::Request(error),
                        Side::Server => ConversionFailure::Response(error),
                    },
                    other => other,
                })
            }
        }
    }

    /// Writes metadata and native message to a buffer. The length of the message.
    fn decode(
        &self,
        body: &EncodedBody,
        native: &mut Buffer,
        scratch: &mut Scratch,
    ) -> Result<u32, ConversionFailure> {
        let offset = message_offset(body.metadata_bytes);
        let whole = body
            .buffer
            .bytes
            .get(..offset + body.message_bytes as usize)
            .ok_or(ConversionFailure::Lengths)?;
        let (metadata, protobuf) = whole.split_at(offset);
        metadata::check(&metadata[..body.metadata_bytes as usize])?;
        native.bytes.extend_from_slice(metadata);
        let max = self.binding.message_bytes_max;
        Ok(self
            .binding
            .tables
            .decode(self.message, protobuf, &mut native.bytes, max, scratch)?)
    }

    /// Copies metadata and native message into the receive heap.
    fn place(
        &self,
        bytes: &[u8],
        metadata_bytes: u32,
        message_bytes: u32,
        context: &mut Context<'_>,
    ) -> Result<Body, ConversionFailure> {
        let mut block = context.receive.allocate(bytes.len() as u32)?;
        match context.receive.bytes_mut(&mut block).get_mut(..bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => {
                context.receive.free(block);
                return Err(ConversionFailure::Lengths);
            }
        }
        let mut body = ReceivedBody {
            added: None,
            block,
            metadata_bytes,
            message_bytes,
            offsets: Offsets::Message,
        };
        match self.check_in_place(&mut body, context) {
            Ok(()) => Ok(Body::Received(body)),
            Err(failure) => {
                context.receive.free(body.block);
                Err(failure)
            }
        }
    }
}

/// A message that is to be decoded, without compression.
fn plain(mut body: EncodedBody, context: &mut Context<'_>) -> Result<EncodedBody, ConversionFailure> {
    match body.make_plain(context.buffers) {
        Ok(()) => Ok(body),
        Err(fault) => {
            context.buffers.give(body.buffer);
            Err(fault.into())
        }
    }
}

/// Moves what was received into a private buffer, for messages that were read to the heap in an encoded form.
pub(crate) fn to_private(body: ReceivedBody, context: &mut Context<'_>) -> EncodedBody {
    let mut buffer = context.buffers.take();
    let length = message_offset(body.metadata_bytes) + body.message_bytes as usize;
    let block = context.receive.bytes(&body.block);
    buffer
        .bytes
        .extend_from_slice(block.get(..length).unwrap_or(block));
    context.receive.free(body.block);
    EncodedBody::plain(buffer, body.metadata_bytes, body.message_bytes)
}
