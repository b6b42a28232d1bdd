//! HPACK (RFC 7541): field lists to bytes and back.
//!
//! An [`HpackEncoder`] and the peer's [`HpackDecoder`] keep the same dynamic table, so every block that one end wrote must be
//! decoded by the other, in order, whether anybody wants its fields or not.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod static_table;
mod table;

pub use decoder::{DecodedBlock, HPACK_BLOCK_LISTS, HpackDecoder, HpackError};
pub use encoder::{ENCODER_TABLE_BYTES_MAX, HpackEncoder};
pub use huffman::{HuffmanError, huffman_bytes, huffman_decode, huffman_encode};
pub use static_table::{STATIC_ENTRIES, static_field};

/// What is saved of an encoder and a decoder.
pub(crate) mod saved {
    pub(crate) use super::decoder::{BlockProgress, SavedDecoder};
    pub(crate) use super::encoder::{SavedEncoder, SizeUpdate};
}

/// Both ends begin with a dynamic table of so many bytes (RFC 9113, section 6.5.2).
pub const TABLE_BYTES_INITIAL: u32 = 4_096;

/// What an entry counts beyond its name and value (RFC 7541, section 4.1); a field in a list counts the same (RFC 9113,
/// section 6.5.2).
pub const ENTRY_OVERHEAD_BYTES: usize = 32;
