//! The network end of a client's datapath whose peer is an unmodified gRPC server: steps of calls, with messages as protobuf, become
//! gRPC over HTTP/2, and answers become steps.
//!
//! ```text
//!  marshalling ──steps──► calls that wait ──► GrpcConnection ──► socket        one link carries new calls;
//!       ▲                 (streams at a time)      │                           a second one is opened when
//!       └──steps── what came of each call ◄────────┘                           the first takes no more
//! ```
//!
//! A link is opened by blocking code ([`GrpcLink::establish`]) off the data plane. A server that says GOAWAY has calls that it left
//! unprocessed begun again on a second link, once each; a call that it may have begun never is.
//!
//! No link is given to a successor: its calls end as UNAVAILABLE there, with the reason ([`GrpcTransport::restore`]).
#![forbid(unsafe_code)]

mod call;
mod carrier;
mod chunk;
mod config;
mod engine;
mod link;
mod replies;
mod requests;
mod saved;

pub use carrier::{ByteCarrier, dial, dial_unix};
pub use config::{
    CALL_PENDING_BYTES_MAX, GrpcMethod, GrpcTransportConfig, HELD_BYTES_MAX, KEEPALIVE_INTERVAL_NS_MIN,
    REPLAY_BYTES_MAX, REPLAY_CALL_BYTES_MAX, WAITING_CALLS_MAX,
};
pub use engine::{GrpcTransport, GrpcTransportParts, LinkDialer};
pub use link::{EstablishFault, GrpcLink};

/// What kind of engine it is.
pub const KIND: &str = "transport-grpc";
