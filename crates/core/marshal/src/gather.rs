//! Outbound: from an app's memory to a private copy.

use std::num::NonZeroUsize;

use provost_schema::MessageId;

use crate::{ForeignRegion, GatherError, MessageError, Tables};

/// A large string, byte string or list of scalars that was left where it is, in the app's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Address of its first byte in this process.
    pub address: NonZeroUsize,
    /// Its length in bytes.
    pub bytes: u32,
}

impl Tables {
    /// Copies the message whose root struct is at window offset `root` (in units of 8 bytes) out of an app's memory.
    ///
    /// Structure and small leaves are appended to `head`, from its end rounded up to 8 bytes; large leaves are
    /// appended to `leaves` by address. Together they are the linear message: the head, then (if there are leaves, the
    /// head padded to 8 bytes) each leaf, padded to 8 bytes but for the last. Returns the length of the whole.
    ///
    /// All that is copied has been checked; what is left in `leaves` may change until it is sent, so the receiver must
    /// check it (the text of a large string is all there is to check). After an error `head` and `leaves` are as
    /// before.
    pub fn gather(
        &self,
        message: MessageId,
        root: u32,
        source: &ForeignRegion,
        head: &mut Vec<u8>,
        leaves: &mut Vec<Leaf>,
        message_bytes_max: u32,
    ) -> Result<u32, GatherError> {
        let _ = (root, source, head, leaves, message_bytes_max);
        Err(MessageError::Unknown(message).into())
    }
}
