//! [`Any`]: a message of whatever type, with its name.

use super::Any;
use crate::codec::{DecodeError, EncodeError, MessageCodec};
use crate::message::Message;

/// What precedes the name of a type in its URL.
const TYPE_URL_PREFIX: &str = "type.googleapis.com/";

impl Any {
    /// A message with the name of its type.
    ///
    /// ```
    /// use provost::well_known::{Any, StringValue};
    ///
    /// let any = Any::pack(&StringValue::from("text"))?;
    /// assert_eq!(any.type_url, "type.googleapis.com/google.protobuf.StringValue");
    /// assert!(any.is::<StringValue>());
    /// assert_eq!(any.unpack::<StringValue>()?, Some("text".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the message nests too deep.
    pub fn pack<T: Message + MessageCodec>(message: &T) -> Result<Any, EncodeError> {
        Ok(Any {
            type_url: format!("{TYPE_URL_PREFIX}{}", T::FULL_NAME).into(),
            value: message.encode()?.into(),
        })
    }

    /// Whether it holds a message of this type, by the last part of the type's URL.
    #[must_use]
    pub fn is<T: Message>(&self) -> bool {
        let name = self.type_url.rsplit_once('/').map(|(_, name)| name);
        name == Some(T::FULL_NAME)
    }

    /// The message, if it is of this type.
    ///
    /// # Errors
    /// If it says that it is, and is not.
    pub fn unpack<T: Message + MessageCodec>(&self) -> Result<Option<T>, DecodeError> {
        if self.is::<T>() {
            T::decode(&self.value).map(Some)
        } else {
            Ok(None)
        }
    }
}
