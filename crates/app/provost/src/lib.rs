//! Application library: typed RPCs through the node's managed service.

mod channel;
mod clock;
pub mod codegen;
mod metadata;
mod request;
pub mod shared;
mod status;
mod streaming;

pub use channel::{Channel, Target};
pub use metadata::{MetadataError, MetadataMap};
pub use request::{IntoRequest, IntoStreamingRequest, Readiness, Request, Response};
pub use shared::Received;
pub use status::{Code, Status};
pub use streaming::Streaming;
