//! Messages on their way to the socket, where they are.

use std::sync::Arc;

use provost_datapath::{
    BufferParts, BufferPool, EncodedBody, FieldReader, FieldWriter, PrivateBytes, PrivateCharge,
    RestoreError, SavedField, message_offset,
};
use provost_grpc::{CompressionFault, MessageEncoding, MessageForm};
use provost_http2::{DataChunk, FewBytes};
use provost_wire::Code;

/// What a message costs beside its buffer while it is kept: its own places, and those that point to it.
const KEPT_MESSAGE_COST_BYTES: usize = 128;

/// What becomes of messages of a call that are not compressed, where the call has an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainMessages {
    Compressed,
    /// Who sent them has an encoding, and did not use it for them.
    StayPlain,
}

/// Why a message cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnsentMessage {
    #[error("the lengths of a step do not add up")]
    Lengths,
    /// It came in an encoding that the server does not take.
    #[error(transparent)]
    Compressed(#[from] CompressionFault),
}

impl UnsentMessage {
    /// The status of its call.
    pub(crate) fn code(&self) -> Code {
        match self {
            UnsentMessage::Lengths => Code::Internal,
            UnsentMessage::Compressed(fault) => fault.code(),
        }
    }
}

/// A message as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct FormedChunk {
    pub(crate) form: MessageForm,
    pub(crate) chunk: MessageChunk,
}

impl FormedChunk {
    /// A message that is not compressed.
    pub(crate) fn plain(chunk: MessageChunk) -> FormedChunk {
        let form = MessageForm::Plain;
        FormedChunk { form, chunk }
    }

    /// The message of a body, as it is sent in a call of this encoding.
    pub(crate) fn of_body(
        mut body: EncodedBody,
        encoding: MessageEncoding,
        plain_ones: PlainMessages,
        buffers: &mut BufferPool,
    ) -> Result<FormedChunk, UnsentMessage> {
        let passes = body.compression.is_some() && body.encoding() == encoding;
        if !passes && let Err(fault) = body.make_plain(buffers) {
            buffers.give(body.buffer);
            return Err(fault.into());
        }
        let chunk = MessageChunk::of_body(body).ok_or(UnsentMessage::Lengths)?;
        if passes {
            let form = MessageForm::Compressed;
            return Ok(FormedChunk { form, chunk });
        }
        Ok(match plain_ones {
            PlainMessages::StayPlain => FormedChunk::plain(chunk),
            PlainMessages::Compressed => FormedChunk::compressed(chunk, encoding),
        })
    }

    /// A message as its call's encoding makes it. What it counted in a share it goes on to count.
    pub(crate) fn compressed(chunk: MessageChunk, encoding: MessageEncoding) -> FormedChunk {
        if encoding == MessageEncoding::Identity {
            return FormedChunk::plain(chunk);
        }
        let bytes = encoding.compress(chunk.bytes());
        let charge = match chunk {
            MessageChunk::Whole(message) => Arc::into_inner(message).and_then(|message| message.charge),
            MessageChunk::Few(_) => None,
        };
        let message = MessageBytes {
            bytes,
            from: 0,
            charge,
        };
        FormedChunk {
            form: MessageForm::Compressed,
            chunk: MessageChunk::Whole(Arc::new(message)),
        }
    }
}

impl SavedField for FormedChunk {
    fn save(&self, out: &mut FieldWriter) {
        out.flag(self.form == MessageForm::Compressed);
        out.run(self.chunk.bytes());
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<FormedChunk, RestoreError> {
        let form = if fields.flag()? {
            MessageForm::Compressed
        } else {
            MessageForm::Plain
        };
        let chunk = MessageChunk::from_saved(fields.run()?.to_vec());
        Ok(FormedChunk { form, chunk })
    }
}

/// A message, which frames and a possible retry share.
#[derive(Clone, Debug)]
pub(crate) enum MessageChunk {
    Whole(Arc<MessageBytes>),
    Few(FewBytes),
}

#[derive(Debug)]
pub(crate) struct MessageBytes {
    bytes: Vec<u8>,
    from: usize,
    /// The share of private memory that it counts in for as long as it is here.
    charge: Option<PrivateCharge>,
}

impl MessageChunk {
    /// The message of a body; none if its lengths do not add up.
    pub(crate) fn of_body(body: EncodedBody) -> Option<MessageChunk> {
        let EncodedBody {
            buffer,
            metadata_bytes,
            message_bytes,
            compression: _,
        } = body;
        let from = message_offset(metadata_bytes);
        let BufferParts {
            mut bytes, charge, ..
        } = buffer.into_parts();
        let to = from + message_bytes as usize;
        if bytes.len() < to {
            return None;
        }
        bytes.truncate(to);
        Some(MessageChunk::Whole(Arc::new(MessageBytes {
            bytes,
            from,
            charge,
        })))
    }

    /// The bytes of a message that another process has sent in part, or not at all, which count in a share.
    pub(crate) fn counted_in(share: &Arc<PrivateBytes>, bytes: Vec<u8>) -> MessageChunk {
        let charge = Some(share.charge(bytes.capacity() as u64));
        let from = 0;
        MessageChunk::Whole(Arc::new(MessageBytes { bytes, from, charge }))
    }

    /// Has a message count in a share that counts nowhere.
    pub(crate) fn count_in(&mut self, share: &Arc<PrivateBytes>) {
        if let MessageChunk::Whole(message) = self
            && let Some(message) = Arc::get_mut(message)
        {
            let bytes = message.bytes.capacity() as u64;
            message.charge.get_or_insert_with(|| share.charge(bytes));
        }
    }

    /// Bytes that it takes while it is kept.
    pub(crate) fn kept_cost(&self) -> usize {
        let bytes = match self {
            MessageChunk::Whole(message) => message.bytes.capacity(),
            MessageChunk::Few(_) => 0,
        };
        bytes + KEPT_MESSAGE_COST_BYTES
    }
}

impl DataChunk for MessageChunk {
    fn bytes(&self) -> &[u8] {
        match self {
            MessageChunk::Whole(message) => message.bytes.get(message.from..).unwrap_or_default(),
            MessageChunk::Few(few) => few.bytes(),
        }
    }

    fn from_saved(bytes: Vec<u8>) -> MessageChunk {
        MessageChunk::Whole(Arc::new(MessageBytes {
            bytes,
            from: 0,
            charge: None,
        }))
    }

    fn of_few(bytes: &[u8]) -> MessageChunk {
        match FewBytes::of(bytes) {
            Some(few) => MessageChunk::Few(few),
            None => MessageChunk::from_saved(bytes.to_vec()),
        }
    }
}
