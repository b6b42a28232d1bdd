//! Frames of the native stream protocol (`docs/protocol.md`): a 40-byte header, then `body_bytes` of body.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::descriptor::Parts;

/// Version of the native protocol; both ends must speak the same.
pub const PROTOCOL_VERSION: u16 = 1;
/// The first four bytes of a connection, so that a stranger is recognized at once: `"PVST"`.
pub const MAGIC: [u8; 4] = *b"PVST";
/// Size of a frame's header, in bytes.
pub const HEADER_BYTES: usize = 40;

/// What a frame is.
pub mod frame_kind {
    /// Client's first frame: magic, version, service, schema hash.
    pub const HELLO: u8 = 1;
    /// Server's answer: go on, in the encoding it names.
    pub const WELCOME: u8 = 2;
    /// Server's answer: no, and why; the connection closes.
    pub const REFUSE: u8 = 3;
    /// Server's answer: the hashes differ, send your schema.
    pub const SEND_SCHEMA: u8 = 4;
    /// Client's schema, a serialized `FileDescriptorSet`.
    pub const SCHEMA: u8 = 5;
    /// A step of a call. Body: metadata, then the message or its first chunk.
    pub const STEP: u8 = 6;
    /// The next chunk of the message that the call's last `STEP` began.
    pub const CHUNK: u8 = 7;
    pub const PING: u8 = 8;
    pub const PONG: u8 = 9;
    /// No new call, please; those in flight are finished.
    pub const GO_AWAY: u8 = 10;
}

/// Header of every frame, little-endian.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    /// Bytes of body that follow this header.
    pub body_bytes: U32,
    /// One of [`frame_kind`].
    pub kind: u8,
    /// Parts of a `STEP`.
    pub parts: Parts,
    /// Index of the method, in the order of the client's `HELLO` (`BEGIN` only).
    pub method: U16,
    /// Which call; chosen by the client, increasing on a connection, from 1.
    pub call: U64,
    /// Bytes of metadata at the start of the body.
    pub metadata_bytes: U32,
    /// Bytes of the whole message, over all its chunks.
    pub message_bytes: U32,
    /// A status code (`STATUS`, `CANCEL`) or the bytes of a `WINDOW`.
    pub status_or_window: U32,
    /// How the message of a `STEP` is compressed: 0 for not at all, else 1 for gzip, 2 for deflate, 3 for zstd. Only to a peer that
    /// takes such messages.
    pub compression: U32,
    /// Time left for the call in nanoseconds; 0 for no limit (`BEGIN` only).
    pub timeout_ns: U64,
}

const _: () = assert!(size_of::<FrameHeader>() == HEADER_BYTES);
