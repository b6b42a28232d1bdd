//! What generated code is made of. Applications have no need to look here.

pub use futures_core::Stream;

pub use crate::channel::{Channel, Target};
pub use crate::client::{bidirectional, client_streaming, server_streaming, unary};
pub use crate::codec::fields::{
    EnumInfo, EnumNames, FieldAccess, FieldElement, FieldInfo, FieldKind, FieldMut, FieldRef, FieldShape,
    ListElements, MapPairs, MessageInfo, OneofFields, PairMut, ReflectMessage, ValueRef,
};
#[cfg(feature = "serde")]
pub use crate::codec::json::serde_value::{deserialize_message, serialize_message};
pub use crate::descriptor::{MethodDescriptor, MethodKind, ServiceDescriptor};
pub use crate::message::Message;
pub use crate::received::Received;
pub use crate::request::{IntoRequest, IntoStreamingRequest, Request, Response};
pub use crate::server::{Methods, Service};
pub use crate::shared::Measure;
pub use crate::status::{Code, Status};
pub use crate::streaming::Streaming;

/// What generated code implements for serde.
#[cfg(feature = "serde")]
pub use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Whether two names are the same, when it is compiled.
#[must_use]
pub const fn is_same_name(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}
