//! The engine between typed messages and a transport's encoding.
//!
//! It stands between the policies and the transport. Outbound it turns messages into the connection's encoding;
//! inbound it is where a peer's bytes become a checked message, in place in the app's receive heap.
#![forbid(unsafe_code)]

mod engine;

pub use engine::{Binding, Encoding, KIND, Marshalling, MethodTypes, Side};
