//! Application library: typed RPCs through the node's managed service.

mod app;
mod attach;
pub mod blocking;
mod call;
mod channel;
mod client;
pub mod codegen;
mod context;
mod limit;
mod link;
mod macros;
mod metadata;
mod reactor;
mod request;
mod server;
pub mod shared;
mod status;
mod streaming;

pub use app::{App, AppBuilder};
pub use channel::{Channel, ChannelBuilder, Target};
pub use metadata::{MetadataError, MetadataMap};
pub use request::{IntoRequest, IntoStreamingRequest, Readiness, Request, Response};
pub use server::{Server, ServerBuilder, Spawn};
pub use shared::Received;
pub use status::{Code, Status};
pub use streaming::Streaming;
