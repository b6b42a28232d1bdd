//! A step that is in this program.

use std::ops::Range;

use provost_datapath::{
    Body, Buffer, BufferPool, EncodedBody, PlainCopy, ReceiveHeap, ReceivedBody, Step, message_offset,
};
use provost_marshal::{FieldPath, ReadError, Scratch, Tables, Value, View, linearize};
use provost_schema::MessageId;
use provost_wire::limits::{BLOCK_ALIGN_BYTES, MESSAGE_BYTES_MAX, METADATA_BYTES_MAX, METADATA_ENTRIES_MAX};
use provost_wire::metadata::{self, MetadataError};

use super::{Contents, MetadataFull, UnreadableMessage};
use crate::Parts;

/// A step and what its body is in.
pub(crate) struct LocalStep<'a> {
    pub(crate) step: &'a mut Step,
    pub(crate) receive: &'a mut (dyn ReceiveHeap + 'a),
    pub(crate) buffers: &'a mut BufferPool,
    /// What a message that came as protobuf is in the native layout, for who needs all of it.
    decoded: Option<Buffer>,
    /// Why the message could not be read.
    unreadable: Option<UnreadableMessage>,
}

impl<'a> LocalStep<'a> {
    pub(crate) fn new(
        step: &'a mut Step,
        receive: &'a mut (dyn ReceiveHeap + 'a),
        buffers: &'a mut BufferPool,
    ) -> LocalStep<'a> {
        LocalStep {
            step,
            receive,
            buffers,
            decoded: None,
            unreadable: None,
        }
    }

    /// Gives back what was taken to read the step. What is the matter with its message, if somebody read it in vain.
    #[inline]
    pub(crate) fn finish(self) -> Option<UnreadableMessage> {
        if let Body::Encoded(body) = &mut self.step.body {
            body.drop_plain_without_room();
        }
        if let Some(decoded) = self.decoded {
            self.buffers.give(decoded);
        }
        self.unreadable
    }

    pub(crate) fn message_bytes(&self) -> u32 {
        match &self.step.body {
            Body::Gathered(body) => body.message_bytes,
            Body::Received(body) => body.message_bytes,
            Body::Encoded(body) => body.message_bytes,
            Body::Empty | Body::Untrusted(_) => 0,
        }
    }

    /// Whether the message is not there in the native layout: parts of it are still in the app's memory, or it is protobuf.
    pub(crate) fn is_split(&self) -> bool {
        match &self.step.body {
            Body::Gathered(body) => !body.buffer.foreign.is_empty(),
            _ => self.is_protobuf(),
        }
    }

    /// Whether the message is protobuf, and was not decoded.
    #[inline]
    pub(crate) fn is_protobuf(&self) -> bool {
        let is_protobuf = matches!(self.step.body, Body::Encoded(_) | Body::Empty);
        is_protobuf && self.decoded.is_none() && self.step.parts.contains(Parts::MESSAGE)
    }

    /// Reads a field of a message that is protobuf.
    pub(crate) fn protobuf_field(
        &mut self,
        tables: &Tables,
        path: &FieldPath,
    ) -> Result<Option<Value<'_>>, ReadError> {
        if let Err(error) = self.decompress_within(u32::MAX) {
            self.unreadable = Some(error);
            return Err(ReadError);
        }
        let protobuf = protobuf_of(&self.step.body).ok_or(ReadError)?;
        let read = Scratch::of_thread(|scratch| tables.read_protobuf(path, protobuf, scratch));
        read.map_err(|error| {
            self.unreadable = Some(error.into());
            ReadError
        })
    }

    /// Notes that a filter could not read the message.
    pub(crate) fn note_unreadable(&mut self, error: UnreadableMessage) {
        self.unreadable = Some(error);
    }

    /// Has the protobuf of a message that is compressed, of so many bytes at most; says whether it was. It goes on as it came.
    pub(crate) fn decompress_within(&mut self, bytes_max: u32) -> Result<bool, UnreadableMessage> {
        match &mut self.step.body {
            Body::Encoded(body) => Ok(body.decompress_within(bytes_max)? == PlainCopy::Made),
            _ => Ok(false),
        }
    }

    /// Decodes a message that is protobuf; says whether it was. What goes on is the protobuf, as it came.
    pub(crate) fn decode(&mut self, tables: &Tables, message: MessageId) -> Result<bool, UnreadableMessage> {
        if !self.is_protobuf() {
            return Ok(false);
        }
        self.decompress_within(u32::MAX)?;
        let protobuf = protobuf_of(&self.step.body).unwrap_or_default();
        let mut native = self.buffers.take();
        let (bytes, bytes_max) = (&mut native.bytes, MESSAGE_BYTES_MAX);
        let decoded =
            Scratch::of_thread(|scratch| tables.decode(message, protobuf, bytes, bytes_max, scratch));
        if let Err(error) = decoded {
            self.buffers.give(native);
            return Err(error.into());
        }
        self.decoded = Some(native);
        Ok(true)
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
        let has_message = self.step.parts.contains(Parts::MESSAGE);
        let message = match &self.step.body {
            _ if !has_message => None,
            Body::Gathered(_) => rest.map(View::linear),
            Body::Received(body) => {
                let window_at = body.block.at + (offset / BLOCK_ALIGN_BYTES) as u32;
                let message = rest.and_then(|rest| rest.get(..body.message_bytes as usize));
                message.map(|message| View::relocated(message, window_at))
            }
            Body::Encoded(_) | Body::Empty => self.decoded.as_ref().map(|native| View::linear(&native.bytes)),
            Body::Untrusted(_) => None,
        };
        let is_protobuf = has_message && message.is_none();
        let protobuf = protobuf_of(&self.step.body).filter(|_| is_protobuf);
        Contents {
            is_compressed: is_protobuf && protobuf.is_none() && is_compressed(&self.step.body),
            metadata: match &self.step.body {
                Body::Received(ReceivedBody { added: Some(all), .. }) => &all.bytes,
                _ => bytes.get(..metadata_bytes as usize).unwrap_or_default(),
            },
            message,
            protobuf,
        }
    }

    fn metadata_block_mut(&mut self) -> &mut [u8] {
        let (bytes, metadata_bytes) = match &mut self.step.body {
            Body::Gathered(body) => (body.buffer.bytes.as_mut_slice(), body.metadata_bytes),
            Body::Encoded(body) => (body.buffer.bytes.as_mut_slice(), body.metadata_bytes),
            Body::Received(ReceivedBody { added: Some(all), .. }) => return &mut all.bytes,
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
            self.step.body = Body::Encoded(EncodedBody::plain(self.buffers.take(), 0, 0));
        }
        let (bytes, metadata_bytes) = match &mut self.step.body {
            Body::Gathered(body) => (&mut body.buffer.bytes, &mut body.metadata_bytes),
            Body::Encoded(body) => (&mut body.buffer.bytes, &mut body.metadata_bytes),
            Body::Received(_) if self.step.parts.contains(Parts::BEGIN) => {
                return self.append_to_received(key, value, entry_bytes);
            }
            _ => return Err(MetadataFull::Inbound),
        };
        let old_bytes = *metadata_bytes as usize;
        let new_bytes = old_bytes + entry_bytes;
        if new_bytes > METADATA_BYTES_MAX as usize {
            return Err(MetadataError::TooLong { bytes: new_bytes }.into());
        }
        resize_metadata(bytes, metadata_bytes, new_bytes as u32);
        metadata::write_entry(&mut bytes[old_bytes..new_bytes], key, value);
        Ok(())
    }

    /// Adds to the metadata of a call that comes in. The block has no room: all of it goes on beside the block.
    fn append_to_received(
        &mut self,
        key: &str,
        value: &[u8],
        entry_bytes: usize,
    ) -> Result<(), MetadataFull> {
        let Body::Received(body) = &mut self.step.body else {
            return Err(MetadataFull::Inbound);
        };
        let old_bytes = body
            .added
            .as_ref()
            .map_or(body.metadata_bytes as usize, |all| all.bytes.len());
        let bytes = old_bytes + entry_bytes;
        if bytes > METADATA_BYTES_MAX as usize {
            return Err(MetadataError::TooLong { bytes }.into());
        }
        let all = received_metadata(body, self.receive, self.buffers);
        all.resize(bytes, 0);
        metadata::write_entry(&mut all[old_bytes..], key, value);
        Ok(())
    }

    pub(crate) fn remove_metadata(&mut self, key: &str) {
        let is_begin = self.step.parts.contains(Parts::BEGIN);
        while let Some(entry) = self.entry(key) {
            let (bytes, metadata_bytes) = match &mut self.step.body {
                Body::Gathered(body) => (&mut body.buffer.bytes, &mut body.metadata_bytes),
                Body::Encoded(body) => (&mut body.buffer.bytes, &mut body.metadata_bytes),
                Body::Received(body) if is_begin => {
                    received_metadata(body, self.receive, self.buffers).drain(entry);
                    continue;
                }
                _ => return,
            };
            bytes.copy_within(entry.end..*metadata_bytes as usize, entry.start);
            resize_metadata(bytes, metadata_bytes, *metadata_bytes - entry.len() as u32);
        }
    }

    /// Where in the metadata the first entry of a key is.
    fn entry(&mut self, key: &str) -> Option<Range<usize>> {
        let block = self.contents().metadata;
        let value = metadata::find(block, key)?;
        let bytes = metadata::entry_bytes(key, &block[value.clone()]).ok()?;
        Some(value.end - bytes..value.end)
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

/// Moves the message behind metadata to where it is behind so many bytes of it.
fn resize_metadata(bytes: &mut Vec<u8>, metadata_bytes: &mut u32, new_bytes: u32) {
    let old_offset = message_offset(*metadata_bytes).min(bytes.len());
    let new_offset = message_offset(new_bytes);
    let message = old_offset..bytes.len();
    bytes.resize(bytes.len().max(message.len() + new_offset), 0);
    bytes.copy_within(message.clone(), new_offset);
    bytes.truncate(message.len() + new_offset);
    bytes[new_bytes as usize..new_offset].fill(0);
    *metadata_bytes = new_bytes;
}

/// The metadata of a call that comes in, beside its block, where it can be changed.
fn received_metadata<'b>(
    body: &'b mut ReceivedBody,
    receive: &mut dyn ReceiveHeap,
    buffers: &mut BufferPool,
) -> &'b mut Vec<u8> {
    let all = body.added.get_or_insert_with(|| {
        let mut all = buffers.take();
        let block = receive.bytes(&body.block);
        all.bytes
            .extend_from_slice(block.get(..body.metadata_bytes as usize).unwrap_or_default());
        all
    });
    &mut all.bytes
}

fn is_compressed(body: &Body) -> bool {
    matches!(body, Body::Encoded(body) if body.compression.is_some())
}

/// The message of a body that has one in protobuf, and not compressed. One whose fields all have their defaults has no bytes, and needs no body.
fn protobuf_of(body: &Body) -> Option<&[u8]> {
    match body {
        Body::Encoded(body) => body.protobuf(),
        Body::Empty => Some(&[]),
        Body::Untrusted(_) | Body::Gathered(_) | Body::Received(_) => None,
    }
}
