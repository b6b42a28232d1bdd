//! The engine between typed messages and a transport's encoding.
//!
//! It stands between the policies and the transport. Outbound it turns messages into the connection's encoding;
//! inbound it is where a peer's bytes become a checked message, in place in the app's receive heap. A message that
//! cannot pass ends its call on both sides, with a status that says why.
#![forbid(unsafe_code)]

mod calls;
mod convert;
mod engine;
mod pending;
mod saved;

pub use engine::{Binding, Encoding, KIND, Marshalling, MethodTypes, Side};
