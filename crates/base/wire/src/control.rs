//! Control messages between an app and its service, over a Unix `SOCK_SEQPACKET` socket: one protobuf message a
//! packet, [`Request`] from the app, [`Reply`] from the service, descriptors beside them.
//!
//! An app attaches first; then any number of requests may be under way, told apart by `id`. The service also sends
//! replies with `id` 0 on its own account ([`SegmentAdded`]).

use prost::{Message, Oneof};

/// Version of the control protocol and of the regions' layout.
pub const CONTROL_VERSION: u32 = 1;

/// What an app asks.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Chosen by the app, not 0; the reply bears it.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(oneof = "request::Body", tags = "2, 3, 4, 5, 6, 7")]
    pub body: Option<request::Body>,
}

/// Bodies of [`Request`].
pub mod request {
    use super::*;

    /// What an app asks.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Body {
        /// The first request on a socket.
        #[prost(message, tag = "2")]
        Attach(Attach),
        /// Brings a schema that the service said it does not know. Descriptor: a sealed memfd with a serialized
        /// `FileDescriptorSet`.
        #[prost(message, tag = "3")]
        AddSchema(AddSchema),
        /// Offers a service to callers.
        #[prost(message, tag = "4")]
        Bind(Bind),
        /// Opens a connection to a service.
        #[prost(message, tag = "5")]
        Connect(Connect),
        /// Takes a bound service back: no new connections; those that are open go away gracefully.
        #[prost(message, tag = "6")]
        Unbind(Unbind),
        /// Says that a completion region that the service sent is in use ([`super::RegionReplaced`]).
        #[prost(message, tag = "7")]
        RegionMapped(RegionMapped),
    }
}

/// Attaches an app. Descriptor: its send heap, a memfd sealed against shrinking, growing and further seals.
#[derive(Clone, PartialEq, Message)]
pub struct Attach {
    /// [`CONTROL_VERSION`] of the app's library.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// What the app calls itself, for logs.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Slots of the submission ring (a power of two; 0: the service's default).
    #[prost(uint32, tag = "3")]
    pub submission_slots: u32,
    /// Slots of the completion ring (a power of two; 0: the service's default).
    #[prost(uint32, tag = "4")]
    pub completion_slots: u32,
    /// Where the app's window has room for receive segments, in units of 8 bytes; not 0.
    #[prost(uint32, tag = "5")]
    pub receive_window: u32,
    /// How much room that is, in bytes.
    #[prost(uint64, tag = "6")]
    pub receive_window_bytes: u64,
    /// Whether the service shall poll this app's ring without ever sleeping (the configuration may forbid it).
    #[prost(bool, tag = "7")]
    pub busy_poll: bool,
    /// Whether the app knows [`RegionReplaced`]. One that does not is detached when the service's process is replaced.
    #[prost(bool, tag = "8")]
    pub takes_regions: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct AddSchema {
    /// The schema's hash as the app computed it at build time; the service computes its own.
    #[prost(bytes = "vec", tag = "1")]
    pub hash: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Bind {
    /// Full name of the service, `package.Service`.
    #[prost(string, tag = "1")]
    pub service: String,
    /// Content hash of the schema.
    #[prost(bytes = "vec", tag = "2")]
    pub schema_hash: Vec<u8>,
    /// Calls in flight over all connections that the server takes; 0: the service's default.
    #[prost(uint32, tag = "3")]
    pub calls_in_flight_max: u32,
}

/// Takes a service back.
#[derive(Clone, PartialEq, Message)]
pub struct Unbind {
    /// Full name of the service.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// The app has mapped a completion region over the one before: from now on it sees what the service publishes there.
#[derive(Clone, PartialEq, Message)]
pub struct RegionMapped {
    /// Which: [`RegionReplaced::generation`].
    #[prost(uint64, tag = "1")]
    pub generation: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Connect {
    /// Full name of the service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// Content hash of the schema.
    #[prost(bytes = "vec", tag = "2")]
    pub schema_hash: Vec<u8>,
    /// Where the service is, as `host:port`; empty: as the node's configuration says.
    #[prost(string, tag = "3")]
    pub address: String,
    /// How long the attempt may take, in nanoseconds; 0: the service's default.
    #[prost(uint64, tag = "4")]
    pub timeout_ns: u64,
}

/// What the service answers.
#[derive(Clone, PartialEq, Message)]
pub struct Reply {
    /// The request's; 0 for what the service says on its own account.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(oneof = "reply::Body", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub body: Option<reply::Body>,
}

/// Bodies of [`Reply`].
pub mod reply {
    use super::*;

    /// What the service answers.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Body {
        /// To `Attach`. Descriptors, in this order: submission region, completion region, the doorbell that wakes
        /// the service, the doorbell that wakes the app.
        #[prost(message, tag = "2")]
        Attached(Attached),
        /// To `AddSchema`, `Bind`, `Unbind` and `RegionMapped`.
        #[prost(message, tag = "3")]
        Done(Done),
        /// To `Connect`.
        #[prost(message, tag = "4")]
        Connected(Connected),
        /// To `Bind` and `Connect` with a hash that the service does not know: send `AddSchema`, then ask again.
        #[prost(message, tag = "5")]
        SchemaUnknown(SchemaUnknown),
        /// To any request: it failed. On the service's own account: the app is detached, and why.
        #[prost(message, tag = "6")]
        Failed(Failed),
        /// On the service's own account: a segment of the receive heap, sent before any completion that uses it.
        /// Descriptor: the segment, which can be mapped read-only.
        #[prost(message, tag = "7")]
        SegmentAdded(SegmentAdded),
        /// On the service's own account: a completion region in place of the one before. Descriptor: the region, which
        /// can be mapped read-only.
        #[prost(message, tag = "8")]
        RegionReplaced(RegionReplaced),
        /// On the service's own account: a service is not bound any more.
        #[prost(message, tag = "9")]
        Unbound(ServiceUnbound),
        /// On the service's own account: who is at the other end of a connection that the app serves, sent before the
        /// completion that says that it was accepted.
        #[prost(message, tag = "10")]
        Peer(PeerDescription),
    }
}

/// The app is attached.
#[derive(Clone, PartialEq, Message)]
pub struct Attached {
    /// Slots of the submission ring.
    #[prost(uint32, tag = "1")]
    pub submission_slots: u32,
    /// Slots of the completion ring.
    #[prost(uint32, tag = "2")]
    pub completion_slots: u32,
    /// Number of this attachment, for logs.
    #[prost(uint64, tag = "3")]
    pub app: u64,
    /// How long the service polls the rings after the last work before it sleeps, in nanoseconds.
    #[prost(uint64, tag = "4")]
    pub spin_ns: u64,
    /// Largest message that the service takes, in bytes.
    #[prost(uint32, tag = "5")]
    pub message_bytes_max: u32,
}

/// The request was carried out.
#[derive(Clone, PartialEq, Message)]
pub struct Done {}

/// A connection is open.
#[derive(Clone, PartialEq, Message)]
pub struct Connected {
    /// Its number in the descriptors.
    #[prost(uint32, tag = "1")]
    pub connection: u32,
    /// Identity of the peer, where the transport proves one (a SPIFFE id or a DNS name).
    #[prost(string, tag = "2")]
    pub peer: String,
}

/// The service has never seen this schema.
#[derive(Clone, PartialEq, Message)]
pub struct SchemaUnknown {}

#[derive(Clone, PartialEq, Message)]
pub struct Failed {
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// What is wrong, where, and what to do.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The configuration does not allow the app to offer a service any more: no new connections; those that are open go away
/// gracefully.
#[derive(Clone, PartialEq, Message)]
pub struct ServiceUnbound {
    /// Full name of the service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// The code of a refusal.
    #[prost(uint32, tag = "2")]
    pub code: u32,
    /// By which rule, and what to do.
    #[prost(string, tag = "3")]
    pub message: String,
}

/// The other end of a connection that the app serves.
#[derive(Clone, PartialEq, Message)]
pub struct PeerDescription {
    /// What [`crate::descriptor::completion_kind::ACCEPTED`] has in its first reserved word; not 0.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// What the peer's certificate proves (a SPIFFE id or a DNS name); empty without mutual TLS, and on the same node.
    #[prost(string, tag = "2")]
    pub identity: String,
    /// Its address; empty on the same node.
    #[prost(string, tag = "3")]
    pub address: String,
    /// What carries the connection.
    #[prost(string, tag = "4")]
    pub transport: String,
    /// The name of the node of the app that calls; empty where it is not known.
    #[prost(string, tag = "5")]
    pub node: String,
    /// The app that calls, where it is known.
    #[prost(message, optional, tag = "6")]
    pub app: Option<PeerApp>,
}

/// The app at the other end of a connection.
#[derive(Clone, PartialEq, Message)]
pub struct PeerApp {
    #[prost(string, tag = "1")]
    pub name: String,
    /// The name of its user on its node; empty where the number has none.
    #[prost(string, tag = "2")]
    pub user: String,
    /// The number of its user on its node.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    /// Its workload identity; empty without one.
    #[prost(string, tag = "4")]
    pub workload: String,
}

/// A segment of the receive heap.
#[derive(Clone, PartialEq, Message)]
pub struct SegmentAdded {
    /// Its number, for [`crate::descriptor::completion_kind::SEGMENT_RETIRED`].
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// Where it lies in the app's window, in units of 8 bytes.
    #[prost(uint32, tag = "2")]
    pub at: u32,
    /// Its length in bytes.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
}

/// Another process of the service has taken over. The memory of the completion region could be written by the process
/// that made it alone, so there is a new one of the same size, with the same content and whatever was published since.
/// The app maps it over the old one, and says so ([`RegionMapped`]); until then it sees nothing new, and what it submits
/// is found without its ringing.
#[derive(Clone, PartialEq, Message)]
pub struct RegionReplaced {
    /// Counts the regions of an attachment; the first one is 0.
    #[prost(uint64, tag = "1")]
    pub generation: u64,
}
