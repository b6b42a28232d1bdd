//! How the engine behaves, and the bounds of what it keeps.

use crate::chunk::PlainMessages;
use provost_datapath::{CompressedMessages, Nanos};
use provost_grpc::{GrpcConfig, MessageEncoding};
use provost_http2::floods::{FloodLimit, FloodLimits};
use provost_http2::{Http2Config, KeepalivePolicy};
use provost_wire::limits::{CALLS_IN_FLIGHT_MAX, MESSAGE_BYTES_MAX};

/// Calls that wait until the server allows more at a time.
pub const WAITING_CALLS_MAX: usize = 4_096;
/// What messages of one call may cost, as its app counts them, while its stream takes none and another message comes. An app
/// that heeds its window sends none behind a quarter of that; the rest allows for an encoding in which messages are longer.
pub const CALL_PENDING_BYTES_MAX: u64 = 4 << 20;
/// Bytes of what has come and the app has not been given, with what each message costs beside its own.
pub const HELD_BYTES_MAX: usize = 96 << 20;
/// Bytes that one call's messages take, with what each costs beside its own, while they are kept until the server has shown
/// that it began the call.
pub const REPLAY_CALL_BYTES_MAX: usize = 1 << 20;
/// The same of all calls.
pub const REPLAY_BYTES_MAX: usize = 16 << 20;
/// Servers of gRPC end a connection whose client pings more often, unless they were told otherwise.
pub const KEEPALIVE_INTERVAL_NS_MIN: Nanos = 300 * SECOND_NS;

/// Links on which calls begin at a time, at most ([`GrpcTransportConfig::connections_max`]).
pub const CONNECTIONS_MAX: usize = 16;
/// Links that are opened in the place of one that takes no more calls, in all.
pub(crate) const DIALS_MAX: u32 = 3;
/// For how long calls wait for the links that there are, when another one was not had.
pub(crate) const GROW_PAUSE_NS: Nanos = SECOND_NS;
/// For how long a link without calls is kept beside others on which calls begin.
pub(crate) const IDLE_LINK_NS: Nanos = 60 * SECOND_NS;
/// Calls under way on a link whose server has not said its settings: none should allow fewer (RFC 9113, section 6.5.2).
pub(crate) const CALLS_BEFORE_SETTINGS_MAX: usize = 100;
/// Ends of calls that were refused and wait for room towards the app.
pub(crate) const REFUSALS_MAX: usize = 256;
/// Bytes that are read at a time. One such buffer serves all links of a thread.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// Bytes that one poll reads, and writes, at most.
pub(crate) const POLL_BYTES_MAX: usize = 512 << 10;
/// Pieces that one write names.
pub(crate) const WRITE_PIECES: usize = 64;
/// How often the link that the runtime does not watch is looked at while something moves on it.
pub(crate) const LOOK_NS: Nanos = 2_000_000;
/// The same when nothing has moved for long: each time that nothing did, the gap is twice as long.
pub(crate) const LOOK_NS_MAX: Nanos = 100_000_000;
/// What the server may send of a stream ahead of the app.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// What it may send ahead of the app on all streams: so many streams that nobody reads leave the others their room.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;

/// Bytes of large messages that may come whole before the app takes them, and what others may have sent in part beside them.
const LARGE_MESSAGE_BYTES: usize = 64 << 20;
const PARTIAL_BYTES_MAX: usize = LARGE_MESSAGE_BYTES + (128 << 20);

/// Streams that the server resets: it is configured, and one that refuses or fails all of its calls attacks nobody.
const RESET_LIMIT: FloodLimit = FloodLimit::new(100_000, 20_000, 1);
/// Streams that this end resets because the server breaks a rule of HTTP/2 on them.
const PROVOKED_RESET_LIMIT: FloodLimit = FloodLimit::new(20_000, 2_000, 0);

const SECOND_NS: u64 = 1_000_000_000;

/// How a transport behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcTransportConfig {
    /// After how long without a byte from the server it is pinged while calls are under way, in nanoseconds; 0 for never.
    pub keepalive_interval_ns: u64,
    /// How long it may take to answer, in nanoseconds.
    pub keepalive_timeout_ns: u64,
    /// For how long calls begin on the connection, in nanoseconds; 0 for ever. A successor begins to count anew.
    pub age_max_ns: u64,
    /// Links on which calls begin at a time: another is opened for calls that wait until the server allows more of them. 1 to
    /// [`CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// Calls under way, waiting ones too.
    pub calls_max: u32,
    /// Largest message in either direction, in bytes.
    pub message_bytes_max: u32,
    /// How messages are compressed of which the app says nothing.
    pub compression: MessageEncoding,
    /// What becomes of messages that are compressed, of the app and for it.
    pub compressed: CompressedMessages,
}

impl Default for GrpcTransportConfig {
    fn default() -> GrpcTransportConfig {
        GrpcTransportConfig {
            keepalive_interval_ns: KEEPALIVE_INTERVAL_NS_MIN,
            keepalive_timeout_ns: 20 * SECOND_NS,
            age_max_ns: 0,
            connections_max: 1,
            calls_max: CALLS_IN_FLIGHT_MAX as u32,
            message_bytes_max: MESSAGE_BYTES_MAX,
            compression: MessageEncoding::Identity,
            compressed: CompressedMessages::Decompressed,
        }
    }
}

impl GrpcTransportConfig {
    /// What the protocol is told.
    pub(crate) fn protocol(&self) -> GrpcConfig {
        GrpcConfig {
            http2: Http2Config {
                streams_max: self.calls_max,
                stream_window_bytes: STREAM_WINDOW_BYTES,
                connection_window_bytes: CONNECTION_WINDOW_BYTES,
                floods: FloodLimits {
                    reset: RESET_LIMIT,
                    provoked_reset: PROVOKED_RESET_LIMIT,
                    ..FloodLimits::default()
                },
                ..Http2Config::default()
            },
            received_message_bytes_max: self.message_bytes_max,
            sent_message_bytes_max: self.message_bytes_max,
            large_message_bytes_max: LARGE_MESSAGE_BYTES,
            partial_bytes_max: PARTIAL_BYTES_MAX,
            ..GrpcConfig::default()
        }
    }

    /// What becomes of messages that are not compressed of a call whose caller has said how it compresses.
    pub(crate) fn plain_ones(&self) -> PlainMessages {
        match self.compressed {
            CompressedMessages::Passed => PlainMessages::StayPlain,
            CompressedMessages::Decompressed => PlainMessages::Compressed,
        }
    }

    /// Places of links: each that takes calls may have one beside it whose server takes no more.
    pub(crate) fn link_places(&self) -> usize {
        2 * self.connections_max.clamp(1, CONNECTIONS_MAX)
    }

    /// When a connection that begins now has its greatest age; none if it never has.
    pub(crate) fn old_at(&self, now: Nanos) -> Option<Nanos> {
        (self.age_max_ns > 0).then(|| now.saturating_add(self.age_max_ns))
    }

    /// Pings while calls are under way.
    pub(crate) fn keepalive(&self) -> Option<KeepalivePolicy> {
        (self.keepalive_interval_ns > 0).then_some(KeepalivePolicy {
            interval_ns: self.keepalive_interval_ns,
            timeout_ns: self.keepalive_timeout_ns,
        })
    }
}

/// A method of the service, by whose index steps begin calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcMethod {
    /// Of the form `/package.Service/Method`.
    pub path: String,
    /// Whether the client sends any number of messages.
    pub client_streaming: bool,
    /// Whether the server sends any number of messages.
    pub server_streaming: bool,
}
