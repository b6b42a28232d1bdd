//! Messages whose bytes follow from a seed, with and without parts in "foreign" memory.

use std::num::NonZeroUsize;
use std::sync::Arc;

use provost_datapath::{Body, BufferPool, ForeignBytes, Gathered, Keepalive, message_offset};
use provost_marshal::copy_foreign;
use provost_session::Piece;
use provost_wire::metadata;

use crate::Random;

/// What a test sends beside the parts.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Seed of the message's bytes.
    pub seed: u64,
    /// Length of the message; 0 for none.
    pub message_bytes: u32,
    pub metadata: Vec<(String, Vec<u8>)>,
}

/// A message of so many bytes, without metadata.
#[must_use]
pub fn content(seed: u64, message_bytes: u32) -> Content {
    Content {
        seed,
        message_bytes,
        metadata: Vec::new(),
    }
}

/// The bytes of a message of this seed and length.
#[must_use]
pub fn content_bytes(seed: u64, message_bytes: u32) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(message_bytes as usize + 8);
    while bytes.len() < message_bytes as usize {
        bytes.extend_from_slice(&random.number().to_le_bytes());
    }
    bytes.truncate(message_bytes as usize);
    for zeros in padding_ranges(seed, message_bytes) {
        bytes[zeros].fill(0);
    }
    bytes
}

struct MessageMemory(Vec<u8>);

impl Keepalive for MessageMemory {}

impl Content {
    #[must_use]
    pub fn metadata_block(&self) -> Vec<u8> {
        let mut block = Vec::new();
        for (key, value) in &self.metadata {
            metadata::append(&mut block, key, value).expect("a test's metadata is valid");
        }
        block
    }

    /// The content as a frontend hands it on: a private head, and large leaves in foreign memory.
    #[must_use]
    pub fn gathered(&self, token: u64, buffers: &mut BufferPool) -> Body {
        let mut buffer = buffers.take();
        buffer.bytes.extend_from_slice(&self.metadata_block());
        let metadata_bytes = buffer.bytes.len() as u32;
        buffer.bytes.resize(message_offset(metadata_bytes), 0);
        let bytes = content_bytes(self.seed, self.message_bytes);
        let leaves = leaves(self.seed, self.message_bytes);
        let head = leaves.first().map_or(bytes.len(), |leaf| leaf.start);
        buffer.bytes.extend_from_slice(&bytes[..head]);
        let memory = Arc::new(MessageMemory(bytes));
        for leaf in leaves {
            let address = NonZeroUsize::new(memory.0.as_ptr().addr() + leaf.start).expect("not null");
            let keepalive: Arc<dyn Keepalive> = memory.clone();
            buffer
                .foreign
                .push(ForeignBytes::new(address, leaf.len() as u32, keepalive));
        }
        // What is only ever read by address is exposed here once.
        let _ = memory.0.as_ptr().expose_provenance();
        if self.message_bytes == 0 && metadata_bytes == 0 && token == 0 {
            buffers.give(buffer);
            Body::Empty
        } else {
            Body::Gathered(Gathered {
                buffer,
                metadata_bytes,
                message_bytes: self.message_bytes,
                token,
            })
        }
    }
}

/// The bytes of a piece that a connection wants to send.
#[must_use]
pub fn piece_bytes(piece: Piece<'_>) -> Vec<u8> {
    match piece {
        Piece::Private(bytes) => bytes.to_vec(),
        Piece::Foreign { range, from, length } => {
            let mut bytes = Vec::new();
            copy_foreign(&range.part(from, length), &mut bytes);
            bytes
        }
    }
}

/// Which parts of a message lie in foreign memory: for a message of some size, its second half in up to five leaves
/// of odd lengths.
fn leaves(seed: u64, message_bytes: u32) -> Vec<std::ops::Range<usize>> {
    let bytes = message_bytes as usize;
    if bytes < 8 << 10 {
        return Vec::new();
    }
    let mut random = Random::new(!seed);
    let mut leaves = Vec::new();
    let mut at = (bytes / 2).next_multiple_of(8);
    while at < bytes {
        let left = bytes - at;
        let length = match leaves.len() {
            4 => left,
            _ => random.between(1, (bytes / 4 + 5) as u64) as usize,
        };
        // The last leaf ends the message; padding is only between leaves.
        let length = if (at + length).next_multiple_of(8) >= bytes {
            left
        } else {
            length
        };
        leaves.push(at..at + length);
        at = (at + length).next_multiple_of(8);
    }
    leaves
}

/// Where the message has padding between its leaves.
fn padding_ranges(seed: u64, message_bytes: u32) -> Vec<std::ops::Range<usize>> {
    let leaves = leaves(seed, message_bytes);
    leaves.windows(2).map(|pair| pair[0].end..pair[1].start).collect()
}
