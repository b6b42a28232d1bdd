//! What a peer can do wrong.

use provost_wire::descriptor::Parts;
use provost_wire::metadata::MetadataError;

/// The peer broke the protocol; the connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A frame of a kind that does not exist, or not at this time.
    #[error("a frame of kind {kind}, which does not exist or is not due here")]
    Kind { kind: u8 },
    /// A frame whose header contradicts itself.
    #[error("call {call}: a frame's header is wrong: {what}")]
    Header {
        /// The call that it names.
        call: u64,
        what: &'static str,
    },
    /// Parts that may not stand together, not come from that end, or not come now.
    #[error("call {call}: a step of {parts:?}: {what}")]
    Parts {
        call: u64,
        parts: Parts,
        what: &'static str,
    },
    /// A call began whose number is not above those before it.
    #[error("call {call} began after call {highest}; numbers must increase")]
    CallOrder {
        call: u64,
        /// The highest before it.
        highest: u64,
    },
    /// A frame names a call that never began.
    #[error("a frame for call {call}, which never began")]
    UnknownCall { call: u64 },
    /// A call to a method that the client has not named in its hello.
    #[error("call {call}: method {method} of {methods}")]
    Method {
        call: u64,
        /// The index in the frame.
        method: u16,
        /// How many methods the client has named.
        methods: usize,
    },
    /// A message over this end's limit, which the peer was told.
    #[error("call {call}: a message of {bytes} bytes, where this end said that it takes at most {bytes_max}")]
    MessageTooLong { call: u64, bytes: u32, bytes_max: u32 },
    /// A chunk that does not continue what the call's last step began.
    #[error("call {call}: a chunk: {what}")]
    Chunk { call: u64, what: &'static str },
    #[error("call {call}: {error}")]
    Metadata { call: u64, error: MetadataError },
    /// A streamed message though the stream's window was used up, or a window given back that was never taken.
    #[error("call {call}: {what} (window: {window_bytes} bytes)")]
    Window {
        call: u64,
        what: &'static str,
        /// The window as this end counts it.
        window_bytes: i64,
    },
    /// The peer found a mistake of this end and says so.
    #[error("the peer closed the connection: {reason}")]
    PeerClosed {
        /// What the peer says.
        reason: String,
    },
}
