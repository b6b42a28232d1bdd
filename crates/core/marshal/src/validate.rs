//! Inbound: checks, and relocation into an app's window.

use provost_schema::MessageId;

use crate::{MessageError, Tables};

impl Tables {
    /// Checks that `bytes` is a well-formed linear message.
    pub fn validate(&self, message: MessageId, bytes: &[u8]) -> Result<(), MessageError> {
        let _ = bytes;
        Err(MessageError::Unknown(message))
    }

    /// Checks that `bytes` is a well-formed linear message and makes its references relative to the window in which
    /// its first byte is at `window_at` (in units of 8 bytes). After an error the bytes are worthless.
    pub fn validate_and_relocate(
        &self,
        message: MessageId,
        bytes: &mut [u8],
        window_at: u32,
    ) -> Result<(), MessageError> {
        let _ = (bytes, window_at);
        Err(MessageError::Unknown(message))
    }
}
