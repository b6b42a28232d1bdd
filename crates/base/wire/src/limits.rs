//! The bounds that hold everywhere. A configuration may lower most of them, never raise them past the maximum.

/// Alignment of every block in a heap, and the unit of every offset in the native layout, in bytes.
pub const BLOCK_ALIGN_BYTES: usize = 8;
/// Largest message, in native or protobuf form, in bytes.
pub const MESSAGE_BYTES_MAX: u32 = 64 << 20;
/// Largest encoded metadata block of one call step, in bytes.
pub const METADATA_BYTES_MAX: u32 = 16 << 10;
/// Entries in one metadata block.
pub const METADATA_ENTRIES_MAX: usize = 256;
/// How deep messages may nest (protobuf's own default).
pub const NESTING_MAX: u32 = 100;
/// Segments of one message that are gathered from the app's heap without a copy; past it they are copied.
pub const GATHER_SEGMENTS_MAX: usize = 64;
/// A string, bytes or list of scalars of at least this many bytes is gathered in place, a smaller one is copied.
pub const GATHER_SEGMENT_BYTES_MIN: u32 = 4 << 10;
/// Largest piece of one message on the wire before other calls get their turn, in bytes.
pub const CHUNK_BYTES_MAX: u32 = 64 << 10;
/// Bytes of messages that a stream's sender may have unacknowledged by its reader, by default.
pub const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// What each streamed message costs of the window beside its own bytes.
pub const STREAM_MESSAGE_COST_BYTES: u32 = 64;
/// Calls in flight on one connection.
pub const CALLS_IN_FLIGHT_MAX: usize = 16 << 10;
/// Bits of a connection's number, from the lowest on, that are its place among its app's connections. The bits above
/// count how often the place was used, and begin again at 1 after their last.
pub const CONNECTION_PLACE_BITS: u32 = 20;
/// Slots of a ring: the least, what an app gets when it does not ask, and the most. Powers of two.
pub const RING_SLOTS_MIN: u32 = 16;
/// See [`RING_SLOTS_MIN`].
pub const RING_SLOTS_DEFAULT: u32 = 1024;
/// See [`RING_SLOTS_MIN`].
pub const RING_SLOTS_MAX: u32 = 16 << 10;
/// Largest region (a send heap, or all segments of a receive heap) in bytes.
pub const REGION_BYTES_MAX: u64 = 8 << 30;
/// Where an app's send heap begins in its window, in units of 8 bytes (the first 2 MiB of a window stay unmapped, so
/// that offset 0 and small offsets by mistake point at nothing).
pub const SEND_WINDOW: u32 = (2 << 20) / BLOCK_ALIGN_BYTES as u32;
/// Size of an app's window: what `u32` offsets in units of 8 bytes reach.
pub const WINDOW_BYTES: u64 = (u32::MAX as u64 + 1) * BLOCK_ALIGN_BYTES as u64;
/// Largest descriptor set that an app may bring, in bytes.
pub const SCHEMA_BYTES_MAX: usize = 4 << 20;
/// Messages, and likewise enums and services, of one schema.
pub const SCHEMA_TYPES_MAX: usize = 4096;
/// Fields of all messages of one schema.
pub const SCHEMA_FIELDS_MAX: usize = 64 << 10;
/// Parts (files, types, fields, values, options, comments' places) of one descriptor set: what it may make its reader
/// allocate.
pub const SCHEMA_PARTS_MAX: usize = 256 << 10;
/// Methods, messages, fields, enums and values that the services of one schema reach, counted anew for each service: the
/// work of telling its services apart. At least [`SCHEMA_PARTS_MAX`], so that one service may reach all there is.
pub const SCHEMA_REACH_MAX: usize = 1 << 20;
/// Fields of one message.
pub const MESSAGE_FIELDS_MAX: usize = 4096;
/// Methods of one service.
pub const SERVICE_METHODS_MAX: usize = 1024;
/// One control message on the Unix socket, in bytes (descriptors travel in memfds beside it).
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Length of a service's or an app's name, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Largest handshake body on the wire, in bytes: a schema and a service name.
pub const HANDSHAKE_BYTES_MAX: u32 = (SCHEMA_BYTES_MAX + 4096) as u32;
