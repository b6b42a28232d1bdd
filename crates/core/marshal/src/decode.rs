//! From protobuf to the native layout.

use provost_schema::MessageId;

use crate::{DecodeError, Tables};

/// Memory that [`Tables::decode`] works with, kept so that it does not allocate for each message.
#[derive(Debug, Default)]
pub struct Scratch {}

impl Tables {
    /// Appends the canonical linear form of a protobuf message to `out`, from its end rounded up to 8 bytes, and
    /// returns its length. Unknown fields are skipped; fields that occur more than once merge as protobuf has it.
    /// After an error `out` is as before.
    pub fn decode(
        &self,
        message: MessageId,
        protobuf: &[u8],
        out: &mut Vec<u8>,
        message_bytes_max: u32,
        scratch: &mut Scratch,
    ) -> Result<u32, DecodeError> {
        let _ = (protobuf, out, message_bytes_max, scratch);
        Err(DecodeError::Unknown(message))
    }
}
