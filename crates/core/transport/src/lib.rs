//! The life of a connection between two nodes, whatever carries its bytes.
//!
//! ```text
//!   connect, accept ──► Established<C> ──► SessionTransport<C>: Open ──► Ending ──► Lingering ──► Ended
//!   (blocking, off the data plane)          │        ▲
//!                                           └─ save ─┴─ restore (another version, another process)
//! ```
//!
//! A [`Carrier`] moves the bytes of the native protocol: over a TCP socket, over the datagram transport, over a simulated
//! pipe. All else stands here once: how two ends agree ([`agree_as_client`], [`agree_as_server`]), how steps become bytes
//! and bytes become steps, how a connection ends, and what a successor is given.
#![forbid(unsafe_code)]

mod carrier;
mod establish;
mod lifecycle;
mod saved;

pub use carrier::{Carrier, CarrierEnd, CarrierRead, LingerProgress};
pub use establish::{
    AcceptError, Agreed, ConnectError, ConnectParams, EstablishError, Established, Greeting,
    HandshakeChannel, HandshakeStop, agree_as_client, agree_as_server,
};
pub use lifecycle::{SessionTransport, TransportConfig};
pub use provost_session::Role;
pub use provost_session::handshake::{
    Agreement, CallerAttestation, Decision, Encoding, Hello, Limits, Method, MethodKind,
};
pub use provost_tls::PeerIdentity;
pub use saved::{StateTransfer, take_socket};
