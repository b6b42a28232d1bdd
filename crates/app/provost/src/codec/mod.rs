//! Messages as protobuf's bytes and as protobuf's JSON, for files, caches, logs, and peers outside of calls. (A call needs
//! none of this: the node's service marshals.)
//!
//! ```
//! use provost::MessageCodec;
//! use provost::well_known::Timestamp;
//!
//! let time = Timestamp { seconds: 1_700_000_000, nanos: 0 };
//! assert_eq!(Timestamp::decode(&time.encode()?)?, time);
//! assert_eq!(time.to_json()?, "\"2023-11-14T22:13:20Z\"");
//! assert_eq!(Timestamp::from_json("\"2023-11-14T22:13:20Z\"")?, time);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature `serde`, every generated message is serialized and deserialized by serde as well, in the same form: so
//! messages stand within types of the program that derive `Serialize` and `Deserialize`.
//!
//! [`MessageCodec`] is implemented for every generated message. What has been received is encoded in place:
//! `received.encode()`. Fields that a type does not have are passed over, by both formats' rules for schemas that change;
//! they are not kept, because the native layout has no place for them.

mod base64;
mod decode;
mod encode;
mod error;
pub(crate) mod fields;
pub(crate) mod json;
mod protobuf;

pub use error::{DecodeError, DecodeErrorKind, EncodeError, JsonError, JsonPlace};
pub use json::JsonFormat;

use fields::{FieldElement, ReflectMessage};

/// Every generated message, to and from protobuf's bytes and JSON.
///
/// # Errors
///
/// Encoding fails for messages that nest deeper than any may (100 levels), and in JSON for values that have no form there.
/// Decoding fails for what is no message of the type, and when the send heap is full.
pub trait MessageCodec: ReflectMessage + FieldElement + Sized {
    /// The message as protobuf's bytes.
    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = Vec::new();
        self.encode_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Appends the message's bytes to others.
    fn encode_to(&self, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
        encode::encode(self, bytes)
    }

    /// The message that these bytes are.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut message = Self::unset().map_err(|full| DecodeError {
            kind: full.into(),
            at: 0,
        })?;
        decode::merge(&mut message, bytes)?;
        Ok(message)
    }

    /// The message as JSON on one line, with the default [`JsonFormat`].
    fn to_json(&self) -> Result<String, EncodeError> {
        JsonFormat::new().write(self)
    }

    /// The message that a JSON text is, by the default [`JsonFormat`].
    fn from_json(text: &str) -> Result<Self, JsonError> {
        JsonFormat::new().read(text)
    }
}

impl<T: ReflectMessage + FieldElement> MessageCodec for T {}
