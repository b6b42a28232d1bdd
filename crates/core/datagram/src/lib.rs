//! The datagram transport's protocol (`docs/datagram.md`), without I/O: packets and a time go in, packets and events
//! come out. It needs nothing of the network but that most packets arrive.
//!
//! ```text
//!   client's Endpoint                                                  server's Endpoint
//!     call() ──► slot ──► poll_transmit() ─► Request ─► receive() ──► Event::Request (its payload is not copied)
//!     Event::Completed ◄── receive() ◄─ Response ◄─ poll_transmit() ◄── respond(), then or later
//! ```
//!
//! [`Driver`] joins an endpoint and a wire.
//!
//! The protocol is that of eRPC (Kalia, Kaminsky, Andersen: Datacenter RPCs can be General and Fast, NSDI '19): sessions
//! with slots and credits, driven by the client, with congestion control at the client. It differs in that losses are
//! made good one by one, that reordering is no loss, and that a process that was off its core does not take that for
//! the network's fault.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod buffer;
mod checksum;
mod client;
mod clock;
mod config;
mod congestion;
mod driver;
mod endpoint;
mod event;
mod flight;
pub mod handshake;
pub mod packet;
mod rtt;
pub mod seal;
mod server;
mod shared;
mod statistics;
mod wheel;

pub use buffer::{MsgBuf, SpareMemory};
pub use checksum::Checking;
pub use config::{
    Config, ConfigError, PACKET_BYTES_MIN, Recovery, ResponseBuffers, SESSIONS_MAX, SLOTS_MAX, ShortCut,
};
pub use congestion::{
    Algorithm, CongestionConfig, CongestionControl, DctcpConfig, Sample, SwiftConfig, TimelyConfig,
};
pub use driver::{Clock, Driver, Monotonic, Turn};
pub use endpoint::{Address, Endpoint, Mark, ResponseRefused, Transmit};
pub use event::{
    ArrivedRequest, Call, CallError, CallRefused, Completion, ConnectError, EndReason, Event, EventHandler,
    Payload, Refusal, RequestHandle, ResponseGiven, ResponseSlot, SessionId,
};
pub use handshake::{MarkUse, PacketFallback};
pub use seal::{Cipher, LossProof, Sealing, Security};
pub use statistics::{Drops, Statistics};
