//! The network end of a client's datapath whose peer is an unmodified gRPC server: steps of calls, with messages as protobuf, become
//! gRPC over HTTP/2, and answers become steps.
//!
//! ```text
//!  marshalling ──steps──► calls that wait ──► GrpcConnection ──► socket        one link carries new calls;
//!       ▲                 (streams at a time)      │                           another is opened when it
//!       └──steps── what came of each call ◄────────┘                           takes no more, now or ever
//! ```
//!
//! A link is opened by blocking code ([`GrpcLink::establish`]) off the data plane. A server that says GOAWAY has calls that it left
//! unprocessed begun again on a second link, once each; a call that it may have begun never is. Where calls wait because a server allows
//! no more of them on a connection at a time, more are opened beside it, as many as [`GrpcTransportConfig::connections_max`] allows.
//!
//! A successor goes on with the links and their calls ([`GrpcTransport::restore`]). Where it cannot, the calls end as UNAVAILABLE there,
//! with the reason.
#![forbid(unsafe_code)]

mod ask;
mod call;
mod carrier;
mod chunk;
mod config;
mod engine;
pub mod fuzzing;
mod link;
mod link_list;
mod link_watch;
mod replies;
mod requests;
mod saved;

pub use ask::{AskFault, ServerQuestion};
pub use carrier::{ByteCarrier, PLAIN_CARRIER, dial, dial_unix};
pub use config::{
    CALL_PENDING_BYTES_MAX, CONNECTIONS_MAX, GrpcMethod, GrpcTransportConfig, HELD_BYTES_MAX,
    KEEPALIVE_INTERVAL_NS_MIN, REPLAY_BYTES_MAX, REPLAY_CALL_BYTES_MAX, WAITING_CALLS_MAX,
};
pub use engine::{GrpcTransport, GrpcTransportParts, LinkDialer, LinkPurpose};
pub use link::{EstablishFault, GrpcLink};
pub use link_list::{LinkEnd, LinkList, LinkSnapshot, ListSnapshot};
pub use saved::{CarrierRestorer, RestoredTransportParts, STATE_BYTES_MAX, STATE_FORM};

/// What kind of engine it is.
pub const KIND: &str = "transport-grpc";
