//! Messages on their way to the socket, where they are.

use std::sync::Arc;

use provost_datapath::{EncodedBody, PrivateCharge, message_offset};
use provost_http2::DataChunk;

/// What a message costs beside its buffer while it is kept: its own places, and those that point to it.
const KEPT_MESSAGE_COST_BYTES: usize = 128;

/// A message, which frames and a possible retry share.
#[derive(Clone, Debug)]
pub(crate) struct MessageChunk(Arc<MessageBytes>);

#[derive(Debug)]
struct MessageBytes {
    bytes: Vec<u8>,
    from: usize,
    /// The share of private memory that it counts in for as long as it is here.
    _charge: Option<PrivateCharge>,
}

impl MessageChunk {
    /// The message of a body; none if its lengths do not add up.
    pub(crate) fn of_body(body: EncodedBody) -> Option<MessageChunk> {
        let EncodedBody {
            buffer,
            metadata_bytes,
            message_bytes,
        } = body;
        let from = message_offset(metadata_bytes);
        let mut bytes = buffer.bytes;
        let to = from + message_bytes as usize;
        if bytes.len() < to {
            return None;
        }
        bytes.truncate(to);
        Some(MessageChunk(Arc::new(MessageBytes {
            bytes,
            from,
            _charge: buffer.charge,
        })))
    }

    /// Bytes that it takes while it is kept.
    pub(crate) fn kept_cost(&self) -> usize {
        self.0.bytes.capacity() + KEPT_MESSAGE_COST_BYTES
    }

    /// A message of no bytes.
    pub(crate) fn empty() -> MessageChunk {
        MessageChunk::from_saved(Vec::new())
    }
}

impl DataChunk for MessageChunk {
    fn bytes(&self) -> &[u8] {
        self.0.bytes.get(self.0.from..).unwrap_or_default()
    }

    fn from_saved(bytes: Vec<u8>) -> MessageChunk {
        MessageChunk(Arc::new(MessageBytes {
            bytes,
            from: 0,
            _charge: None,
        }))
    }
}
