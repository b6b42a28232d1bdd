//! The port of calls that another node passes on: it stands between the connection over which they come, which it serves,
//! and one to the server, on which it calls.
//!
//! ```text
//! other node ◄─► transport, marshalling, policies, frontend (serves) ◄─► RelayPort ◄─► frontend (calls), marshalling, transport ◄─► server
//! ```
//!
//! Each step of the one connection becomes a step of the other, in its order: a message is taken out of the block in which
//! it was received, as a private copy, without copying it once more. A streamed message goes on when the window of the other end has
//! room for it, and gives its window back then; so what waits here is what the windows of the two ends allow, in the
//! port's receive heap. Which steps a call allows was checked by the frontend that they come from, and is by the one that they go to.

mod call;
mod port;
mod saved;

pub use port::{RelayPort, RelayPortParts};
pub use saved::RELAY_STATE_VERSION;
