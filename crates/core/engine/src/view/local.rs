//! A step that is in this program.

use provost_datapath::{Body, BufferPool, EncodedBody, ReceiveHeap, Step, message_offset};
use provost_marshal::{View, linearize};
use provost_wire::limits::{BLOCK_ALIGN_BYTES, METADATA_BYTES_MAX, METADATA_ENTRIES_MAX};
use provost_wire::metadata::{self, MetadataError};

use super::{Contents, MetadataFull};
use crate::Parts;

/// A step and what its body is in.
pub(crate) struct LocalStep<'a> {
    pub(crate) step: &'a mut Step,
    pub(crate) receive: &'a mut (dyn ReceiveHeap + 'a),
    pub(crate) buffers: &'a mut BufferPool,
}

impl LocalStep<'_> {
    pub(crate) fn message_bytes(&self) -> u32 {
        match &self.step.body {
            Body::Gathered(body) => body.message_bytes,
            Body::Received(body) => body.message_bytes,
            Body::Encoded(body) => body.message_bytes,
            Body::Empty | Body::Untrusted(_) => 0,
        }
    }

    /// Whether parts of the message are still in the app's memory.
    pub(crate) fn is_split(&self) -> bool {
        matches!(&self.step.body, Body::Gathered(body) if !body.buffer.foreign.is_empty())
    }

    /// Copies what is still in the app's memory, and says whether there was any.
    pub(crate) fn make_whole(&mut self) -> bool {
        match &mut self.step.body {
            Body::Gathered(body) if !body.buffer.foreign.is_empty() => {
                linearize(&mut body.buffer);
                true
            }
            _ => false,
        }
    }

    /// Metadata and message as far as they are in private memory.
    pub(crate) fn contents(&mut self) -> Contents<'_> {
        let (bytes, metadata_bytes) = match &self.step.body {
            Body::Gathered(body) => (&body.buffer.bytes[..], body.metadata_bytes),
            Body::Received(body) => (self.receive.bytes(&body.block), body.metadata_bytes),
            Body::Encoded(body) => (&body.buffer.bytes[..], body.metadata_bytes),
            Body::Empty | Body::Untrusted(_) => (&[][..], 0),
        };
        let offset = message_offset(metadata_bytes);
        let rest = bytes.get(offset..);
        let message = match &self.step.body {
            _ if !self.step.parts.contains(Parts::MESSAGE) => None,
            Body::Gathered(_) => rest.map(View::linear),
            Body::Received(body) => {
                let window_at = body.block.at + (offset / BLOCK_ALIGN_BYTES) as u32;
                let message = rest.and_then(|rest| rest.get(..body.message_bytes as usize));
                message.map(|message| View::relocated(message, window_at))
            }
            // Protobuf is only on the wire's side of the marshalling engine, where no policy is.
            Body::Empty | Body::Untrusted(_) | Body::Encoded(_) => None,
        };
        Contents {
            metadata: bytes.get(..metadata_bytes as usize).unwrap_or_default(),
            message,
        }
    }

    fn metadata_block_mut(&mut self) -> &mut [u8] {
        let (bytes, metadata_bytes) = match &mut self.step.body {
            Body::Gathered(body) => (body.buffer.bytes.as_mut_slice(), body.metadata_bytes),
            Body::Encoded(body) => (body.buffer.bytes.as_mut_slice(), body.metadata_bytes),
            Body::Received(body) => (self.receive.bytes_mut(&mut body.block), body.metadata_bytes),
            Body::Empty | Body::Untrusted(_) => return &mut [],
        };
        bytes.get_mut(..metadata_bytes as usize).unwrap_or_default()
    }

    pub(crate) fn append_metadata(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataFull> {
        let entry_bytes = metadata::entry_bytes(key, value)?;
        if metadata::entries(self.contents().metadata).count() >= METADATA_ENTRIES_MAX {
            return Err(MetadataError::TooMany.into());
        }
        if matches!(self.step.body, Body::Empty) {
            self.step.body = Body::Encoded(EncodedBody {
                buffer: self.buffers.take(),
                metadata_bytes: 0,
                message_bytes: 0,
            });
        }
        let (bytes, metadata_bytes) = match &mut self.step.body {
            Body::Gathered(body) => (&mut body.buffer.bytes, &mut body.metadata_bytes),
            Body::Encoded(body) => (&mut body.buffer.bytes, &mut body.metadata_bytes),
            _ => return Err(MetadataFull::Inbound),
        };
        let old_bytes = *metadata_bytes as usize;
        let new_bytes = old_bytes + entry_bytes;
        if new_bytes > METADATA_BYTES_MAX as usize {
            return Err(MetadataError::TooLong { bytes: new_bytes }.into());
        }
        let old_offset = message_offset(*metadata_bytes).min(bytes.len());
        let new_offset = message_offset(new_bytes as u32);
        let message = old_offset..bytes.len();
        bytes.resize(bytes.len().max(message.len() + new_offset), 0);
        bytes.copy_within(message.clone(), new_offset);
        bytes.truncate(message.len() + new_offset);
        metadata::write_entry(&mut bytes[old_bytes..new_bytes], key, value);
        bytes[new_bytes..new_offset].fill(0);
        *metadata_bytes = new_bytes as u32;
        Ok(())
    }

    pub(crate) fn overwrite_metadata(&mut self, key: &str, value: &[u8]) -> bool {
        if metadata::entry_bytes(key, value).is_err() {
            return false;
        }
        let block = self.metadata_block_mut();
        match metadata::find(block, key) {
            Some(place) if place.len() == value.len() => {
                block[place].copy_from_slice(value);
                true
            }
            _ => false,
        }
    }
}
