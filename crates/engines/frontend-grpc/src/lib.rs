//! The port of a gRPC client: one HTTP/2 connection, whose calls become steps of datapaths.
//!
//! ```text
//! socket ─► GrpcPort::poll ─► next_request ─► Frontend (tx) ─► policies, marshalling, transport
//! socket ◄─ GrpcPort::flush ◄─ push_step ◄── Frontend (rx) ◄─
//! ```
//!
//! It stands where an app's port stands, and gives the first engine of a datapath steps in private memory. Messages stay the protobuf
//! that they came as, unread; engines behind make another form of them where somebody needs it. A reply is protobuf too, or is encoded
//! when it comes. What the client may send ahead is bounded by the windows of HTTP/2, which open only as messages go on.
//!
//! The client is a stranger: whatever it sends is read by the protocol's own checks ([`provost_grpc`]), and what breaks
//! them ends its connection, or the call.
#![forbid(unsafe_code)]

mod binding;
mod bodies;
mod calls;
mod carrier;
pub mod fuzzing;
mod heap;
mod node_services;
mod port;
mod replies;
mod requests;
mod saved;

pub use binding::{KnownMethods, MethodBinding, ServiceBinding, ServiceRefusal, WantedService};
pub use carrier::{ByteCarrier, PLAIN_CARRIER};
pub use heap::PrivateHeap;
pub use node_services::{NodeAnswer, NodeAnswerEnd, NodeEvent, NodeMethod, NodeMethods, NodeQuestion};
pub use port::{GrpcPort, GrpcPortParts, GrpcRequest, PortProgress};
pub use saved::{PORT_STATE_BYTES_MAX, PORT_STATE_VERSION, PortNotSaved, open_port_state};
